"""Examples of schemas: what a rehearsal without a script answers fits what the job asks for."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from centuria.core.examples import example_of

SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 3}}},
    {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "list": {"type": "array", "minItems": 2}}},
    {"type": ["number", "null"], "exclusiveMinimum": 4},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    {"type": "string", "minLength": 30},
    {"type": "string", "maxLength": 3},
    {"const": {"x": 1}},
    {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"v": {"type": ["null", "string"]}}}},
    {},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_example_of_a_plain_schema_fits_it(schema: dict[str, object]) -> None:
    Draft202012Validator(schema).validate(example_of(schema))


def test_a_schema_that_is_deeper_than_anyone_needs_still_has_an_end() -> None:
    schema: dict[str, object] = {"type": "object"}
    schema["properties"] = {"again": schema}
    assert isinstance(example_of(schema), dict)
