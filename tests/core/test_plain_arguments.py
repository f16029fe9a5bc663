"""The short way of checking arguments: what it lets through, the whole way lets through too."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from centuria.core.arguments import ArgumentCheck, _fits, _plain_types

KINDS = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])
NAMES = st.sampled_from("abcd")
PROPERTY = st.builds(lambda kind: {"type": kind, "description": "x"}, KINDS)
SCHEMAS = st.builds(
    lambda properties, required, others: {
        "type": "object",
        "properties": properties,
        "required": required,
        **({} if others is None else {"additionalProperties": others}),
    },
    st.dictionaries(NAMES, PROPERTY, max_size=4),
    st.lists(NAMES, unique=True, max_size=3),
    st.sampled_from([None, True, False]),
)
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    *(st.just([1]), st.just({"a": 1})),
)


@given(SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_the_short_way_lets_through_is_valid_and_what_is_invalid_is_still_told(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    plain = _plain_types(schema)
    assert plain is not None
    valid = Draft202012Validator(schema).is_valid(arguments)
    if _fits(arguments, *plain):
        assert valid
    assert (ArgumentCheck(schema).complaint(arguments) is None) == valid


@given(
    st.sampled_from(
        [
            {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}},
            {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
            {"type": "object", "properties": {"a": {"enum": [1]}}},
            {"type": "object", "properties": {"a": True}},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "anyOf": [{"required": ["a"]}]},
            {"properties": {"a": {"type": "string"}}},
        ]
    )
)
def test_a_schema_that_says_more_than_types_goes_the_whole_way(schema: dict[str, Any]) -> None:
    assert _plain_types(schema) is None
