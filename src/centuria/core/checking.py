"""JSON Schema checks that surely end, whatever the schema and the value. Pure.

Schemas come from tool servers and values from models: together they could make a check run for hours, with everything
else standing still. So patterns are searched in linear time (Rust's `regex`, https://docs.rs/regex, "untrusted input"),
items are compared by their text, and a check stops after `MAX_STEPS` keywords.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

#: Keywords that one check evaluates before it gives up.
MAX_STEPS = 50_000

Keyword = Callable[[Any, Any, Any, Any], Iterator["ValidationError"] | None]
_steps: ContextVar[list[int]] = ContextVar("steps of the check that runs")


class TooMuchWork(Exception):
    """A check was given up: the schema multiplies, or the value is too large for it."""


def errors_of(validator: Validator, value: Any) -> Iterator[ValidationError]:
    """What is wrong with a value, as `validator` (of a `bounded` dialect) finds it. Raises `TooMuchWork`, and
    `RecursionError` for a schema that refers to itself without end.

    One check at a time: do not begin another one before this one is over or left.
    """
    _steps.set([MAX_STEPS])
    try:
        yield from validator.iter_errors(value)
    except BaseException as error:
        # The library's Rust part, met by a recursion that is too deep, panics: which is no `Exception` in Python.
        if type(error).__name__ != "PanicException":
            raise
        raise RecursionError("the check went too deep") from None


@cache
def bounded(dialect: type[Validator]) -> type[Validator]:
    """The same dialect with keywords that `errors_of` can bound."""
    from jsonschema.validators import extend

    keywords: dict[str, Keyword] = dict(dialect.VALIDATORS)
    ours: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        **{word: _unless_null(keywords[word]) for word in ("type", "enum") if word in keywords},
        "unevaluatedProperties": _unless_patterns(keywords.get("unevaluatedProperties")),
    }
    keywords |= {name: keyword for name, keyword in ours.items() if name in keywords}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    made: type[Validator] = extend(dialect, counted)  # type: ignore[no-untyped-call]
    return made


def linear(pattern: str) -> bool:
    """Whether a pattern can be searched in linear time: without look-around and back-references, and not too large."""
    return _search(pattern) is not None


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text. One that cannot be searched in linear time is taken as found."""
    search = _search(pattern)
    return search is None or search(text)


@lru_cache(maxsize=512)
def _search(pattern: str) -> Callable[[str], bool] | None:
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError:
        return None


def _counted(keyword: Keyword) -> Keyword:
    def counting(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        left = _steps.get()
        left[0] -= 1
        if left[0] < 0:
            raise TooMuchWork
        yield from keyword(validator, expected, value, schema) or ()

    return counting


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError

    return ValidationError(message)


# -- the keywords that jsonschema runs with Python's `re`, or in quadratic time ----------------------------------------


def _pattern(validator: Any, pattern: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not matches(pattern, value):
        yield _error(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, item in value.items():
            if linear(pattern) and matches(pattern, name):
                yield from validator.descend(item, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), list(schema.get("patternProperties", ()))
    extras = [name for name in value if name not in known and not any(matches(one, name) for one in patterns)]
    if validator.is_type(allowed, "object"):
        for name in extras:
            yield from validator.descend(value[name], allowed, path=name)
    elif not allowed and extras:
        named, verb = ", ".join(map(repr, extras[:20])), "was" if len(extras) == 1 else "were"
        yield _error(f"Additional properties are not allowed ({named} {verb} unexpected)")


def _unique_items(validator: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if wanted and validator.is_type(value, "array"):
        texts = {json.dumps(item, sort_keys=True, default=str) for item in value}
        if len(texts) < len(value):
            yield _error(f"{value!r} has non-unique elements")


def _unless_null(keyword: Keyword) -> Keyword:
    """OpenAPI's `nullable`, which many servers write and JSON Schema does not know: null is right then."""

    def checked(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if value is not None or not isinstance(schema, Mapping) or schema.get("nullable") is not True:
            yield from keyword(validator, expected, value, schema) or ()

    return checked


def _unless_patterns(keyword: Keyword | None) -> Keyword:
    """What is evaluated cannot be found without `re` where the schema beside it has patterns: then nothing is said."""

    def checked(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if keyword is not None and not _has_patterns(schema) and not _has_patterns(validator.schema):
            yield from keyword(validator, expected, value, schema) or ()

    return checked


def _has_patterns(schema: Any) -> bool:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            # A reference may lead to patterns elsewhere.
            if not node.keys().isdisjoint(("patternProperties", "$ref", "$dynamicRef")):
                return True
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return False
