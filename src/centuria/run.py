"""One run, from its folder to its report: composes the cores and shells, and lets them work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from random import random
from typing import Any, Protocol, runtime_checkable

from centuria.admission import Money, Purse, Slots
from centuria.core.graph import TaskGraph
from centuria.core.resources import check_limit
from centuria.core.retry import RetryPolicy
from centuria.core.schemas import DIALECTS
from centuria.core.slots import SlotTable
from centuria.core.tallies import AGENTS
from centuria.cores import Cores
from centuria.ending import Report, results_lines, verdict
from centuria.errors import ConfigurationError, JournalError, first_of
from centuria.events import (
    FileWritten,
    Notice,
    RunEnded,
)
from centuria.journal import SqliteJournal, take_commands
from centuria.kit import RUN_NODE, Kit
from centuria.launch import Launch
from centuria.merge import variables as merge_variables
from centuria.merger import Merged
from centuria.model.client import ModelClient
from centuria.model.direct import DirectTransport
from centuria.model.recording import RecordingTransport
from centuria.model.rehearsal import RehearsalTransport
from centuria.model.replay import Recording, ReplayTransport, RetryAtOnce
from centuria.orchestrator import Orchestrator
from centuria.ports import Model, ServerState, ToolHost, Transport
from centuria.resume import plan_resume
from centuria.scheduler import ToolScheduler
from centuria.settings import MERGE, Job
from centuria.steering import Approvals, obey
from centuria.stream import Stream
from centuria.throttle import Throttle
from centuria.toolhost import McpToolHost
from centuria.views.report import report

_COMMAND_POLL = 0.5


@runtime_checkable
class Announcing(Protocol):
    """A tool host that tells of servers, or replicas of them, that come up or go down."""

    on_change: Callable[[ServerState], None] | None


class Run:
    """One run of one job. `execute` it once; `stream` and `cancel` work from the moment it has begun.

    `transport` takes its requests to the model in place of HTTP, and is closed at its end; `host` has its tools in
    place of servers of its own, and is others' to close.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        transport: Transport | None = None,
        host: ToolHost | None = None,
        purse: Purse | None = None,
        wall: Callable[[], float] = time.time,
        dice: Callable[[], float] = random,
    ) -> None:
        self.launch = launch
        #: What it shares with other runs.
        self.purse = purse
        self.stream: Stream | None = None
        #: Set from when it can be steered.
        self.ready = asyncio.Event()
        #: A resume that finds nothing to do: it starts no server, and only puts the folder in order.
        self.idle = False
        self._given_transport = transport
        self._given_host = host
        self._wall = wall
        self._dice = dice
        self._orchestrator: Orchestrator | None = None
        self._approvals: Approvals | None = None
        self._kit: Kit | None = None
        self._agents = agents_of(launch.job)
        self._cancelled = ""
        self._starting: asyncio.Task[Any] | None = None

    def cancel(self, task: str | None = None, *, cause: str = "cancelled by the user") -> None:
        """Stop one task or the whole run; may be called before it has begun."""
        if task is None:
            self._cancelled = cause
            if self._starting is not None:
                self._starting.cancel()
                self._starting = None  # once
        if self._orchestrator is not None:
            self._orchestrator.cancel(task, cause=cause)

    # Each of these raises `ConfigurationError`: the run does not work now, or has no such task or call.

    def pause(self, task: str | None = None) -> None:
        """Let a task and all below it, or the whole run, make no further request."""
        self._working().pause(task)

    def go_on(self, task: str | None = None) -> None:
        """End a pause; without a task, all of them."""
        self._working().go_on(task)

    def set_priority(self, task: str, priority: int) -> None:
        """Serve a task and all below it sooner (0) or later (9)."""
        self._working().set_priority(task, priority)

    def retry(self, task: str) -> None:
        """Run a task afresh that did not end well."""
        self._working().retry(task)

    def approve(self, call: str | None = None, *, yes: bool = True) -> int:
        """Answer the tool call that waits for a yes, or all that do. Returns how many that were."""
        self._working()
        assert self._approvals is not None
        return self._approvals.give(call, yes=yes)

    def _working(self) -> Orchestrator:
        if self._orchestrator is None:
            raise ConfigurationError("The run does not work now.", remedy="Start it, or resume it.")
        return self._orchestrator

    def set_limit(self, resource: str, limit: int, *, reason: str = "set by the user") -> None:
        """Change how many there are at once, from now on, without disturbing what is in service; 0 is a pause.

        `resource` is `server:SLUG` (calls of a tool server), `tool:NAME` (of one tool, as models see its name),
        `lease:SLUG` (agents with a session of their own) or `agents` (no more than it began with). Raises
        `ConfigurationError` for another one, for a number that cannot be, and before the run has begun.
        """
        if self._kit is None:
            raise ConfigurationError("The run has not begun, so no limit can be changed.", remedy="Set it in the job.")
        check_limit(resource, limit, self._kit.stream.progress, agents=self._agents)
        if resource == AGENTS:
            self._kit.slots.set_limit(AGENTS, limit, reason)
            self._working().moved(0)
            return
        try:
            self._kit.tools.set_limit(resource, limit, reason)
        except KeyError:  # it was there before the run was resumed
            raise ConfigurationError(
                f"There is no {resource} now.", remedy="See what there is: centuria show."
            ) from None

    async def execute(self, *, begun: Callable[[Stream], None] | None = None) -> Report:
        """Do the work, whole or the rest of it, and leave the run's folder in order.

        `begun` is called with the stream before the first fact is published.
        Raises `ConfigurationError` before any money is spent, `JournalError` when facts can no longer be kept.
        """
        launch = self.launch
        async with AsyncExitStack() as stack:
            transport = self._transport()
            stack.push_async_callback(transport.aclose)
            cores, seq = Cores(launch), 0
            if launch.resume is not None:  # before the servers: that it is running already is said at once
                journal = await _beside(stack, lambda: SqliteJournal.open(launch.folder.journal))
                seq = cores.restore(journal)
                self.idle = seq > 0 and plan_resume(launch.job, cores.graph, cores.calls, only=launch.resume.only).empty
            host = self._given_host or await self._start_servers(stack, cores.graph)
            if launch.resume is None:  # after them: a run that cannot start leaves no folder
                launch.folder.create()
                place, name = launch.folder.journal, launch.job.name
                journal = await _beside(stack, lambda: SqliteJournal.create(place, run=launch.run, name=name))
                launch.save()
            take_commands(launch.folder.path)  # they were for the run before this one
            self.stream = stream = Stream(journal, clock=self._wall, progress=cores.progress, seq=seq)
            stack.callback(stream.close)
            if begun is not None:
                begun(stream)
                await asyncio.sleep(0)  # the views that it started subscribe before there is anything to miss
            kit = self._kit = self._compose(cores, stream, transport, host, fresh=seq == 0)
            if launch.resume is not None:
                launch.save()  # the next resume goes on from here: same job, same limits
            self._orchestrator = orchestrator = Orchestrator(launch.job, launch.endpoint, kit)
            self.ready.set()
            if self._cancelled:
                orchestrator.cancel(cause=self._cancelled)
            stack.callback(kit.tools.close)
            if isinstance(host, Announcing):
                host.on_change = kit.tools.server_changed
                stack.callback(_deafen, host)
            merged = await self._work(orchestrator)
            await self._end_recording(transport, stream)
            return await self._finish(orchestrator, kit, merged, cores.unwritten)

    # -- composing ----------------------------------------------------------------------------------------------------

    async def _start_servers(self, stack: AsyncExitStack, graph: TaskGraph) -> McpToolHost:
        """The tool servers; none of them when the run is cancelled meanwhile, so that it ends at once and in order."""
        job = self.launch.job
        servers = () if self.idle else job.servers
        host = McpToolHost(servers, timeouts=job.timeouts, dice=self._dice, rows=rows_of(job, graph))
        self._starting = current = asyncio.current_task()
        try:
            await stack.enter_async_context(host)
        except asyncio.CancelledError:
            if not self._cancelled or current is None or current.uncancel():
                raise
            host = McpToolHost((), timeouts=job.timeouts, dice=self._dice)
            await stack.enter_async_context(host)
        finally:
            self._starting = None
        return host

    def _transport(self) -> Transport:
        """Where requests go, and the recorder before it. Raises `ConfigurationError` for its files."""
        launch, tape = self.launch, self.launch.tape
        inner: Transport
        if self._given_transport is not None:
            inner = self._given_transport
        elif tape.replay is not None:
            inner = ReplayTransport(Recording(tape.replay), paced=tape.paced)
        elif launch.rehearse:
            inner = RehearsalTransport(launch.job.rehearsal, self._variables, self._schema)
        else:
            inner = DirectTransport()
        if tape.record is None:
            return inner
        try:
            return RecordingTransport(
                inner, tape.record, about=launch.about, secrets=launch.secrets, warn=self._recording_ends
            )
        except ConfigurationError:
            if isinstance(inner, ReplayTransport):
                inner.close()
            raise

    def _recording_ends(self, why: str) -> None:
        if self.stream is not None:
            with suppress(JournalError):  # whoever needs the journal will say so
                self.stream.publish(Notice(why, "warning"))

    async def _end_recording(self, transport: Transport, stream: Stream) -> None:
        if isinstance(transport, RecordingTransport):
            await transport.finish()
            if transport.written:
                stream.publish(Notice(f"{transport.written} model exchanges are in {self.launch.tape.record}."))

    def _variables(self, task: str) -> Mapping[str, object]:
        """What a rehearsal's script for this task may name."""
        assert self._orchestrator is not None
        if task == MERGE:
            return merge_variables(self._orchestrator.results())
        known = self._orchestrator.task(task)
        return known.variables if known is not None else {}

    def _schema(self, task: str) -> Mapping[str, Any] | None:
        known = self._orchestrator.task(task) if self._orchestrator is not None else None
        return known.schema if known is not None else None

    def _compose(self, cores: Cores, stream: Stream, transport: Transport, host: ToolHost, *, fresh: bool) -> Kit:
        launch, job = self.launch, self.launch.job
        slots, money = Slots(SlotTable(), stream), Money(cores.ledger, stream, self.purse)
        cores.begin(launch, stream) if fresh else cores.resume(launch, stream)
        if launch.tape.replay is not None:
            stream.publish(Notice(f"This is a replay of {launch.tape.replay}: no model is asked, nothing is paid."))
        if self.purse is not None and job.limits.budget is not None:
            stream.publish(Notice("The budget is that of all runs of a comparison together."))
        if not launch.priced:
            stream.publish(Notice(unpriced(launch), "warning"))
        money.set_cap(RUN_NODE, job.limits.budget)
        slots.set_limit(AGENTS, self._agents, f"limits.agents = {job.limits.agents}")
        retry, tape = RetryPolicy(), launch.tape
        at_once = tape.replay is not None and not tape.paced
        throttle = Throttle(
            cores.governor,
            cores.warmup,
            slots,
            stream,
            queue=job.timeouts.queue,
            dice=self._dice,
            wall=self._wall,
            heeds=not at_once,
        )
        throttle.begin()
        model: Model = ModelClient(
            endpoint=launch.endpoint,
            transport=transport,
            calls=cores.calls,
            money=money,
            throttle=throttle,
            price=launch.price,
            stream=stream,
            retry=RetryAtOnce() if at_once else retry,
            timeouts=job.timeouts,
            dice=self._dice,
            wall=self._wall,
            run=launch.run,
            warm_first=job.limits.warm_first and not (launch.rehearse or at_once),
        )
        self._approvals = approvals = Approvals(stream, patience=job.timeouts.approval)
        tools = ToolScheduler(
            host=host,
            slots=slots,
            calls=cores.calls,
            stream=stream,
            retry=retry,
            timeouts=job.timeouts,
            dice=self._dice,
            spill=launch.folder.spill,
            result_chars=job.limits.result_chars,
            approve=approvals,
            dialect=DIALECTS[launch.endpoint.dialect],
            context=launch.endpoint.context,
        )
        return Kit(
            stream=stream,
            graph=cores.graph,
            calls=cores.calls,
            landing=cores.landing,
            slots=slots,
            money=money,
            model=model,
            tools=tools,
            folder=launch.folder,
            clock=self._wall,
        )

    # -- working ------------------------------------------------------------------------------------------------------

    async def _work(self, orchestrator: Orchestrator) -> Merged:
        try:
            async with asyncio.TaskGroup() as group:
                listener = group.create_task(self._listen(), name="commands")
                try:
                    await orchestrator.work()
                    return await orchestrator.merge()
                finally:
                    listener.cancel()
        except BaseExceptionGroup as group_of_errors:
            raise first_of(group_of_errors) from group_of_errors

    async def _listen(self) -> None:
        """Obey other processes (`centuria cancel`, `pause`, `limit`, ...) while the run works."""
        assert self.stream is not None
        while True:
            for command in take_commands(self.launch.folder.path):
                try:
                    obey(command, self)
                except ConfigurationError as error:
                    self.stream.publish(Notice(str(error), "warning"))
            await asyncio.sleep(_COMMAND_POLL)

    async def _finish(self, orchestrator: Orchestrator, kit: Kit, merged: Merged, unwritten: set[str]) -> Report:
        """Make the run's end a fact, and its folder complete."""
        launch, outcomes = self.launch, orchestrator.outcomes()
        orchestrator.restore_files(unwritten)
        results = orchestrator.results()
        status, code, cause = verdict(
            outcomes,
            merged,
            stopped=orchestrator.stopped,
            unended=len(results.tasks) - len(outcomes),
            leaves=orchestrator.leaves(),
        )
        launch.folder.write("results.jsonl", results_lines(results.tasks, outcomes, priced=launch.priced))
        if merged.cause:
            kit.stream.publish(Notice(merged.cause[0].upper() + merged.cause[1:] + ".", "warning"))
        kit.stream.publish(FileWritten("results.jsonl"), RunEnded(status, code, cause))
        await kit.stream.durable()
        launch.folder.write("report.html", await asyncio.to_thread(report, kit.stream.progress))
        kit.stream.publish(FileWritten("report.html"))
        return Report(
            run=launch.run,
            folder=launch.folder.path,
            status=status,
            exit_code=code,
            cause=cause,
            answer=merged.answer,
            outcomes=outcomes,
            cost=kit.money.ledger.spent(RUN_NODE),
            held=kit.money.ledger.held(RUN_NODE),
            rehearsal=launch.rehearse,
            priced=launch.priced,
        )


