"""The report: one HTML file that explains a run, with its timeline; fetching nothing, read from a disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from centuria.core.measures import SPAN_KINDS, Occupancy, Sample, Span
from centuria.core.progress import Progress
from centuria.core.rows import TaskRow
from centuria.messages import Status
from centuria.views.digest import causes, lasted, replicas_line, tool_lines, usd
from centuria.views.upstream import server_line, upstream_line
from centuria.views.words import clean

_PLACE = "{{DATA}}"
#: Bounds of what one page holds; the page says so where they cut.
MOST_SPANS = 150_000
MOST_FILES = 200
#: Inputs of a merged part that are named.
MOST_INPUTS = 20
_TEXT = 300


def report(progress: Progress) -> str:
    """The report as HTML. All that a run's inputs wrote is data in it: never markup, never script."""
    page = files("centuria.views").joinpath("report.html").read_text(encoding="utf-8")
    return page.replace(_PLACE, embedded(data(progress)), 1)


def embedded(value: Any) -> str:
    """JSON that can stand inside a `<script>` element whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def data(progress: Progress, *, most_spans: int = MOST_SPANS) -> dict[str, Any]:
    """What the page shows: dollars, seconds since the start without the time between crash and resume."""
    money, path, elapsed = progress.money(), progress.critical_path(), progress.elapsed()
    steps = progress.steps()
    shift = _shift(progress)
    of_task = {task: file for file, task in progress.files.items() if task is not None and _is_inside(file)}
    rows = list(progress.tasks.values())
    number = {row.task: index for index, row in enumerate(rows)}
    return {
        "run": clean(progress.run, _TEXT),
        "name": clean(progress.name, _TEXT),
        "model": clean(progress.model, _TEXT),
        "version": clean(progress.version, 40),
        "rehearsal": progress.rehearsal,
        "paid": progress.paid,
        "priced": progress.priced,
        "replay": progress.replay,
        "status": progress.status,
        "cause": clean(progress.cause, _TEXT * 2),
        "exit": progress.exit_code,
        "started": progress.started_at,
        "ended": progress.ended_at,
        "seconds": elapsed,
        "resumed": [round(shift(back), 3) for _, back in progress.resumes],
        "census": {status.value: count for status, count in progress.census().items()},
        "unfinished": progress.unfinished_count,
        "cutShort": sum(row.cut_short for row in rows),
        "agents": progress.agents,
        "cost": {
            "spent": usd(money.spent),
            "held": usd(money.held),
            "reserved": usd(money.reserved),
            "cap": usd(money.cap),
            "loss": usd(money.loss),
            "phases": {clean(phase, 40): usd(amount) for phase, amount in money.phases.items() if amount},
        },
        "tokens": {
            "in": progress.usage.prompt,
            "cached": progress.usage.cached,
            "out": progress.usage.output,
            "reasoning": progress.usage.reasoning,
            "missing": progress.usage.missing,
        },
        "parallel": progress.parallelism(),
        "steps": {"critical": steps.critical, "serial": steps.serial, "parallelism": steps.parallelism},
        "merged": [
            [level, clean(name, 60), [clean(part, 60) for part in inputs[:MOST_INPUTS]], len(inputs)]
            for level, name, inputs in progress.merged[:MOST_FILES]
        ],
        "chain": {
            "tasks": [clean(task, 60) for task in islice(path.tasks, 20)],
            "turns": path.turns,
            "seconds": path.seconds,
        },
        "models": [
            {
                "name": clean(row.name, 80),
                "calls": row.opened,
                "ends": dict(row.ends),
                "rate": clean(upstream_line(progress, row.name), _TEXT * 2),
                "cost": usd(row.cost),
                "first": _times(row.first_token),
                "total": _times(row.total),
            }
            for row in progress.models.values()
        ],
        "tools": _tools(progress, elapsed),
        "servers": [
            {
                "slug": clean(row.slug, 40),
                "server": clean(row.server, 80),
                "up": row.up,
                "tools": row.tools,
                "reason": clean(row.reason, _TEXT),
                "downs": row.downs,
                "replicas": replicas_line(row),
                "gate": clean(server_line(progress, row.slug), _TEXT * 2),
            }
            for row in progress.servers.values()
        ],
        "causes": [
            {"status": cause.status.value, "cause": clean(cause.cause, _TEXT * 2), "count": cause.count}
            for cause in causes(progress)[:100]
        ],
        "notices": [[round(shift(row.at), 2), row.level, clean(row.text, _TEXT * 2)] for row in progress.notices],
        "files": [
            clean(file, _TEXT)
            for file in islice((f for f, task in progress.files.items() if task is None and _is_inside(f)), MOST_FILES)
        ],
        "tasks": [_task(row, shift, of_task.get(row.task)) for row in rows],
        "timeline": _timeline(progress, number, shift, most_spans),
    }


def _is_inside(path: str) -> bool:
    """Whether this is a path below the run's folder, and safe as a link."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and ":" not in path and "\\" not in path


