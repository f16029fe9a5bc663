"""A schema and a value, both from strangers: every check ends, soon, and still says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from centuria.core.answer_schema import check_schema
from centuria.core.arguments import ArgumentCheck
from centuria.core.checking import MAX_STEPS, TooMuchWork, bounded, errors_of, matches
from centuria.errors import JobError
from centuria.subagent import violations

EXPONENTIAL = "^(a+)+$"


def wrong(schema: dict[str, Any], value: Any) -> list[str]:
    return [error.message for error in errors_of(bounded(Draft202012Validator)(schema), value)]


def multiplying(depth: int) -> dict[str, Any]:
    """Each of `depth` definitions asks for the next one twice: 2 ** depth checks."""
    parts: dict[str, Any] = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"type": "object", "$defs": parts | {f"a{depth}": {}}, "$ref": "#/$defs/a0"}


def test_a_pattern_that_backtracks_without_end_is_checked_at_once() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": EXPONENTIAL}}}
    value = {"a": "a" * 5000 + "!"}
    assert "does not match" in (ArgumentCheck(schema).complaint(value) or "")
    assert "does not match" in violations(value, schema)[0] or len(violations(value, schema)) == 1
    assert violations({"a": "aaa"}, schema) == []


@pytest.mark.parametrize("keyword", ["patternProperties", "additionalProperties", "unevaluatedProperties"])
def test_a_pattern_for_names_is_no_way_round(keyword: str) -> None:
    schema = {"patternProperties": {EXPONENTIAL: {"type": "integer"}}, keyword: False}
    schema["patternProperties"] = {EXPONENTIAL: {"type": "integer"}}
    assert wrong(schema, {"aaa": "text"}) == ["'text' is not of type 'integer'"]
    found = wrong(schema, {"a" * 5000 + "!": 1})
    assert len(found) == (keyword == "additionalProperties")


def test_a_schema_that_multiplies_is_given_up() -> None:
    assert MAX_STEPS < 2**40
    with pytest.raises(TooMuchWork):
        wrong(multiplying(40), {})
    assert ArgumentCheck(multiplying(40)).complaint({}) is None
    assert violations({}, multiplying(40)) == ["at $: it is too large or too deep to be checked"]
    assert wrong(multiplying(4), {}) == []


def test_unique_items_are_compared_once_each() -> None:
    schema = {"uniqueItems": True}
    assert wrong(schema, [{"n": n} for n in range(20_000)]) == []
    assert len(wrong(schema, [{"a": 1, "b": 2}, {"b": 2, "a": 1}])) == 1


def test_the_other_keywords_say_what_they_always_said() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"minimum": 3}}, "additionalProperties": False}
    ours = wrong(schema, {"a": 1, "b": 2})
    assert ours == [error.message for error in Draft202012Validator(schema).iter_errors({"a": 1, "b": 2})]


def test_a_pattern_without_a_linear_search_holds_nothing_and_is_refused_in_a_job() -> None:
    assert matches("(?!a)b", "anything")
    with pytest.raises(JobError, match="bounded time"):
        check_schema({"type": "object", "properties": {"a": {"pattern": r"(a)\1"}}}, "report.json")
    assert check_schema({"type": "object", "properties": {"a": {"pattern": r"^\d{4}$"}}}, "report.json")
