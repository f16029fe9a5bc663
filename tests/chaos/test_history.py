"""Conversations that are cancelled and killed wherever they are, and go on from the journal: what the model is sent is
always a valid history, and always the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from centuria.core.calls import fingerprint
from centuria.core.retry import RetryPolicy
from centuria.errors import ModelError, ModelUnavailable, OutcomeUnknown, ToolUnavailable
from centuria.events import CallClosed, Event, fold
from centuria.messages import Completion, Message, ToolCall, ToolEnd
from centuria.model.wire import identity
from centuria.ports import Caller, ChatRequest, Model
from centuria.scheduler import ToolScheduler
from centuria.settings import Task, Timeouts
from centuria.subagent import MAX_CALLS_A_TURN, Brief, converse, opening
from centuria.testing import clock
from centuria.testing.replies import Calls, Text
from centuria.testing.scripted import ScriptedModel, completion
from centuria.testing.tools import LocalTool, LocalToolHost
from centuria.testing.transport import Faults, Provider, complaint
from tests.chaos.kit import Stand, calls

STORIES = max(4, calls() // 125)
LIVES = 200
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["n", "seconds"],
}


@dataclass
class Story:
    """What happens to some agents over all their lives: the script, the tools' effects, and what the model was sent."""

    seed: int
    effects: Counter[str] = field(default_factory=Counter)
    sent: dict[tuple[str, int], str] = field(default_factory=dict)
    past: list[Event] = field(default_factory=list)
    done: dict[str, str] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.tasks = [Task(f"s{self.seed}-{n}", f"Task {n}.", "spec") for n in range(self.dice.randint(1, 4))]
        self.host = LocalToolHost(
            {
                "read": LocalTool(self._read, SCHEMA, {"rerun": True, "limit": 3}),
                "write": LocalTool(self._write, SCHEMA, {"limit": 3}),
                "raises": LocalTool(self._raises, SCHEMA),
                "down": LocalTool(self._down, SCHEMA, {"rerun": True}),
                "lost": LocalTool(self._lost, SCHEMA),
            }
        )

    # -- the tools

    async def _read(self, n: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"did {n}"

    async def _write(self, n: str, seconds: float) -> str:
        self.effects[n] += 1
        await asyncio.sleep(seconds)
        return f"did {n}"

    async def _raises(self, n: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        raise ValueError(n)

    async def _down(self, n: str, seconds: float) -> str:
        if self.dice.random() < 0.7:
            raise ToolUnavailable("It is starting.")
        return f"did {n}"

    async def _lost(self, n: str, seconds: float) -> str:
        self.effects[n] += 1
        await asyncio.sleep(seconds)
        raise OutcomeUnknown("The connection broke.")

    # -- the script

    def turns(self, task: str) -> int:
        return random.Random(f"{task}/turns").choice([0, 1, 2, 3, 5, 8])

    def limit(self, task: str, turn: int) -> str | None:
        """One task in five is told to say what it knows."""
        dice = random.Random(f"{task}/limit")
        return "steps" if dice.random() < 0.2 and turn == dice.randint(1, 4) else None

    def asked(self, task: str, turn: int) -> tuple[ToolCall, ...]:
        """The tool calls of a turn, always the same; ids repeat from turn to turn, as Kimi's do, and may repeat in
        one."""
        if turn >= self.turns(task) or self.limit(task, turn):
            return ()
        dice = random.Random(f"{task}/{turn}")
        size = dice.choice([1, 1, 2, 3, 4, 6]) if dice.random() < 0.97 else MAX_CALLS_A_TURN + 2
        return tuple(self._call(f"{task}/{turn}/{place}", place, dice) for place in range(size))

    def _call(self, n: str, place: int, dice: random.Random) -> ToolCall:
        name = dice.choice(["read", "read", "write", "write", "raises", "down", "lost", "nobody__has"])
        name = name if "__" in name else f"local__{name}"
        seconds = dice.choice([0.0, 0.1, 1.0, 3.0, 8.0]) if dice.random() < 0.95 else 45.0
        arguments = json.dumps({"n": n, "seconds": seconds})
        arguments = dice.choice([arguments] * 8 + ['{"n": ', '{"n": 3}'])
        return ToolCall(f"functions.{name}:{place if dice.random() < 0.9 else 0}", name, arguments)

    # -- what the model is sent

    def check(self, request: ChatRequest, caller: Caller) -> None:
        """The history is valid, each result is that of its call, and what was sent once is sent again the same."""
        messages = request.messages
        assert complaint([_bare(message) for message in messages]) == ""
        turn = 0
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            assert message.tool_calls == self.asked(caller.key.task, turn)
            results = messages[place + 1 : place + 1 + len(message.tool_calls)]
            for call, result in zip(message.tool_calls, results, strict=True):
                assert result.content
                if result.content.startswith("did "):
                    assert result.content == f"did {json.loads(call.arguments)['n']}"
            turn += 1
        assert turn == caller.key.turn
        mark = fingerprint(identity(request))
        assert self.sent.setdefault((caller.key.task, caller.key.turn), mark) == mark


def _bare(message: Message) -> dict[str, Any]:
    calls = [{"id": call.id} for call in message.tool_calls]
    return {"role": message.role, "tool_calls": calls, "tool_call_id": message.tool_call_id}


# -- lives ----------------------------------------------------------------------------------------------------------


class Watched:
    """Another model, each request to which is checked."""

    def __init__(self, model: Model, story: Story) -> None:
        self.model, self.story = model, story

    async def chat(self, request: ChatRequest, caller: Caller) -> Completion:
        self.story.check(request, caller)
        return await self.model.chat(request, caller)


async def agent(story: Story, task: Task, index: int, model: Model, tools: ToolScheduler) -> None:
    brief = Brief(
        task=task,
        epoch=0,
        index=index,
        node="run",
        opening=opening(task, "", []),
        model=model,
        tools=tools.view(),
        steps=20,
        recovery=lambda turn: story.limit(task.id, turn),
    )
    try:
        draft = await converse(brief)
    except ModelError:
        story.tally["model errors"] += 1  # as a run that ended: it is resumed
    else:
        story.done[task.id] = draft.text


async def live(story: Story, desk: Stand, model: Model) -> None:
    """One process: it goes on from what is known, and is cancelled or killed at any moment."""
    fold(desk.calls, story.past)
    story.past += desk.calls.resolve_in_doubt()
    tools = ToolScheduler(
        host=story.host,
        slots=desk.slots,
        calls=desk.calls,
        stream=desk.stream,
        retry=RetryPolicy(),
        timeouts=Timeouts(),
        dice=story.dice.random,
        spill=lambda name, text: name,
        result_chars=20_000,
    )
    desk.journal.hold()
    disk = asyncio.create_task(write_slowly(desk, story.dice))
    left = [(index, task) for index, task in enumerate(story.tasks) if task.id not in story.done]
    agents = [asyncio.create_task(agent(story, task, index, Watched(model, story), tools)) for index, task in left]
    await asyncio.wait(agents, timeout=story.dice.choice([0.0, 0.3, 1.0, 2.0, 5.0, 10.0, 30.0, 1000.0]))
    ended = all(task.done() for task in agents)
    killed = not ended and story.dice.random() < 0.5
    if killed:
        disk.cancel()
        story.past += desk.facts()  # what is on disk; what comes after this is not
    story.tally["killed" if killed else "ended" if ended else "cancelled"] += 1
    for task in agents:
        task.cancel()
        if story.dice.random() < 0.3:
            asyncio.get_running_loop().call_soon(task.cancel)
    ends = await asyncio.gather(*agents, return_exceptions=True)
    for end in ends:
        assert end is None or isinstance(end, asyncio.CancelledError), end
    if not killed:
        disk.cancel()
        desk.journal.flush()
        story.past += desk.facts()
        assert desk.calls.in_doubt() == []
    await asyncio.gather(disk, return_exceptions=True)


async def write_slowly(desk: Stand, dice: random.Random) -> None:
    while True:
        await asyncio.sleep(dice.choice([0.01, 0.1, 0.4]))
        desk.journal.flush(keep_holding=True)


def finish(story: Story) -> None:
    """All agents came to their end; nothing that may not be run twice was."""
    assert set(story.done) == {task.id for task in story.tasks}
    assert all(story.done[task] == f"Result of {task}." for task in story.done)
    assert set(story.effects.values()) <= {1}
    for fact in story.past:
        if isinstance(fact, CallClosed) and fact.result is not None:
            story.tally[f"result {fact.result.end.value}"] += 1


# -- the tests ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_each_tool_call_has_exactly_one_result_in_the_next_request_whatever_was_cancelled_or_killed() -> None:
    tally: Counter[str] = Counter()

    async def tell(story: Story) -> None:
        def script(request: ChatRequest, caller: Caller) -> Completion | ModelError:
            if story.dice.random() < 0.05:
                return ModelUnavailable("It is down.")
            asked = story.asked(caller.key.task, caller.key.turn)
            return completion(asked or f"Result of {caller.key.task}.")

        model = ScriptedModel(script, latency=0.5)
        for _ in range(LIVES):
            if len(story.done) == len(story.tasks):
                break
            await live(story, Stand(Provider()), model)

    for seed in range(STORIES):
        story = Story(seed)
        clock.run(tell(story))
        finish(story)
        tally += story.tally
    print(dict(tally))
    assert min(tally["killed"], tally["cancelled"]) > STORIES / 2
    assert all(tally[f"result {end.value}"] for end in ToolEnd)


@pytest.mark.timeout(300)
def test_no_provider_ever_refuses_a_history_and_no_answer_is_bought_twice() -> None:
    tally: Counter[str] = Counter()

    async def tell(story: Story) -> None:
        def script(body: Mapping[str, Any]) -> Text | Calls:
            task = story.tasks[int(next(m["content"] for m in body["messages"] if m["role"] == "user")[5:-1])].id
            turn = sum(message["role"] == "assistant" for message in body["messages"])
            asked = story.asked(task, turn)
            if not asked:
                return Text(f"Result of {task}.")
            return Calls(tuple((call.name, call.arguments) for call in asked), tuple(call.id for call in asked))

        answered: Counter[str] = Counter()
        for life in range(LIVES):
            if len(story.done) == len(story.tasks):
                break
            storm = Faults(reset=0.05, cut=0.1, stall=0.03, limited=0.05, failed=0.05, seed=1000 * story.seed + life)
            provider = Provider(script, faults=storm, gap=(0.0, 0.2))
            desk = Stand(provider, retry=RetryPolicy())
            await live(story, desk, desk.client)
            assert provider.complaints == [] and provider.in_flight == provider.open == 0
            story.tally["requests"] += provider.requests
        for fact in story.past:
            if isinstance(fact, CallClosed) and fact.completion is not None:
                answered[str(fact.key)] += 1
        assert set(answered.values()) <= {1}

    for seed in range(STORIES // 2):
        story = Story(seed)
        clock.run(tell(story))
        finish(story)
        tally += story.tally
    print(dict(tally))
    assert min(tally["killed"], tally["cancelled"]) > STORIES / 4
