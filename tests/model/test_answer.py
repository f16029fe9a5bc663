import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.errors import ModelError, ModelRefused, ModelUnavailable
from centuria.messages import Completion, Usage
from centuria.model.answer import AnswerDecoder, Piece
from centuria.model.sse import EventDecoder, ServerSentEvent
from centuria.model.toolcalls import ARGUMENTS_CAP, BEGINNING, CALLS_CAP, ToolCallMerger

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    return event({"model": "m", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more})


def calls(*fragments: dict[str, Any]) -> bytes:
    return b"".join(chunk({"tool_calls": [fragment]}) for fragment in fragments)


def fragment(index: int | None, id_: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    made: dict[str, Any] = {"function": function}
    if index is not None:
        made["index"] = index
    if id_ is not None:
        made["id"] = id_
    return made


def decode(*pieces: bytes) -> Completion:
    decoder = AnswerDecoder()
    for piece in pieces:
        decoder.feed(piece)
    decoder.close()
    return decoder.finish()


def end(finish: str = "stop") -> bytes:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    return chunk({}, finish) + event({"choices": [], "usage": usage}) + DONE


STREAM = (
    b": keep-alive\r\n\r\n"
    + chunk({"role": "assistant", "content": ""})
    + chunk({"reasoning_content": "Nachdenken über 한국어 und 😀."})
    + 'data: {"choices":[{"index":0,\r\ndata: "delta":{"content":"Grüße, 한국어, 😀"}}]}\r\n\r\n'.encode()
    + b"event: ping\rdata: {}\r\r"
    + calls(fragment(0, "functions.a:0", "a", ""), fragment(0, None, None, '{"x":'), fragment(0, None, None, "1}"))
    + end("tool_calls").replace(b"\n", b"\r\n")
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_of_the_bytes_decodes_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    got = decode(*(STREAM[start:stop] for start, stop in pairwise(edges)))
    assert got == decode(STREAM)
    assert got.message.content == "Grüße, 한국어, 😀"
    assert got.message.reasoning == "Nachdenken über 한국어 und 😀."
    assert [(call.id, call.name, call.arguments) for call in got.message.tool_calls] == [
        ("functions.a:0", "a", '{"x":1}')
    ]
    assert got.usage == Usage(10, output=2) and got.finish == "tool_calls" and got.served_by == "m"


def test_one_byte_at_a_time_decodes_the_same() -> None:
    assert decode(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == decode(STREAM)


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_rubbish_raises_nothing_but_model_errors(pieces: list[bytes], lines: bool) -> None:
    try:
        decode(*([b"data: " + piece + b"\n\n" for piece in pieces] if lines else pieces))
    except ModelError:
        pass


NAMES = [
    *("choices", "delta", "message", "content", "reasoning_content", "reasoning", "tool_calls", "function"),
    *("name", "arguments", "index", "id", "finish_reason", "usage", "prompt_tokens", "completion_tokens"),
    *("error", "type", "code", "cached_tokens", "model", "text", "refusal"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=400)
@given(st.lists(json_values, max_size=5))
def test_json_of_the_wrong_shape_raises_nothing_but_model_errors(values: list[Any]) -> None:
    for data in ([event(value) for value in values], [json.dumps(value).encode() for value in values[:1]]):
        try:
            got = decode(*data, *([DONE] if len(data) > 1 else []))
        except ModelError:
            continue
        assert isinstance(got.message.content, str)


def test_json_that_is_nested_without_end_is_rubbish() -> None:
    with pytest.raises(ModelUnavailable, match="no JSON"):
        decode(b"data: " + b"[" * 200_000 + b"\n\n")


# -- the stream ----------------------------------------------------------------------------------------------


def test_an_answer_without_done_is_whole_when_it_gave_its_reason_to_finish() -> None:
    assert decode(chunk({"content": "Hi"}), chunk({}, "stop")).message.content == "Hi"


def test_an_answer_that_ends_without_a_reason_is_cut_and_keeps_its_partial() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        decode(chunk({"content": "Half of it"}))
    assert caught.value.kind == "cut" and caught.value.partial == "Half of it"


def test_an_event_that_ends_with_the_body_and_not_with_a_blank_line_counts() -> None:
    assert decode(chunk({"content": "Hi"}), chunk({}, "stop").rstrip(b"\n")).finish == "stop"


def test_an_upstream_that_leaves_the_blank_lines_out_is_understood() -> None:
    stream = (chunk({"content": "a"}) + chunk({"content": "b"}, "stop")).replace(b"\n\n", b"\n")
    assert decode(stream).message.content == "ab"


def test_a_byte_order_mark_and_white_space_before_the_stream_are_skipped() -> None:
    assert decode(b"\xef\xbb\xbf", b"\n\n", chunk({"content": "Hi"}, "stop")).message.content == "Hi"


@pytest.mark.parametrize(
    ("where", "cached"),
    [
        (chunk({}, "stop", usage={"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4}), 4),
        (event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}), 0),
        (
            event(
                {
                    "choices": [
                        {
                            "index": 0,
                            "delta": {},
                            "finish_reason": "stop",
                            "usage": {
                                "prompt_tokens": 9,
                                "completion_tokens": 2,
                                "prompt_tokens_details": {"cached_tokens": 4},
                            },
                        }
                    ]
                }
            ),
            4,
        ),
    ],
)
def test_usage_is_found_in_every_place_where_upstreams_put_it(where: bytes, cached: int) -> None:
    assert decode(chunk({"content": "Hi"}), where, DONE).usage == Usage(9, cached=cached, output=2)


def test_usage_that_is_absent_or_only_a_placeholder_is_said_to_be_absent() -> None:
    empty = {"prompt_tokens": 0, "completion_tokens": 0}
    assert decode(chunk({"content": "Hi"}, "stop", usage=empty), DONE).usage is None


def test_usage_counts_only_once_the_answer_is_complete() -> None:
    decoder = AnswerDecoder()
    decoder.feed(chunk({"content": "Hi"}, usage={"prompt_tokens": 9, "completion_tokens": 1}))
    assert decoder.usage is None
    decoder.feed(chunk({}, "stop"))
    assert decoder.usage == Usage(9, output=1)


def test_half_a_surrogate_pair_waits_for_the_other_half_in_the_next_chunk() -> None:
    decoder = AnswerDecoder()
    first = decoder.feed(b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n')
    second = decoder.feed(b'data: {"choices":[{"delta":{"content":"\\ude00b\\ud800"},"finish_reason":"stop"}]}\n\n')
    assert first == [Piece("a")] and second == [Piece("😀b")]
    decoder.close()
    assert decoder.finish().message.content == "a😀b�"


def test_reasoning_is_read_under_both_names_and_an_empty_one_is_kept() -> None:
    assert decode(chunk({"reasoning": "Hm."}), chunk({"content": "x"}, "stop")).message.reasoning == "Hm."
    assert decode(chunk({"reasoning_content": ""}), chunk({"content": "x"}, "stop")).message.reasoning == ""
    assert decode(chunk({"content": "x", "reasoning_content": None}, "stop")).message.reasoning is None


def test_an_empty_answer_is_an_error_that_may_pass() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        decode(chunk({"reasoning_content": "thinking"}), end())
    assert caught.value.kind == "empty"


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"error": {"type": "server_error", "message": "Oops"}}, 500, True),
        ({"error": {"code": 429, "message": "Slow down"}}, 429, True),
        ({"error": {"type": "engine_overloaded_error", "message": "Busy"}}, 429, True),
        ({"error": "Something broke"}, 500, True),
        ({"object": "error", "message": "No such model", "type": "NotFoundError", "code": 404}, 404, False),
        ({"error": {"type": "exceeded_current_quota_error", "message": "Pay", "code": 429}}, 429, False),
    ],
)
def test_an_error_inside_a_stream_is_the_same_error_and_was_served(
    error: dict[str, Any], status: int, retryable: bool
) -> None:
    with pytest.raises(ModelError) as caught:
        decode(chunk({"content": "Half"}), event(error))
    assert caught.value.status == status and caught.value.retryable is retryable
    assert caught.value.served and caught.value.partial == "Half"


def test_an_event_named_error_is_an_error_whatever_it_holds() -> None:
    with pytest.raises(ModelUnavailable, match="went away"):
        decode(b"event: error\ndata: it went away\n\n")


def test_a_content_filter_is_a_refusal() -> None:
    with pytest.raises(ModelRefused) as caught:
        decode(chunk({"content": "Half"}), chunk({}, "content_filter"), DONE)
    assert caught.value.kind == "content_filter" and caught.value.partial == "Half"


def test_a_web_page_is_named_as_such_with_a_remedy() -> None:
    with pytest.raises(ModelUnavailable, match="web page") as caught:
        decode(b"<html><body>Welcome to nginx!</body></html>")
    assert "base_url" in caught.value.remedy


def test_a_comment_is_no_sign_of_life() -> None:
    decoder = AnswerDecoder()
    decoder.feed(b": processing\n\n")
    assert decoder.signs == 0 and not decoder.begun
    decoder.feed(chunk({"role": "assistant", "content": ""}))
    assert decoder.signs == 1 and not decoder.begun
    decoder.feed(chunk({"content": "x"}))
    assert decoder.begun


# -- one document --------------------------------------------------------------------------------------------


def document(message: dict[str, Any], finish: str = "stop", **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}).encode()


def test_an_answer_that_is_one_json_document_is_read_as_well() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    data = document({"content": None, "tool_calls": [call]}, "tool_calls", usage=usage)
    got = decode(b" \n", data[:7], data[7:])
    assert got.message.tool_calls[0].name == "a" and got.usage == Usage(9, output=2)


def test_a_document_that_broke_off_is_rubbish_and_not_an_answer() -> None:
    with pytest.raises(ModelUnavailable):
        decode(document({"content": "Hi"})[:-4])


def test_an_error_document_with_status_200_is_an_error() -> None:
    with pytest.raises(ModelError, match="No money"):
        decode(json.dumps([{"error": {"message": "No money", "type": "x"}}]).encode())


# -- tool calls ----------------------------------------------------------------------------------------------

A, B = ("a", '{"x": 1}'), ("b", '{"y": 2}')


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [fragment(0, "1", "a", ""), fragment(0, None, None, A[1]), fragment(1, "2", "b", B[1])],
            [A, B],
            id="as meant",
        ),
        pytest.param(
            [
                fragment(0, "1", "a", ""),
                fragment(1, "2", "b", ""),
                fragment(0, None, None, '{"x": '),
                fragment(1, None, None, '{"y": '),
                fragment(0, None, None, "1}"),
                fragment(1, None, None, "2}"),
            ],
            [A, B],
            id="interleaved by index",
        ),
        pytest.param(
            [fragment(0, "1", "a", '{"x": '), fragment(0, None, None, "1}"), fragment(0, "2", "b", B[1])],
            [A, B],
            id="index repeated",
        ),
        pytest.param(
            [
                fragment(0, "1", "a", ""),
                fragment(0, None, None, A[1]),
                fragment(0, "2", "a", ""),
                fragment(0, None, None, A[1]),
            ],
            [A, A],
            id="index repeated, one tool",
        ),
        pytest.param(
            [
                fragment(None, "1", "a", '{"x": '),
                fragment(None, None, None, "1}"),
                fragment(None, "2", "b", B[1]),
            ],
            [A, B],
            id="index absent",
        ),
        pytest.param(
            [
                fragment(None, "1", "a", '{"x": '),
                fragment(None, "2", "b", '{"y": '),
                fragment(None, "1", None, "1}"),
                fragment(None, "2", None, "2}"),
            ],
            [A, B],
            id="index absent, told apart by id",
        ),
        pytest.param([fragment(0, None, "a", A[1]), fragment(0, None, "b", B[1])], [A, B], id="ids absent"),
        pytest.param([fragment(0, "", "a", A[1]), fragment(0, "", "a", A[1])], [A, A], id="twice the same, ids empty"),
        pytest.param(
            [fragment(0, "x", "a", A[1]), fragment(1, "x", "a", A[1])],
            [A, A],
            id="twice the same, ids repeated",
        ),
        pytest.param(
            [fragment(0, "x", "a", A[1]), fragment(0, "x", "a", A[1])],
            [A, A],
            id="index, id and name repeated",
        ),
        pytest.param(
            [fragment(0, "1", "a", '{"x": '), fragment(0, "1", "a", "1}")],
            [A],
            id="id and name in every fragment",
        ),
        pytest.param(
            [fragment(0, "1", "a", '{"x": '), fragment(1, None, None, "1}")], [A], id="index counts fragments"
        ),
        pytest.param(
            [fragment(0, "1", None, None), fragment(0, None, "a", None), fragment(0, None, None, A[1])],
            [A],
            id="the name comes later",
        ),
        pytest.param([fragment(7, "1", "a", A[1]), fragment(3, "2", "b", B[1])], [A, B], id="index out of order"),
    ],
)
def test_a_call_is_known_by_its_place_among_the_calls_of_the_turn(
    fragments: Sequence[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    got = decode(calls(*fragments), end("tool_calls"))
    assert [(call.name, call.arguments) for call in got.message.tool_calls] == expected


def test_ids_come_through_as_they_were_and_missing_ones_are_made() -> None:
    got = decode(calls(fragment(0, "functions.a:0", "a", "{}"), fragment(1, None, "b", "{}")), end("tool_calls"))
    assert [call.id for call in got.message.tool_calls] == ["functions.a:0", "call_1"]


def test_arguments_sent_as_an_object_become_their_text() -> None:
    got = decode(chunk({"tool_calls": [{"function": {"name": "a", "arguments": {"x": 1}}}]}), end("tool_calls"))
    assert json.loads(got.message.tool_calls[0].arguments) == {"x": 1}


def test_calls_count_although_the_reason_to_finish_says_stop() -> None:
    assert decode(calls(fragment(0, "1", "a", "{}")), end("stop")).finish == "tool_calls"


def test_a_truncated_tool_call_is_never_given_out() -> None:
    got = decode(calls(fragment(0, "1", "a", A[1]), fragment(1, "2", "b", '{"path": "/home')), end("length"))
    assert got.finish == "length"
    assert [call.name for call in got.message.tool_calls] == ["a"]


def test_arguments_that_are_no_json_are_kept_for_the_model_to_mend() -> None:
    got = decode(calls(fragment(0, "1", "a", '{"x": oops}')), end("tool_calls"))
    assert got.message.tool_calls[0].arguments == '{"x": oops}'


def test_an_answer_cut_by_its_limit_before_any_text_is_an_answer_of_length() -> None:
    got = decode(chunk({"reasoning_content": "hm"}), end("length"))
    assert (got.finish, got.message.content) == ("length", "")


# -- caps ----------------------------------------------------------------------------------------------------


def test_more_calls_than_any_turn_has_are_refused() -> None:
    with pytest.raises(ModelRefused) as caught:
        decode(calls(*(fragment(n, f"{n}", "a", "{}") for n in range(CALLS_CAP + 1))))
    assert caught.value.kind == "too_large"


def test_an_event_without_end_is_refused_in_constant_memory() -> None:
    decoder = EventDecoder(event_cap=1000)
    with pytest.raises(ModelRefused):
        for _ in range(20):
            decoder.feed(b"data: " + b"x" * 90)


def test_many_lines_without_a_blank_one_are_one_event_and_are_capped() -> None:
    decoder = EventDecoder(event_cap=1000)
    with pytest.raises(ModelRefused):
        for _ in range(20):
            decoder.feed(b"data: " + b"x" * 90 + b"\n")


def test_comments_for_hours_are_no_event_and_meet_no_cap() -> None:
    decoder = EventDecoder(event_cap=100)
    for _ in range(1000):
        assert decoder.feed(b": still waiting") == [] and decoder.feed(b"\n") == []
    assert decoder.feed(b"data: x\n\n") == [ServerSentEvent("", "x")]


def test_an_answer_beyond_the_cap_is_refused() -> None:
    decoder = AnswerDecoder(text_cap=10)
    decoder.feed(chunk({"content": "abcdef"}))
    with pytest.raises(ModelRefused):
        decoder.feed(chunk({"reasoning_content": "abcdef"}))


def test_of_arguments_that_are_too_long_only_a_beginning_is_kept_which_is_no_object() -> None:
    merger = ToolCallMerger()
    merger.feed([{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"text": "'}}])
    merger.feed([{"index": 0, "function": {"arguments": "x" * ARGUMENTS_CAP + '"}'}}])
    (call,) = merger.calls()
    assert len(call.arguments) == BEGINNING
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(call.arguments)
