"""Critical steps, as the K2.5 technical report counts them (section 3): what a swarm's width saved. Pure.

    CriticalSteps = sum over the stages t of ( S_main(t) + max over i of S_sub,i(t) )

A stage is one turn of the agent that assigns: its own step, and the longest of the tasks that it assigned in it, each
counted in the same way. Tasks that need each other come one after the other. A job without a main agent is one stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from centuria.core.rows import TaskRow


@dataclass(frozen=True, slots=True)
class Steps:
    """`critical` steps of a run, and its `serial` ones: all of them, one after the other."""

    critical: int
    serial: int

    @property
    def parallelism(self) -> float:
        """How many steps were made at once on the whole; 1.0 where nothing was."""
        return self.serial / self.critical if self.critical else 1.0


def steps_of(tasks: Mapping[str, TaskRow]) -> Steps:
    """The steps of these tasks so far."""
    children: dict[str | None, list[TaskRow]] = {}
    for row in tasks.values():
        children.setdefault(row.parent if row.parent in tasks else None, []).append(row)
    own: dict[str, int] = {}
    for row in sorted(tasks.values(), key=lambda row: -row.depth):  # the deepest first
        stages: dict[int, list[TaskRow]] = {}
        for child in children.get(row.task, ()):
            stages.setdefault(child.asked_in, []).append(child)
        own[row.task] = (row.steps or row.turn) + sum(_longest(stage, own) for stage in stages.values())
    roots = children.get(None, [])
    return Steps(_longest(roots, own), sum(row.steps or row.turn for row in tasks.values()))


def _longest(stage: Iterable[TaskRow], own: Mapping[str, int]) -> int:
    """The longest chain of needs among the tasks of one stage. What it needs from elsewhere was done before."""
    here = {row.task: row for row in stage}
    best: dict[str, int] = {}
    for start in here:
        stack, entered = [start], set[str]()
        while stack:
            task = stack[-1]
            open_needs = [need for need in here[task].needs if need in here and need not in best]
            if task not in entered and open_needs:
                entered.add(task)
                stack += [need for need in open_needs if need not in entered]
                continue
            stack.pop()
            needs = (best.get(need, 0) for need in here[task].needs)
            best[task] = own[task] + max(needs, default=0)
    return max(best.values(), default=0)
