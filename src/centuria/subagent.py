"""One subagent: a conversation that ends in an answer. A plain `async def`, to be read in one sitting or replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from centuria.core.checking import TooMuchWork, bounded, errors_of
from centuria.core.templates import find_json
from centuria.errors import CenturiaError
from centuria.messages import CallKey, Message, ToolCall, ToolResult, ToolSpec
from centuria.ports import Caller, ChatRequest, Model
from centuria.settings import Task

MAX_REPAIRS = 2
#: More tool calls than this in one turn are not run; the model is told so.
MAX_CALLS_A_TURN = 128

SYSTEM = """\
You are one of many subagents that work in parallel on one job. Do the task that you are given and answer with its \
result alone: a program merges it with the results of the others. Use the tools where they help, and call several at \
once where they do not depend on each other. Where something is missing, say so; never invent a figure."""

RECOVERY = """\
You have used most of your {limit}. This is your last turn: call no tool, and give your final answer now from what you \
know. Say what is missing."""


class AnswerUnusable(CenturiaError):
    """The model ended without an answer that the job can use; asking again in the same way would not help."""


class Tools(Protocol):
    """What an agent may call: its view of the tools, behind the scheduler."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def call(self, call: ToolCall, caller: Caller) -> ToolResult: ...

    async def call_all(self, calls: Sequence[tuple[ToolCall, Caller]]) -> list[ToolResult]:
        """The calls of one turn, side by side; their results in the order of the calls."""
        ...


@dataclass(slots=True)
class Draft:
    """What an agent has so far; its last state is what is kept when it is stopped from outside."""

    text: str = ""
    structured: Any = None
    steps: int = 0
    repairs: int = 0
    cut_short: bool = False
    cause: str = ""

    def clear(self) -> None:
        """Begin again with nothing."""
        self.text, self.structured, self.steps, self.repairs = "", None, 0, 0
        self.cut_short, self.cause = False, ""


@dataclass(frozen=True, slots=True)
class Brief:
    """Everything that one agent is given. `opening` is its first messages: alike for all siblings as far as possible.

    `recovery(turn)` names the limit because of which this turn must be the last, or None.
    """

    task: Task
    epoch: int
    index: int
    node: str
    opening: tuple[Message, ...]
    model: Model
    tools: Tools
    steps: int
    recovery: Callable[[int], str | None]
    draft: Draft = field(default_factory=Draft)


async def converse(brief: Brief) -> Draft:
    """Talk to the model, running the tools it asks for, until it answers.

    Raises `AnswerUnusable` when the steps or repairs are used up, and whatever the model client raises.
    """
    draft, history = brief.draft, list(brief.opening)
    for turn in range(brief.steps):
        limit = brief.recovery(turn)
        if limit is not None:
            history.append(Message("user", RECOVERY.format(limit=limit)))
        request = ChatRequest(tuple(history), brief.tools.specs, brief.task.max_tokens)
        completion = await brief.model.chat(request, _caller(brief, turn, 0))
        draft.steps = turn + 1
        answer = completion.message
        history.append(answer)
        if answer.content:
            draft.text = answer.content
        if answer.tool_calls:
            if limit is not None:
                raise AnswerUnusable(f"It went on calling tools after it had used its {limit}.")
            results = await brief.tools.call_all(
                [
                    (call, _caller(brief, turn, position))
                    for position, call in enumerate(answer.tool_calls[:MAX_CALLS_A_TURN], start=1)
                ]
            )
            history.extend(_tool_messages(answer.tool_calls, results))
            continue
        complaint = _judge(brief, answer.content, completion.finish)
        if complaint is None:
            draft.cut_short = draft.cut_short or limit is not None
            return draft
        if draft.repairs >= MAX_REPAIRS or limit is not None:
            raise AnswerUnusable(complaint)
        draft.repairs += 1
        history.append(Message("user", complaint + " Answer again, in full."))
    raise AnswerUnusable(f"It did not come to an answer within its {brief.steps} steps.")


def opening(task: Task, system: str, results: Sequence[tuple[str, str]]) -> tuple[Message, ...]:
    """The first messages of an agent: what siblings share first, then the task, then the results that it needs."""
    rules = system or SYSTEM
    if task.schema is not None:
        shape = json.dumps(task.schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        rules += f"\n\nAnswer with one JSON object and nothing else, valid against this JSON Schema:\n{shape}"
    prompt = task.prompt
    if results:
        parts = [f"## {identity}\n\n{text}" for identity, text in results]
        prompt += "\n\n# Results of the tasks before this one\n\n" + "\n\n".join(parts)
    return (Message("system", rules), Message("user", prompt))


def _caller(brief: Brief, turn: int, position: int) -> Caller:
    key = CallKey(brief.task.id, brief.epoch, turn, position)
    return Caller(key, brief.node, brief.index, brief.task.priority)


async def in_parallel(
    call_one: Callable[[ToolCall, Caller], Awaitable[ToolResult]], calls: Sequence[tuple[ToolCall, Caller]]
) -> list[ToolResult]:
    """Run calls side by side; the results come back in the order of the calls."""

    async def one(call: ToolCall, caller: Caller) -> ToolResult:
        return await call_one(call, caller)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(call, caller)) for call, caller in calls]
    return [task.result() for task in running]


def _tool_messages(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Message]:
    """Exactly one answer for each call, whatever came of it."""
    texts = [result.text for result in results]
    texts += [f"Not run: at most {MAX_CALLS_A_TURN} calls a turn."] * (len(calls) - len(results))
    return [Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, texts, strict=True)]


def _judge(brief: Brief, text: str, finish: str) -> str | None:
    """Take the draft as the answer, or say to the model what is wrong with it."""
    draft, task = brief.draft, brief.task
    if task.schema is None:
        if finish == "length":
            if not text.strip():
                return f"Your answer was cut off at {task.max_tokens} tokens before it said anything; be brief."
            draft.cut_short, draft.cause = True, f"the answer was cut off at max_tokens = {task.max_tokens}"
        return None
    found = find_json(text)
    if not isinstance(found, Mapping):
        cut = f" It was cut off at {task.max_tokens} tokens." if finish == "length" else ""
        return f"Your answer is not one JSON object.{cut}"
    wrong = violations(found, task.schema)
    if wrong:
        return "Your answer does not fit the schema: " + "; ".join(wrong) + "."
    draft.structured = dict(found)
    return None


def violations(value: Any, schema: Mapping[str, Any], *, most: int = 5) -> list[str]:
    """Where a value breaks a JSON Schema (draft 2020-12), in words; empty if it fits."""
    from jsonschema import Draft202012Validator

    try:
        errors = list(islice(errors_of(bounded(Draft202012Validator)(schema), value), most))
    except (TooMuchWork, RecursionError):
        return ["at $: it is too large or too deep to be checked"]
    return [f"at {error.json_path}: {error.message[:200]}" for error in errors]
