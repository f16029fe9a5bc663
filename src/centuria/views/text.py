"""A run in words: the summary at its end, `show`. Reads a `Progress`, no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from centuria.core.measures import Occupancy, Tokens
from centuria.core.progress import Progress
from centuria.messages import Status
from centuria.views.digest import causes, lasted, replicas_line, server_remedy, tool_lines
from centuria.views.upstream import server_line, upstream_line
from centuria.views.words import clean, counted, dollars, percent, seconds, spending

#: How an attempt ended, in words.
_ENDS = {"failed": "failed", "lost": "lost (may have been billed)", "unknown": "may have happened"}


def census_line(progress: Progress) -> str:
    """`100 ok of 100`, or what else there is: `96 ok, 3 timeout, 1 budget of 100`."""
    parts = [f"{number:,} {status.value}" for status, number in progress.census().items() if number]
    if progress.unfinished_count:
        parts.append(f"{progress.unfinished_count:,} unfinished")
    return f"{', '.join(parts) or '0 ok'} of {len(progress.tasks):,}"


def money_line(progress: Progress) -> str:
    """Spent, reserved, held and lost, against the cap."""
    money = progress.money()
    cap = ", no cap" if money.cap is None else f" of {dollars(money.cap)}"
    parts = [spending(money.spent, paid=progress.paid, priced=progress.priced, of=cap)]
    if money.reserved:
        parts.append(f"{dollars(money.reserved)} reserved")
    if money.held:
        parts.append(f"{dollars(money.held)} held for lost attempts")
    if money.loss:
        parts.append(f"{dollars(money.loss)} of it on tasks that are not ok")
    return " · ".join(parts)


def summary(progress: Progress, *, folder: str = "", broken_off: bool = False) -> str:
    """The end of a run in a dozen lines. `folder` is where its files are, as the user would type it. `broken_off`: it
    has not ended, and nothing works on it."""
    lines = [_headline(progress, broken_off), census_line(progress)]
    cut_short = sum(row.cut_short for row in progress.tasks.values())
    if cut_short:
        lines[-1] += f" ({counted(cut_short, 'answer')} cut short by a limit)"
    lines.append("")
    pairs = [
        ("cost", money_line(progress)),
        ("tokens", tokens_line(progress.usage)),
        ("time", _time_line(progress)),
        ("model", _model_line(progress)),
        ("rate", upstream_line(progress, progress.model)),
    ]
    lines += [f"{name:<8}{text}" for name, text in pairs if text]
    lines += _tool_table(progress)
    lines += _down_servers(progress)
    lines += _cause_lines(progress)
    lines += _notice_lines(progress)
    lines += _where(progress, folder)
    return "\n".join(lines) + "\n"


def _headline(progress: Progress, broken_off: bool) -> str:
    status = "broken off" if broken_off else progress.status or "not started"
    line = f"{clean(progress.name or progress.run, 60)}: {status}, {clean(progress.model, 60)}"
    if progress.cause:
        line += f" ({clean(progress.cause, 300)})"
    if progress.replay:
        line += " · REPLAY: recorded answers, no key, no money"
    return line + (" · REHEARSAL: a scripted model, no key, no money" if progress.rehearsal else "")


def tokens_line(usage: Tokens) -> str:
    """Tokens in and out, and what of them was cached or thought; says how many calls told no usage."""
    if not usage.calls and not usage.missing:
        return ""
    text = f"{usage.prompt:,} in"
    if usage.cached and usage.prompt:
        text += f" ({percent(usage.cached / usage.prompt)} cached)"
    text += f" · {usage.output:,} out"
    if usage.reasoning:
        text += f" ({usage.reasoning:,} reasoning)"
    return text + (f" · {counted(usage.missing, 'call')} without usage" if usage.missing else "")


def _time_line(progress: Progress) -> str:
    text = seconds(progress.elapsed())
    parallel = progress.parallelism()
    if parallel:
        text += f" · {parallel:.1f} calls in flight on average"
    path = progress.critical_path()
    if path.turns:
        text += f" · longest chain {counted(path.turns, 'turn')} in {seconds(path.seconds)}"
    steps = progress.steps()
    if steps.serial > steps.critical > 0 and any(row.parent is not None for row in progress.tasks.values()):
        text += f" · {steps.serial:,} steps in {steps.critical:,} critical ones ({steps.parallelism:.1f} at once)"
    return text + (f" · resumed {counted(len(progress.resumes), 'time')}" if progress.resumes else "")


def _model_line(progress: Progress) -> str:
    opened = sum(row.opened for row in progress.models.values())
    if not opened:
        return ""
    total, first = progress.model_total, progress.first_token
    text = f"{counted(opened, 'call')} · p50 {seconds(total.p50)}, p99 {seconds(total.p99)}"
    if first.count:
        text += f" · first token p50 {seconds(first.p50)}, p99 {seconds(first.p99)}"
    ends = [
        f"{number:,} {_ENDS[end]}"
        for end in _ENDS
        if (number := sum(row.ends[end] for row in progress.models.values()))
    ]
    return " · ".join([text, *ends])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns of text, the first to the left and the others to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]


def _tool_table(progress: Progress) -> list[str]:
    lines = tool_lines(progress)
    if not lines:
        return []
    counts, times = ("limit", "calls", "not ok", "peak", "queue"), ("waited p50", "p99", "ran p50", "p99")
    head = ("tool", *counts, *times, "occupied", "p50", "p99")
    elapsed = progress.elapsed()
    rows = [
        (
            clean(line.name, 40),
            str(line.resource.limit) if line.resource.reasons else "–",
            f"{line.calls:,}",
            f"{line.bad:,}",
            str(line.resource.peak or "–"),
            str(line.resource.peak_waiting or "–"),
            seconds(line.resource.waits.p50),
            seconds(line.resource.waits.p99),
            seconds(line.resource.holds.p50),
            seconds(line.resource.holds.p99),
            *_shares(line.resource.occupancy(elapsed)),
        )
        for line in lines
    ]
    return ["", *table(head, rows)]


def _shares(occupied: Occupancy | None) -> tuple[str, str, str]:
    if occupied is None:
        return "–", "–", "–"
    return percent(occupied.mean), percent(occupied.p50), percent(occupied.p99)


def _down_servers(progress: Progress) -> list[str]:
    """What there is to know of servers: who is down, which replicas are, and who refused calls as too many."""
    lines, down = [], False
    for server in progress.servers.values():
        name, replicas = clean(server.slug, 40), replicas_line(server)
        if not server.up:
            lines.append(f"server {name} is down: {clean(server.reason, 300)}")
            down = True
            remedy = server_remedy(server.reason)
            lines += [f"  {remedy}"] if remedy else []
        elif replicas:
            lines.append(f"server {name}: {replicas}")
        gate = server_line(progress, server.slug)
        if gate:
            lines.append(f"server {name}: {gate}")
    return (
        [*lines, "  Try all of them: centuria doctor job.toml, or centuria doctor --tools mcp.json."] if down else lines
    )


def _cause_lines(progress: Progress, most: int = 10) -> list[str]:
    found = causes(progress)
    if not found:
        return []
    lines = ["", "why"]
    for cause in found[:most]:
        names = ", ".join(clean(task, 40) for task in cause.tasks)
        names += ", …" if cause.count > len(cause.tasks) else ""
        lines.append(f"  {cause.count:,} {cause.status.value}: {clean(cause.cause, 300) or 'no cause given'} ({names})")
    if len(found) > most:
        lines.append(f"  and {counted(len(found) - most, 'other cause')}; the report lists all")
    return lines


def _notice_lines(progress: Progress, most: int = 10) -> list[str]:
    notices = [notice for notice in progress.notices if notice.level != "info"]
    lines = [f"{notice.level}: {clean(notice.text, 400)}" for notice in notices[-most:]]
    if progress.warnings > len(lines):
        lines.insert(0, f"({counted(progress.warnings - len(lines), 'earlier warning')} not shown)")
    return ["", *lines] if lines else []


def _where(progress: Progress, folder: str) -> list[str]:
    lines = []
    if folder:
        own = [path for path, task in progress.files.items() if task is None]
        of_tasks = len(progress.files) - len(own)
        results = [f"{counted(of_tasks, 'result')} in reports/"] if of_tasks else []
        names = [clean(path, 80) for path in own[:8]] + results
        lines += ["", f"files   {folder}" + (f": {', '.join(names)}" if names else "")]
    if progress.status and progress.census()[Status.OK] < len(progress.tasks):
        lines.append(f"resume  centuria resume {folder or clean(progress.run, 80)}")
    return lines


def show(progress: Progress, *, folder: str = "", broken_off: bool = False, most: int = 200) -> str:
    """The summary and the tasks, those that are not ok first; at most `most` of them."""
    rows = sorted(progress.tasks.values(), key=lambda row: (row.status is Status.OK, row.index))
    head = ("task", "status", "cost" if progress.paid else "would cost", "tokens", "turns", "time", "")
    lines = table(
        head,
        (
            (
                clean(row.task, 40),
                row.status.value if row.status else row.doing,
                dollars(row.cost + row.held),
                f"{row.usage.total:,}",
                str(row.steps or row.turn),
                seconds(lasted(row)),
                clean(row.cause or row.label, 60),
            )
            for row in rows[:most]
        ),
    )
    if len(rows) > most:
        lines.append(f"and {len(rows) - most:,} more: --json has all of them")
    lines += _steered(progress)
    tasks = "\n".join(line.rstrip() for line in lines)
    return f"{summary(progress, folder=folder, broken_off=broken_off)}\n{tasks}\n"


def _steered(progress: Progress) -> list[str]:
    """What is paused, and the calls that wait for a yes."""
    if progress.status != "running":
        return []
    lines = [
        f"paused: {clean(task, 80) if task is not None else 'the run'}" for task in sorted(progress.paused, key=str)
    ]
    for call, (name, arguments) in progress.approvals.items():
        lines.append(f"waits for a yes: {clean(call, 120)} {clean(name, 80)} {clean(arguments, 200)}")
    return lines