async def _beside(stack: AsyncExitStack, opening: Callable[[], SqliteJournal]) -> SqliteJournal:
    """A journal, opened in a thread: the disk may take long, and a loop may have other work. `stack` closes it, also
    where whoever waits for it is cancelled."""
    opened = asyncio.ensure_future(asyncio.to_thread(opening))

    async def close() -> None:
        await asyncio.wait([opened])
        if not opened.cancelled() and opened.exception() is None:
            await opened.result().aclose()

    stack.push_async_callback(close)
    return await asyncio.shield(opened)


def agents_of(job: Job) -> int:
    """How many subagents there are at once at most: no more than tasks, unless those may grow."""
    grows = any(task.delegates for task in job.tasks)
    return job.limits.agents if grows else min(job.limits.agents, len(job.tasks))


def rows_of(job: Job, graph: TaskGraph) -> Callable[[str], Mapping[str, Any]]:
    """The row that each agent works for: its task's, or that of the task of the job below which it was assigned."""
    rows: dict[str | None, Mapping[str, Any]] = {task.id: task.variables for task in job.tasks}

    def row(task: str | None) -> Mapping[str, Any]:
        while task is not None and task not in rows and task in graph:
            task = graph.task(task).parent
        return rows.get(task, {})

    return row


def _deafen(host: Announcing) -> None:
    """Servers that are stopped at the end of a run are no news."""
    host.on_change = None


def unpriced(launch: Launch) -> str:
    """What is said of a model that has no price: no cap of this run needs one, but a real run's may."""
    refused = launch.refused_when_real
    model = json.dumps(launch.endpoint.model, ensure_ascii=False)
    lines = f"Add [prices.{model}] with its `input` and `output` to the job file"
    if refused is not None:
        return f"A real run of this will be refused: {refused.message} {lines}, or take the cap away: --budget none."
    return f"No price is known for {launch.endpoint.model}: its calls are unpriced. {lines}."
