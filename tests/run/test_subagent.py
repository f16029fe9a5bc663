"""The agent loop: answers, tools, repairs, steps and the recovery turn, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from centuria.messages import Completion, Message, ToolCall, ToolEnd, ToolResult, ToolSpec, Usage
from centuria.ports import Caller
from centuria.settings import Task
from centuria.subagent import MAX_CALLS_A_TURN, AnswerUnusable, Brief, Draft, Tools, converse, opening
from centuria.testing import clock
from centuria.testing.scripted import Script, ScriptedModel, call, completion
from centuria.toolviews import in_parallel

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@dataclass
class Echo(Tools):
    """Tools that answer with their arguments after `seconds`."""

    seconds: float = 0.0
    calls: list[tuple[ToolCall, Caller]] = field(default_factory=list)
    specs: tuple[ToolSpec, ...] = (ToolSpec("t__echo", "Says it again.", {"type": "object"}),)

    async def call_all(self, calls: Sequence[tuple[ToolCall, Caller]]) -> list[ToolResult]:
        return await in_parallel(self.call, calls)

    async def call(self, call: ToolCall, caller: Caller) -> ToolResult:
        self.calls.append((call, caller))
        await asyncio.sleep(self.seconds)
        if call.name != "t__echo":
            return ToolResult(f"There is no {call.name}.", ToolEnd.REFUSED)
        return ToolResult(call.arguments)


def brief(
    script: Script,
    *,
    schema: dict[str, Any] | None = None,
    steps: int = 10,
    tools: Echo | None = None,
    recovery: Callable[[int], str | None] = lambda _: None,
) -> Brief:
    task = Task("a", "Do it.", "spec", schema=schema)
    model = ScriptedModel(script)
    messages = opening(task, "", [])
    return Brief(task, 0, 0, "task:a", messages, model, tools or Echo(), steps, recovery)


def run(coroutine: Coroutine[Any, Any, Draft]) -> Draft:
    return clock.run(coroutine)


def turns(*answers: Any) -> Script:
    """Answer number n on turn n, and the last one for ever."""
    return lambda _, caller: answers[min(caller.key.turn, len(answers) - 1)]


def test_an_answer_without_tools_ends_the_conversation() -> None:
    draft = run(converse(brief(turns("Done."))))
    assert (draft.text, draft.steps, draft.cut_short) == ("Done.", 1, False)


def test_tools_of_one_turn_run_in_parallel_and_come_back_in_order() -> None:
    tools = Echo(seconds=5.0)
    calls = [call("t__echo", {"n": n}) for n in range(20)]
    given = brief(turns(calls, "Done."), tools=tools)

    async def main() -> tuple[Draft, float]:
        draft = await converse(given)
        return draft, asyncio.get_running_loop().time()

    draft, ended = clock.run(main())
    assert draft.text == "Done."
    assert ended == pytest.approx(5.0)
    history = given.model.requests[1][0].messages  # type: ignore[attr-defined]
    answered = [message for message in history if message.role == "tool"]
    assert [message.tool_call_id for message in answered] == [one.id for one in calls]
    assert [json.loads(message.content)["n"] for message in answered] == list(range(20))
    assert [caller.key.position for _, caller in tools.calls] == list(range(1, 21))


def test_each_call_has_exactly_one_result_even_above_the_most_a_turn_may_ask_for() -> None:
    tools = Echo()
    calls = [call("t__echo", {}) for _ in range(MAX_CALLS_A_TURN + 3)]
    given = brief(turns(calls, "Done."), tools=tools)
    run(converse(given))
    history = given.model.requests[1][0].messages  # type: ignore[attr-defined]
    assert len(tools.calls) == MAX_CALLS_A_TURN
    assert [message.tool_call_id for message in history if message.role == "tool"] == [one.id for one in calls]


def test_reasoning_goes_back_with_the_tool_calls_it_led_to() -> None:
    thought = Completion(
        Message("assistant", reasoning="hm", tool_calls=(call("t__echo", {}),)), Usage(1), "tool_calls"
    )
    given = brief(turns(thought, "Done."))
    run(converse(given))
    assert given.model.requests[1][0].messages[2].reasoning == "hm"  # type: ignore[attr-defined]


def test_an_answer_against_the_schema_goes_back_with_what_is_wrong_and_is_counted() -> None:
    given = brief(turns("rubbish", '{"n": "one"}', '```json\n{"n": 1}\n```'), schema=SCHEMA)
    draft = run(converse(given))
    assert (draft.structured, draft.repairs) == ({"n": 1}, 2)
    complaints = [request.messages[-1].content for request, _ in given.model.requests[1:]]  # type: ignore[attr-defined]
    assert "not one JSON object" in complaints[0]
    assert "at $.n: 'one' is not of type 'integer'" in complaints[1]


def test_an_agent_that_answers_rubbish_to_the_end_fails_with_the_reason_and_keeps_its_text() -> None:
    given = brief(turns("rubbish"), schema=SCHEMA)
    with pytest.raises(AnswerUnusable, match="not one JSON object"):
        run(converse(given))
    assert given.draft.text == "rubbish"
    assert len(given.model.requests) == 3  # type: ignore[attr-defined]


def test_an_agent_that_never_stops_calling_tools_ends_at_its_step_limit() -> None:
    given = brief(lambda *_: [call("t__echo", {})], steps=4)
    with pytest.raises(AnswerUnusable, match="within its 4 steps"):
        run(converse(given))
    assert given.draft.steps == 4


def test_the_recovery_turn_asks_for_what_is_known_and_its_answer_is_cut_short() -> None:
    def script(request: Any, _: Caller) -> Any:
        return "All I know." if "last turn" in request.messages[-1].content else [call("t__echo", {})]

    given = brief(script, recovery=lambda turn: "tokens" if turn == 3 else None)
    draft = run(converse(given))
    assert (draft.text, draft.cut_short, draft.steps) == ("All I know.", True, 4)


def test_an_agent_that_ignores_its_recovery_turn_is_ended() -> None:
    given = brief(lambda *_: [call("t__echo", {})], recovery=lambda turn: "time" if turn == 1 else None)
    with pytest.raises(AnswerUnusable, match="after it had used its time"):
        run(converse(given))


def test_a_text_that_was_cut_off_counts_as_cut_short_and_an_empty_one_is_asked_for_again() -> None:
    draft = run(converse(brief(turns(completion("Half a sent", finish="length")))))
    assert draft.cut_short
    assert "max_tokens" in draft.cause
    empty = Completion(Message("assistant", reasoning="long thoughts"), Usage(1), "length")
    draft = run(converse(brief(turns(empty, "Short."))))
    assert (draft.text, draft.repairs) == ("Short.", 1)


def test_siblings_share_the_beginning_of_their_conversation_byte_for_byte() -> None:
    one = opening(Task("a", "About A", "s", schema=SCHEMA), "", [])
    other = opening(Task("b", "About B", "t", schema=dict(reversed(SCHEMA.items()))), "", [])
    assert one[0] == other[0]


def test_results_of_needed_tasks_stand_below_the_prompt() -> None:
    messages = opening(Task("a", "Sum up.", "s"), "Rules.", [("x", "one"), ("y", "two")])
    assert messages[0].content == "Rules."
    assert messages[1].content.startswith("Sum up.")
    assert "## x\n\none" in messages[1].content
    assert "## y\n\ntwo" in messages[1].content
