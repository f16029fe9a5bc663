"""A tool's input schema as each provider takes it. Pure.

    schema, as a server wrote it -> reading -> forms (the normal form) -> writing -> schema, as the provider takes it

What a provider cannot be told in keywords is told in a description. A value that the tool takes stays one that the
schema takes, as far as the provider's rules let it; what the tool does not take is refused when it is called, since
arguments are held against the schema as it was written (`core.arguments`). The same schema always gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from centuria.core.schemas.dialects import (
    ANTHROPIC,
    DEEPSEEK,
    DIALECTS,
    GEMINI,
    KIMI,
    OPENAI,
    PLAIN,
    Dialect,
)
from centuria.core.schemas.forms import Form, Node, one_object
from centuria.core.schemas.reading import Reader, TooLarge
from centuria.core.schemas.writing import Writer, shortened, weight

__all__ = [
    "ANTHROPIC",
    "DEEPSEEK",
    "DIALECTS",
    "GEMINI",
    "KIMI",
    "OPENAI",
    "PLAIN",
    "Dialect",
    "Unlawful",
    "legal",
    "shortened",
]

#: Bytes of a schema as it was written, beyond which nothing is made of it.
MOST_BYTES = 256_000
#: (how often a schema may stand in itself, objects in objects, characters of a description, of an enum's values): tried
#: in turn until the provider's sizes are kept.
_EFFORTS = (
    (2, 99, 2_000, 50_000),
    (1, 99, 600, 4_000),
    (1, 6, 300, 1_000),
    (1, 4, 160, 400),
    (1, 3, 100, 200),
    (1, 2, 60, 100),
    (1, 1, 40, 60),
    (1, 1, 0, 0),
)


class Unlawful(ValueError):
    """No provider can be given this schema; `str(error)` says why, as what follows "it is left out: "."""


def legal(schema: Any, dialect: Dialect) -> dict[str, Any]:
    """The schema as `dialect` takes it. Raises `Unlawful`: the tool cannot be offered."""
    if not isinstance(schema, Mapping):
        raise Unlawful("its input schema is not an object.")
    _check_size(schema)
    for unroll, depth, text, choices in _EFFORTS:
        try:
            node = Reader(schema, unroll, min(depth, dialect.depth)).read(schema)
        except TooLarge:
            continue
        writer = Writer(dialect, text, choices)
        out = writer.top(_arguments(node))
        if writer.properties <= dialect.properties and weight(out) <= dialect.size:
            return out
    raise Unlawful(f"its input schema cannot be brought to the {dialect.size:,} bytes that {dialect.name} takes.")


def _check_size(schema: Mapping[str, Any]) -> None:
    try:
        size = len(json.dumps(schema, default=str))
    except (ValueError, RecursionError):
        raise Unlawful("its input schema is nested too deeply, or is no JSON.") from None
    if size > MOST_BYTES:
        raise Unlawful(f"its input schema has {size:,} bytes, more than {MOST_BYTES:,}.")


def _arguments(node: Node) -> Form:
    """The one object that a call's arguments are."""
    if node.forms is None:
        return Form("object", text=node.text, notes=node.notes)
    forms = [form for form in node.forms if form.type == "object"]
    if not forms:
        raise Unlawful("its input schema takes no object, and arguments always are one.")
    form = one_object(forms)
    notes = tuple(dict.fromkeys((*form.notes, *node.notes)))
    return Form("object", form.words, form.properties, form.required, form.extra, None, node.text or form.text, notes)
