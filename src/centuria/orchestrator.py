"""Plan -> task graph -> spawn what is ready, and what that assigns -> merge. One job's work, to its one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set

from centuria import merge as merging
from centuria.assigning import Assigning
from centuria.briefing import Briefing
from centuria.core.arguments import BadArguments
from centuria.core.census import status_of
from centuria.core.ready import ReadyQueue
from centuria.core.refusals import concerns_all
from centuria.core.resources import check_priority
from centuria.core.tallies import AGENTS
from centuria.errors import (
    ConfigurationError,
    FingerprintMismatch,
    JournalError,
    ModelError,
    first_of,
)
from centuria.events import Notice, PhaseStarted, TaskEnded, TaskReady
from centuria.kit import Kit
from centuria.merger import Merged, Merger
from centuria.messages import Message, Outcome, Status
from centuria.resultfiles import ResultFiles
from centuria.seats import Seat
from centuria.settings import Endpoint, Job, Task
from centuria.steering import Pauses
from centuria.subagent import Draft, converse

#: Up to `_FEW` agents begin a few at a time, milliseconds apart: all in one breath take each step together, so that
#: the first request leaves when the last is ready, and so on with every answer. A hundred have begun after 50 ms.
#: More than that begin together: else the answers to the first would take the time that the last need to begin, and
#: they would never all be in flight.
_FEW, _AT_ONCE, _TOGETHER, _APART = 200, 4, 1000, 0.002


class Orchestrator:
    """Runs a job's tasks on as many subagents as there are slots, then merges. Cancel it from any task of the loop."""

    def __init__(self, job: Job, endpoint: Endpoint, kit: Kit) -> None:
        self._job = job
        self._endpoint = endpoint
        self._kit = kit
        self._assigning = Assigning(job, endpoint, kit, self)
        self._tasks = {task.id: task for task in (*job.tasks, *self._assigning.known())}
        self._index = {task: kit.graph.task(task).index for task in self._tasks if task in kit.graph}
        self._files = ResultFiles(kit.folder, kit.stream, list(self._tasks), job.merge.text)
        self._briefing = Briefing(job, endpoint, kit, self._assigning)
        self._merger = Merger(job, endpoint, kit)
        self._pauses = Pauses(kit.graph, kit.stream)
        self._ready = ReadyQueue(kit.graph)
        self._open = set(kit.graph.unfinished())
        #: Something may begin: a task is ready, or a place among those at work is free.
        self._news = asyncio.Event()
        self._at_work = 0
        self._running: dict[str, asyncio.Task[None]] = {}
        self._seats: dict[str, Seat] = {}
        self._drafts: dict[str, Draft] = {}
        #: Tasks that were stopped one by one, and why.
        self._cancelled: dict[str, str] = {}
        self._stopped = ""
        self._denied = ""
        self._working = False

    # -- the work -----------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run until every task has an outcome. Raises `JournalError` when outcomes can no longer be kept."""
        self._kit.stream.publish(PhaseStarted("work"))
        self._working = True
        self.note_ready(self._kit.graph.ready())
        if self._stopped:
            self._give_up()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._assigning.watch(), name="watch")
            try:
                await self._begin_agents(group)
            finally:
                watch.cancel()
        await self._kit.stream.durable()

    async def _begin_agents(self, group: asyncio.TaskGroup) -> None:
        """Start workers, some at a time, as long as there is work and a place for it."""
        begun = 0
        while self._open:
            await self._news.wait()
            self._news.clear()
            wanted = min(len(self._ready), self._places - self._at_work)
            at_once = _AT_ONCE if wanted <= _FEW else _TOGETHER
            while self._ready and self._at_work < self._places:
                self._at_work += 1
                group.create_task(self._worker(), name=f"agent {begun}")
                begun += 1
                if begun % at_once == 0:
                    await asyncio.sleep(_APART)

    @property
    def _places(self) -> int:
        """How many agents may be at work: their slots, as they are now."""
        return self._kit.slots.table.limit(AGENTS)

    async def _worker(self) -> None:
        """One place's worth of work: take the next ready task, run it, until there is none or no place for it."""
        try:
            while self._at_work <= self._places and (task := self._ready.take(self._pauses.holds)):
                await self._attend(self._tasks[task])
        finally:
            self.moved(-1)

    # -- steering -----------------------------------------------------------------------------------------------------

    def pause(self, task: str | None = None) -> None:
        """Let a task and all below it, or the whole run, make no further request. Raises `ConfigurationError`."""
        self._check_there(task)
        self._pauses.pause(task)

    def go_on(self, task: str | None = None) -> None:
        """End a pause; without a task, all of them."""
        self._check_there(task)
        self._pauses.go_on(task)
        self._ready.release()
        self._news.set()

    def set_priority(self, task: str, priority: int) -> None:
        """Serve a task and all below it sooner (0) or later (9) from now on. Raises `ConfigurationError`."""
        self._check_there(task)
        check_priority(priority)
        for one in (task, *self._assigning.below(task)):
            events = self._kit.graph.set_priority(one, priority)
            self._kit.stream.publish(*events)
            if events and self._kit.graph.state(one) == "ready" and one not in self._running:
                self.note_ready([one])

    def retry(self, task: str) -> None:
        """Run a task afresh that did not end well. Raises `ConfigurationError`."""
        self._check_there(task)
        parent = self._kit.graph.task(task).parent
        if parent is not None and parent not in self._running:
            raise ConfigurationError(
                f"{parent}, which assigned {task}, has ended.", remedy="Nobody is there who would use its answer."
            )
        if not self._open:
            raise ConfigurationError("The run's work is over.", remedy="Run it again: centuria resume RUN.")
        try:
            self._assigning.retry(task)
        except BadArguments as error:
            raise ConfigurationError(str(error)) from None

    def _check_there(self, task: str | None) -> None:
        if task is not None and task not in self._tasks:
            raise ConfigurationError(f"The run has no task {task!r}.", remedy="See them: centuria show RUN.")

    async def _may_go_on(self, task: str) -> None:
        while self._pauses.holds(task):
            seat = self._seats[task]
            seat.leave()
            await self._pauses.change()
            await seat.back()

    def moved(self, change: int) -> None:
        """So many more, or fewer, are at work now."""
        self._at_work += change
        self._news.set()

    def _give_up(self) -> None:
        """End what has not begun: it will not begin."""
        status = Status.CANCELLED if self._stopped else Status.BLOCKED
        cause, now = self._stopped or self._denied, self._kit.clock()
        idle = [task for task in self._open if task not in self._running]
        self._close([self._outcome(task, Draft(), status, cause, now) for task in idle])
        self._ready.clear()

    def cancel(self, task: str | None = None, *, cause: str = "cancelled by the user") -> None:
        """Stop one task and all that it assigned, or the whole run: no request of them starts afterwards, and partial
        results are kept. Raises `ConfigurationError` for a task that is not there."""
        if self._stopped:
            return  # it is being stopped already: once is what each is cancelled
        self._check_there(task)
        if task is not None:
            for one in (task, *self._assigning.below(task)):
                self._cancel_one(one, cause)
            return
        self._stopped = cause
        if self._working:
            self._give_up()
        for name, running in self._running.items():
            if name not in self._cancelled:
                running.cancel()
        self._merger.cancel(cause)

    def _cancel_one(self, task: str, cause: str) -> None:
        if task in self._cancelled or task not in self._tasks or self._kit.graph.outcome(task) is not None:
            return
        self._cancelled[task] = cause
        if task in self._running:
            self._running[task].cancel()
        else:
            self._close([self._outcome(task, Draft(), Status.CANCELLED, cause, self._kit.clock())])

    @property
    def stopped(self) -> str:
        """Why nothing more is begun: the run was cancelled; "" if it was not."""
        return self._stopped

    @property
    def refuses(self) -> str:
        """Why no task can be added now; "" if it can."""
        return self._stopped or self._denied

    @property
    def unended(self) -> int:
        """How many tasks have no outcome."""
        return len(self._open)

    # -- one task -----------------------------------------------------------------------------------------------------

    async def _attend(self, task: Task) -> None:
        """Run one task to its outcome. One agent's failure, of whatever kind, is its own."""
        current = asyncio.current_task()
        assert current is not None
        draft, started = Draft(), self._kit.clock()
        status, cause = Status.OK, ""
        self._running[task.id], self._drafts[task.id] = current, draft
        try:
            await self._converse(task, draft)
            cause = draft.cause
        except asyncio.CancelledError:
            ours = task.id in self._cancelled or self._stopped
            if not ours or current.uncancel():  # the group's, or the loop's too
                raise
            status, cause = Status.CANCELLED, self._cancelled.get(task.id) or self._stopped
        except Exception as caught:  # the edge: whatever an agent died of, the others go on
            error = first_of(caught)
            if isinstance(error, JournalError):
                raise error from caught
            status, cause = status_of(error)
            if isinstance(error, ModelError) and concerns_all(error):
                self._denied = self._denied or cause
        finally:
            del self._running[task.id], self._drafts[task.id]
            self._kit.tools.release(task.id)
        for child in self._assigning.left_behind(task.id):
            self.cancel(child, cause=f"{task.id} ended before it")
        outcome = self._outcome(task.id, draft, status, cause, started)
        ready = self._end([outcome])
        if status is Status.OK:
            await self._files.write_aside(outcome)
        self.note_ready(ready)
        if self._denied:
            self._give_up()
        await self._kit.stream.durable()

    async def _converse(self, task: Task, draft: Draft) -> None:
        seat = Seat(
            self._kit.slots,
            task.id,
            self._index[task.id],
            lambda: self._kit.graph.task(task.id).priority,
            self.moved,
        )
        self._seats[task.id] = seat
        try:
            await seat.take()
            started, epoch = self._kit.clock(), self._kit.calls.epoch(task.id)
            self._kit.stream.publish(*self._kit.graph.start(task.id, epoch))
            async with asyncio.timeout(self._job.limits.seconds):
                try:
                    await converse(self._briefing.brief(task, epoch, draft, started, lambda: self._may_go_on(task.id)))
                except Exception as error:  # alone, or in the group of a turn's tool calls
                    if not isinstance(first_of(error), FingerprintMismatch):
                        raise
                    seat.close()
                    await seat.take()
                    epoch = self._begin_afresh(task.id, draft)
                    await converse(self._briefing.brief(task, epoch, draft, started, lambda: self._may_go_on(task.id)))
        finally:
            del self._seats[task.id]
            seat.close()

    def seat(self, task: str) -> Seat:
        """The seat of a task that runs."""
        return self._seats[task]

    def running(self, task: str) -> bool:
        """Whether it has an agent that could move."""
        return task in self._running

    def history(self, task: str) -> Sequence[Message]:
        """The conversation of a task that runs; nothing of any other."""
        return self._drafts[task].history if task in self._drafts else ()

    def paused(self, task: str) -> bool:
        return self._pauses.holds(task)

    def _begin_afresh(self, task: str, draft: Draft) -> int:
        """The journal tells the beginning of another conversation than this one: nothing of it can be used."""
        kit, epoch = self._kit, self._kit.calls.epoch(task) + 1
        facts = kit.graph.reset({task: epoch})
        for fact in facts:
            kit.calls.apply(fact)
        facts += kit.graph.start(task, epoch)
        text = f"Task {task} begins afresh: its model, its tools or the program are not those of the broken run."
        kit.stream.publish(Notice(text), *facts)
        draft.clear()
        return epoch

    def _outcome(self, task: str, draft: Draft, status: Status, cause: str, started: float) -> Outcome:
        totals = self._kit.calls.totals(task)
        said = [draft.text] if status is Status.OK else [draft.text, self._kit.calls.partial(task)]
        return Outcome(
            task=task,
            status=status,
            cause=cause,
            text="\n\n".join(text for text in said if text),
            structured=draft.structured if status is Status.OK else None,
            cut_short=draft.cut_short,
            steps=draft.steps,
            attempts=totals.attempts,
            repairs=draft.repairs,
            usage=totals.usage,
            cost=totals.cost,
            held=totals.held,
            started_at=started,
            ended_at=self._kit.clock(),
        )

    def _close(self, outcomes: Sequence[Outcome]) -> None:
        """End tasks that leave no file."""
        self.note_ready(self._end(outcomes))

    def _end(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Outcomes become facts before anything depends on them. Returns the tasks that waited for them."""
        events = self._kit.graph.end_all(outcomes)
        if events:
            self._kit.stream.publish(*events)
        for event in events:
            if isinstance(event, TaskEnded):
                self._open.discard(event.task)
                self._kit.calls.forget(event.task)
                self._assigning.ended(event.outcome)
        if not self._open:
            self._news.set()
        return [event.task for event in events if isinstance(event, TaskReady)]

    def admit(self, tasks: Sequence[Task]) -> None:
        """Tasks that came into the graph while the run works."""
        for task in tasks:
            self._tasks[task.id] = task
            self._index[task.id] = self._kit.graph.task(task.id).index
            self._files.add(task.id)
            if self._kit.graph.outcome(task.id) is None:
                self._open.add(task.id)

    def reopen(self, task: str) -> None:
        """A task that had ended runs again."""
        self._open.add(task)
        self._cancelled.pop(task, None)

    def refuse(self, tasks: Sequence[str], cause: str) -> None:
        """End tasks that came into the graph and for which there is no money: they count, and do not begin."""
        now = self._kit.clock()
        open = [task for task in tasks if task in self._open]
        self._close([self._outcome(task, Draft(), Status.BUDGET, cause, now) for task in open])

    def note_ready(self, tasks: Sequence[str]) -> None:
        """These may begin."""
        self._ready.put(tasks)
        if tasks:
            self._news.set()

    def restore_files(self, unwritten: Set[str] = frozenset()) -> None:
        """Write the files of results that a broken run had finished and not yet written: the `unwritten`, and what is
        not there."""
        self._files.restore(self.outcomes(), unwritten)

    def report(self, task: str) -> str:
        """The file of a task's result, relative to the run's folder."""
        return self._files.path(task)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def merge(self) -> Merged:
        """Make the one answer of what there is."""
        return await self._merger.merge(self.results())

    def results(self) -> merging.Results:
        """All tasks, those that were assigned too, with the outcomes that there are so far."""
        return merging.Results(self._job, list(self._tasks.values()), self.outcomes())

    def task(self, task: str) -> Task | None:
        """A task of the job, or one that was assigned."""
        return self._tasks.get(task)

    def leaves(self) -> Mapping[str, Outcome]:
        """The outcomes of the tasks that did the work themselves: those that assigned none."""
        return {task: end for task, end in self.outcomes().items() if not self._assigning.assigned(task)}

    def outcomes(self) -> Mapping[str, Outcome]:
        """How each task ended, so far."""
        found = ((task, self._kit.graph.outcome(task)) for task in self._tasks)
        return {task: outcome for task, outcome in found if outcome is not None}
