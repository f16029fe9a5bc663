"""What providers take as a function's parameters, written down a second time from their own words: each rule is a
reason for an HTTP 400. Shares nothing with `core.schemas`.

Kimi: MoonshotAI/walle, `validator.go` and `keyword_validators.go` at level "ultra", and docs/walle.md where it is
stricter. OpenAI, Anthropic, Gemini: the messages of their refusals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_COMMON = {"description", "title"}
_KIMI_BY_TYPE = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type", "minLength", "maxLength", "enum", "default"},
    "number": {"type", "minimum", "maximum", "enum", "default"},
    "integer": {"type", "minimum", "maximum", "enum", "default"},
    "boolean": {"type", "enum", "default"},
    "null": {"type", "enum", "default"},
}
_RESERVED = {"$defs", "$ref", "anyOf", "required", "additionalProperties", ""}


def kimi(schema: Any) -> list[str]:
    """Every reason for which Moonshot would refuse this schema."""
    errors: list[str] = []
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    go = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    if len(go.encode()) > 15_000:
        errors.append("schema exceeds maximum allowed size")
    if schema.get("type") != "object":
        errors.append("the root must be an object")
    names = _kimi_node(schema, "root", 0, errors)
    if names > 1_000:
        errors.append("total number of properties keys")
    return errors


def _kimi_node(node: Any, path: str, depth: int, errors: list[str]) -> int:  # noqa: C901 - a list of rules
    if not isinstance(node, dict):
        errors.append(f"{path}: not a schema")
        return 0
    if depth > 10:
        errors.append(f"{path}: schema depth exceeds maximum limit")
        return 0
    if not isinstance(node.get("description", ""), str):
        errors.append(f"{path}: description must be a string")
    names = 0
    if "anyOf" in node:
        beside = set(node) - {"anyOf"} - _COMMON
        if beside:
            errors.append(f"{path}: {beside} not allowed at the same level as anyOf")
        if not isinstance(node["anyOf"], list) or not 1 <= len(node["anyOf"]) <= 100:
            errors.append(f"{path}: anyOf must have 1-100 items")
            return 0
        for number, branch in enumerate(node["anyOf"]):
            names += _kimi_node(branch, f"{path}|{number}", depth, errors)
        return names
    kind = node.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:  # lists of types are taken, with rules of their own
        errors.append(f"{path}: type need to be defined explicitly, not {kind!r}")
        return 0
    wrong = set(node) - _KIMI_BY_TYPE[kind] - _COMMON
    if wrong:
        errors.append(f"{path}: invalid keywords {wrong}")
    _kimi_values(node, kind, path, errors)
    properties = node.get("properties", {})
    if not isinstance(properties, dict):
        errors.append(f"{path}: properties must be an object")
        return 0
    names += len(properties)
    for name, part in properties.items():
        if name in _RESERVED:
            errors.append(f"{path}: property name {name!r} is reserved")
        names += _kimi_node(part, f"{path}.{name}", depth + 1, errors)
    required = node.get("required", [])
    if len(set(required)) != len(required) or not set(required) <= set(properties):
        errors.append(f"{path}: required property is not defined in properties")
    if "items" in node:
        names += _kimi_node(node["items"], f"{path}[]", depth, errors)
    extra = node.get("additionalProperties", True)
    if not isinstance(extra, bool):
        names += _kimi_node(extra, f"{path}{{}}", depth, errors)
    return names


def _kimi_values(node: dict[str, Any], kind: str, path: str, errors: list[str]) -> None:  # noqa: C901
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        counts = kind == "integer" or low != "minimum"
        for word in (low, high):
            value = node.get(word, 0)
            if isinstance(value, bool) or not isinstance(value, int | float):
                errors.append(f"{path}: {word} must be a number")
            elif (counts and value != int(value)) or (low != "minimum" and value < 0) or not _go_number(value):
                errors.append(f"{path}: {word} must be an integer, in range and without an exponent")
        if low in node and high in node and node[low] > node[high]:
            errors.append(f"{path}: {low} cannot be greater than {high}")
    if "default" in node and not _matches(node["default"], kind):
        errors.append(f"{path}: default is no {kind}")
    if "enum" not in node:
        return
    values = node["enum"]
    if kind not in ("string", "number", "integer"):
        errors.append(f"{path}: enum of {kind}")
    if not isinstance(values, list) or not 1 <= len(values) <= 500:
        errors.append(f"{path}: enum must have 1-500 items")
        return
    if not all(_matches(value, kind) and _go_number(value) for value in values):
        errors.append(f"{path}: enum value does not match {kind}")
    if len(values) > 250 and sum(len(str(value)) for value in values) > 7_500:
        errors.append(f"{path}: total string length of enum values")


def _go_number(value: Any) -> bool:
    return isinstance(value, str) or (abs(value) <= 2**53 - 1 and "e" not in json.dumps(value).lower())


def _matches(value: Any, kind: str) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return kind == "null" and value is None
    return kind == "number" or (kind == "integer" and value == int(value))


def openai(schema: Any) -> list[str]:
    """Every reason for which OpenAI would refuse this schema, `strict` not being asked for."""
    errors = []
    if schema.get("type") != "object" or schema.keys() & {"oneOf", "anyOf", "allOf", "enum", "const", "not"}:
        errors.append("schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top")
    if not isinstance(schema.get("properties"), dict):
        errors.append("object schema missing properties")
    for path, node in _nodes(schema):
        kind = node.get("type", "object")
        if not isinstance(kind, str) or kind not in _TYPES:
            errors.append(f"{path}: {kind!r} is not valid under any of the given schemas")
        if kind == "array" and not isinstance(node.get("items"), dict):
            errors.append(f"{path}: array schema missing items")
        if not isinstance(node.get("required", []), list) or node.get("enum", [0]) == []:
            errors.append(f"{path}: null is not of type 'array'")
        if node.keys() & {"$ref", "allOf", "oneOf", "nullable"}:
            errors.append(f"{path}: not plain")
    return errors


def anthropic(schema: Any) -> list[str]:
    """Every reason for which Anthropic would refuse this schema."""
    errors = openai(schema)
    for path, node in _nodes(schema):
        for name in node.get("properties", {}):
            if re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name, re.ASCII) is None:
                errors.append(f"{path}: property keys should match the pattern: {name!r}")
    return errors


_GEMINI = {
    *("type", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties", "required"),
    *("minLength", "maxLength", "minimum", "maximum", "anyOf"),
}


def gemini(schema: Any) -> list[str]:  # noqa: C901 - a list of rules
    """Every reason for which Gemini would refuse this schema."""
    errors = [] if schema.get("type") == "object" else ["the root must be an object"]
    for path, node in _nodes(schema):
        unknown = node.keys() - _GEMINI
        if unknown:
            errors.append(f"{path}: Unknown name {unknown}: Cannot find field")
        if "anyOf" in node:
            if set(node) != {"anyOf"}:
                errors.append(f"{path}: any_of must be the only field set")
            continue
        kind = node.get("type")
        if not isinstance(kind, str) or kind not in _TYPES - {"null"}:
            errors.append(f"{path}: Invalid value at type: {kind!r}")
        if "enum" in node:
            if kind != "string":
                errors.append(f"{path}: enum only allowed for STRING type")
            if not node["enum"] or not all(isinstance(value, str) and value for value in node["enum"]):
                errors.append(f"{path}: enum[0]: cannot be empty")
        if kind == "array" and "items" not in node:
            errors.append(f"{path}: items: missing field")
        if kind != "object" and node.keys() & {"properties", "required"}:
            errors.append(f"{path}: properties: only allowed for OBJECT type")
        if path != "root" and node.get("properties") == {}:
            errors.append(f"{path}: properties: should be non-empty for OBJECT type")
        if not set(node.get("required", [])) <= set(node.get("properties", {})):
            errors.append(f"{path}: required: property is not defined")
    return errors


def _nodes(node: Any, path: str = "root") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema. Anything that is none counts as one with a type that nobody knows."""
    if not isinstance(node, dict):
        yield path, {"type": repr(node)}
        return
    yield path, node
    for name, part in node.get("properties", {}).items():
        yield from _nodes(part, f"{path}.{name}")
    for number, part in enumerate(node.get("anyOf", [])):
        yield from _nodes(part, f"{path}|{number}")
    if "items" in node:
        yield from _nodes(node["items"], f"{path}[]")
    if not isinstance(node.get("additionalProperties", True), bool):
        yield from _nodes(node["additionalProperties"], f"{path}{{}}")


RULES: dict[str, Callable[[Any], list[str]]] = {
    "plain": lambda schema: openai(schema) + [path for path, node in _nodes(schema) if "pattern" in node],
    "openai": openai,
    "kimi": kimi,
    "anthropic": anthropic,
    "gemini": gemini,
    "deepseek": openai,
}
