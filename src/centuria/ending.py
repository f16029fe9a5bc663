"""What a run came to: its report, its status and exit code, and a line for each outcome."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from centuria.merger import Merged
from centuria.messages import DOLLAR, Outcome, Pico, Status
from centuria.settings import Task

RunStatus = Literal["ok", "partial", "failed", "budget", "cancelled"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. `cost` and `held` are pico-dollars; `exit_code` is the command's.

    `priced` False: nobody knows what the model costs, so `cost` leaves out its calls.
    """

    run: str
    folder: Path
    status: RunStatus
    exit_code: int
    cause: str
    answer: str
    outcomes: Mapping[str, Outcome]
    cost: Pico
    held: Pico
    rehearsal: bool
    priced: bool = True

    @property
    def dollars(self) -> float | None:
        """What it cost, None where that is not known."""
        return self.cost / DOLLAR if self.priced else None


def verdict(
    outcomes: Mapping[str, Outcome],
    merged: Merged,
    *,
    stopped: str,
    unended: int = 0,
    leaves: Mapping[str, Outcome] | None = None,
) -> tuple[RunStatus, int, str]:
    """The run's status, exit code and cause, from the census and the merge alone. `unended` tasks have no outcome.

    `leaves` (by default all) did the work: where none of them ended ok, neither did the run, whatever was made of it.
    """
    statuses = [outcome.status for outcome in outcomes.values()]
    total = len(statuses) + unended
    not_ok = total - statuses.count(Status.OK)
    if stopped:
        return "cancelled", 130, stopped
    if Status.BUDGET in statuses or merged.budget:
        return "budget", 3, merged.cause or f"{statuses.count(Status.BUDGET)} tasks ended for lack of budget"
    worked = outcomes if leaves is None else leaves
    if not any(outcome.status is Status.OK for outcome in worked.values()):
        return "failed", 1, f"no task ended ok{_causes(worked.values())}"
    if not_ok or merged.cause:
        return "partial", 1, merged.cause or f"{not_ok} of {total} tasks did not end ok"
    return "ok", 0, ""


def _causes(outcomes: Iterable[Outcome]) -> str:
    """The commonest causes, counted."""
    counted = Counter(outcome.cause or outcome.status.value for outcome in outcomes)
    return "".join(f"; {count} x {cause}" for cause, count in counted.most_common(3)) if len(counted) else ""


def results_lines(tasks: Iterable[Task], outcomes: Mapping[str, Outcome], *, priced: bool = True) -> str:
    """Every outcome as a line of JSON, in the order of the tasks. Money in dollars, null where it is not known."""
    lines = []
    for task in tasks:
        end = outcomes.get(task.id)
        if end is None:
            continue
        line = {
            "id": task.id,
            "label": task.label,
            "status": end.status.value,
            "cause": end.cause,
            "cut_short": end.cut_short,
            "answer": end.structured if end.structured is not None else end.text,
            "steps": end.steps,
            "attempts": end.attempts,
            "repairs": end.repairs,
            "tokens": {"prompt": end.usage.prompt, "cached": end.usage.cached, "output": end.usage.output},
            "cost": end.cost / DOLLAR if priced else None,
            "held": end.held / DOLLAR if priced else None,
            "seconds": round(max(0.0, end.ended_at - end.started_at), 3),  # a clock may be set back
        }
        lines.append(json.dumps(line, ensure_ascii=False))
    return "".join(line + "\n" for line in lines)
