"""One subagent: a conversation that ends in an answer. A plain `async def`, to be read in one sitting or replaced."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from centuria.core.checking import TooMuchWork, bounded, errors_of
from centuria.core.delegation import WAIT_ANY
from centuria.core.repeats import Repeats
from centuria.core.templates import find_json
from centuria.core.window import SUMMARY_RULES, Window, shorten, size, told_in_short, transcript
from centuria.errors import CenturiaError, ContextTooLong
from centuria.messages import CallKey, Completion, Message, ToolCall, ToolEnd, ToolResult, ToolSpec
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
    """What an agent has so far; its last state is what is kept when it is stopped from outside.

    `history` is its conversation, as long as it is one.
    """

    text: str = ""
    structured: Any = None
    steps: int = 0
    repairs: int = 0
    cut_short: bool = False
    cause: str = ""
    history: Sequence[Message] = ()

    def clear(self) -> None:
        """Begin again with nothing."""
        self.text, self.structured, self.steps, self.repairs = "", None, 0, 0
        self.cut_short, self.cause = False, ""


async def _at_once() -> None:
    """Nobody has paused anything."""


@dataclass(frozen=True, slots=True)
class Brief:
    """Everything that one agent is given. `opening` is its first messages: alike for all siblings as far as possible.

    `recovery(turn)` names the limit because of which this turn must be the last, or None; `told(turn)`, asked after
    it, is what the agent hears of its limits. `context` is the model's window in tokens; `spill(call, text)` keeps the
    whole of a text that is too long for it, and names its file. `may_go_on()` returns when the next request may be
    made; `priority()` is what it is made with (None: the task's own).
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
    told: Callable[[int], str] = lambda turn: ""
    context: int = 131_072
    spill: Callable[[str, str], str] = lambda call, text: "no file"
    may_go_on: Callable[[], Awaitable[None]] = _at_once
    priority: Callable[[], int] | None = None


async def converse(brief: Brief) -> Draft:
    """Talk to the model, running the tools it asks for, until it answers.

    A history that nears the end of the model's window is told in short, in a turn of its own. Raises `AnswerUnusable`
    when the steps or repairs are used up, and whatever the model client raises.
    """
    talk, draft, overfull = _Conversation(brief), brief.draft, False
    for turn in range(brief.steps):
        if overfull or talk.full:
            overfull = False
            if await talk.tell_in_short(turn):
                continue
        limit = talk.last_turn(turn)
        try:
            completion = await talk.ask(turn)
        except ContextTooLong:
            if limit is not None or not talk.can_be_shorter:
                raise
            overfull = True
            continue
        answer = completion.message
        if answer.tool_calls:
            if limit is not None:
                raise AnswerUnusable(f"It went on calling tools after it had used its {limit}.")
            await talk.run(turn, answer.tool_calls)
            continue
        complaint = _judge(brief, answer.content, completion.finish)
        if complaint is None:
            draft.cut_short = draft.cut_short or limit is not None
            return draft
        if draft.repairs >= MAX_REPAIRS or limit is not None:
            raise AnswerUnusable(complaint)
        draft.repairs += 1
        talk.say(complaint + " Answer again, in full.")
    raise AnswerUnusable(f"It did not come to an answer within its {brief.steps} steps.")


class _Conversation:
    """The history of one agent, and what is done to it. All that it decides follows from the history alone, so that a
    resumed conversation is the same one."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._history = brief.draft.history = list(brief.opening)
        #: So many messages of it have been measured, and take so many bytes.
        self._measured = self._bytes = 0
        self._window = Window(brief.context, brief.task.max_tokens)
        self._repeats = Repeats()

    def say(self, text: str) -> None:
        self._history.append(Message("user", text))

    def last_turn(self, turn: int) -> str | None:
        """Tell the agent what it must know before this turn. The limit because of which it is its last, or None."""
        limit = self._brief.recovery(turn)
        told = self._brief.told(turn)
        if told:
            self.say(told)
        if limit is None and self._repeats.stuck:
            limit = f"calls of {self._repeats.stuck} with the same arguments"
        if limit is not None:
            self.say(RECOVERY.format(limit=limit))
        return limit

    async def ask(self, turn: int) -> Completion:
        brief, draft = self._brief, self._brief.draft
        request = ChatRequest(tuple(self._history), brief.tools.specs, brief.task.max_tokens)
        await brief.may_go_on()
        completion = await brief.model.chat(request, _caller(brief, turn, 0))
        self._window.learn(self._size, completion.usage)
        draft.steps = turn + 1
        self._history.append(completion.message)
        if completion.message.content:
            draft.text = completion.message.content
        return completion

    async def run(self, turn: int, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one turn; exactly one answer for each follows, whatever came of it."""
        callers = [_caller(self._brief, turn, position) for position in range(1, len(calls) + 1)]
        made = list(zip(calls, callers, strict=True))[:MAX_CALLS_A_TURN]
        results = await self._brief.tools.call_all(made)
        texts = self._fitted(results, callers)
        self._repeats.begin_turn()
        for index, (call, _) in enumerate(made):
            if call.name == WAIT_ANY and results[index].end is not ToolEnd.REFUSED:
                continue  # the same call each time, and another answer
            remark = self._repeats.note(call.name, call.arguments)
            texts[index] += f"\n\n{remark}" if remark else ""
        texts += [f"Not run: at most {MAX_CALLS_A_TURN} calls a turn."] * (len(calls) - len(made))
        self._history += [Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, texts, strict=True)]

    def _fitted(self, results: Sequence[ToolResult], callers: Sequence[Caller]) -> list[str]:
        """The texts of one turn's results, each within its share of what is left of the window."""
        wanted = [len(result.text.encode("utf-8", "replace")) for result in results]
        shares = self._window.shares(self._size, wanted)
        texts = []
        for result, caller, want, share in zip(results, callers, wanted, shares, strict=False):
            if want <= share:
                texts.append(result.text)
                continue
            file = result.spill or self._brief.spill(str(caller.key), result.text)
            texts.append(f"{shorten(result.text, share)}\n\n[It was too long for your window; the whole is in {file}]")
        return texts

    # -- telling it in short ------------------------------------------------------------------------------------------

    @property
    def _size(self) -> int:
        self._bytes += sum(map(size, self._history[self._measured :]))
        self._measured = len(self._history)
        return self._bytes

    @property
    def full(self) -> bool:
        return self._window.full(self._size) and self.can_be_shorter

    @property
    def can_be_shorter(self) -> bool:
        return self._window.split(self._history, len(self._brief.opening)) is not None

    async def tell_in_short(self, turn: int) -> bool:
        """Let the model sum up the middle of the history, and go on with that in its place."""
        begin = len(self._brief.opening)
        split = self._window.split(self._history, begin)
        if split is None:
            return False
        middle = transcript(self._history[begin:split], self._window.room * 3 // 4)
        request = ChatRequest(
            (Message("system", SUMMARY_RULES), Message("user", middle)), max_tokens=self._brief.task.max_tokens
        )
        await self._brief.may_go_on()
        completion = await self._brief.model.chat(request, _caller(self._brief, turn, 0))
        self._brief.draft.steps = turn + 1
        self._history[begin:split] = [told_in_short(completion.message.content)]
        self._bytes = self._measured = 0
        return True


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
    priority = brief.task.priority if brief.priority is None else brief.priority()
    return Caller(key, brief.node, brief.index, priority)


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
        why = f" It was cut off at {task.max_tokens} tokens." if finish == "length" else ""
        if "NaN" in text or "Infinity" in text:
            why += " NaN and Infinity are no JSON: where there is no number, say null."
        return f"Your answer is not one JSON object.{why}"
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
