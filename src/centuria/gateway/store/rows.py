"""What both stores make of keys, attempts and documents on their way in and out: plain columns, all within bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from centuria.errors import ConfigurationError
from centuria.gateway.ports import AttemptRow, Document, Key
from centuria.gateway.problems import bad_request, too_large
from centuria.messages import Pico, safe_text

#: Number of the tables' form. A store of a newer one is refused.
SCHEMA = 1
#: Bytes of one document's body, at most.
BODY_CAP = 2**20
#: Characters of a text of a row, at most.
_TEXT_CAP = 500
#: No attempt costs more ($10,000) nor has more tokens: an upstream that says so must not break the sums.
_MOST_COST: Pico = 10**16
_MOST_COUNT = 10**12

KEY_COLUMNS = ("id", "name", "budget", "rpm", "tpm", "models", "tools", "admin", "created", "revoked")
ATTEMPT_COLUMNS = AttemptRow._fields
_TEXTS = ("request", "key", "model", "deployment", "route", "end", "agent", "error")
_COUNTS = ("attempt", "status", "prompt", "cached", "cache_written", "output", "reasoning")
_texts_of, _counts_of = attrgetter(*_TEXTS), attrgetter(*_COUNTS)


def key_values(key: Key) -> tuple[Any, ...]:
    return (
        key.id,
        key.name,
        key.budget,
        key.rpm,
        key.tpm,
        _names_out(key.models),
        _names_out(key.tools),
        key.admin,
        key.created,
        key.revoked,
    )


def key_of(values: Sequence[Any]) -> Key:
    """The key of a row's first columns, which are `KEY_COLUMNS`."""
    id, name, budget, rpm, tpm, models, tools, admin, created, revoked = values[: len(KEY_COLUMNS)]
    return Key(id, name, budget, rpm, tpm, _names_in(models), _names_in(tools), bool(admin), created, revoked)


def _names_out(names: frozenset[str] | None) -> str | None:
    return None if names is None else json.dumps(sorted(names))


def _names_in(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(json.loads(text))


def attempt_values(row: AttemptRow) -> tuple[Any, ...]:
    """A row's columns, so bounded that any store takes them: one row that none takes would keep all others out."""
    texts, counts, money = _texts_of(row), _counts_of(row), (row.cost, row.held)
    whole = "".join(texts)
    if (
        len(whole) <= _TEXT_CAP
        and whole.isascii()
        and "\0" not in whole
        and min(counts) >= 0
        and max(counts) <= _MOST_COUNT
        and min(money) >= 0
        and max(money) <= _MOST_COST
        and math.isfinite(row.at + row.queued_ms + row.total_ms + (row.first_token_ms or 0.0))
    ):
        return tuple(row)
    return tuple([_bounded(name, value) for name, value in zip(ATTEMPT_COLUMNS, row, strict=True)])


def attempt_of(values: Sequence[Any]) -> AttemptRow:
    known = dict(zip(ATTEMPT_COLUMNS, values, strict=True))
    return AttemptRow(**known | {"streamed": bool(known["streamed"])})


def _bounded(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return storable(value)
    if name in ("cost", "held"):
        return min(max(value, 0), _MOST_COST)
    if name in _COUNTS:
        return min(max(value, 0), _MOST_COUNT)
    if name == "streamed" or value is None:
        return value
    return float(value) if math.isfinite(value) else 0.0


def storable(text: str) -> str:
    """The text as every store can keep it: valid Unicode, without NUL, not too long."""
    if text.isascii() and len(text) <= _TEXT_CAP and "\0" not in text:
        return text
    return safe_text(text[:_TEXT_CAP]).replace("\0", "\ufffd")


def is_storable(*ids: str) -> bool:
    """Whether there can be an object of this name at all."""
    return all(storable(id) == id for id in ids)


def check_document(owner: str, document: Document) -> None:
    """Raises `Problem`."""
    if not is_storable(owner, document.id):
        raise bad_request("This id cannot be kept: it is too long, or has characters that are none.")
    if len(document.body.encode("utf-8", "surrogatepass")) > BODY_CAP:
        raise too_large(BODY_CAP)
    if "\0" in document.body or safe_text(document.body) != document.body:
        raise bad_request("The document is no JSON text.")


def draw(amount: Pico, leased: Pico, forfeited: Pico) -> tuple[Pico, Pico]:
    """What of `amount` the lease pays, and then what was held for a lease that was given up."""
    of_lease = min(amount, max(0, leased))
    return of_lease, min(amount - of_lease, max(0, forfeited))


def totals(rows: Iterable[tuple[str, Pico, Pico]]) -> dict[str, tuple[Pico, Pico]]:
    """`(key, cost, held)` added up by key, in the order of keys: so two gateways never wait for each other."""
    sums: dict[str, tuple[Pico, Pico]] = {}
    for key, cost, held in rows:
        spent, so_far = sums.get(key, (0, 0))
        sums[key] = (spent + cost, so_far + held)
    return dict(sorted(sums.items()))


def name_taken(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"There is a key called {name!r} already.",
        remedy=f"Choose another name, or revoke that one first: centuria keys revoke {name}",
    )


def newer_schema(where: str, schema: int) -> ConfigurationError:
    return ConfigurationError(
        f"The store {where} is of a newer Centuria (schema {schema}; this one knows {SCHEMA}).",
        remedy="Install the newer version: pip install --upgrade centuria.",
    )
