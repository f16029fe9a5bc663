"""What a resumed run does with each task: keep its outcome, go on, or begin afresh. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from centuria.core.calls import CallLedger
from centuria.core.graph import TaskGraph
from centuria.errors import ConfigurationError, JobError
from centuria.messages import Outcome, Status
from centuria.settings import Job


def statuses(names: Iterable[str]) -> frozenset[Status]:
    """The statuses of these names. Raises `ConfigurationError` for none, or for a name that is not one."""
    chosen = list(names)
    wrong = [name for name in chosen if name not in list(Status)]
    if wrong or not chosen:
        said = f"{wrong[0]!r} is not a status." if wrong else "No status is named."
        raise ConfigurationError(f"only: {said}", remedy=f"There are: {', '.join(Status)}.")
    return frozenset(Status(name) for name in chosen)


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Which tasks keep their outcome, which run again (id -> epoch), which are new, which the job no longer has."""

    reused: Sequence[str]
    resets: Mapping[str, int]
    added: frozenset[str]
    dropped: Sequence[Outcome]

    @property
    def empty(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.resets or self.added or self.dropped)


def plan_resume(job: Job, graph: TaskGraph, calls: CallLedger, *, only: frozenset[Status] | None = None) -> ResumePlan:
    """Decide what a resumed run does: all that is not ok, or what had no end and `only` these statuses.

    A task whose text changed, that failed although its conversation had come to its end, or that needs a result
    which is made again, begins afresh (its epoch rises); all others go on where they were.
    """
    resets: dict[str, int] = {}
    for task in job.tasks:
        if task.id not in graph:
            continue
        known, outcome, epoch = graph.task(task.id), graph.outcome(task.id), calls.epoch(task.id)
        if known.spec != task.spec:
            if sorted(graph.needs(task.id)) != sorted(_expanded(task.needs, job, task.id)):
                raise JobError(
                    f"The needs of task {task.id!r} have changed.", remedy="Start a new run, or keep its needs."
                )
            resets[task.id] = epoch + 1
        elif outcome is None:
            resets[task.id] = epoch
        elif outcome.status is not Status.OK and (only is None or outcome.status in only):
            ended = outcome.status is Status.FAILED and calls.last_key_done(task.id, epoch)
            resets[task.id] = epoch + 1 if ended else epoch
    assigned = _assigned(resets, graph, calls, only)
    _spread(resets, graph, calls)
    current = {task.id for task in job.tasks} | assigned
    return ResumePlan(
        reused=[task for task in current if task in graph and task not in resets],
        resets={task: epoch for task, epoch in resets.items() if task in current},
        added=frozenset(current - set(graph.ids())),
        dropped=[
            Outcome(task, Status.SKIPPED, _why_dropped(graph, task))
            for task in graph.unfinished()
            if task not in current
        ],
    )


def _assigned(resets: dict[str, int], graph: TaskGraph, calls: CallLedger, only: frozenset[Status] | None) -> set[str]:
    """Decide on the tasks that agents had assigned, and name those that are kept.

    They go on with the conversation that asked for them. What a conversation that goes on was told already, a failure
    too, is settled; what one that begins afresh, or is over, had asked for and did not get is not asked for any more:
    but for what was refused for lack of money, which runs once its conversation is over.
    """
    kept: set[str] = set()
    for task in graph.ids():
        added, outcome = graph.task(task), graph.outcome(task)
        if added.assigned is None or added.parent is None:
            continue
        if outcome is None or outcome.status is not Status.OK:
            parent, asked = added.parent, added.assigned.call
            goes_on = resets.get(parent) == asked.epoch
            over = parent not in resets and graph.outcome(parent) is not None
            if over and outcome is not None and _never_begun(outcome) and (only is None or outcome.status in only):
                resets[task] = calls.epoch(task)
            elif goes_on and (outcome is None or not calls.answered(asked)):
                epoch = calls.epoch(task)
                ended = outcome is not None and outcome.status is Status.FAILED and calls.last_key_done(task, epoch)
                resets[task] = epoch + 1 if ended else epoch
            elif outcome is None:
                continue
        kept.add(task)
    return kept


def _never_begun(outcome: Outcome) -> bool:
    """Whether it was refused, because the budget would not have lasted for it."""
    return outcome.status is Status.BUDGET and not outcome.attempts


def _why_dropped(graph: TaskGraph, task: str) -> str:
    if graph.task(task).assigned is not None:
        return "the task that assigned it begins afresh"
    return "the job no longer has it"


def _expanded(needs: Sequence[str], job: Job, task: str) -> list[str]:
    if "*" not in needs:
        return list(needs)
    return [other.id for other in job.tasks if "*" not in other.needs and other.id != task]


def _spread(resets: dict[str, int], graph: TaskGraph, calls: CallLedger) -> None:
    """Whatever was made of a result that is made again, is made again."""
    queue = list(resets)
    while queue:
        for dependent in graph.dependents(queue.pop()):
            begun = calls.totals(dependent).attempts > 0
            if dependent in resets or (graph.outcome(dependent) is None and not begun):
                continue
            resets[dependent] = calls.epoch(dependent) + (1 if begun else 0)
            queue.append(dependent)
