"""The rows that the fold of events keeps: tasks, resources, calls, servers, money. Only the fold writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from centuria.core.measures import Load, Occupancy, Sample, Tokens
from centuria.events import ServerMode
from centuria.messages import CallKey, Pico, Status, TaskState

_REASONS = 20


@dataclass(slots=True)
class OpenCall:
    """A call that was sent and has not ended. `span` is its place in the timeline; `slots` is `CallOpened.slots`."""

    call: Literal["model", "tool"]
    name: str
    attempt: int
    at: float
    span: int
    slots: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskRow:
    """One task. Times are seconds since 1970, money is pico-dollars; `slot` is its agent's while it has one.

    `turn` counts the turns begun in this `epoch`; `waited` is seconds in queues.
    """

    task: str
    index: int = -1
    label: str = ""
    needs: tuple[str, ...] = ()
    parent: str | None = None
    depth: int = 0
    #: The turn of its parent in which it was assigned.
    asked_in: int = 0
    priority: int = 5
    state: TaskState = "waiting"
    epoch: int = 0
    turn: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    status: Status | None = None
    cause: str = ""
    cut_short: bool = False
    steps: int = 0
    attempts: int = 0
    repairs: int = 0
    tool_calls: int = 0
    usage: Tokens = field(default_factory=Tokens)
    cost: Pico = 0
    held: Pico = 0
    waited: float = 0.0
    slot: int | None = None
    calls: dict[CallKey, OpenCall] = field(default_factory=dict)
    queued: dict[int, str] = field(default_factory=dict)
    owing: int = 0
    #: It has a slot of its model, and has not been admitted to it yet.
    at_gate: bool = False

    @property
    def doing(self) -> str:
        """What it does now: `model`, `tool NAME`, `queued for NAME`, `queued at the
        model's gate`, `waiting for money`, or its state."""
        if self.state == "ended":
            return self.status.value if self.status else "ended"
        if self.calls:
            tools = [call.name for call in self.calls.values() if call.call == "tool"]
            if not tools:
                return "model"
            return f"tool {tools[0]}" if len(tools) == 1 else f"{len(tools)} tools"
        if self.queued:
            resource = next(reversed(self.queued.values()))
            if resource.startswith("lease:"):
                return f"queued for a session of {bare(resource)}"
            return "queued for model" if resource.startswith("model:") else f"queued for {bare(resource)}"
        if self.at_gate:
            return "queued at the model's gate"
        if self.owing:
            return "waiting for money"
        return "between calls" if self.state == "running" else self.state


def bare(resource: str) -> str:
    """The name of a resource without its kind: `tool:web__search` -> `web__search`."""
    return resource.partition(":")[2] or resource


def shown(resource: str) -> str:
    """The name of a resource for people: a tool's own, `web (server)`, `browser (sessions)`."""
    kind, _, name = resource.partition(":")
    return {"server": f"{name} (server)", "lease": f"{name} (sessions)"}.get(kind, bare(resource))


@dataclass(slots=True)
class ResourceRow:
    """One resource with slots. `waits` and `holds` are seconds that tickets waited and were in service, `load` is how
    much of the limit was in service until `since` (seconds since 1970).
    """

    resource: str
    limit: int = 0
    in_use: int = 0
    waiting: int = 0
    peak: int = 0
    peak_waiting: int = 0
    granted: int = 0
    rejected: int = 0
    waits: Sample = field(default_factory=Sample)
    holds: Sample = field(default_factory=Sample)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    load: Load = field(default_factory=Load)
    since: float | None = None

    def mark(self, at: float) -> None:
        """What is in service, or the limit, changes now. A resource that is paused (limit 0) has no load."""
        if self.since is not None and self.limit > 0:
            self.load.add(self.in_use / self.limit, at - self.since)
        self.since = at

    def set_limit(self, limit: int, reason: str) -> None:
        """Keep the first reason and the latest ones."""
        self.limit = limit
        if len(self.reasons) >= _REASONS:
            del self.reasons[1]
        self.reasons.append((limit, reason))

    def occupancy(self, seconds: float) -> Occupancy | None:
        """How much of its slots was in service, of so many seconds of work; None if it never had any."""
        return self.load.over(seconds) if self.reasons else None


