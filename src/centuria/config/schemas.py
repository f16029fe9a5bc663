"""JSON Schemas that answers must satisfy: read, and refused here rather than after the first answer was paid for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from centuria.config.reading import SMALL, parse_json, read_text, shown
from centuria.core.answer_schema import check_schema
from centuria.errors import JobError


def load_schema(value: str | Mapping[str, Any], *, folder: Path, place: str) -> Mapping[str, Any]:
    """A schema from a file, or as it is. `place` is where it was asked for. Raises `JobError`."""
    if isinstance(value, str):
        path = folder / value
        name = shown(path)
        return check_schema(parse_json(read_text(path, limit=SMALL, what=f"{place}: the file"), name), name)
    try:
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise JobError(
            f"{place} holds what JSON cannot: a date, NaN or too deep a nest.", remedy="Remove it."
        ) from None
    return check_schema(plain, place)


def property_of(schema: Mapping[str, Any], name: str) -> bool:
    """Whether a schema names this property."""
    properties = schema.get("properties")
    return isinstance(properties, dict) and name in properties
