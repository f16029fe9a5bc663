"""The codec of events: what was published comes back, and nothing that anyone wrote can stop the journal."""

from __future__ import annotations

import json
import types
import typing
from collections import abc
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.codec import CUT, DEPTH, decode, encode
from centuria.errors import JournalError
from centuria.events import CallClosed, CallOpened, Fact, Notice, RunEnded, TaskEnded, TextDelta
from centuria.messages import CallKey, Completion, Message, Outcome, Status, ToolCall, ToolResult, safe_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Like `st.from_type`, with JSON for Any and numbers that equal themselves."""
    if hint is Any:
        return JSON
    if hint is float:
        return st.floats(allow_nan=False)
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return st.one_of([values(part) for part in typing.get_args(hint)])
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is abc.Mapping:
        return st.dictionaries(st.text(max_size=5), JSON, max_size=3)
    return st.from_type(hint)


FACTS = typing.get_args(Fact)


def test_every_kind_of_fact_is_known_by_its_own_name() -> None:
    kinds = {fact.__dataclass_fields__["kind"].default for fact in (*FACTS, TextDelta)}
    assert len(kinds) == len(FACTS) + 1


@pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)
def test_a_fact_of_any_kind_comes_back_as_it_was(kind: type) -> None:
    @settings(max_examples=25, deadline=None)
    @given(values(kind))
    def round_trip(event: Any) -> None:
        assert decode(encode(event)) == event

    round_trip()


def test_fields_of_a_later_version_are_ignored() -> None:
    line = json.loads(encode(RunEnded("ok", 0))) | {"mood": "fine", "more": {"deep": [1]}}
    assert decode(json.dumps(line)) == RunEnded("ok", 0)


def test_fields_that_an_older_version_did_not_write_have_their_defaults() -> None:
    assert decode('{"kind": "notice", "text": "x"}') == Notice("x", "info")


def test_a_fact_of_an_unknown_kind_is_an_error_that_names_it() -> None:
    with pytest.raises(JournalError, match="'teleported'") as caught:
        decode('{"kind": "teleported", "task": "a"}')
    assert "version" in caught.value.remedy


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"null", b'{"text": "x"}', b'{"kind": "notice"}', b"\xff\xfe"])
def test_bytes_that_are_no_fact_are_a_journal_error(line: bytes) -> None:
    with pytest.raises(JournalError):
        decode(line)


def test_an_error_does_not_show_what_the_record_holds() -> None:
    with pytest.raises(JournalError) as caught:
        decode('{"kind": "notice", "text": ["sk-secret"]}')
    assert "sk-secret" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_no_text_at_all_can_stop_the_journal(content: str, name: str) -> None:
    message = Message("assistant", content, name, (ToolCall(content, name, content),), name)
    closed = CallClosed(
        CallKey(name, 0, 0, 0),
        1,
        "done",
        completion=Completion(message, None, content),
        result=ToolResult(content, structured={name: [content]}),
        error=content,
        partial=name,
    )
    back = decode(encode(closed))
    assert isinstance(back, CallClosed)
    assert back.error == safe_text(content)
    assert back.completion is not None
    assert back.completion.message.tool_calls[0].name == safe_text(name)


def test_nul_is_kept() -> None:
    assert decode(encode(Notice("a\0b"))) == Notice("a\0b")


def test_lone_surrogates_become_the_replacement_character_and_split_pairs_are_joined() -> None:
    assert safe_text("a\ud800b") == "a\ufffdb"
    assert safe_text("\udc00\ud800") == "\ufffd\ufffd"
    assert safe_text("\ud83d\ude00!") == "😀!"
    assert safe_text("plain, 한국어, 😀, \0") == "plain, 한국어, 😀, \0"
    assert decode(encode(Notice("a\ud800b"))) == Notice("a\ufffdb")


def nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def test_a_structured_answer_is_kept_to_its_full_permitted_depth() -> None:
    event = TaskEnded("a", Outcome("a", Status.OK, structured=nested(DEPTH)))
    assert decode(encode(event)) == event


@pytest.mark.parametrize("depth", [DEPTH + 1, 199, 255, 900, 5000])
def test_a_structured_answer_that_is_nested_too_deeply_is_cut_and_can_be_read_back(depth: int) -> None:
    back = decode(encode(TaskEnded("a", Outcome("a", Status.OK, text="whole", structured=nested(depth)))))
    assert isinstance(back, TaskEnded)
    assert back.outcome.text == "whole"
    value, levels = back.outcome.structured, 0
    while not isinstance(value, str):
        value = value["k"] if isinstance(value, dict) else value[0]
        levels += 1
    assert (value, levels) == (CUT, DEPTH)


def test_infinity_in_a_tools_result_comes_back_as_infinity() -> None:
    result = ToolResult("x", structured=[float("inf"), float("-inf"), 10**30])
    event = CallClosed(CallKey("a", 0, 0, 1), 1, "done", result=result)
    assert decode(encode(event)) == event


def test_what_is_no_json_value_is_kept_as_its_text() -> None:
    event = CallClosed(CallKey("a", 0, 0, 1), 1, "done", result=ToolResult("x", structured={1: {2}, "b": b"\xff"}))
    back = decode(encode(event))
    assert isinstance(back, CallClosed)
    assert back.result is not None
    assert back.result.structured["1"] == "{2}"


def test_the_arguments_of_a_call_are_kept_byte_for_byte() -> None:
    event = CallOpened(CallKey("a", 0, 0, 1), 1, "tool", "db__query", "f", False, arguments='{"a" :\t1,\n"a":2}')
    assert decode(encode(event)) == event
