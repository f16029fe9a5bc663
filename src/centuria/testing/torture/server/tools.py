"""Checks of tool calls. A model that makes no call is no fault of its server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from centuria.testing.torture.server.asking import Examiner, choice_of, parsed, part_of
from centuria.testing.torture.server.checks import Check, Outcome, ensure, failed, not_applicable, passed, unanswered

ONE = "What is the weather in Paris? Use the tool get_weather, and nothing else."
TWO = "What is the weather in Paris, and in Tokyo? Call the tool get_weather once for each, both in this turn."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city's name"}},
            "required": ["city"],
        },
    },
}
_NO_CALL = "the model made no tool call"


async def _plain(server: Examiner) -> Outcome:
    heard = await server.ask(server.body(ONE, 256, tools=[TOOL]))
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    choice = choice_of(heard.value)
    calls = part_of(choice, "message").get("tool_calls")
    return _judge(calls, choice.get("finish_reason"))


async def _streamed(server: Examiner) -> Outcome:
    calls, finish, outcome = await _stream(server, ONE)
    return outcome or _judge(calls, finish)


async def _parallel(server: Examiner) -> Outcome:
    calls, finish, outcome = await _stream(server, TWO)
    if outcome is not None:
        return outcome
    judged = _judge(calls, finish)
    if len(calls) == 1 and judged.state == "pass":
        return not_applicable("the model made one call at a time")
    return judged


async def _stream(server: Examiner, text: str) -> tuple[list[dict[str, Any]], Any, Outcome | None]:
    """The calls merged by their index alone, as most clients do; an outcome where a fragment has none."""
    heard = await server.ask(server.body(text, 256, tools=[TOOL], stream=True))
    wrong = unanswered(heard)
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for choice in map(choice_of, heard.chunks):
        finish = choice.get("finish_reason") or finish
        for fragment in part_of(choice, "delta").get("tool_calls") or ():
            index = fragment.get("index")
            if type(index) is not int:
                return [], None, wrong or failed(f"a fragment without an index: {fragment!r:.80}")
            call = calls.setdefault(index, {"function": {"name": "", "arguments": ""}})
            _add(call, fragment)
    return list(calls.values()), finish, wrong


def _add(call: dict[str, Any], fragment: dict[str, Any]) -> None:
    function = part_of(fragment, "function")
    call["id"] = call.get("id") or fragment.get("id")
    for name in ("name", "arguments"):
        more = function.get(name)
        call["function"][name] += more if isinstance(more, str) else ""


def _judge(calls: Any, finish: Any) -> Outcome:
    if not calls:
        return not_applicable(_NO_CALL)
    wrong = [problem for call in calls for problem in _problems(call)]
    ids = [call.get("id") for call in calls]
    if len(set(ids)) != len(ids):
        wrong.append(f"two calls have one id: {ids[0]!r}")
    if finish != "tool_calls":
        wrong.append(f"finish_reason {finish!r}")
    names = ", ".join(str(call["function"]["arguments"]) for call in calls if not wrong)
    return failed("; ".join(dict.fromkeys(wrong))) if wrong else passed(f"{len(calls)} with {names:.80}")


def _problems(call: dict[str, Any]) -> list[str]:
    """What is not legal in one call."""
    id_, function = call.get("id"), part_of(call, "function")
    name, arguments = function.get("name"), function.get("arguments")
    wrong = []
    if not isinstance(id_, str) or not id_:
        wrong.append(f"the id is {id_!r}")
    if name != "get_weather":
        wrong.append(f"the name is {name!r:.40}")
    if not isinstance(arguments, str) or not isinstance(parsed(arguments), dict):
        wrong.append(f"the arguments are no JSON object: {arguments!r:.60}")
    return wrong


async def _results(server: Examiner) -> Outcome:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    answer: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if server.endpoint.thinks:
        answer["reasoning_content"] = "I look it up."
    messages = [
        {"role": "user", "content": ONE},
        answer,
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"sky": "clear", "celsius": 21})},
    ]
    heard = await server.ask(server.body("", 128, tools=[TOOL], messages=messages))
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    message = part_of(choice_of(heard.value), "message")
    text = message.get("content")
    return ensure(bool(text or message.get("tool_calls")), f"{text!r:.60}", f"an empty answer: {message!r:.80}")


def tools() -> Sequence[Check]:
    legal = "an id, the tool's name, arguments that are a JSON object, finish_reason tool_calls"
    return [
        Check("a tool call", legal, _plain, prompt=150, output=256),
        Check("a streamed tool call", f"{legal}; an index in each fragment", _streamed, prompt=150, output=256),
        Check("parallel tool calls", "an index and an id for each", _parallel, prompt=170, output=256),
        Check("a tool's result", "is accepted, and the model goes on", _results, prompt=200, output=128),
    ]
