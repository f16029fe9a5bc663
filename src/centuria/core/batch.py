"""A batch of new tasks, checked whole before any of it is added to the graph. Pure.

The errors are written for the author of the tasks, who may be a model that can mend them and try again. Costs
O(batch + its needs), and reads what is there only for "*" or to name the nearest right id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from centuria.core.quoting import meant
from centuria.errors import GraphError
from centuria.events import TaskAdded
from centuria.messages import Assigned

EVERY = "*"
#: Needs of all tasks together, "*" counted as what it stands for.
MAX_NEEDS = 1_000_000
_SHOWN = 8
_COMPARED = 100
_CLIPPED = 100


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to add. `spec` is the hash of all that makes its text.

    `needs` are ids of tasks in the graph or in the same batch; "*" stands for each of those that has no "*" itself.
    `parent` is the task that made this one, and `assigned` what it said. `allow_failed`: run even where a need did not
    end as `ok`.
    """

    id: str
    spec: str
    label: str = ""
    needs: tuple[str, ...] = ()
    parent: str | None = None
    priority: int = 5
    allow_failed: bool = False
    assigned: Assigned | None = None


def place(
    tasks: Sequence[NewTask], there: Mapping[str, TaskAdded], *, needs: int, max_depth: int, max_tasks: int
) -> list[TaskAdded]:
    """The batch as it will stand in the graph: index, depth, and needs with "*" replaced, each need once.

    `there` are the tasks in the graph, which have `needs` needs in all. A parent is in the graph or earlier
    in the batch. Raises `GraphError`: duplicate or unknown id, self-need, cycle, too deep, too many.
    """
    _check_ids(tasks, there, max_tasks)
    depths = _depths(tasks, there, max_depth)
    resolved = _resolve(tasks, there, needs)
    _refuse_cycles(resolved)
    return [
        TaskAdded(
            task=task.id,
            index=index,
            spec=task.spec,
            label=task.label,
            needs=resolved[task.id],
            parent=task.parent,
            depth=depths[task.id],
            priority=task.priority,
            allow_failed=task.allow_failed,
            every=EVERY in task.needs,
            assigned=task.assigned,
        )
        for index, task in enumerate(tasks, len(there))
    ]


def needed_first(tasks: Sequence[NewTask]) -> list[NewTask]:
    """In their order, but each after those of them that it needs (as far as they do not need each other)."""
    left = {task.id: task for task in tasks}
    order: list[NewTask] = []
    for first in tasks:
        stack = [first.id] if first.id in left else []
        path: set[str] = set()
        while stack:
            task = left.get(stack[-1])
            if task is None:
                stack.pop()
                continue
            before = [need for need in task.needs if need in left and need not in path and need != task.id]
            if before and task.id not in path:
                path.add(task.id)
                stack += reversed(before)
                continue
            order.append(left.pop(stack.pop()))
    return order


def _check_ids(tasks: Sequence[NewTask], there: Mapping[str, TaskAdded], max_tasks: int) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in ("", EVERY):
            raise GraphError(f"{_quoted(task.id)} cannot be the id of a task.", remedy="Give it another id.")
        if task.id in seen or task.id in there:
            raise GraphError(f"There is already a task {_quoted(task.id)}.", remedy="Give each task an id of its own.")
        seen.add(task.id)
    total = len(there) + len(tasks)
    if total > max_tasks:
        raise GraphError(
            f"{len(tasks)} more task(s) would make {total}; the limit is {max_tasks}.",
            remedy="Ask for fewer and larger tasks, or raise the limit on tasks.",
        )


def _depths(tasks: Sequence[NewTask], there: Mapping[str, TaskAdded], max_depth: int) -> dict[str, int]:
    depths: dict[str, int] = {}
    for task in tasks:
        if task.parent is None:
            depth = 0
        elif task.parent in depths:
            depth = depths[task.parent] + 1
        elif task.parent in there:
            depth = there[task.parent].depth + 1
        else:
            raise _unknown(task.id, "has the parent", task.parent, (*there, *depths))
        if depth > max_depth:
            raise GraphError(
                f"Task {_quoted(task.id)} would be {depth} level(s) below the top; the limit is {max_depth}.",
                remedy="Do this work yourself instead of handing it on.",
            )
        depths[task.id] = depth
    return depths


def _resolve(tasks: Sequence[NewTask], there: Mapping[str, TaskAdded], total: int) -> dict[str, tuple[str, ...]]:
    batch = {task.id: EVERY in task.needs for task in tasks}
    every: tuple[str, ...] = ()
    if any(batch.values()):
        every = (
            *(id for id, added in there.items() if not added.every),
            *(id for id, wild in batch.items() if not wild),
        )
    resolved: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        named = [need for need in task.needs if need != EVERY]
        for need in named:
            if need == task.id:
                raise GraphError(f"Task {_quoted(task.id)} needs itself.", remedy="Leave that need out.")
            if need not in batch and need not in there:
                raise _unknown(task.id, "needs", need, (*there, *batch))
        needs = tuple(dict.fromkeys((*every, *named) if batch[task.id] else named))
        total += len(needs)
        if total > MAX_NEEDS:
            raise GraphError(
                f"All tasks together would have more than {MAX_NEEDS} needs.",
                remedy="Let fewer tasks need all others.",
            )
        resolved[task.id] = needs
    return resolved


def _unknown(task: str, verb: str, name: str, known: Iterable[str]) -> GraphError:
    names = [id for id in known if id != task]
    more = ", ..." if len(names) > _SHOWN else ""
    listed = f"There is: {', '.join(map(_quoted, names[:_SHOWN]))}{more}." if names else "There is no other task."
    remedy = meant(name, _near(name, names), _quoted).strip() or listed
    return GraphError(f"Task {_quoted(task)} {verb} {_quoted(name)}, which does not exist.", remedy=remedy)


def _near(name: str, names: Sequence[str]) -> Sequence[str]:
    """The names to compare with: comparing is slow, and a batch of wrong ones must not hold up the run."""
    if len(names) <= _COMPARED:
        return names
    alike = (one for one in names if one[:1] == name[:1] and abs(len(one) - len(name)) <= 2)
    return list(islice(alike, _COMPARED))


def _quoted(id: str) -> str:
    return repr(id if len(id) <= _CLIPPED else id[:_CLIPPED] + "...")


def _refuse_cycles(needs: Mapping[str, tuple[str, ...]]) -> None:
    """Depth first through the needs inside the batch; what is in the graph cannot need what is new."""
    done: set[str] = set()
    for task in needs:
        if task in done:
            continue
        path = {task: iter(needs[task])}
        while path:
            current = next(reversed(path))
            need = next((need for need in path[current] if need in needs and need not in done), None)
            if need is None:
                done.add(current)
                del path[current]
            elif need in path:
                members = list(path)
                raise _cycle(members[members.index(need) :])
            else:
                path[need] = iter(needs[need])


def _cycle(members: Sequence[str]) -> GraphError:
    """`a -> b -> a` reads: a needs b, b needs a."""
    members = [id[:_CLIPPED] for id in members]
    shown = [*members, members[0]]
    if len(members) > 2 * _SHOWN:
        left_out = f"... ({len(members) - 2 * _SHOWN} more)"
        shown = [*members[:_SHOWN], left_out, *members[-_SHOWN:], members[0]]
    return GraphError(f"These tasks need each other: {' -> '.join(shown)}.", remedy="Leave out one of these needs.")
