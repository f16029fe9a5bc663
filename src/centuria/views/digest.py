"""What several views tell of a run: causes, tools, and all of it as JSON values. Reads a `Progress`, no more."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from centuria.core.measures import Sample, Tokens
from centuria.core.progress import Progress
from centuria.core.rows import ResourceRow, ServerRow, TaskRow, bare, shown
from centuria.messages import DOLLAR, Pico, Status
from centuria.views.words import clean, counted

_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_IDS = 5


@dataclass(slots=True)
class Cause:
    """Tasks that ended in one way for one reason. `cause` is the first one's; others differ in numbers."""

    status: Status
    cause: str
    count: int = 0
    tasks: list[str] = field(default_factory=list)


def causes(progress: Progress) -> list[Cause]:
    """Why tasks are not ok, the most frequent first."""
    found: dict[tuple[Status, str], Cause] = {}
    for row in progress.tasks.values():
        if row.status is None or row.status is Status.OK:
            continue
        key = (row.status, _NUMBERS.sub("#", row.cause))
        cause = found.setdefault(key, Cause(row.status, row.cause))
        cause.count += 1
        if len(cause.tasks) < _IDS:
            cause.tasks.append(row.task)
    return sorted(found.values(), key=lambda cause: -cause.count)


@dataclass(frozen=True, slots=True)
class ToolLine:
    """A tool, or a server whose slots its tools share. `bad` counts calls that were not ok; seconds."""

    name: str
    resource: ResourceRow
    calls: int
    bad: int
    total: Sample


def tool_lines(progress: Progress) -> list[ToolLine]:
    """Every tool and server that has slots or was called, by name."""
    lines = []
    for resource in progress.resources.values():
        kind, _, name = resource.resource.partition(":")
        if kind == "tool":
            lines.append(_tool_line(progress, name, resource))
        elif kind in ("server", "lease"):
            lines.append(ToolLine(shown(resource.resource), resource, resource.granted, resource.rejected, Sample()))
    known = {line.name for line in lines}
    lines += [_tool_line(progress, name, ResourceRow(name)) for name in progress.tools if name not in known]
    return sorted(lines, key=lambda line: line.name)


def _tool_line(progress: Progress, name: str, resource: ResourceRow) -> ToolLine:
    calls = progress.tools.get(name)
    if calls is None:
        return ToolLine(name, resource, 0, 0, Sample())
    bad = sum(calls.results.values()) - calls.results["ok"]
    bad += sum(number for end, number in calls.ends.items() if end != "done" and not calls.results)
    return ToolLine(name, resource, calls.opened, bad, calls.total)


def replicas_line(row: ServerRow) -> str:
    """`leased, 2 of 3 replicas up; 3: It ended with code 1.`; "" for a server with one session for all."""
    if row.mode == "shared":
        return ""
    up = sum(not reason for reason in row.replicas)
    down = [f"{number}: {clean(reason, 200)}" for number, reason in enumerate(row.replicas, 1) if reason]
    return "; ".join([f"{row.mode}, {up} of {counted(len(row.replicas), 'replica')} up", *down])


def server_remedy(reason: str) -> str:
    """What to do about a tool server that is not up, by the reason that was found."""
    if "centuria login" in reason:
        return ""  # it says itself what to do
    if "was not found" in reason:
        return "Install it, or write its whole path as the `command`."
    if "cannot be reached" in reason:
        return "Start it, or mend its `url`."
    return "Run its command by hand, or ask its URL, to see why."


def lasted(row: TaskRow) -> float | None:
    """Seconds from the start of a task to its end, None without both."""
    return None if row.started_at is None or row.ended_at is None else row.ended_at - row.started_at


# -- JSON ------------------------------------------------------------------------------------------------------------


def usd(amount: Pico | None) -> float | None:
    return None if amount is None else amount / DOLLAR


def _times(sample: Sample) -> dict[str, float | int | None]:
    return {
        "count": sample.count,
        "mean": sample.mean,
        "p50": sample.p50,
        "p99": sample.p99,
        "max": sample.most if sample.count else None,
    }


def tokens(usage: Tokens) -> dict[str, int]:
    """Tokens as JSON values."""
    return {
        "prompt": usage.prompt,
        "cached": usage.cached,
        "cache_written": usage.cache_written,
        "output": usage.output,
        "reasoning": usage.reasoning,
        "calls_without_usage": usage.missing,
    }


