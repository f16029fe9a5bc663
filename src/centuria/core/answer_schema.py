"""JSON Schemas that answers must satisfy: refused here rather than after the first answer was paid for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from centuria.core.checking import linear
from centuria.core.quoting import quoted
from centuria.errors import JobError


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
