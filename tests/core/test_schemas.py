"""A tool's schema as each provider takes it: legal, no narrower than the tool, always the same, and soon done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from centuria.core.checking import TooMuchWork, bounded, errors_of
from centuria.core.schemas import ANTHROPIC, DIALECTS, GEMINI, KIMI, OPENAI, PLAIN, Dialect, Unlawful, legal
from tests.core.schema_examples import NAMES, OBJECTS, made_to_fit, tools
from tests.core.schema_rules import RULES

ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
_OURS = json.loads((Path(__file__).parent / "tool_schemas.json").read_text())
_OTHERS = json.loads((Path(__file__).parent.parent / "servers" / "schemas.json").read_text())
CORPUS = {**_OURS, **{f"{tool['server']} {tool['tool']}": tool["schema"] for tool in _OTHERS}}


def complaints(schema: Any, dialect: Dialect) -> list[str]:
    return RULES[dialect.name](schema)


def props(schema: Any, dialect: Dialect = KIMI) -> dict[str, Any]:
    """The properties, as a provider gets them, of an object that has these."""
    found: dict[str, Any] = legal({"type": "object", "properties": schema}, dialect)["properties"]
    return found


# -- schemas that tools have -----------------------------------------------------------------------------------------


@ALL
def test_the_schemas_of_real_tools_become_legal_and_lose_no_parameter(dialect: Dialect) -> None:
    unnamable = {"required", "my field"}
    for name, schema in CORPUS.items():
        made = legal(schema, dialect)
        assert complaints(made, dialect) == [], name
        assert set(made["properties"]) >= set(schema.get("properties", {})) - unnamable, name


def test_many_of_them_would_be_refused_as_they_are() -> None:
    refused = {dialect.name: sum(bool(complaints(s, dialect)) for s in CORPUS.values()) for dialect in (KIMI, GEMINI)}
    assert min(refused.values()) > len(CORPUS) / 4


# -- what becomes of what --------------------------------------------------------------------------------------------


def test_an_optional_value_of_pydantic_has_two_branches_and_no_default() -> None:
    made = props({"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "A"}})
    assert made == {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    assert props({"a": {"type": ["string", "null"]}}) == made
    assert props({"a": {"type": "string", "nullable": True}}) == made
    assert props({"a": {"type": ["string", "null"]}}, GEMINI) == {"a": {"type": "string", "nullable": True}}


def test_keywords_that_a_provider_does_not_take_are_told_in_words() -> None:
    schema = {"a": {"type": "string", "format": "uri", "pattern": "^h", "description": "Where."}}
    assert props(schema) == {"a": {"type": "string", "description": 'Where. [pattern: "^h"; format: "uri"]'}}
    assert props(schema, OPENAI)["a"] == schema["a"]
    assert props({"a": {"type": "integer", "minimum": 1, "multipleOf": 5}}) == {
        "a": {"type": "integer", "minimum": 1, "description": "[multipleOf: 5]"}
    }
    assert "not" in props({"a": {"type": "string", "not": {"enum": ["x"]}}})["a"]["description"]


def test_values_of_several_kinds_are_branches_of_one_kind_each() -> None:
    made = props({"a": {"enum": ["auto", 1, 2.5, True, False, None]}})["a"]
    assert made == {
        "anyOf": [
            {"type": "string", "enum": ["auto"]},
            {"type": "number", "enum": [1, 2.5]},
            {"type": "boolean"},
            {"type": "null"},
        ]
    }
    assert props({"a": {"const": "x"}}) == {"a": {"type": "string", "enum": ["x"]}}
    assert props({"a": {"const": {"k": 1}}})["a"] == {"type": "object", "description": '[one of: [{"k": 1}]]'}


def test_references_are_put_in_and_those_that_never_end_are_cut() -> None:
    defs = {
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
    }
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/Point", "description": "Here."}, "t": {"$ref": "#/$defs/Tree"}},
        "$defs": defs,
    }
    made = legal(schema, KIMI)
    assert made["properties"]["p"] == {**defs["Point"], "description": "Here."}
    assert made["properties"]["t"]["properties"]["kids"]["items"]["properties"]["kids"]["items"] == {
        "type": "object",
        "description": "[a Tree, as above]",
    }
    assert "$" not in json.dumps(made)


@pytest.mark.parametrize("reference", ["https://example.com/s.json", "#/$defs/none", "#none", "Other", "#/items/9", 5])
def test_a_reference_that_leads_nowhere_costs_its_property_alone(reference: Any) -> None:
    made = props({"a": {"$ref": reference}, "b": {"type": "string"}})
    assert made["b"] == {"type": "string"}
    assert "says" in made["a"]["description"] and len(made["a"]["anyOf"]) == 6


def test_allof_is_merged_and_what_excludes_each_other_is_not_made_narrower() -> None:
    parts = [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
        {"properties": {"a": {"type": "number", "minimum": 3, "maximum": 9}, "b": {"type": "string"}}},
    ]
    assert legal({"allOf": parts}, KIMI) == {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 9}, "b": {"type": "string"}},
        "required": ["a"],
    }
    assert props({"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}) == {"a": {"type": "string"}}


def test_alternatives_at_the_top_become_one_object_and_a_note() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "oneOf": [
            {"properties": {"url": {"type": "string"}}, "required": ["url"]},
            {"properties": {"text": {"type": "string"}}, "required": ["text"]},
        ],
    }
    made = legal(schema, OPENAI)
    assert list(made["properties"]) == ["id", "url", "text"]
    assert made["required"] == ["id"]
    assert made["description"] == "[give one of these groups: url | text]"
    only = {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert legal(only, KIMI)["description"] == "[give one of these groups: a | b]"


def test_what_may_not_be_named_is_told_and_may_still_be_given() -> None:
    schema = {
        "type": "object",
        "properties": {"required": {"type": "boolean"}, "my field": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["required", "n"],
        "additionalProperties": False,
    }
    kimi, anthropic = legal(schema, KIMI), legal(schema, ANTHROPIC)
    assert list(kimi["properties"]) == ["my field", "n"] and kimi["required"] == ["n"]
    assert '"required" must be given too' in kimi["description"]
    assert "additionalProperties" not in kimi and "additionalProperties" not in anthropic
    assert '"my field" may be given too' in anthropic["description"]


def test_a_tool_without_parameters_and_one_that_says_nothing_take_an_object() -> None:
    for schema in ({}, {"type": "object"}, {"type": "object", "properties": {}}, {"$schema": "x", "properties": None}):
        for dialect in DIALECTS.values():
            assert legal(schema, dialect) == {"type": "object", "properties": {}}


def test_a_tuple_keeps_what_may_stand_in_it_and_how_much() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False, "minItems": 2}
    made = props({"a": pair})["a"]
    assert (made["minItems"], made["maxItems"]) == (2, 2)
    assert made["items"] == {"anyOf": [{"type": "string"}, {"type": "number"}]}
    old = {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}
    assert props({"a": old})["a"]["items"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_a_schema_that_is_too_large_loses_its_depths_first() -> None:
    def nested(depth: int) -> dict[str, Any]:
        inner = nested(depth - 1) if depth else {"type": "string"}
        fields = {f"field_{number}": {"type": "string", "description": "word " * 40} for number in range(6)}
        return {"type": "object", "properties": {**fields, "inner": inner}}

    made = legal(nested(9), KIMI)
    assert complaints(made, KIMI) == []
    assert list(made["properties"]) == [*(f"field_{number}" for number in range(6)), "inner"]
    assert made["properties"]["inner"]["type"] == "object"
    assert legal(nested(2), PLAIN)["properties"]["inner"]["properties"]["inner"]["properties"]["inner"]


# -- what no provider can be given -----------------------------------------------------------------------------------

DEEP: Any = {"type": "string"}
for _ in range(100_000):
    DEEP = {"allOf": [DEEP]}

HOSTILE: dict[str, Any] = {
    "a loop of references": {"properties": {"a": {"$ref": "#/properties/a"}}},
    "two that name each other": {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"allOf": [{"$ref": "#/$defs/B"}]}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}},
    },
    "itself in itself": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
    "a billion laughs": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/l0"}},
        "$defs": {
            f"l{n}": {"type": "object", "properties": {f"p{k}": {"$ref": f"#/$defs/l{n + 1}"} for k in range(10)}}
            for n in range(12)
        },
    },
    "alternatives that multiply": {
        "type": "object",
        "properties": {
            "a": {"allOf": [{"anyOf": [{"type": "object", "required": [f"{n}{k}"], "properties": {}} for k in range(9)]}
                            for n in range(9)]}
        },
    },
    "two thousand branches": {"properties": {"a": {"anyOf": [{"const": f"v{n}"} for n in range(2_000)]}}},
    "a long list of values": {"properties": {"a": {"enum": [f"value {n}" for n in range(9_000)]}}},
    "words in the place of schemas": {"type": "object", "properties": {"a": "string", "b": None, "c": [], "d": 5}},
    "keywords of the wrong kind": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": "5", "maxLength": -1, "enum": "x", "pattern": 7, "description": {}},
            "b": {"type": "number", "minimum": float("nan"), "maximum": float("inf"), "exclusiveMinimum": True},
            "c": {"type": "array", "items": "string", "minItems": 2.5, "prefixItems": {}},
            "d": {"type": ["string", 5, None], "anyOf": {}, "allOf": "x", "oneOf": []},
            "e": {"type": {"a": 1}, "enum": [float("nan"), {"x": [1]}], "default": float("nan")},
            "f": {"type": "date", "const": None},
        },
        "required": "a",
    },
    "names that nobody may have": {"properties": {"": {}, "$ref": {"type": "string"}, "a/b": {}, "\ud800": {}}},
    "required and never named": {"type": "object", "required": ["ghost", 5, "ghost"]},
    "nothing fits": {"type": "object", "properties": {"a": False, "b": {"allOf": [False]}}, "required": ["b"]},
}  # fmt: skip

REFUSED: dict[str, Any] = {
    "no object": ["type", "object"],
    "a text": "object",
    "nothing": None,
    "arguments that are a text": {"type": "string"},
    "arguments that are a list": {"anyOf": [{"type": "array"}, {"type": "string"}]},
    "ten megabytes": {"type": "object", "properties": {"a": {"description": "x" * 10_000_000}}},
    "ten megabytes of names": {"type": "object", "properties": {f"property {n}": {} for n in range(500_000)}},
    "nested without end": {"type": "object", "properties": {"a": DEEP}},
    "more names than there is room for": {"type": "object", "properties": {f"long_name_{n}": {} for n in range(5_000)}},
}


@ALL
@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_server_sends_becomes_legal(name: str, dialect: Dialect) -> None:
    made = legal(HOSTILE[name], dialect)
    assert complaints(made, dialect) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_legal_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(Unlawful, match=r"^its input schema .*\.$"):
        legal(REFUSED[name], KIMI)


# -- properties ------------------------------------------------------------------------------------------------------


def fits(value: Any, schema: Any) -> bool:
    """Whether a value is valid. Raises `TooMuchWork` or `RecursionError` where nobody can say."""
    return next(errors_of(bounded(Draft202012Validator)(schema), value), None) is None


@settings(max_examples=30, deadline=None)
@given(tool=tools())
def test_whatever_is_made_of_a_schema_satisfies_the_rules_written_down_a_second_time(tool: Any) -> None:
    for dialect in DIALECTS.values():
        try:
            made = legal(tool, dialect)
        except Unlawful:
            continue
        assert complaints(made, dialect) == [], dialect.name
        assert json.dumps(legal(json.loads(json.dumps(tool)), dialect)) == json.dumps(made)


@settings(max_examples=30, deadline=None)
@example(tool={"type": "object", "anyOf": [{"type": ["null", "object"]}, {"additionalProperties": False}]}, values=[{}])
@given(tool=tools(), values=st.lists(OBJECTS, min_size=1, max_size=8))
def test_arguments_that_a_tool_takes_can_still_be_written(tool: Any, values: list[Any]) -> None:
    try:
        taken = [value for value in values if fits(value, tool)]
    except (TooMuchWork, RecursionError):  # it refers to itself without end: no value can be checked
        return
    for dialect in (KIMI, OPENAI, GEMINI):
        try:
            made = _with_null(legal(tool, dialect))
        except Unlawful:
            continue
        for value in taken:
            if dialect is not GEMINI or not _beyond_gemini(value):
                assert fits(value, made), f"{value} fits {tool} and, for {dialect.name}, not {made}"


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, made_to_fit(), min_size=1, max_size=3))
def test_values_that_were_made_for_a_schema_can_still_be_written(parts: dict[str, tuple[Any, Any]]) -> None:
    properties = {name: part for name, (part, _) in parts.items()}
    tool = {"type": "object", "properties": properties, "$defs": {"D": {"type": "string"}}}
    value = {name: made for name, (_, made) in parts.items()}
    try:
        if not fits(value, tool):
            return
    except (TooMuchWork, RecursionError):
        return
    for dialect in (KIMI, OPENAI, ANTHROPIC, GEMINI):
        if dialect is not GEMINI or not _beyond_gemini(value):
            made = _with_null(legal(tool, dialect))
            assert fits(value, made), f"{value} fits {tool} and, for {dialect.name}, not {made}"


def _with_null(schema: Any) -> Any:
    """Gemini's `nullable` in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_with_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {word: _with_null(part) for word, part in schema.items() if word != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


def _beyond_gemini(value: Any) -> bool:
    """Gemini cannot be told of lists in lists of which nothing is known, nor of nothing in them."""
    if isinstance(value, dict):
        return any(_beyond_gemini(part) for part in value.values())
    inside = value if isinstance(value, list) else []
    return any(part is None or isinstance(part, list) or _beyond_gemini(part) for part in inside)
