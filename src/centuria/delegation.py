"""The tools of an agent that may delegate: its own, and beside them the swarm that it defines, assigns and waits for.

A call of the swarm's tools is a row of the journal like any other. What it placed is replayed from there, so that a
resumed conversation finds the same tasks and the same answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from centuria.core import delegation as words
from centuria.core.arguments import BadArguments
from centuria.core.delegation import Assignment, Roster
from centuria.core.grants import Grant
from centuria.errors import CenturiaError, ToolsNotGranted
from centuria.messages import CallKey, Outcome, Status, ToolCall, ToolEnd, ToolResult, ToolSpec
from centuria.ports import Caller
from centuria.scheduler import ToolScheduler
from centuria.settings import Task
from centuria.subagent import Tools
from centuria.toolviews import in_parallel

#: Characters that `read_result` gives at once.
PAGE = 20_000


class WaitRefused(CenturiaError):
    """This wait would never end; the message names the cycle, or says for how long nothing has moved."""


class Swarm(Protocol):
    """What an agent's delegation asks of the orchestrator. `agent` is the id of the task that asks."""

    def assign(self, agent: str, wanted: Sequence[Assignment]) -> list[str]:
        """Add these tasks in one step. For each: "", or why it was refused, written for the model."""
        ...

    async def outcome(self, agent: str, task: str) -> Outcome:
        """The end of a task, once it has one. Raises `WaitRefused`, `BadArguments` for a task that is not there."""
        ...

    async def first(self, agent: str, tasks: Sequence[str]) -> Outcome:
        """The end of whichever of these ends first. Raises `WaitRefused`."""
        ...

    async def ask(self, agent: str, task: str, question: str, key: CallKey) -> str:
        """What the agent of another task says, from what it knows so far; `key` is the asking call's.

        Raises `BadArguments` for a task that is not there or has not begun, and where the model will not answer;
        `ModelError` where it would answer nobody, `BudgetExceeded`.
        """
        ...

    def cancel_child(self, agent: str, task: str) -> None:
        """Stop a task that this agent assigned, and all below it. Raises `BadArguments`."""
        ...

    def retry_child(self, agent: str, task: str) -> None:
        """Run a task that this agent assigned, and that did not end well, afresh. Raises `BadArguments`."""
        ...

    def file_of(self, task: str) -> str:
        """The file that holds the result of a task that ended ok."""
        ...

    def read(self, file: str) -> str:
        """A file of the run's folder. Raises `BadArguments`."""
        ...


