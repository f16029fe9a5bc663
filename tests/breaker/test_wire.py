"""What an upstream writes is whole, or it is no answer; and whatever it writes can be sent back to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from centuria.core.arguments import BadArguments, parse_arguments
from centuria.core.retry import parse_retry_after
from centuria.core.templates import find_json
from centuria.errors import ModelError, ModelRefused, ModelUnavailable
from centuria.messages import Completion, Message, ToolCall, ToolSpec, Usage
from centuria.model.answer import AnswerDecoder
from centuria.model.wire import identity
from centuria.ports import ChatRequest
from centuria.settings import Endpoint
from centuria.testing.upstream import FakeUpstream, HttpError, Reply, Text
from tests.model.kit import KEY, ask, body_of, caller, desk

ENDPOINT = Endpoint("fake", "http://upstream.test/v1", "m")
DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: Any = 0, **more: Any) -> bytes:
    value = {"choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def used(prompt: Any, output: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


def call(index: Any, arguments: str, name: str | None = "pay") -> bytes:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "function": function}]})


def decode(*parts: bytes) -> Completion:
    decoder = AnswerDecoder(secret=KEY)
    decoder.feed(b"".join(parts))
    decoder.close()
    return decoder.finish()


def talk(arguments: str, tools: tuple[ToolSpec, ...] = ()) -> ChatRequest:
    asked = Message("assistant", "", None, (ToolCall("1", "f", arguments),))
    return ChatRequest((Message("user", "Go."), asked, Message("tool", "Fine.", tool_call_id="1")), tools, 100)


# -- reasons to finish -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS", "max_tokens", "model_length", "LENGTH", "incomplete"])
@pytest.mark.parametrize("arguments", ["", " ", '{"to": "a', '{"to": {"b": 1}'])
def test_a_call_that_the_limit_cut_is_left_out_by_whatever_name_the_limit_goes(finish: str, arguments: str) -> None:
    got = decode(call(0, "{}"), call(1, arguments), chunk({}, finish), DONE)
    assert [call.arguments for call in got.message.tool_calls] == ["{}"]
    assert got.finish == "length"


@pytest.mark.parametrize("arguments", ["", '{"to": "a'])
def test_a_stream_that_ends_inside_a_call_and_gives_no_reason_is_no_answer(arguments: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        decode(chunk({"content": "I pay."}), call(0, arguments), DONE)
    assert caught.value.kind == "cut" and caught.value.partial == "I pay."


@pytest.mark.parametrize(
    "finish",
    ["abort", "cancelled", "timeout", "insufficient_system_resource", "ENGINE_ERROR", "malformed_function_call"],
)
def test_an_answer_that_its_server_gave_up_is_tried_again_and_not_taken_for_whole(finish: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        decode(chunk({"content": "Half of a sen"}), chunk({}, finish), DONE)
    assert caught.value.retryable and caught.value.partial == "Half of a sen"


def test_of_two_reasons_to_finish_the_graver_one_holds() -> None:
    assert decode(chunk({"content": "Half"}), chunk({}, "length"), chunk({}, "stop"), DONE).finish == "length"
    assert decode(chunk({"content": "Half"}), chunk({}, "stop"), chunk({}, "length"), DONE).finish == "length"


# -- numbers -----------------------------------------------------------------------------------------------------


def test_the_index_of_a_choice_may_be_a_string_as_any_number_may() -> None:
    got = decode(chunk({"content": "Hi"}, index="0"), chunk({"content": "No"}, index="1"), chunk({}, "stop", "0"), DONE)
    assert got.message.content == "Hi"


@pytest.mark.parametrize("indexes", [(0.0, 1.0), ("0", "1"), (-1, -2), (10**9, 2**70), (1e9, 2e9)])
def test_parallel_calls_are_told_apart_by_any_index(indexes: tuple[Any, Any]) -> None:
    one, two = indexes
    parts = (call(one, '{"n": '), call(two, '{"n": '), call(one, "1}", None), call(two, "2}", None))
    assert [call.arguments for call in decode(*parts, chunk({}, "tool_calls")).message.tool_calls] == [
        '{"n": 1}',
        '{"n": 2}',
    ]


def test_usage_in_parts_is_the_most_of_them_and_fractions_count_as_the_next_token() -> None:
    whole = (chunk({"content": "Hi"}), chunk({}, "stop"))
    assert decode(*whole, used(100, 0), used(0, 7), DONE).usage == Usage(100, output=7)
    assert decode(*whole, used(100, 500), used(1, 1), DONE).usage == Usage(100, output=500)
    assert decode(*whole, used(1, 1), used(100, 500), DONE).usage == Usage(100, output=500)
    assert decode(*whole, used(20.2, 6.5), DONE).usage == Usage(21, output=7)


def test_the_key_is_not_kept_where_an_upstream_names_its_model_by_it() -> None:
    got = decode(chunk({"content": "Hi"}, "stop", model=f"model-{KEY}"), DONE)
    assert KEY not in repr(got) and got.served_by == "model-***"


def test_a_placeholder_for_a_key_is_not_blotted_out_of_the_models_name() -> None:
    decoder = AnswerDecoder(secret="kimi")
    decoder.feed(chunk({"content": "Hi"}, "stop", model="kimi-k2.5") + DONE)
    assert decoder.finish().served_by == "kimi-k2.5"


@pytest.mark.parametrize("text", ['{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}', '{"n": [-1e400]}'])
def test_what_is_no_number_of_json_is_neither_an_argument_nor_an_answer(text: str) -> None:
    with pytest.raises(BadArguments):
        parse_arguments(text)
    assert find_json(text) is None and find_json(f"Here it is:\n```json\n{text}\n```") is None
    sent = json.loads(body_of(ENDPOINT, talk(text), 100), parse_constant=pytest.fail)
    assert json.loads(sent["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"invalid_json": text}


# -- the way back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [100, 400, 600, 900, 5000])
@pytest.mark.parametrize("risky", ["\\u0000", "\\ud83d", "\\ud83d\\ude00"])
def test_a_call_nested_however_deeply_is_sent_back_or_told_and_never_breaks_its_agent(depth: int, risky: str) -> None:
    request = talk(f'{{"a": {"[" * depth}"{risky}"{"]" * depth}}}')
    body = body_of(ENDPOINT, request, 100)
    assert isinstance(json.loads(json.loads(body)["messages"][1]["tool_calls"][0]["function"]["arguments"]), dict)
    assert identity(request)


def test_a_schema_nested_too_deeply_to_be_written_is_a_refusal() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(ModelRefused) as caught:
        body_of(ENDPOINT, talk("{}", (ToolSpec("f", "", schema),)), 100)
    assert (caught.value.kind, caught.value.served) == ("encode", False)


def test_of_arguments_without_end_little_is_kept() -> None:
    decoder, piece = AnswerDecoder(), call(0, "x" * 100_000, None)
    decoder.feed(call(0, '{"q": "'))
    for _ in range(100):
        decoder.feed(piece)
    assert sum(len(part) for part in decoder._calls._calls[0].parts) < 2_000_000
    decoder.feed(chunk({}, "tool_calls") + DONE)
    assert len(decoder.finish().message.tool_calls[0].arguments) == 1_000


# -- what one request is refused for ------------------------------------------------------------------------------

_TOO_LARGE = (
    "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 35000. The input or "
    "output tokens must be reduced in order to run successfully."
)


async def test_a_request_above_the_accounts_tokens_a_minute_fails_at_once_and_holds_up_nobody() -> None:
    def reply(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["content"] == "Much":
            return HttpError(429, "tokens", _TOO_LARGE)
        return Text("Fine.")

    async with FakeUpstream(reply) as upstream, desk(upstream) as room:
        with pytest.raises(ModelRefused, match="max_tokens"):
            await room.client.chat(ask("Much"), caller("much"))
        assert len(upstream.requests) == 1
        assert room.governor.concurrency == 100 and room.governor.closed_until() is None
        await asyncio.gather(*(room.client.chat(ask("Little"), caller(f"t{n}")) for n in range(10)))
        assert len(upstream.requests) == 11
        room.assert_nothing_is_left_open()


@pytest.mark.parametrize(
    "said", ["Limit 10000, Used 8000, Requested 3000. Please try again in 6s.", "Limit: 3, requested: 3", "RPM: 20"]
)
def test_a_request_that_would_fit_later_waits(said: str) -> None:
    with pytest.raises(ModelError) as caught:
        decode(b"data: " + json.dumps({"error": {"code": 429, "message": f"Rate limit reached: {said}"}}).encode())
    assert isinstance(caught.value, ModelUnavailable)


# -- clocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0.0, 1_445_412_480.0, 1_445_412_480.0 - 7200, 4e9])
def test_a_date_to_come_back_at_is_by_the_upstreams_clock_and_not_by_ours(now: float) -> None:
    headers = {"Date": "Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2015 07:28:02 GMT"}
    assert parse_retry_after(headers, now) == 2.0
    assert parse_retry_after({**headers, "Retry-After": "Wed, 21 Oct 2015 07:27:00 GMT"}, now) == 0.0


@pytest.mark.parametrize("date", ["", "now", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_without_a_date_of_the_upstream_our_clock_holds(date: str) -> None:
    headers = {"date": date, "retry-after": "Wed, 21 Oct 2015 07:28:02 GMT"}
    assert parse_retry_after(headers, 1_445_412_480.0) == 2.0
