import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ModelRefused
from centuria.messages import Message, ToolCall, ToolSpec
from centuria.model.usage import usage_from
from centuria.model.wire import authorization, identity
from centuria.ports import ChatRequest
from centuria.settings import Endpoint, Secret
from tests.model.kit import body_of

KIMI = Endpoint("moonshot", "https://api.example.com/v1", "kimi-k2.5", Secret("sk-0123456789"), thinks=True)
SEARCH = ToolSpec("web__search", "Search the web.", {"type": "object", "properties": {"q": {"type": "string"}}})


def body(*messages: Message, endpoint: Endpoint = KIMI, tools: tuple[ToolSpec, ...] = ()) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(body_of(endpoint, ChatRequest(messages, tools), 4096))
    return value


def test_a_request_asks_for_a_stream_with_usage_and_sends_no_sampling_of_its_own() -> None:
    sent = body(Message("system", "Be brief."), Message("user", "Hi"))
    assert sent == {
        "model": "kimi-k2.5",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 4096,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_endpoint_names_the_limit_and_its_sampling_never_overrides_the_request() -> None:
    endpoint = Endpoint(
        "x",
        "http://x/v1",
        "m",
        limit_field="max_completion_tokens",
        sampling={"top_p": 0.5, "model": "other"},
    )
    sent = body(Message("user", "Hi"), endpoint=endpoint)
    assert sent["max_completion_tokens"] == 4096 and sent["top_p"] == 0.5 and sent["model"] == "m"
    assert "max_tokens" not in sent


def test_no_member_of_a_request_is_written_twice() -> None:
    own = {"stream": False, "max_tokens": 1, "messages": [], "tools": [], "stream_options": {}, "model": "other"}
    endpoint = Endpoint("x", "http://x/v1", "m", sampling=own)
    pairs: list[tuple[str, Any]] = []
    data = body_of(endpoint, ChatRequest((Message("user", "Hi"),), (SEARCH,)), 4096)
    sent = json.loads(data, object_pairs_hook=lambda found: pairs.extend(found) or dict(found))
    names = [name for name, _ in pairs]
    assert all(names.count(name) == 1 for name in own)
    assert sent["stream"] is True and sent["max_tokens"] == 4096 and len(sent["messages"]) == len(sent["tools"]) == 1


@pytest.mark.parametrize("reasoning", ["", "I should search."])
def test_kimis_reasoning_goes_back_beside_tool_calls_an_empty_one_too(reasoning: str) -> None:
    calls = (ToolCall("functions.web__search:0", "web__search", '{"q":"a"}'),)
    sent = body(Message("assistant", "", reasoning, calls), Message("tool", "found", tool_call_id=calls[0].id))
    assistant, tool = sent["messages"]
    assert assistant["reasoning_content"] == reasoning
    assert "content" not in assistant, "Kimi refuses an empty content beside tool calls"
    assert tool == {"role": "tool", "tool_call_id": "functions.web__search:0", "content": "found"}


def test_reasoning_is_not_sent_back_without_tool_calls_or_where_there_was_none() -> None:
    calls = (ToolCall("1", "t", "{}"),)
    first, second = body(Message("assistant", "A", "thought"), Message("assistant", "B", None, calls))["messages"]
    assert "reasoning_content" not in first and "reasoning_content" not in second
    assert second["content"] == "B"


@pytest.mark.parametrize("id_", ["functions.x:0", "", 'call ü"\\', "0" * 300])
def test_ids_are_echoed_byte_for_byte(id_: str) -> None:
    calls = (ToolCall(id_, "t", "{}"),)
    assistant, tool = body(Message("assistant", "", "", calls), Message("tool", "r", tool_call_id=id_))["messages"]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == id_


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"q": 1}', {"q": 1}),
        ("", {}),
        ('{"q": 1', {"invalid_json": '{"q": 1'}),
        ("[1]", {"invalid_json": "[1]"}),
        ('{"q": NaN}', {"invalid_json": '{"q": NaN}'}),
        ('{"q": "\\ud800"}', {"q": "�"}),
        ('{"q": "a\\u0000b"}', {"q": "a�b"}),
    ],
)
def test_arguments_that_servers_would_refuse_travel_inside_an_object(written: str, sent: dict[str, Any]) -> None:
    message = body(Message("assistant", "", "", (ToolCall("1", "t", written),)))["messages"][0]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == sent


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_text_is_sent_as_valid_utf_8_without_escapes_that_servers_refuse(text: str) -> None:
    call = ToolCall(text, text, json.dumps({"a": text}))
    tool = ToolSpec("t", text, {"type": "object", "description": text})
    request = ChatRequest((Message("user", text), Message("assistant", text, text, (call,))), (tool,))
    data = body_of(KIMI, request, 1).decode("utf-8")
    assert "\\u0000" not in data and not re.search(r"\\ud[89a-f]", data.lower())
    sent = json.loads(data)["messages"][0]["content"]
    if text.isascii() and "\0" not in text:
        assert sent == text


