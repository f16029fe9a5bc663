"""Plan -> task graph -> spawn what is ready -> merge. One job's work, from its tasks to its one answer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from centuria import merge as merging
from centuria.admission import Money, Slots
from centuria.core.calls import CallLedger, fingerprint
from centuria.core.graph import NewTask, TaskGraph
from centuria.core.landing import SoftLanding
from centuria.core.refusals import concerns_all
from centuria.errors import (
    BudgetExceeded,
    CenturiaError,
    FingerprintMismatch,
    JournalError,
    ModelDenied,
    ModelError,
    SlotRefused,
)
from centuria.events import FileWritten, Notice, PhaseStarted, TaskEnded, TaskReady
from centuria.folder import RunFolder, file_stems
from centuria.messages import CallKey, Completion, Outcome, Status, ToolCall, ToolResult, ToolSpec
from centuria.ports import Caller, ChatRequest, Model
from centuria.scheduler import ToolScheduler
from centuria.settings import MERGE, Endpoint, Job, Task
from centuria.stream import Stream
from centuria.subagent import Brief, Draft, converse, opening

#: The root of the tree of caps.
RUN_NODE = "run"
#: Agents begin a few at a time, some milliseconds apart: all in one breath would take each step together, so that the
#: first request left when the last was ready, and so on with every answer. A hundred have begun after 50 ms.
_AT_ONCE, _APART = 4, 0.002
_TIMEOUT_KINDS = frozenset({"first_token", "silence", "total", "gate"})


@dataclass(frozen=True, slots=True)
class Kit:
    """The cores and shells of one run, as `run` composed them."""

    stream: Stream
    graph: TaskGraph
    calls: CallLedger
    landing: SoftLanding
    slots: Slots
    money: Money
    model: Model
    tools: ToolScheduler
    folder: RunFolder
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Merged:
    """The one answer. `cause` says what is wrong with it ("" = nothing); `budget`: money was what it lacked."""

    answer: str
    cause: str = ""
    budget: bool = False


@dataclass(frozen=True, slots=True)
class _CurrentTools:
    """What an agent may call now: servers come and go, and an agent switches to what there is at its next turn."""

    scheduler: ToolScheduler
    servers: frozenset[str] | None

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.scheduler.view(self.servers).specs

    async def call(self, call: ToolCall, caller: Caller) -> ToolResult:
        return await self.scheduler.view(self.servers).call(call, caller)


class Orchestrator:
    """Runs a job's tasks on as many subagents as there are slots, then merges. Cancel it from any task of the loop."""

    def __init__(self, job: Job, endpoint: Endpoint, kit: Kit) -> None:
        self._job = job
        self._endpoint = endpoint
        self._kit = kit
        self._tasks = {task.id: task for task in job.tasks}
        self._ready: list[tuple[int, int, str]] = []
        self._index = {task.id: index for index, task in enumerate(job.tasks)}
        self._stems = file_stems(list(self._tasks))
        self._open: set[str] = set()
        self._news = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Tasks that were stopped one by one, and why.
        self._cancelled: dict[str, str] = {}
        self._stopped = ""
        self._denied = ""
        self._merging: asyncio.Task[object] | None = None

    # -- the work -----------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run until every task has an outcome. Raises `JournalError` when outcomes can no longer be kept."""
        self._kit.stream.publish(PhaseStarted("work"))
        self._note_ready(self._kit.graph.ready())
        self._open = set(self._kit.graph.unfinished())
        agents = min(self._job.limits.agents, len(self._open))
        async with asyncio.TaskGroup() as group:
            for number in range(agents):
                if number and number % _AT_ONCE == 0:
                    await asyncio.sleep(_APART)
                worker = group.create_task(self._worker(), name=f"agent {number}")
                worker.add_done_callback(lambda _: self._news.set())
        await self._kit.stream.durable()

    def cancel(self, task: str | None = None, *, cause: str = "cancelled by the user") -> None:
        """Stop one task, or the whole run: no request of it starts afterwards, and partial results are kept."""
        if self._stopped or task in self._cancelled:
            return  # it is being stopped already: once is what each is cancelled
        if task is not None:
            self._cancelled[task] = cause
            if task in self._running:
                self._running[task].cancel()
            elif task in self._tasks and self._kit.graph.outcome(task) is None:
                self._close([self._outcome(task, Draft(), Status.CANCELLED, cause, self._kit.clock())])
            return
        self._stopped = cause
        self._news.set()
        for name, running in self._running.items():
            if name not in self._cancelled:
                running.cancel()
        if self._merging is not None:
            self._merging.cancel()

    @property
    def stopped(self) -> str:
        """Why the run was cancelled; "" if it was not."""
        return self._stopped

    async def _worker(self) -> None:
        """One slot's worth of work: take the next ready task, run it, until nothing is left."""
        while (task := await self._next()) is not None:
            await self._attend(task)

    async def _next(self) -> Task | None:
        while True:
            if self._stopped or self._denied:
                self._give_up()
            while self._ready:
                task = self._tasks[heapq.heappop(self._ready)[2]]
                if self._kit.graph.outcome(task.id) is None:
                    return task
            if not self._open:
                self._news.set()
                return None
            self._news.clear()
            await self._news.wait()

    def _give_up(self) -> None:
        """End what has not begun: it will not begin."""
        status = Status.CANCELLED if self._stopped else Status.BLOCKED
        cause, now = self._stopped or self._denied, self._kit.clock()
        idle = [task for task in self._open if task not in self._running]
        self._close([self._outcome(task, Draft(), status, cause, now) for task in idle])
        self._ready.clear()

    async def _attend(self, task: Task) -> None:
        """Run one task to its outcome. One agent's failure, of whatever kind, is its own."""
        current = asyncio.current_task()
        assert current is not None
        draft, started = Draft(), self._kit.clock()
        status, cause = Status.OK, ""
        self._running[task.id] = current
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
            status, cause = _verdict(error)
            if isinstance(error, ModelError) and concerns_all(error):
                self._denied = self._denied or cause
        finally:
            del self._running[task.id]
        outcome = self._outcome(task.id, draft, status, cause, started)
        ready = self._end([outcome])
        if status is Status.OK:
            await self._write_aside(task, outcome)
        self._note_ready(ready)
        await self._kit.stream.durable()

    async def _converse(self, task: Task, draft: Draft) -> None:
        index = self._index[task.id]
        async with self._kit.slots.hold("agents", agent=task.id, index=index, priority=task.priority):
            started, epoch = self._kit.clock(), self._kit.calls.epoch(task.id)
            self._kit.stream.publish(*self._kit.graph.start(task.id, epoch))
            async with asyncio.timeout(self._job.limits.seconds):
                try:
                    await converse(self._brief(task, epoch, draft, started))
                except Exception as error:  # alone, or in the group of a turn's tool calls
                    if not isinstance(first_of(error), FingerprintMismatch):
                        raise
                    epoch = self._begin_afresh(task.id, draft)
                    await converse(self._brief(task, epoch, draft, started))

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

    def _brief(self, task: Task, epoch: int, draft: Draft, started: float) -> Brief:
        index, node = self._index[task.id], f"task:{task.id}"
        self._kit.money.set_cap(node, self._job.limits.agent_budget, parent=RUN_NODE)

        def recovery(turn: int) -> str | None:
            replayed = self._kit.calls.fingerprint_of(CallKey(task.id, epoch, turn, 0)) is not None
            used = self._used(task.id, node, turn, started)
            facts = self._kit.landing.check(task.id, epoch, turn, used, replayed=replayed)
            if facts:
                self._kit.stream.publish(*facts)
            return self._kit.landing.asked(task.id, epoch, turn)

        return Brief(
            task=task,
            epoch=epoch,
            index=index,
            node=node,
            opening=opening(task, self._job.system, self._needed(task)),
            model=self._kit.model,
            tools=_CurrentTools(self._kit.tools, task.servers),
            steps=self._job.limits.steps,
            recovery=recovery,
            draft=draft,
        )

    def _used(self, task: str, node: str, turn: int, started: float) -> dict[str, float]:
        """The used part of each limit that is set, by its name as the model is told it."""
        limits, ledger = self._job.limits, self._kit.money.ledger
        totals = self._kit.calls.totals(task)
        used = {"steps": (turn + 1) / limits.steps}
        if limits.seconds:
            used["time"] = (self._kit.clock() - started) / limits.seconds
        if limits.tokens:
            used["tokens"] = (totals.usage.prompt + totals.usage.output) / limits.tokens
        for name, cap in ((RUN_NODE, limits.budget), (node, limits.agent_budget)):
            if cap:
                used["budget"] = max(used.get("budget", 0.0), ledger.spent(name) / cap)
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
            texts.append((need, merging.shorten(text, share)))
        return texts

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
        self._note_ready(self._end(outcomes))

    def _end(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Outcomes become facts before anything depends on them. Returns the tasks that waited for them."""
        events = self._kit.graph.end_all(outcomes)
        if events:
            self._kit.stream.publish(*events)
        for event in events:
            if isinstance(event, TaskEnded):
                self._open.discard(event.task)
                self._kit.calls.forget(event.task)
        return [event.task for event in events if isinstance(event, TaskReady)]

    def _note_ready(self, tasks: Sequence[str]) -> None:
        for task in tasks:
            heapq.heappush(self._ready, (self._tasks[task].priority, self._index[task], task))
        if tasks or not self._open:  # else the idle workers, maybe a thousand, would wake for nothing
            self._news.set()

    def write_result(self, task: Task, outcome: Outcome) -> None:
        """One result's own file."""
        name = self._report(task.id)
        self._kit.folder.write(name, merging.report_text(outcome, self._job.merge.text))
        self._kit.stream.publish(FileWritten(name, task.id))

    async def _write_aside(self, task: Task, outcome: Outcome) -> None:
        """The same, the moment it is finished, in a thread: a slow disk must not hold up the other agents."""
        name = self._report(task.id)
        text = merging.report_text(outcome, self._job.merge.text)
        await asyncio.to_thread(self._kit.folder.write, name, text)
        self._kit.stream.publish(FileWritten(name, task.id))

    def restore_files(self, unwritten: Set[str] = frozenset()) -> None:
        """Write the files of results that a broken run had finished and not yet written: the `unwritten`, and what is
        not there."""
        for task, outcome in self.outcomes().items():
            if outcome.status is not Status.OK:
                continue
            if task in unwritten or not self._kit.folder.exists(self._report(task)):
                self.write_result(self._tasks[task], outcome)

    def _report(self, task: str) -> str:
        return f"reports/{self._stems[task]}.md"

    # -- the merge ----------------------------------------------------------------------------------------------------

    async def merge(self) -> Merged:
        """Make the one answer of what there is. Nothing paid for is left out; nothing is bought after a cancel."""
        kit, job = self._kit, self._job
        kit.stream.publish(PhaseStarted("merge"))
        results = merging.Results(job, job.tasks, self.outcomes())
        answer = merging.concatenate(results)
        if job.merge.kind == "table":
            self._write("table.csv", merging.to_csv(results))
            answer = merging.to_markdown(results)
        if len(job.tasks) == 1 and job.merge.kind == "concatenate":
            answer = next((merging.report_text(end, job.merge.text) for _, end in results.finished()), "")
        merged = Merged(answer)
        if job.merge.kind == "written" or job.merge.summary is not None:
            merged = await self._write_summary(results, answer)
        if job.merge.kind != "table":
            self._write("answer.md", merged.answer)
        return merged

    async def _write_summary(self, results: merging.Results, fallback: str) -> Merged:
        if self.stopped:
            return Merged(fallback, "the summary was not written: the run was cancelled")
        if not results.finished():
            return Merged(fallback, "the summary was not written: no task ended ok")
        messages, shortened = merging.summary_messages(results, context=self._endpoint.context)
        if shortened:
            text = "The results were shortened to fit the model's context for the written answer; reports/ has all."
            self._kit.stream.publish(Notice(text, "warning"))
        request = ChatRequest(messages, max_tokens=self._job.merge.max_tokens)
        self._merging = current = asyncio.current_task()
        try:
            completion = await self._ask_merger(request)
        except asyncio.CancelledError:
            if not self._stopped or current is None or current.uncancel():
                raise
            return Merged(fallback, f"the summary was not written: {self._stopped}")
        except JournalError:
            raise
        except CenturiaError as error:
            budget = isinstance(error, BudgetExceeded)
            return Merged(fallback, f"the summary was not written: {error}", budget=budget)
        finally:
            self._merging = None
        self._write("summary.md", completion.message.content.rstrip() + "\n")
        return Merged(completion.message.content)

    async def _ask_merger(self, request: ChatRequest) -> Completion:
        """The merge's one call. Its epoch is its content: other results make another call, never a false replay."""
        content = fingerprint([message.content for message in request.messages])
        key = CallKey(MERGE, int(content[:7], 16), 0, 0)
        return await self._kit.model.chat(request, Caller(key, RUN_NODE, priority=0))

    def outcomes(self) -> Mapping[str, Outcome]:
        """How each task of the job ended, so far."""
        found = ((task, self._kit.graph.outcome(task)) for task in self._tasks)
        return {task: outcome for task, outcome in found if outcome is not None}

    def _write(self, name: str, text: str) -> None:
        self._kit.folder.write(name, text)
        self._kit.stream.publish(FileWritten(name))


def _verdict(error: BaseException) -> tuple[Status, str]:
    """An agent's end as the census counts it."""
    match error:
        case BudgetExceeded():
            return Status.BUDGET, str(error)
        case ModelDenied() if concerns_all(error):
            return Status.BLOCKED, str(error)
        case ModelError() if error.kind in _TIMEOUT_KINDS:
            return Status.TIMEOUT, str(error)
        case SlotRefused():
            return Status.TIMEOUT, str(error)
        case TimeoutError():
            return Status.TIMEOUT, "its time was up"
        case CenturiaError():
            return Status.FAILED, str(error)
        case _:
            return Status.FAILED, f"internal error: {type(error).__name__}: {error}"[:500]


def first_of(error: BaseException) -> BaseException:
    """The error itself; of a group, the first in it: what the others were cancelled for."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def new_tasks(job: Job) -> list[NewTask]:
    """The job's tasks as the graph takes them."""
    return [
        NewTask(
            id=task.id,
            spec=task.spec,
            label=task.label,
            needs=task.needs,
            priority=task.priority,
            allow_failed=task.allow_failed,
        )
        for task in job.tasks
    ]
