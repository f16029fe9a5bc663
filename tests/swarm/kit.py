"""A whole swarm on virtual time: the real orchestrator, slots, ledgers and scheduler, and a scripted model."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from centuria.admission import Money, Slots
from centuria.core.calls import CallLedger
from centuria.core.graph import TaskGraph
from centuria.core.landing import SoftLanding
from centuria.core.money import Ledger
from centuria.core.progress import Progress
from centuria.core.retry import RetryPolicy
from centuria.core.slots import SlotTable
from centuria.cores import new_tasks
from centuria.events import Event, RunStarted
from centuria.folder import RunFolder
from centuria.kit import RUN_NODE, Kit
from centuria.merger import Merged
from centuria.messages import Outcome, Status, ToolCall
from centuria.orchestrator import Orchestrator
from centuria.ports import Caller, ChatRequest
from centuria.scheduler import ToolScheduler
from centuria.settings import Endpoint, Job, Limits, Task, Timeouts
from centuria.steering import Approvals
from centuria.stream import Stream
from centuria.testing import clock
from centuria.testing.journal import MemoryJournal
from centuria.testing.scripted import Answer, ScriptedModel, call
from centuria.testing.tools import LocalTool, LocalToolHost

GOAL = "goal"


@dataclass
class Ended:
    """What a swarm came to."""

    outcomes: Mapping[str, Outcome]
    merged: Merged
    model: ScriptedModel
    events: list[Event]
    progress: Progress
    seconds: float
    folder: Path

    @property
    def census(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for end in self.outcomes.values():
            found[end.status.value] = found.get(end.status.value, 0) + 1
        return found

    def requests_of(self, task: str) -> list[ChatRequest]:
        return [request for request, caller in self.model.requests if caller.key.task == task]

    def ok(self, task: str) -> str:
        end = self.outcomes[task]
        assert end.status is Status.OK, end
        return end.text


class World:
    """One run, composed by hand. `meanwhile` runs beside the work."""

    def __init__(
        self,
        script: Callable[[ChatRequest, Caller], Answer],
        *,
        latency: float = 1.0,
        limits: Limits | None = None,
        tools: Mapping[str, LocalTool | tuple[Any, ...]] | None = None,
        model: str = "kimi-k2.5",
        context: int = 131_072,
        job: Job | None = None,
    ) -> None:
        goal = Task(GOAL, "Reach the goal.", "spec", delegates=True)
        self.job = job or Job("goal", (goal,), limits=limits or Limits())
        self.model = ScriptedModel(script, latency)
        self.folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
        self.folder.create()
        self.journal = MemoryJournal()
        self.stream = Stream(self.journal, clock=self.now, progress=Progress())
        slots, ledger, calls = Slots(SlotTable(), self.stream), Ledger(), CallLedger()
        money = Money(ledger, self.stream)
        limits = self.job.limits
        started = RunStarted(
            "run", self.job.name, model, False, limits.budget, limits.agents, limits.concurrency, "test"
        )
        self.graph = TaskGraph(max_depth=limits.depth, max_tasks=limits.tasks)
        self.stream.publish(started, *self.graph.add(new_tasks(self.job)))
        money.set_cap(RUN_NODE, limits.budget)
        slots.set_limit("agents", limits.agents, "limits.agents")
        self.host = LocalToolHost(tools or {})
        self.approvals = Approvals(self.stream, patience=600)
        scheduler = ToolScheduler(
            host=self.host,
            approve=self.approvals,
            slots=slots,
            calls=calls,
            stream=self.stream,
            retry=RetryPolicy(),
            timeouts=Timeouts(),
            dice=lambda: 0.5,
            spill=self.folder.spill,
            result_chars=limits.result_chars,
        )
        kit = Kit(
            stream=self.stream,
            graph=self.graph,
            calls=calls,
            landing=SoftLanding(),
            slots=slots,
            money=money,
            model=self.model,
            tools=scheduler,
            folder=self.folder,
            clock=self.now,
        )
        endpoint = Endpoint("custom", "http://localhost/v1", model, context=context)
        self.orchestrator = Orchestrator(self.job, endpoint, kit)

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> Ended:
        began = self.now()
        await self.orchestrator.work()
        ended = self.now()
        merged = await self.orchestrator.merge()
        events: list[Event] = [record.event for record in self.journal.read()]
        return Ended(
            self.orchestrator.outcomes(),
            merged,
            self.model,
            events,
            self.stream.progress,
            ended - began,
            self.folder.path,
        )


def run(script: Callable[[ChatRequest, Caller], Answer], **more: Any) -> Ended:
    """A goal, worked on by a scripted swarm, to its end."""

    async def main() -> Ended:
        return await World(script, **more).run()

    return clock.run(main())


def create(name: str, system: str = "You are careful.") -> ToolCall:
    return call("create_subagent", {"name": name, "system_prompt": system})


def assign(agent: str, prompt: str, **more: Any) -> ToolCall:
    return call("assign_task", {"agent": agent, "prompt": prompt, **more})


def prompt_of(request: ChatRequest) -> str:
    return next(message.content for message in request.messages if message.role == "user")


def told(request: ChatRequest) -> list[str]:
    """What tools have answered in this conversation."""
    return [message.content for message in request.messages if message.role == "tool"]


def arguments(one: ToolCall) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(one.arguments)
    return parsed