def _shift(progress: Progress) -> Callable[[float], float]:
    """Moments to seconds since the start, leaving out the time in which no process worked on the run."""
    start, gaps = progress.started_at or 0.0, progress.resumes

    def shift(at: float) -> float:
        idle = sum(max(0.0, min(at, back) - left) for left, back in gaps if at > left)
        return max(0.0, at - start - idle)

    return shift


def _times(sample: Sample) -> list[float | None]:
    """p50, p99 and the greatest, in seconds."""
    return [sample.p50, sample.p99, sample.most if sample.count else None]


def _tools(progress: Progress, elapsed: float) -> list[dict[str, Any]]:
    return [
        {
            "name": clean(line.name, 80),
            "limit": line.resource.limit,
            "reason": clean(line.resource.reasons[-1][1], 120) if line.resource.reasons else "",
            "calls": line.calls,
            "bad": line.bad,
            "peak": line.resource.peak,
            "queue": line.resource.peak_waiting,
            "rejected": line.resource.rejected,
            "wait": _times(line.resource.waits),
            "hold": _times(line.resource.holds),
            "occupancy": _occupied(line.resource.occupancy(elapsed)),
        }
        for line in tool_lines(progress)
    ]


def _occupied(occupied: Occupancy | None) -> list[float] | None:
    """Mean, p50 and p99."""
    return None if occupied is None else [occupied.mean, occupied.p50, occupied.p99]


def _task(row: TaskRow, shift: Callable[[float], float], file: str | None) -> list[Any]:
    """A row of the table, in the order in which the page's script names its columns."""
    duration = lasted(row)
    return [
        clean(row.task, 120),
        clean(row.label, 120) if row.label != row.task else "",
        row.status.value if row.status else "unfinished",
        "" if row.status is Status.OK and not row.cause else clean(row.cause, _TEXT),
        usd(row.cost),
        usd(row.held),
        row.usage.prompt,
        row.usage.output,
        row.steps or row.turn,
        row.tool_calls,
        None if row.started_at is None else round(shift(row.started_at), 3),
        None if duration is None else round(duration, 3),
        int(row.cut_short),
        file or "",
        row.depth,
        clean(row.parent or "", 120),
    ]


def _timeline(progress: Progress, number: dict[str, int], shift: Callable[[float], float], most: int) -> dict[str, Any]:
    """Spans in columns, in whole milliseconds. Beyond the bound the shortest calls and waits are left out."""
    spans = list(progress.lanes())
    left_out = max(0, len(spans) - most)
    if left_out:
        ranked = sorted(range(len(spans)), key=lambda index: _weight(spans[index], progress.at), reverse=True)
        spans = [spans[index] for index in sorted(ranked[:most])]
    names: dict[str, int] = {}
    columns: dict[str, list[int]] = {
        "slot": [],
        "task": [],
        "kind": [],
        "name": [],
        "start": [],
        "took": [],
        "state": [],
    }
    for span in spans:
        start = round(shift(span.start) * 1000)
        end = round(shift(progress.at if span.end is None else span.end) * 1000)
        columns["slot"].append(span.slot)
        columns["task"].append(number.get(span.task, -1))
        columns["kind"].append(SPAN_KINDS.index(span.kind))
        columns["name"].append(names.setdefault(clean(span.name, 80), len(names)))
        columns["start"].append(start)
        columns["took"].append(max(0, end - start))
        columns["state"].append(names.setdefault(span.end_state or "not over", len(names)))
    return {"names": list(names), "leftOut": left_out, **columns}


def _weight(span: Span, now: float) -> float:
    return float("inf") if span.kind == "agent" else (now if span.end is None else span.end) - span.start
