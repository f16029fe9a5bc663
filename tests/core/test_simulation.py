"""A whole run on virtual time: 10,000 agents, three calls each, failures, cancels, changing limits."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from centuria.admission import Slots
from centuria.core.graph import NewTask, TaskGraph
from centuria.core.progress import Progress
from centuria.core.slots import SlotTable
from centuria.errors import SlotRefused
from centuria.events import (
    Event,
    Fact,
    LimitSet,
    SlotGranted,
    SlotLeft,
    SlotQueued,
    SlotRejected,
    TaskEnded,
    TaskReady,
    fold,
)
from centuria.messages import Outcome, Status
from centuria.stream import Stream
from centuria.testing import clock
from centuria.testing.journal import MemoryJournal

AGENTS = 10_000
MODEL, TOOL = "model:kimi-k2.5", "server:db"


class Swarm:
    """The least orchestrator that uses graph and slots as the real one does; an agent makes three calls."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.journal = MemoryJournal()
        self.stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress())
        self.table = SlotTable()
        self.slots = Slots(self.table, self.stream)
        self.graph = TaskGraph(max_tasks=AGENTS + 1)
        self.in_flight: Counter[str] = Counter()
        self.agents: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        self.slots.set_limit(MODEL, 500, "start")
        self.slots.set_limit(TOOL, 200, "start")
        async with asyncio.TaskGroup() as self.group:
            self.spawn(self.graph.add(self.tasks()))
            await self.disturb()

    def tasks(self) -> list[NewTask]:
        """Most agents are free, one in ten needs an earlier one, and a summary takes what there is."""
        tasks = []
        for number in range(AGENTS):
            needs = (f"a{self.dice.randrange(number)}",) if number and self.dice.random() < 0.1 else ()
            priority = self.dice.choice([0, 5, 5, 5, 9])
            tasks.append(NewTask(f"a{number}", f"spec-{number}", needs=needs, priority=priority))
        return [*tasks, NewTask("summary", "spec", needs=("*",), allow_failed=True)]

    def spawn(self, events: Sequence[Fact]) -> None:
        self.stream.publish(*events)
        for event in events:
            if isinstance(event, TaskReady):
                self.agents[event.task] = self.group.create_task(self.agent(event.task))

    async def disturb(self) -> None:
        """Cancel agents wherever they are, and move the limits, while the run goes on."""
        for _ in range(30):
            await asyncio.sleep(self.dice.choice([0.5, 1.0]))
            # A coroutine that is cancelled before its first step never runs and could not say how it ended.
            begun = [task for task in self.agents if self.graph.state(task) == "running"]
            for task in self.dice.sample(begun, min(10, len(begun))):
                self.agents[task].cancel()
            self.slots.set_limit(MODEL, self.dice.randint(200, 700), "429 or recovery")
            self.slots.set_limit(TOOL, self.dice.randint(50, 300), "the operator")

    async def agent(self, task: str) -> None:
        self.spawn(self.graph.start(task))
        status = Status.FAILED
        try:
            for resource in (MODEL, TOOL, MODEL):
                await self.call(task, resource)
            status = Status.OK
        except SlotRefused:
            status = Status.TIMEOUT
        except ConnectionError:
            status = Status.FAILED
        except asyncio.CancelledError:
            status = Status.CANCELLED
            raise
        finally:
            del self.agents[task]
            self.spawn(self.graph.end(task, Outcome(task, status)))

    async def call(self, task: str, resource: str) -> None:
        added = self.graph.task(task)
        patience = 1.0 if self.dice.random() < 0.02 else 3600.0
        async with self.slots.hold(resource, agent=task, index=added.index, priority=added.priority, patience=patience):
            self.in_flight[resource] += 1
            # Fewer run than hold a slot only where some were granted one in this tick.
            assert self.in_flight[resource] <= self.table.in_use(resource)
            try:
                # Multiples of a tenth of a second: many ends, deadlines and cancels fall on the same tick.
                await asyncio.sleep(self.dice.randint(1, 9) / 10)
                if self.dice.random() < 0.02:
                    raise ConnectionError
            finally:
                self.in_flight[resource] -= 1


def assert_limits_hold(events: Sequence[Event]) -> None:
    """No slot is granted above the limit of that moment, nor twice, nor to a newcomer while others wait."""
    limit: dict[str, int] = {}
    held: dict[str, dict[int, int]] = {MODEL: {}, TOOL: {}}
    waiting: dict[str, set[int]] = {MODEL: set(), TOOL: set()}
    for event in events:
        if isinstance(event, LimitSet):
            limit[event.resource] = event.limit
        elif isinstance(event, SlotQueued):
            waiting[event.resource].add(event.ticket)
        elif isinstance(event, SlotGranted):
            assert not waiting[event.resource] or event.ticket in waiting[event.resource]
            waiting[event.resource].discard(event.ticket)
            assert event.slot < limit[event.resource]
            assert event.slot not in held[event.resource].values()
            held[event.resource][event.ticket] = event.slot
            assert len(held[event.resource]) <= limit[event.resource]
        elif isinstance(event, SlotLeft | SlotRejected):
            waiting[event.resource].discard(event.ticket)
            held[event.resource].pop(event.ticket, None)
    assert held == {MODEL: {}, TOOL: {}}
    assert waiting == {MODEL: set(), TOOL: set()}


@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_agents_end_once_each_within_every_limit_and_replay_alike(seed: int) -> None:
    swarm = Swarm(seed)
    clock.run(swarm.run())
    events = [record.event for record in swarm.journal.read()]

    for resource in (MODEL, TOOL):
        assert (swarm.table.in_use(resource), swarm.table.waiting(resource)) == (0, 0)
        assert swarm.in_flight[resource] == 0
    assert_limits_hold(events)

    ended = Counter(event.task for event in events if isinstance(event, TaskEnded))
    assert len(ended) == AGENTS + 1 and set(ended.values()) == {1}
    assert swarm.graph.unfinished() == ()
    ends = [end for task in swarm.graph.ids() if (end := swarm.graph.outcome(task))]
    census = Counter(end.status for end in ends)
    assert set(census) == {Status.OK, Status.FAILED, Status.TIMEOUT, Status.CANCELLED, Status.BLOCKED}
    for end in ends:
        needs = [swarm.graph.outcome(need) for need in swarm.graph.needs(end.task)]
        fine = end.task == "summary" or all(need and need.status is Status.OK for need in needs)
        assert (end.status is Status.BLOCKED) == (not fine)

    table, graph = SlotTable(), TaskGraph()
    fold(table, events)
    fold(graph, events)
    assert table == swarm.table
    assert graph == swarm.graph


def test_the_same_seed_gives_the_same_run() -> None:
    """Virtual time leaves nothing to chance: a failure found by a seed can be found again."""
    runs = []
    for _ in range(2):
        swarm = SmallSwarm(7)
        clock.run(swarm.run())
        runs.append([record.event for record in swarm.journal.read()])
    assert runs[0] == runs[1]


class SmallSwarm(Swarm):
    def tasks(self) -> list[NewTask]:
        return super().tasks()[:500]
