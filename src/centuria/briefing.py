"""What one agent is given: its first messages, its tools, its limits, and the results that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from centuria import merge as merging
from centuria.assigning import Assigning
from centuria.core.delegation import SPECS
from centuria.core.grants import Grant
from centuria.core.window import shorten
from centuria.delegation import SwarmTools
from centuria.kit import RUN_NODE, Kit, task_node
from centuria.messages import CallKey, Status, ToolCall, ToolResult, ToolSpec
from centuria.ports import Caller
from centuria.scheduler import ToolScheduler
from centuria.settings import Endpoint, Job, Task
from centuria.subagent import Brief, Draft, Tools, opening
from centuria.toolviews import in_parallel


@dataclass(frozen=True, slots=True)
class _CurrentTools(Tools):
    """What an agent may call now: servers come and go, and an agent switches to what there is at its next turn."""

    scheduler: ToolScheduler
    grant: Grant
    beside: int = 0

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.scheduler.view(self.grant, beside=self.beside).specs

    async def call_all(self, calls: Sequence[tuple[ToolCall, Caller]]) -> list[ToolResult]:
        return await in_parallel(self.call, calls)  # each in the view of its own moment

    async def call(self, call: ToolCall, caller: Caller) -> ToolResult:
        return await self.scheduler.view(self.grant, beside=self.beside).call(call, caller)


class Briefing:
    """Makes the briefs of a run's agents."""

    def __init__(self, job: Job, endpoint: Endpoint, kit: Kit, assigning: Assigning) -> None:
        self._job = job
        self._endpoint = endpoint
        self._kit = kit
        self._assigning = assigning

    def brief(
        self, task: Task, epoch: int, draft: Draft, started: float, may_go_on: Callable[[], Awaitable[None]]
    ) -> Brief:
        """What the agent of this task works with, from `started` (the run's clock) on."""
        index, node = self._kit.graph.task(task.id).index, task_node(task.id)
        self._kit.money.set_cap(node, self._job.limits.agent_budget, parent=self._assigning.branch(task))

        def recovery(turn: int) -> str | None:
            replayed = self._kit.calls.fingerprint_of(CallKey(task.id, epoch, turn, 0)) is not None
            used = self._used(task.id, node, turn, started)
            facts = self._kit.landing.check(task.id, epoch, turn, used, replayed=replayed)
            if facts:
                self._kit.stream.publish(*facts)
            return self._kit.landing.asked(task.id, epoch, turn)

        beside = len(SPECS) if task.delegates else 0
        tools: Tools = _CurrentTools(self._kit.tools, Grant(task.servers, task.tools), beside)
        if task.delegates:
            tools = SwarmTools(tools, self._assigning, self._kit.tools, task)
        return Brief(
            task=task,
            epoch=epoch,
            index=index,
            node=node,
            opening=opening(task, self._assigning.rules(task), self._needed(task)),
            model=self._kit.model,
            tools=tools,
            steps=self._job.limits.steps,
            recovery=recovery,
            draft=draft,
            told=lambda turn: self._kit.landing.told(task.id, epoch, turn),
            context=self._endpoint.context,
            spill=self._kit.folder.spill,
            may_go_on=may_go_on,
            priority=lambda: self._kit.graph.task(task.id).priority,
        )

    def _used(self, task: str, node: str, turn: int, started: float) -> dict[str, float]:
        """The used part of each limit that is set, by its name as the model is told it."""
        limits, money = self._job.limits, self._kit.money
        totals = self._kit.calls.totals(task)
        used = {"steps": (turn + 1) / limits.steps}
        if limits.seconds:
            used["time"] = (self._kit.clock() - started) / limits.seconds
        if limits.tokens:
            used["tokens"] = (totals.usage.prompt + totals.usage.output) / limits.tokens
        for name, cap in ((RUN_NODE, limits.budget), (node, limits.agent_budget)):
            if cap:
                used["budget"] = max(used.get("budget", 0.0), money.used(name))
        return used

    def _needed(self, task: Task) -> list[tuple[str, str]]:
        """The results that a task needs, each with its share of what one prompt may carry."""
        needs = self._kit.graph.needs(task.id)
        share = max(500, self._endpoint.context // max(1, len(needs)))
        texts = []
        for need in needs:
            outcome = self._kit.graph.outcome(need)
            assert outcome is not None
            text = merging.report_text(outcome, self._job.merge.text)
            if outcome.status is not Status.OK:
                text = f"(this task ended as {outcome.status.value}: {outcome.cause})\n\n{text}"
            texts.append((need, shorten(text, share)))
        return texts