def test_halves_of_a_pair_are_joined_and_lone_ones_replaced() -> None:
    assert body(Message("user", "\ud83d\ude00 \ud800 \0"))["messages"][0]["content"] == "😀 � �"


def test_what_is_asked_is_told_apart_by_its_conversation_alone() -> None:
    def same(one: ChatRequest, two: ChatRequest) -> bool:
        return identity(one) == identity(two)

    hi = (Message("user", "Hi"),)
    assert same(ChatRequest(hi, max_tokens=1), ChatRequest(hi, (SEARCH,), max_tokens=2, model="other"))
    assert not same(ChatRequest(hi), ChatRequest((Message("user", "Ho"),)))
    assert not same(ChatRequest(hi), ChatRequest((*hi, Message("assistant", "Ho"))))


def test_two_turns_of_a_task_share_the_bytes_of_their_common_prompt() -> None:
    first = (Message("user", "Hi"),)
    second = (*first, Message("assistant", "Ho"), Message("user", "Again"))
    one, two = (body_of(KIMI, ChatRequest(turn, (SEARCH,)), 9) for turn in (first, second))
    shared = one[: one.index(b'],"max_tokens"')]
    assert two.startswith(shared) and b"web__search" in shared


def test_a_schema_that_is_no_json_is_refused_before_anything_is_sent() -> None:
    tool = ToolSpec("t", "", {"maximum": float("nan")})
    with pytest.raises(ModelRefused) as caught:
        body_of(KIMI, ChatRequest((), (tool,)), 1)
    assert not caught.value.served


def test_the_key_goes_into_one_header_unless_the_endpoint_brings_its_own() -> None:
    assert authorization(KIMI) == {"Authorization": "Bearer sk-0123456789"}
    own = Endpoint("x", "http://x", "m", Secret("k"), headers={"authorization": "Basic abc"})
    assert authorization(own) == authorization(Endpoint("x", "http://x", "m")) == {}


# -- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "prompt", "cached", "written", "output"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 7}, 100, 0, 0, 7),
        (
            {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}},
            100,
            60,
            0,
            7,
        ),
        ({"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 60}, 100, 60, 0, 7),
        ({"prompt_tokens": 100, "completion_tokens": 7, "prompt_cache_hit_tokens": 60}, 100, 60, 0, 7),
        ({"prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 60}, 65, 60, 0, 7),
        ({"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 40}, 10, 0, 0, 30),
        ({"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": None}, 10, 0, 0, 7),
        (
            {
                "input_tokens": 40,
                "cache_read_input_tokens": 50,
                "cache_creation_input_tokens": 10,
                "output_tokens": 7,
            },
            100,
            50,
            10,
            7,
        ),
        (
            {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 50}, "output_tokens": 7},
            100,
            50,
            0,
            7,
        ),
    ],
)
def test_usage_of_every_dialect_counts_each_token_once(
    raw: dict[str, Any], prompt: int, cached: int, written: int, output: int
) -> None:
    usage = usage_from(raw)
    assert usage is not None
    assert (usage.prompt, usage.cached, usage.cache_written, usage.output) == (
        prompt,
        cached,
        written,
        output,
    )


@pytest.mark.parametrize(
    "raw",
    [None, 3, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": -1, "completion_tokens": 2}]
    + [{"prompt_tokens": odd, "completion_tokens": 2} for odd in ("seven", "-7", True, 1e12, float("nan"), [1])],
)
def test_usage_that_cannot_be_believed_is_no_usage(raw: Any) -> None:
    assert usage_from(raw) is None