def as_json(progress: Progress) -> dict[str, Any]:
    """The run as JSON values: dollars, seconds (moments: since 1970), untrusted text as it is."""
    money = progress.money()
    path, steps = progress.critical_path(), progress.steps()
    return {
        "run": progress.run,
        "name": progress.name,
        "model": progress.model,
        "rehearsal": progress.rehearsal,
        "replay": progress.replay,
        "paid": progress.paid,
        "priced": progress.priced,
        "status": progress.status,
        "cause": progress.cause,
        "exit_code": progress.exit_code,
        "phase": progress.phase,
        "started_at": progress.started_at,
        "ended_at": progress.ended_at,
        "seconds": progress.elapsed(),
        "resumes": len(progress.resumes),
        "census": {status.value: number for status, number in progress.census().items()},
        "unfinished": progress.unfinished_count,
        "total": len(progress.tasks),
        "cut_short": sum(row.cut_short for row in progress.tasks.values()),
        "cost": {
            "spent": usd(money.spent),
            "reserved": usd(money.reserved),
            "held": usd(money.held),
            "cap": usd(money.cap),
            "loss": usd(money.loss),
            "phases": {phase: usd(amount) for phase, amount in money.phases.items()},
        },
        "tokens": tokens(progress.usage),
        "parallelism": progress.parallelism(),
        "steps": {"critical": steps.critical, "serial": steps.serial, "parallelism": steps.parallelism},
        "paused": [task for task in progress.paused if task is not None],
        "paused_run": None in progress.paused,
        "approvals": [
            {"call": call, "tool": name, "arguments": arguments}
            for call, (name, arguments) in progress.approvals.items()
        ],
        "merge_tree": [
            {"level": level, "name": name, "inputs": list(inputs)} for level, name, inputs in progress.merged
        ],
        "critical_path": {"tasks": list(path.tasks), "turns": path.turns, "seconds": path.seconds},
        "models": [
            {
                "name": row.name,
                "calls": row.opened,
                "ends": dict(row.ends),
                "cost": usd(row.cost),
                "tokens": tokens(row.usage),
                "first_token": _times(row.first_token),
                "total": _times(row.total),
            }
            for row in progress.models.values()
        ],
        "upstreams": [
            {
                "model": row.model,
                "refused": dict(row.refusals),
                "closings": row.closings,
                "closed": row.closed,
                "closed_until": row.closed_until,
                "reason": row.reason,
                "pace": row.pace,
                "breaker": row.breaker,
                "requests_a_minute": row.requests,
                "tokens_a_minute": row.tokens,
                "tokens_a_day": row.daily_tokens,
            }
            for row in progress.upstreams.values()
        ],
        "resources": [_resource(progress, row) for row in progress.resources.values()],
        "servers": [
            {
                "slug": row.slug,
                "server": row.server,
                "up": row.up,
                "tools": row.tools,
                "limit": row.limit,
                "reason": row.reason,
                "mode": row.mode,
                "replicas": [{"up": not reason, "reason": reason} for reason in row.replicas],
            }
            for row in progress.servers.values()
        ],
        "causes": [
            {"status": cause.status.value, "cause": cause.cause, "count": cause.count} for cause in causes(progress)
        ],
        "notices": [{"at": row.at, "level": row.level, "text": row.text} for row in progress.notices],
        "files": [{"path": path, "task": task} for path, task in progress.files.items()],
        "tasks": [_task(row) for row in progress.tasks.values()],
    }


def _resource(progress: Progress, row: ResourceRow) -> dict[str, Any]:
    calls = progress.tools.get(bare(row.resource)) if row.resource.startswith("tool:") else None
    occupied = row.occupancy(progress.elapsed())
    return {
        "resource": row.resource,
        "limit": row.limit,
        "reasons": [{"limit": limit, "reason": reason} for limit, reason in row.reasons],
        "in_use": row.in_use,
        "waiting": row.waiting,
        "peak": row.peak,
        "peak_waiting": row.peak_waiting,
        "granted": row.granted,
        "rejected": row.rejected,
        "rejections": dict(row.rejections),
        "occupancy": None if occupied is None else asdict(occupied),
        "wait": _times(row.waits),
        "hold": _times(row.holds),
        "results": None if calls is None else dict(calls.results),
    }


def _task(row: TaskRow) -> dict[str, Any]:
    return {
        "task": row.task,
        "index": row.index,
        "label": row.label,
        "needs": list(row.needs),
        "state": row.state,
        "status": row.status.value if row.status else None,
        "cause": row.cause,
        "cut_short": row.cut_short,
        "turns": row.steps or row.turn,
        "attempts": row.attempts,
        "tool_calls": row.tool_calls,
        "repairs": row.repairs,
        "cost": usd(row.cost),
        "held": usd(row.held),
        "tokens": tokens(row.usage),
        "waited": row.waited,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
    }
