"""TaskGraph: which task waits for which, what is ready, and what a failure blocks. Pure.

A task starts when its own needs are over; there are no rounds. Where a need is over but not `ok`, the task
ends as `blocked` at once, and so do those that need it in turn, unless a task has `allow_failed`. Needs are
given with the task and never change, so a cycle can only be closed inside one batch, and is refused there.

All operations together cost O(tasks + needs); `ready` copies what is ready, `unfinished` reads all tasks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from centuria.core.batch import NewTask, place
from centuria.events import Event, Fact, PrioritySet, TaskAdded, TaskEnded, TaskReady, TaskReset, TaskStarted
from centuria.messages import Outcome, Status, TaskState

__all__ = ["NewTask", "TaskGraph", "TaskState"]


@dataclass(slots=True)
class _Node:
    added: TaskAdded
    state: TaskState = "waiting"
    epoch: int = 0
    outcome: Outcome | None = None
    dependents: list[str] = field(default_factory=list)
    open_needs: int = 0
    failed_needs: int = 0


class TaskGraph:
    """The tasks of a run. A task without a parent has depth 0; none is deeper than `max_depth`."""

    def __init__(self, *, max_depth: int = 3, max_tasks: int = 10_000) -> None:
        self._max_depth = max_depth
        self._max_tasks = max_tasks
        self._nodes: dict[str, _Node] = {}
        self._added: dict[str, TaskAdded] = {}
        self._ready: list[str] = []
        self._needs = 0
        # Dependents of tasks that come later in the batch.
        self._early: dict[str, list[str]] = {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def add(self, tasks: Sequence[NewTask]) -> list[Fact]:
        """Add the whole batch or nothing: `TaskAdded` for each, then what is ready or blocked at once.

        A parent is in the graph or earlier in the batch. Raises `GraphError`, written for the author of the
        tasks, who may be a model: duplicate or unknown id, self-need, cycle, too deep, too many.
        """
        placed = place(tasks, self._added, needs=self._needs, max_depth=self._max_depth, max_tasks=self._max_tasks)
        events: list[Fact] = [self._applied(added) for added in placed]
        return events + self._settle(added.task for added in placed)

    def start(self, task: str, epoch: int = 0) -> list[Fact]:
        """A ready task begins. Raises `ValueError` for any other."""
        if self._node(task).state != "ready":
            raise ValueError(f"task {task!r} cannot start: it is {self._node(task).state}")
        return [self._applied(TaskStarted(task, epoch))]

    def end(self, task: str, outcome: Outcome) -> list[Fact]:
        """Give a task its one outcome: `TaskEnded`, then what that makes ready or blocks."""
        if outcome.task != task:
            raise ValueError(f"the outcome of {outcome.task!r} cannot end {task!r}")
        return self.end_all([outcome])

    def end_all(self, outcomes: Sequence[Outcome]) -> list[Fact]:
        """End several tasks in one step, so that none of them is blocked by another.

        Raises `ValueError`, and ends none, if one has ended before.
        """
        ids = [outcome.task for outcome in outcomes]
        for task in ids:
            if self._node(task).state == "ended":
                raise ValueError(f"task {task!r} has its outcome already")
        if len(set(ids)) < len(ids):
            raise ValueError("a task cannot have two outcomes")
        events: list[Fact] = [self._applied(TaskEnded(outcome.task, outcome)) for outcome in outcomes]
        return events + self._spread(outcomes)

    def reset(self, tasks: Mapping[str, int], *, specs: Mapping[str, str] | None = None) -> list[Fact]:
        """A resume runs these tasks (id -> epoch) again: `TaskReset` for each, in order of index.

        `specs` are the new texts' hashes where they have changed.

        Then `TaskReady` where all needs are `ok`; one whose need stays failed is blocked again. A dependent that was
        ready and not started waits again; one that has ended keeps its outcome unless it is reset too.
        """
        order = sorted(tasks, key=lambda task: self._node(task).added.index)
        changed = specs or {}
        events: list[Fact] = [self._applied(TaskReset(task, tasks[task], changed.get(task))) for task in order]
        return events + self._settle(order)

    def set_priority(self, task: str, priority: int) -> list[Fact]:
        """Lower is sooner. Raises `ValueError` for an unknown id."""
        if self._node(task).added.priority == priority:
            return []
        return [self._applied(PrioritySet(task, priority))]

    # -- how decisions are made ---------------------------------------------------------------------------------------

    def _settle(self, tasks: Iterable[str]) -> list[Fact]:
        """Make ready, or block, those of these tasks that wait for nothing open."""
        culprits = ((task, self._failed_need(task)) for task in tasks)
        return self._decide((task, culprit, culprit) for task, culprit in culprits)

    def _spread(self, outcomes: Iterable[Outcome]) -> list[Fact]:
        """What these ends make ready, or block."""
        ends = ((outcome, outcome if outcome.status is not Status.OK else None) for outcome in outcomes)
        return self._decide(
            (dependent, culprit, culprit) for end, culprit in ends for dependent in self._nodes[end.task].dependents
        )

    def _decide(self, cases: Iterable[tuple[str, Outcome | None, Outcome | None]]) -> list[Fact]:
        """Judge each (task, its need that failed, where that failure began), and what follows in turn."""
        queue = deque(cases)
        events: list[Fact] = []
        while queue:
            task, culprit, root = queue.popleft()
            node = self._nodes[task]
            if node.state != "waiting":
                continue
            tolerant = node.added.allow_failed
            if culprit is not None and root is not None and not tolerant:
                outcome = _blocked(task, culprit, root)
                events.append(self._applied(TaskEnded(task, outcome)))
                queue.extend((dependent, outcome, root) for dependent in node.dependents)
            elif node.open_needs == 0 and (tolerant or not node.failed_needs):
                events.append(self._applied(TaskReady(task)))
        return events

    def _failed_need(self, task: str) -> Outcome | None:
        node = self._nodes[task]
        if not node.failed_needs:
            return None
        outcomes = (self._nodes[need].outcome for need in node.added.needs)
        return next((outcome for outcome in outcomes if outcome and outcome.status is not Status.OK), None)

    def _applied(self, event: Fact) -> Fact:
        self.apply(event)
        return event

    # -- state --------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """The only place where the graph changes."""
        if isinstance(event, TaskAdded):
            self._put(event)
        elif isinstance(event, TaskReady):
            self._move(self._node(event.task), "ready")
        elif isinstance(event, TaskStarted):
            node = self._node(event.task)
            node.epoch = event.epoch
            self._move(node, "running")
        elif isinstance(event, TaskEnded):
            self._close(self._node(event.task), event.outcome)
        elif isinstance(event, PrioritySet):
            node = self._node(event.task)
            node.added = self._added[event.task] = replace(node.added, priority=event.priority)
        elif isinstance(event, TaskReset):
            node = self._node(event.task)
            if event.spec is not None:
                node.added = self._added[event.task] = replace(node.added, spec=event.spec)
            self._reopen(node, event.epoch)

    def _put(self, added: TaskAdded) -> None:
        node = _Node(added, dependents=self._early.pop(added.task, []))
        self._nodes[added.task] = node
        self._added[added.task] = added
        self._needs += len(added.needs)
        for need in added.needs:
            other = self._nodes.get(need)
            if other is None:
                self._early.setdefault(need, []).append(added.task)
            else:
                other.dependents.append(added.task)
            if other is None or other.outcome is None:
                node.open_needs += 1
            elif other.outcome.status is not Status.OK:
                node.failed_needs += 1

    def _move(self, node: _Node, state: TaskState) -> None:
        if node.state == state:
            return
        if node.state == "ready":
            del self._ready[bisect_left(self._ready, node.added.index, key=self._index)]
        node.state = state
        if state == "ready":
            insort(self._ready, node.added.task, key=self._index)

    def _index(self, task: str) -> int:
        return self._nodes[task].added.index

    def _close(self, node: _Node, outcome: Outcome) -> None:
        self._move(node, "ended")
        node.outcome = outcome
        failed = outcome.status is not Status.OK
        for dependent in node.dependents:
            other = self._nodes[dependent]
            other.open_needs -= 1
            other.failed_needs += failed

    def _reopen(self, node: _Node, epoch: int) -> None:
        self._move(node, "waiting")
        node.epoch = epoch
        outcome, node.outcome = node.outcome, None
        for dependent in node.dependents:
            other = self._nodes[dependent]
            if outcome is not None:
                other.open_needs += 1
                other.failed_needs -= outcome.status is not Status.OK
            if other.state == "ready":
                self._move(other, "waiting")

    def _node(self, task: str) -> _Node:
        node = self._nodes.get(task)
        if node is None:
            raise ValueError(f"there is no task {task!r}")
        return node

    # -- questions: `ValueError` for an unknown id --------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, task: object) -> bool:
        return task in self._nodes

    def ids(self) -> tuple[str, ...]:
        """In index order."""
        return tuple(self._nodes)

    def ready(self) -> tuple[str, ...]:
        """What may start now, in index order."""
        return tuple(self._ready)

    def unfinished(self) -> tuple[str, ...]:
        """What has no outcome, in index order."""
        return tuple(task for task, node in self._nodes.items() if node.outcome is None)

    def task(self, task: str) -> TaskAdded:
        """The task as it was added: index, spec, label, needs, parent, depth, priority."""
        return self._node(task).added

    def state(self, task: str) -> TaskState:
        return self._node(task).state

    def epoch(self, task: str) -> int:
        """The epoch that the task last started under, or will after a reset."""
        return self._node(task).epoch

    def outcome(self, task: str) -> Outcome | None:
        return self._node(task).outcome

    def needs(self, task: str) -> tuple[str, ...]:
        """Its direct needs, "*" replaced."""
        return self._node(task).added.needs

    def dependents(self, task: str) -> tuple[str, ...]:
        """The tasks that need it directly."""
        return tuple(self._node(task).dependents)

    def snapshot(self) -> dict[str, Any]:
        """All state that decides what happens next, as plain data."""
        return {
            task: (node.added, node.state, node.epoch, node.outcome, node.open_needs, node.failed_needs)
            for task, node in self._nodes.items()
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskGraph):
            return NotImplemented
        return self._ready == other._ready and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]


def _blocked(task: str, culprit: Outcome, root: Outcome) -> Outcome:
    cause = f"needs {culprit.task!r}, which ended as {culprit.status}"
    if root is not culprit:
        cause += f" because {root.task!r} ended as {root.status}"
    return Outcome(
        task=task,
        status=Status.BLOCKED,
        cause=cause,
        started_at=culprit.ended_at,
        ended_at=culprit.ended_at,
    )