@dataclass(slots=True)
class CallsRow:
    """All calls of one model or tool. `ends` counts attempts by their end, `results` tool results by theirs.

    Seconds: `total` of the attempts that were done, `first_token` of all that got one.
    """

    name: str
    call: Literal["model", "tool"]
    opened: int = 0
    first_token: Sample = field(default_factory=Sample)
    total: Sample = field(default_factory=Sample)
    ends: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    usage: Tokens = field(default_factory=Tokens)
    cost: Pico = 0


@dataclass(slots=True)
class ServerRow:
    """One tool server. `reason` says why it is down; `downs` counts how often it went. `replicas` says of each of its
    sessions, where it has several, why it is not in service ("" = it is).
    """

    slug: str
    server: str
    up: bool = False
    tools: int = 0
    limit: int = 0
    reason: str = ""
    downs: int = 0
    mode: ServerMode = "shared"
    replicas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticeRow:
    at: float
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class MoneyRow:
    """The money of a run in pico-dollars. `loss` is what ended tasks that are not ok spent or hold."""

    spent: Pico
    reserved: Pico
    held: Pico
    cap: Pico | None
    loss: Pico
    phases: dict[str, Pico]


@dataclass(slots=True)
class TaskRows:
    """`tasks` of the graph by id; `others` are rows of work outside it (the merge): in no census."""

    tasks: dict[str, TaskRow] = field(default_factory=dict)
    others: dict[str, TaskRow] = field(default_factory=dict)

    def get(self, task: str) -> TaskRow | None:
        return self.tasks.get(task) or self.others.get(task)

    def need(self, task: str) -> TaskRow:
        """The row of a task, made if nobody has heard of it."""
        row = self.get(task)
        if row is None:
            row = self.others[task] = TaskRow(task)
        return row


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of tasks, through `needs`, that took the most turns; `seconds` are those of its tasks."""

    tasks: tuple[str, ...]
    turns: int
    seconds: float


def critical_path(tasks: Mapping[str, TaskRow], now: float) -> CriticalPath:
    """The critical path so far; a task that runs counts until `now`. Cycles (no graph has any) are cut."""
    best: dict[str, tuple[int, float, str | None]] = {}
    for start in tasks:
        stack = [start]
        entered: set[str] = set()
        while stack:
            task = stack[-1]
            if task not in entered and task not in best:
                entered.add(task)
                stack.extend(
                    need for need in tasks[task].needs if need in tasks and need not in best and need not in entered
                )
                continue
            stack.pop()
            if task not in best:
                best[task] = _longest(tasks[task], best, now)
    last: str | None = max(best, key=lambda task: best[task][:2], default=None)
    if last is None:
        return CriticalPath((), 0, 0.0)
    turns, seconds, _ = best[last]
    path: list[str] = []
    while last is not None:
        path.append(last)
        last = best[last][2]
    return CriticalPath(tuple(reversed(path)), turns, seconds)


def _longest(
    row: TaskRow, best: Mapping[str, tuple[int, float, str | None]], now: float
) -> tuple[int, float, str | None]:
    """Turns and seconds of the longest chain that ends with this task, and the task before it."""
    before: tuple[int, float, str | None] = (0, 0.0, None)
    for need in row.needs:
        if need in best and best[need][:2] > before[:2]:
            before = (best[need][0], best[need][1], need)
    spent = 0.0 if row.started_at is None else (now if row.ended_at is None else row.ended_at) - row.started_at
    return before[0] + (row.steps or row.turn), before[1] + max(0.0, spent), before[2]
