"""The fold of a run's events: rows, totals, percentiles, census, what is unfinished. Pure.

It reports and decides nothing: the graph, the slot table and the ledger are the truth of their own. Any order
of events is folded without an error, because a journal can end anywhere.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from centuria import events as e
from centuria.core.measures import Sample, Span, Timeline, Tokens
from centuria.core.rows import (
    CallsRow,
    CriticalPath,
    MoneyRow,
    NoticeRow,
    ResourceRow,
    ServerRow,
    TaskRow,
    TaskRows,
    critical_path,
)
from centuria.core.steps import Steps, steps_of
from centuria.core.tallies import AGENTS, RATE_SECONDS, CallTally, MoneyTally, SlotTally
from centuria.core.upstreams import UpstreamRow, UpstreamTally
from centuria.messages import Pico, Status, TaskState

_NOTICES = 200


@dataclass(slots=True)
class Progress:
    """What a run has come to. Made without arguments. Read its attributes and rows: only `record` writes.

    Times are seconds since 1970, money is pico-dollars. `status` is "" before the start, "running", then that
    of `RunEnded`. `tasks` are in the order in which they were added.
    """

    seq: int = 0
    at: float = 0.0
    run: str = ""
    name: str = ""
    model: str = ""
    version: str = ""
    rehearsal: bool = False
    #: Whether it is known what the model costs.
    priced: bool = True
    replay: bool = False
    budget: Pico | None = None
    agents: int = 0
    concurrency: int = 0
    status: str = ""
    cause: str = ""
    exit_code: int | None = None
    phase: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    #: For each resume: when the process before it left its last record, and when the next one began.
    resumes: list[tuple[float, float]] = field(default_factory=list)
    in_doubt: int = 0
    states: Counter[TaskState] = field(default_factory=Counter)
    servers: dict[str, ServerRow] = field(default_factory=dict)
    notices: deque[NoticeRow] = field(default_factory=lambda: deque(maxlen=_NOTICES))
    warnings: int = 0
    #: Path, relative to the run's folder, to the task that it is of (None: of the run).
    files: dict[str, str | None] = field(default_factory=dict)
    #: The tree of the merge, from its leaves up: each knot's level, name and inputs.
    merged: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    #: Branches that are paused (None: all), and the calls that wait for a yes: tool and arguments by call.
    paused: set[str | None] = field(default_factory=set)
    approvals: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Seconds that tasks ran, from start to end.
    durations: Sample = field(default_factory=Sample)
    timeline: Timeline = field(default_factory=Timeline)
    _rows: TaskRows = field(default_factory=TaskRows)
    _slots: SlotTally = field(init=False)
    _money: MoneyTally = field(init=False)
    _calls: CallTally = field(init=False)
    _upstreams: UpstreamTally = field(default_factory=UpstreamTally)
    _census: Counter[Status] = field(default_factory=Counter)
    _loss: Pico = 0
    _active: float = 0.0
    _since: float | None = None
    _before: float = 0.0
    #: When the first task of this process started, and how many that ran have ended since.
    _working: float | None = None
    _worked: int = 0
    _handlers: Mapping[type, Callable[[Any, float], None]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._slots = SlotTally(self._rows, self.timeline)
        self._money = MoneyTally(self._rows)
        self._calls = CallTally(self._rows, self.timeline, self._money, self._slots)
        self._handlers = {
            e.RunStarted: self._run_started,
            e.RunResumed: self._run_resumed,
            e.PhaseStarted: self._phase_started,
            e.RunEnded: self._run_ended,
            e.Notice: self._noticed,
            e.FileWritten: self._file_written,
            e.PartMerged: self._part_merged,
            e.TaskAdded: self._task_added,
            e.TaskReady: self._task_ready,
            e.TaskStarted: self._task_started,
            e.TaskEnded: self._task_ended,
            e.TaskReset: self._task_reset,
            e.TaskPaused: self._task_paused,
            e.PrioritySet: self._priority_set,
            e.ApprovalAsked: self._approval_asked,
            e.ApprovalGiven: self._approval_given,
            e.LimitSet: self._slots.limit_set,
            e.SlotQueued: self._slots.queued,
            e.SlotGranted: self._slots.granted,
            e.SlotRejected: self._slots.rejected,
            e.SlotLeft: self._slots.left,
            e.CapSet: self._money.cap_set,
            e.MoneyQueued: self._money.queued,
            e.MoneyReserved: self._money.granted,
            e.MoneyRefused: self._money.refused,
            e.MoneySettled: self._money.settled,
            e.MoneyHeld: self._money.forfeited,
            e.MoneyReleased: self._money.released,
            e.CallOpened: self._calls.opened,
            e.CallClosed: self._calls.closed,
            e.ServerUp: self._server_up,
            e.ServerDown: self._server_down,
            e.RequestRefused: self._upstreams.refused,
            e.RateLimitsSeen: self._upstreams.seen,
            e.GateClosed: self._upstreams.gate_closed,
            e.GateOpened: self._upstreams.gate_opened,
            e.BreakerOpened: self._upstreams.breaker_opened,
            e.BreakerClosed: self._upstreams.breaker_closed,
        }

    # -- folding ------------------------------------------------------------------------------------------------------

    def record(self, record: e.Record) -> None:
        """Fold one fact in its place."""
        self._before, self.at, self.seq = self.at, record.at, record.seq
        handler = self._handlers.get(type(record.event))
        if handler is not None:
            handler(record.event, record.at)

    def apply(self, event: e.Event) -> None:
        """Fold one event at the time of the last record; ignores what it does not know."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, self.at)

    # -- the run ------------------------------------------------------------------------------------------------------

    def _run_started(self, event: e.RunStarted, at: float) -> None:
        self.run, self.name, self.model, self.version = event.run, event.name, event.model, event.version
        self.rehearsal = event.rehearsal
        self.priced = event.priced
        self.replay = event.replay
        self.budget = self._money.cap = event.budget
        self.agents, self.concurrency = event.agents, event.concurrency
        self.status = "running"
        self.started_at = self._since = at

    def _break_off(self, at: float) -> None:
        """The process that wrote its last record at `at` is gone: so are its tickets and its open calls."""
        if self._since is not None:
            self._active += max(0.0, at - self._since)
        self._slots.vanish(at)
        self._upstreams.vanish(at)
        self._money.owing.clear()
        self.paused.clear()
        self.approvals.clear()
        for row in (*self._rows.tasks.values(), *self._rows.others.values()):
            for call in row.calls.values():
                self.timeline.end(call.span, at, "interrupted")
            row.calls.clear()
            row.queued.clear()
            row.owing = 0
            row.slot, row.at_gate = None, False
            if row.state in ("ready", "running"):
                row.started_at = None
                self._move(row, "waiting")

    def _run_resumed(self, event: e.RunResumed, at: float) -> None:
        self._break_off(self._before)
        self.budget = self._money.cap = event.budget
        self.in_doubt += event.in_doubt
        self.status, self.cause, self.exit_code, self.ended_at = "running", "", None, None
        self.phase = ""
        self.notices.clear()  # they were said of what was left; what still holds is said again
        self._calls.rate.clear()
        self._since = at
        self._working, self._worked = None, 0
        self.resumes.append((self._before, at))

    def _phase_started(self, event: e.PhaseStarted, at: float) -> None:
        self.phase = event.phase

    def _run_ended(self, event: e.RunEnded, at: float) -> None:
        self.status, self.exit_code, self.cause = event.status, event.exit_code, event.cause
        self.ended_at = at
        if self._since is not None:
            self._active += max(0.0, at - self._since)
            self._since = None

    def _noticed(self, event: e.Notice, at: float) -> None:
        self.notices.append(NoticeRow(at, event.level, event.text))
        self.warnings += event.level != "info"

    def _file_written(self, event: e.FileWritten, at: float) -> None:
        self.files[event.path] = event.task

    def _part_merged(self, event: e.PartMerged, at: float) -> None:
        self.merged.append((event.level, event.name, event.inputs))

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _move(self, row: TaskRow, state: TaskState) -> None:
        if row.task in self._rows.tasks:
            self.states[row.state] -= 1
            self.states[state] += 1
        row.state = state

    def _task_added(self, event: e.TaskAdded, at: float) -> None:
        if event.task in self._rows.tasks:
            return
        row = self._rows.others.pop(event.task, None) or TaskRow(event.task)
        row.index, row.label, row.needs = event.index, event.label, event.needs
        row.parent, row.depth, row.priority = event.parent, event.depth, event.priority
        row.asked_in = 0 if event.assigned is None else event.assigned.call.turn
        self._rows.tasks[event.task] = row
        self.states[row.state] += 1
        self._count(row, 1)

    def _task_ready(self, event: e.TaskReady, at: float) -> None:
        row = self._rows.need(event.task)
        if row.state != "ended":
            self._move(row, "ready")

    def _task_started(self, event: e.TaskStarted, at: float) -> None:
        row = self._rows.need(event.task)
        self._count(row, -1)
        row.status, row.cause, row.cut_short = None, "", False
        self._begin_epoch(row, event.epoch)
        row.started_at, row.ended_at = at, None
        if self._working is None:
            self._working = at
        self._move(row, "running")

    @staticmethod
    def _begin_epoch(row: TaskRow, epoch: int) -> None:
        if row.epoch != epoch:
            row.epoch, row.turn = epoch, 0

    def _task_ended(self, event: e.TaskEnded, at: float) -> None:
        row, outcome = self._rows.need(event.task), event.outcome
        self._count(row, -1)
        row.status, row.cause, row.cut_short = outcome.status, outcome.cause, outcome.cut_short
        row.steps, row.attempts, row.repairs = outcome.steps, outcome.attempts, outcome.repairs
        row.cost, row.held = outcome.cost, outcome.held
        usage = outcome.usage
        row.usage = Tokens(
            usage.prompt,
            usage.cached,
            usage.cache_written,
            usage.output,
            usage.reasoning,
            row.usage.calls,
            row.usage.missing,
        )
        row.ended_at = at
        if row.state == "running" and row.started_at is not None and row.task in self._rows.tasks:
            self.durations.add(at - row.started_at)
            self._worked += 1
        self._move(row, "ended")
        self._count(row, 1)

    def _task_reset(self, event: e.TaskReset, at: float) -> None:
        row = self._rows.need(event.task)
        self._count(row, -1)
        row.status, row.cause, row.cut_short = None, "", False
        self._begin_epoch(row, event.epoch)
        row.started_at = row.ended_at = None
        self._move(row, "waiting")

    def _task_paused(self, event: e.TaskPaused, at: float) -> None:
        (self.paused.add if event.paused else self.paused.discard)(event.task)

    def _priority_set(self, event: e.PrioritySet, at: float) -> None:
        self._rows.need(event.task).priority = event.priority

    def _approval_asked(self, event: e.ApprovalAsked, at: float) -> None:
        self.approvals[str(event.key)] = (event.name, event.arguments)

    def _approval_given(self, event: e.ApprovalGiven, at: float) -> None:
        self.approvals.pop(str(event.key), None)

    def _count(self, row: TaskRow, sign: int) -> None:
        """Add a task's outcome, if it has one, to the census, or take it out."""
        if row.status is None or row.task not in self._rows.tasks:
            return
        self._census[row.status] += sign
        if row.status is not Status.OK:
            self._loss += sign * (row.cost + row.held)

    # -- servers ------------------------------------------------------------------------------------------------------

    def _server_up(self, event: e.ServerUp, at: float) -> None:
        row = self.servers.setdefault(event.slug, ServerRow(event.slug, event.server))
        row.up, row.reason, row.tools, row.limit = True, "", len(event.tools), event.limit
        row.mode, row.replicas = event.mode, event.replicas

    def _server_down(self, event: e.ServerDown, at: float) -> None:
        row = self.servers.setdefault(event.slug, ServerRow(event.slug, event.server))
        row.up, row.reason = False, event.reason
        row.mode, row.replicas = event.mode, event.replicas
        row.downs += 1

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, TaskRow]:
        """The tasks of the graph by id."""
        return self._rows.tasks

    @property
    def others(self) -> dict[str, TaskRow]:
        """Work outside the graph (the merge): in no census."""
        return self._rows.others

    @property
    def resources(self) -> dict[str, ResourceRow]:
        return self._slots.resources

    @property
    def slots(self) -> dict[int, str]:
        """The task in each agent's slot that is taken now."""
        return self._slots.slots

    @property
    def models(self) -> dict[str, CallsRow]:
        return self._calls.models

    @property
    def tools(self) -> dict[str, CallsRow]:
        """Calls by the tool's name as models see it."""
        return self._calls.tools

    @property
    def upstreams(self) -> dict[str, UpstreamRow]:
        """By model: what its upstream lets us send."""
        return self._upstreams.rows

    @property
    def usage(self) -> Tokens:
        return self._calls.usage

    @property
    def first_token(self) -> Sample:
        """Seconds to the first token of all model calls that got one."""
        return self._calls.first_token

    @property
    def model_total(self) -> Sample:
        """Seconds of all model calls that were answered."""
        return self._calls.model_total

    def census(self) -> dict[Status, int]:
        """How many tasks ended in each status; with `unfinished_count` it sums to the number of tasks."""
        return {status: self._census[status] for status in Status}

    @property
    def ended_count(self) -> int:
        return self.states["ended"]

    @property
    def unfinished_count(self) -> int:
        return len(self.tasks) - self.states["ended"]

    def unfinished(self) -> list[str]:
        """The ids of the tasks without an outcome, in the order in which they were added."""
        return [task for task, row in self.tasks.items() if row.state != "ended"]

    @property
    def paid(self) -> bool:
        """Whether its money is real: that of a rehearsal or a replay is not."""
        return not (self.rehearsal or self.replay)

    def money(self) -> MoneyRow:
        money = self._money
        return MoneyRow(money.spent, money.reserved, money.held, money.cap, self._loss, dict(money.phases))

    @property
    def money_waiting(self) -> int:
        """How many calls wait until money that is only reserved comes free."""
        return len(self._money.owing)

    def lanes(self) -> Iterator[Span]:
        """The timeline, in the order in which its spans came to be known."""
        return iter(self.timeline)

    def steps(self) -> Steps:
        """Critical and serial steps."""
        return steps_of(self.tasks)

    def critical_path(self) -> CriticalPath:
        return critical_path(self.tasks, self.at)

    def elapsed(self, now: float | None = None) -> float:
        """Seconds that a process has worked on this run, without the time between a crash and its resume."""
        if self._since is None:
            return self._active
        return self._active + max(0.0, (self.at if now is None else now) - self._since)

    def parallelism(self, now: float | None = None) -> float | None:
        """The mean number of model and tool calls in flight: their summed time over the time that passed."""
        elapsed = self.elapsed(now)
        return self._calls.busy / elapsed if elapsed > 0 else None

    def tokens_per_second(self, now: float) -> float:
        """Output tokens a second over the last ten seconds (or since the start), counted when a call ends."""
        first = int(now) - RATE_SECONDS
        tokens = sum(count for second, count in self._calls.rate if second > first)
        return tokens / max(1.0, min(float(RATE_SECONDS), self.elapsed(now)))

    def eta(self, now: float) -> float | None:
        """Seconds until the last task ends; None before the first one has, and when nothing runs.

        Once as many have ended as there are agents' slots, tasks go on ending at the rate at which they did.
        Before that, this is too pessimistic (most are half done) and the durations so far too optimistic (the
        quick ones ended first): the geometric mean of both. Knows nothing of the merge.
        """
        mean, unfinished = self.durations.mean, self.unfinished_count
        if self.status != "running" or not self.tasks:
            return None
        if not unfinished:
            return 0.0
        if mean is None or self._working is None or not self._worked:
            return None
        agents = self.resources.get(AGENTS)
        width = min(unfinished, (agents.limit if agents is not None else 0) or self.agents or 1)
        by_rate = unfinished * max(0.0, now - self._working) / self._worked
        if self._worked >= width:
            return by_rate
        running = [self.tasks[task] for task in self.slots.values() if task in self.tasks]
        left = [max(0.0, mean - (now - row.started_at)) for row in running if row.started_at is not None]
        by_duration = (mean * (unfinished - len(left)) + sum(left)) / max(1, width)
        return math.sqrt(by_rate * max(by_duration, mean / 2))
