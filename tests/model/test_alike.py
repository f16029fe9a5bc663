"""The short way through a stream tells what the long way tells, whatever the stream is made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.model.alike import Alike
from centuria.model.answer import AnswerDecoder

texts = st.one_of(
    st.sampled_from(["a", "content", "kimi", "0", '"', "\\", "\n", "é", "먼저", "\ud83d", "\x00", "null", " "]),
    st.text(max_size=8),
)


def chunk(text: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1717,
        "model": "kimi",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        **more,
    }


def learned(first: dict[str, Any], **form: Any) -> Alike:
    alike = Alike()
    alike.learn(json.dumps(first, **form), json.loads(json.dumps(first, **form)))
    return alike


@given(texts, texts, st.booleans(), st.booleans())
def test_what_it_tells_is_what_parsing_tells(first: str, second: str, ascii: bool, reversed_: bool) -> None:
    def written(text: str) -> str:
        value = chunk(text)
        return json.dumps(dict(reversed(value.items())) if reversed_ else value, ensure_ascii=ascii)

    alike = Alike()
    for _ in range(2):
        alike.learn(written(first), json.loads(written(first)))
    told = alike.text(written(second))
    assert told is None or told == second


def test_the_second_of_two_chunks_that_are_alike_is_not_parsed() -> None:
    alike = learned(chunk(" tok"))
    assert alike.text(json.dumps(chunk(" next"))) == " next"
    assert alike.text(json.dumps(chunk("먼저"), ensure_ascii=False)) == "먼저"


@pytest.mark.parametrize("text", ["", "kimi", 'a"b', "a\\b", "a\nb", None, 7])
def test_from_a_text_that_does_not_stand_for_itself_nothing_is_learned(text: Any) -> None:
    alike = learned(chunk(text))
    assert alike.text(json.dumps(chunk(" next"))) is None


@pytest.mark.parametrize(
    "other",
    [
        chunk("a", error={"message": "no"}),
        chunk("a", usage={"prompt_tokens": 1}),
        chunk("a", object="error"),
        chunk("a", type="error"),
        chunk("a", choices=[]),
        chunk("a", choices=[{"index": 1, "delta": {"content": "a"}, "finish_reason": None}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a", "tool_calls": []}, "finish_reason": None}]),
        chunk("a", choices=[{"index": 0, "delta": {"reasoning_content": "a"}, "finish_reason": None}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a"}, "usage": {"prompt_tokens": 1}}]),
    ],
)
def test_chunks_that_tell_more_than_text_are_parsed(other: dict[str, Any]) -> None:
    assert learned(other).text(json.dumps(other)) is None
    assert learned(chunk("a")).text(json.dumps(other)) is None


def test_a_text_that_stands_elsewhere_too_is_not_looked_for_there() -> None:
    alike = learned(chunk("kimi"))  # as its model is named
    assert alike.text(json.dumps(chunk("kimi", model="moon"))) in (None, "kimi")


def test_of_two_members_of_one_name_the_last_counts_here_too() -> None:
    alike = Alike()
    data = json.dumps(chunk("a")).replace('"content": "a"', '"content": "a", "content": "b"')
    alike.learn(data, json.loads(data))
    other = data.replace('"content": "a"', '"content": "z"')
    assert alike.text(other) in (None, "b")


def test_a_text_that_stands_elsewhere_in_the_chunk_too_is_not_looked_for_there() -> None:
    first, second = chunk("kimi"), chunk("kimi", model="another")
    told = learned(first).text(json.dumps(second))
    assert told in (None, "kimi"), "the model's name is not the answer"


def test_a_count_that_text_came_after_is_no_count_of_the_whole_answer() -> None:
    counted = {**chunk(""), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
    stop = chunk("", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    decoder = AnswerDecoder()
    for part in (chunk("a"), chunk("b"), counted, chunk("c"), stop):
        decoder.feed(f"data: {json.dumps(part)}\n\n".encode())
    decoder.feed(b"data: [DONE]\n\n")
    decoder.close()
    completion = decoder.finish()
    assert completion.message.content == "abc" and completion.usage is None
