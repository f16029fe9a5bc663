"""JSON Schemas that answers must satisfy: read, and refused here rather than after the first answer was paid for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from centuria.config.problems import quoted
from centuria.config.reading import SMALL, parse_json, read_text, shown
from centuria.core.checking import linear
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


def check_schema(schema: Any, name: str) -> Mapping[str, Any]:
    """The schema of an object that needs nothing from outside. Raises `JobError` naming the place in it."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema, dict):
        raise JobError(f"{name} is not a JSON Schema.", remedy='Write {"type": "object", "properties": {...}}.')
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        at = "/".join(str(part) for part in error.absolute_path) or "its top"
        raise JobError(
            f"{name} is not a JSON Schema: at {at}, {error.message[:200]}.", remedy="Mend it there."
        ) from None
    except RecursionError:
        raise JobError(f"{name} is nested too deeply.", remedy="Make it flatter.") from None
    if schema.get("type") != "object":
        raise JobError(f"{name} does not describe an object.", remedy='Add "type": "object" at its top.')
    for pattern in _patterns(schema):
        if not linear(pattern):
            raise JobError(
                f"{name} has the pattern {quoted(pattern)}, which cannot be checked in bounded time.",
                remedy="Write it without look-around, back-references and great repetitions.",
            )
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise JobError(f"{name} refers to {quoted(reference)}, outside of itself.", remedy="Copy it into $defs.")
        if not _resolves(schema, reference):
            raise JobError(f"{name} refers to {quoted(reference)}, which is not there.", remedy="Mend the $ref.")
    return schema


def property_of(schema: Mapping[str, Any], name: str) -> bool:
    """Whether a schema names this property."""
    properties = schema.get("properties")
    return isinstance(properties, dict) and name in properties


def _references(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef"):
                if isinstance(node.get(key), str):
                    yield node[key]
            stack.extend(value for key, value in node.items() if key not in ("enum", "const", "default", "examples"))
        elif isinstance(node, list):
            stack.extend(node)


def _patterns(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            if isinstance(node.get("patternProperties"), dict):
                yield from node["patternProperties"]
            stack.extend(value for key, value in node.items() if key not in ("enum", "const", "default", "examples"))
        elif isinstance(node, list):
            stack.extend(node)


def _resolves(schema: Any, reference: str) -> bool:
    if not reference.startswith("#/"):
        # "#" is the schema itself; "#name" an anchor.
        return reference == "#" or f'"{reference[1:]}"' in json.dumps(schema)
    node = schema
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return False
    return True
