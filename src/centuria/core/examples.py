"""A value that fits a JSON Schema, as far as its plain keywords say: an unscripted rehearsal answers it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEPTH = 8
_WORDS = "rehearsal"


def example_of(schema: Mapping[str, Any], *, depth: int = 0) -> Any:
    """An example: the default, the first choice, or the least value of the type. Not for `$ref`, `pattern` or `not`."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        choices = [choice for choice in schema.get(key) or () if isinstance(choice, Mapping)]
        if choices and depth < _DEPTH:
            return example_of(choices[0], depth=depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    return _of_type(kind or ("object" if "properties" in schema else "string"), schema, depth)


def _of_type(kind: str, schema: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            wanted = {
                name: part for name, part in (schema.get("properties") or {}).items() if isinstance(part, Mapping)
            }
            return {name: example_of(part, depth=depth + 1) for name, part in wanted.items() if depth < _DEPTH}
        case "array":
            items = schema.get("items")
            count = schema.get("minItems", 0) if depth < _DEPTH else 0
            return [example_of(items if isinstance(items, Mapping) else {}, depth=depth + 1)] * min(count, 100)
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return least if isinstance(least, int | float) else 0
        case "boolean":
            return False
        case "null":
            return None
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(_WORDS))
    return (_WORDS * (1 + least // len(_WORDS)))[: max(least, min(most, len(_WORDS)))]