class SwarmTools(Tools):
    """`inner`, and the swarm's tools after them, for one agent in one conversation."""

    def __init__(self, inner: Tools, swarm: Swarm, scheduler: ToolScheduler, task: Task) -> None:
        self._inner = inner
        self._swarm = swarm
        self._scheduler = scheduler
        self._task = task
        self._roster = Roster()
        #: What each `assign_task` of this conversation came to: the task, or the refusal.
        self._placed: dict[CallKey, Assignment | ToolResult] = {}
        #: Background tasks whose answer was not collected.
        self._uncollected: dict[str, None] = {}
        self._readable: set[str] = set()
        self._acts: dict[str, Callable[[dict[str, Any], CallKey], Awaitable[ToolResult]]] = {
            words.CREATE: self._create,
            words.ASSIGN: self._assign,
            words.WAIT_ANY: self._wait_any,
            words.WAIT_FOR: self._wait_for,
            words.ASK: self._ask,
            words.CANCEL: self._cancel,
            words.RETRY: self._retry,
            words.READ: self._read,
        }

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return (*self._inner.specs, *words.SPECS)

    async def call_all(self, calls: Sequence[tuple[ToolCall, Caller]]) -> list[ToolResult]:
        self._place(calls)
        for call, caller in calls:
            if call.name in (words.WAIT_ANY, words.CANCEL):
                self._note_collected(call, self._scheduler.answered(call, caller))
        results = await in_parallel(self.call, calls)
        self._readable.update(result.spill for result in results if result.spill is not None)
        return results

    async def call(self, call: ToolCall, caller: Caller) -> ToolResult:
        if call.name not in self._acts:
            return await self._inner.call(call, caller)
        return await self._scheduler.local(call, caller, partial(self._act, call, caller.key))

    async def _act(self, call: ToolCall, key: CallKey) -> ToolResult:
        try:
            return await self._acts[call.name](words.read(call.name, call.arguments), key)
        except (BadArguments, WaitRefused) as error:
            fault = error.fault if isinstance(error, BadArguments) else ""
            return ToolResult(str(error), ToolEnd.REFUSED, fault=fault)

    # -- what a turn defines and assigns ------------------------------------------------------------------------------

    def _place(self, calls: Sequence[tuple[ToolCall, Caller]]) -> None:
        """Read the turn as a whole, in order: roles first defined are there for the tasks after them, and the tasks of
        one turn may need each other."""
        wanted: list[Assignment] = []
        for call, caller in calls:
            if call.name not in (words.CREATE, words.ASSIGN):
                continue
            answered = self._scheduler.answered(call, caller)
            try:
                arguments = words.read(call.name, call.arguments)
                if call.name == words.CREATE:
                    self._roster.create(arguments)
                    continue
                grant = self._handed_down(arguments.get("tools"))
                placed = self._roster.assignment(arguments, caller.key, max_tokens=self._task.max_tokens, grant=grant)
            except (BadArguments, ToolsNotGranted) as error:
                fault = error.fault if isinstance(error, BadArguments) else ""
                self._placed[caller.key] = ToolResult(str(error), ToolEnd.REFUSED, fault=fault)
                continue
            self._placed[caller.key] = placed
            if answered is None:
                wanted.append(placed)
            elif placed.background and not answered.is_error:
                self._uncollected[placed.id] = None
        for placed, refusal in zip(wanted, self._swarm.assign(self._task.id, wanted) if wanted else (), strict=True):
            if refusal:
                self._placed[placed.assigned.call] = ToolResult(refusal, ToolEnd.REFUSED)
            elif placed.background:
                self._uncollected[placed.id] = None

    def _note_collected(self, call: ToolCall, answer: ToolResult | None) -> None:
        """What a call that was answered before the run broke had taken out of the background."""
        if answer is None:
            return
        if call.name == words.WAIT_ANY and isinstance(answer.structured, dict):
            self._uncollected.pop(str(answer.structured.get("id")), None)
        elif call.name == words.CANCEL and not answer.is_error:
            self._uncollected.pop(str(words.read(call.name, call.arguments)["id"]), None)

    def _handed_down(self, names: Sequence[str] | None) -> Grant:
        """What an assigned task sees of the tools: those named, or all of this agent's. Raises `ToolsNotGranted`."""
        mine = Grant(self._task.servers, self._task.tools)
        if names is None:
            return mine
        view = self._scheduler.view(mine)
        servers = [name for name in names if "__" not in name]
        tools = [name for name in names if "__" in name]
        view.narrow(servers=servers, tools=tools)
        return mine.part(servers=[view.slug_of(name) for name in servers], tools=tools)

    async def _create(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        return ToolResult(self._roster.create(arguments))

    async def _assign(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        placed = self._placed[key]
        if isinstance(placed, ToolResult):
            return placed
        if placed.background:
            return ToolResult(
                f"Task {placed.id!r} runs in the background. Collect its answer with {words.WAIT_ANY}.",
                structured={"id": placed.id},
            )
        return self._told(await self._swarm.outcome(self._task.id, placed.id))

    # -- what runs beside it ------------------------------------------------------------------------------------------

    async def _wait_any(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        chosen = [str(one) for one in arguments.get("ids", ())]
        while True:
            ids = chosen or list(self._uncollected)
            if not ids:
                return ToolResult("No task of yours is in the background.", ToolEnd.REFUSED)
            end = await self._swarm.first(self._task.id, ids)
            if chosen or end.task in self._uncollected:  # not taken by another wait of the same turn
                break
        self._uncollected.pop(end.task, None)
        left = list(self._uncollected)
        told = self._told(end, named=True)
        more = f"\n\nStill in the background: {', '.join(left)}." if left else ""
        return ToolResult(told.text + more, told.end, told.structured, told.spill)

    async def _wait_for(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        return self._told(await self._swarm.outcome(self._task.id, str(arguments["id"])), named=True)

    async def _ask(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        question = str(arguments["question"])
        return ToolResult(await self._swarm.ask(self._task.id, str(arguments["id"]), question, key))

    async def _cancel(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        task = str(arguments["id"])
        self._swarm.cancel_child(self._task.id, task)
        self._uncollected.pop(task, None)
        return ToolResult(f"Task {task!r} is cancelled.")

    async def _retry(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        task = str(arguments["id"])
        self._swarm.retry_child(self._task.id, task)
        return self._told(await self._swarm.outcome(self._task.id, task))

    async def _read(self, arguments: dict[str, Any], key: CallKey) -> ToolResult:
        file, offset = str(arguments["file"]), max(0, int(arguments.get("offset", 0)))
        if file not in self._readable:
            there = ", ".join(sorted(self._readable)[:20]) or "none"
            raise BadArguments(f"You were not given the file {file!r}. There is: {there}.")
        text = self._swarm.read(file)
        page = text[offset : offset + PAGE]
        left = len(text) - offset - len(page)
        more = f"\n\n[{left:,} characters follow, from offset {offset + PAGE}]" if left > 0 else ""
        return ToolResult(page + more if page else f"The file has {len(text):,} characters.")

    def _told(self, end: Outcome, *, named: bool = False) -> ToolResult:
        """The one message that comes back from a task."""
        facts = {"id": end.task, "status": end.status.value}
        if end.status is Status.OK:
            text = f"Task {end.task!r}:\n\n{end.text}" if named else end.text
            return ToolResult(text, structured=facts, spill=self._swarm.file_of(end.task))
        said = f"\n\nWhat it had said until then:\n\n{end.text}" if end.text else ""
        text = f"Task {end.task!r} ended as {end.status.value}: {end.cause}.{said}"
        return ToolResult(text, ToolEnd.ERROR, structured=facts)
