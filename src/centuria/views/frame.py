"""One frame of the live view: lines of text that fit a terminal of any size. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.text import Text

from centuria.core.progress import Progress
from centuria.core.rows import ResourceRow, TaskRow, shown
from centuria.core.tallies import AGENTS
from centuria.messages import Status
from centuria.views.upstream import notable, server_line, upstream_line
from centuria.views.words import clean, counted, dollars, percent, seconds, short, spending

_STYLES = {
    Status.OK: "green",
    Status.FAILED: "red",
    Status.TIMEOUT: "red",
    Status.BUDGET: "magenta",
    Status.CANCELLED: "yellow",
    Status.BLOCKED: "yellow",
    Status.SKIPPED: "bright_black",
}
_LEVELS = {"error": "red", "warning": "yellow", "info": "bright_black"}
#: What an agent does, in the order of the legend: its sign in the grid, its words, its colour.
_ACTS = {
    "M": ("model", "cyan"),
    "T": ("tool", "green"),
    "q": ("queued", "yellow"),
    "$": ("waits for money", "magenta"),
    "-": ("between calls", "bright_black"),
    "·": ("free", "bright_black"),
}
_CELL = 27
_MARGIN = " "
#: A call that is open for so many seconds is named.
_SILENCE = 15.0
#: Cells of the columns of queues that a narrow terminal has no room for.
_MORE = 32


def frame(progress: Progress, now: float, width: int, height: int) -> list[Text]:
    """At most `height` lines, each at most `width` cells wide. What matters least is left out first."""
    width, height = max(20, width), max(3, height)
    head = [_title(progress, now, width), _tasks(progress, now, width), _money(progress, width)]
    tools, notices = _tools(progress, width), _notices(progress, width)
    rest = height - len(head)
    if rest < 6:
        return _fitted(head, width, height)
    numbers = [_numbers(progress, now, width), *_upstream(progress, now), Text()]
    rest -= len(numbers)
    # Tools get up to a third of the rest, notices up to a fifth, the agents what remains.
    tools = _fold(tools, max(3, rest // 3), "tools")
    rest -= len(tools) + bool(tools)
    notices = notices[-max(1, rest // 5) :]
    rest -= len(notices) + bool(notices)
    lines = head + numbers + _agents(progress, width, max(2, rest))
    for block in (tools, notices):
        lines += [Text(), *block] if block else []
    return _fitted(lines, width, height)


def _fitted(lines: list[Text], width: int, height: int) -> list[Text]:
    for line in lines[:height]:
        line.truncate(width)
    return lines[:height]


def _title(progress: Progress, now: float, width: int) -> Text:
    line = Text(_MARGIN)
    line.append(clean(progress.name or progress.run, max(8, width // 3)), "bold")
    line.append(f"  {clean(progress.model, 30)}", "bright_black")
    if progress.replay:
        line.append("  ")
        line.append(" REPLAY ", "black on yellow")
    elif progress.rehearsal:
        line.append("  ")
        line.append(" REHEARSAL ", "black on yellow")
        if width >= 100:
            line.append(" a scripted model; nothing is paid", "bright_black")
    state = progress.phase or "starting"
    if progress.ended_at is not None:
        state = progress.status
    right = f"{state}  {_clock(progress.elapsed(now))} "
    return _spread(line, Text(right, "bright_black"), width)


def _clock(value: float) -> str:
    whole = int(value)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _spread(left: Text, right: Text, width: int) -> Text:
    """Two texts at the ends of one line; the right one yields where there is no room."""
    room = width - left.cell_len - right.cell_len
    return left.append(" " * room).append_text(right) if room > 0 else left


def _bar(parts: Sequence[tuple[float, str, str]], total: float, cells: int) -> Text:
    """A bar of `cells` cells: parts (amount, sign, style) in proportion, none of them unseen."""
    line = Text()
    left = cells
    for amount, sign, style in parts:
        share = 0 if amount <= 0 or total <= 0 else max(1, round(cells * amount / total))
        share = min(left, share)
        line.append(sign * share, style)
        left -= share
    return line.append("·" * left, "bright_black")


def _tasks(progress: Progress, now: float, width: int) -> Text:
    census, total = progress.census(), len(progress.tasks)
    parts = [(float(number), "█", _STYLES[status]) for status, number in census.items()]
    words = Text(f"  {progress.ended_count:,}/{total:,}", "bold")
    for status, number in census.items():
        if number:
            words.append(f"  {number:,} {status.value}", f"not bold {_STYLES[status]}")
    eta = progress.eta(now)
    left = Text(f"about {seconds(max(1.0, eta))} left " if eta else "", "bright_black")
    return _spread(_beside("tasks", parts, total, words, width - left.cell_len), left, width)


def _beside(name: str, parts: Sequence[tuple[float, str, str]], total: float, words: Text, width: int) -> Text:
    """A name, a bar as long as there is room, and words that matter more than the bar."""
    line = Text(f"{_MARGIN}{name}  ")
    cells = min(width // 3, width - line.cell_len - words.cell_len - 2)
    if cells >= 6:
        line.append_text(_bar(parts, total, cells))
    return line.append_text(words)


def _money(progress: Progress, width: int) -> Text:
    money = progress.money()
    parts = [
        (float(money.spent), "█", "blue"),
        (float(money.held), "▓", "magenta"),
        (float(money.reserved), "░", "blue"),
    ]
    spent = spending(money.spent, paid=progress.paid, priced=progress.priced, brief=True)
    line = Text(f"  █ {spent}", "blue")
    if money.reserved:
        line.append(f"  ░ {dollars(money.reserved)} reserved", "blue")
    if money.held:
        line.append(f"  ▓ {dollars(money.held)} held", "magenta")
    line.append("  no cap" if money.cap is None else f"  of {dollars(money.cap)}", "bright_black")
    return _beside("money", parts if money.cap else [], money.cap or 1, line, width)


def _numbers(progress: Progress, now: float, width: int) -> Text:
    usage, total = progress.usage, progress.model_total
    parts = [
        f"tokens {short(usage.prompt)} in, {short(usage.output)} out",
        f"{short(progress.tokens_per_second(now))}/s",
        f"model p50 {seconds(total.p50)}, p99 {seconds(total.p99)}",
    ]
    retries = sum(sum(row.ends.values()) - row.ends["done"] for row in progress.models.values())
    if retries:
        parts.append(f"{retries:,} attempts lost")
    down = sum(not server.up for server in progress.servers.values())
    if down:
        parts.append(f"{down} of {len(progress.servers)} tool servers down")
    lost = sum(bool(reason) for server in progress.servers.values() if server.up for reason in server.replicas)
    if lost:
        parts.append(f"{counted(lost, 'replica')} down")
    silent = _longest_call(progress, now)
    if silent:
        parts.insert(0, silent)
    while len(parts) > 1 and len("  ".join(parts)) + 2 > width:
        parts.pop(-2 if down else -1)
    return Text(_MARGIN + "  ".join(parts), "bright_black")


def _upstream(progress: Progress, now: float) -> list[Text]:
    """What holds the calls of the model, and of tool servers, back, if anything does."""
    if progress.ended_at is not None:
        return []
    lines = [upstream_line(progress, progress.model, now)] if notable(progress, progress.model) else []
    for row in progress.upstreams.values():
        kind, _, slug = row.model.partition(":")
        if kind == "server" and row.closed_until is not None and row.closed_until > now:
            lines.append(f"{clean(slug, 30)}: {server_line(progress, slug, now)}")
    return [Text(f"{_MARGIN}{line}", "yellow") for line in lines[:3]]


def _longest_call(progress: Progress, now: float) -> str:
    """The call that has been open the longest, once it is long: silence must be seen."""
    rows = [*(progress.tasks.get(task) for task in progress.slots.values()), *progress.others.values()]
    calls = [(call.at, row, call) for row in rows if row is not None for call in row.calls.values()]
    at, row, call = min(calls, key=lambda item: item[0], default=(now, None, None))
    if row is None or call is None or now - at < _SILENCE:
        return ""
    return f"{clean(row.task, 24)} waits {seconds(now - at)} for {clean(call.name, 24)}"


# -- agents ----------------------------------------------------------------------------------------------------------


def act(row: TaskRow | None) -> str:
    """The sign for what an agent does now."""
    doing = "" if row is None else row.doing
    if doing == "model":
        return "M"
    if "tool" in doing and not doing.startswith("queued"):
        return "T"
    if doing.startswith("queued"):
        return "q"
    return "$" if doing == "waiting for money" else "-"


def _agents(progress: Progress, width: int, height: int) -> list[Text]:
    """The slots: each by name where there is room, else one sign each, else how many do what."""
    resource = progress.resources.get(AGENTS)
    limit = (resource.limit if resource is not None else 0) or progress.agents
    slots = max([min(limit, len(progress.tasks) or limit), *(slot + 1 for slot in progress.slots)])
    rows = {slot: progress.tasks.get(task) for slot, task in progress.slots.items()}
    if not rows and not progress.unfinished_count:
        return [Text(f"{_MARGIN}{_merging(progress)}", "bold")]
    acts = Counter(act(row) for row in rows.values())
    waiting = progress.states["ready"] + progress.states["waiting"]
    line = Text(f"{_MARGIN}agents {len(rows):,}/{limit:,}", "bold")
    for sign, (words, style) in _ACTS.items():
        if acts[sign]:
            line.append(f"   {sign} {acts[sign]:,} {words}", f"not bold {style}")
    if waiting:
        line.append(f"   {waiting:,} tasks to come", "not bold bright_black")
    room, across = height - 1, max(1, (width - 2) // _CELL)
    if rows and slots <= room * across:
        return [line, *_named(rows, slots, across)]
    cells = max(1, (width - 2) // 11 * 11 - 1)
    if slots <= room * cells * 10 // 11:
        return [line, *_signs(rows, slots, width - 2)]
    return [line, *_summary(rows, width, room)]


def _merging(progress: Progress) -> str:
    """What goes on when all tasks have ended."""
    busy = [row.doing for row in progress.others.values() if row.calls or row.queued or row.owing]
    return f"merging: {clean(busy[0], 40)}" if busy else "no agent is at work"


def _named(rows: dict[int, TaskRow | None], slots: int, across: int) -> list[Text]:
    down = -(-slots // across)
    lines = []
    for number in range(down):
        line = Text(_MARGIN)
        for slot in range(number, slots, down):
            line.append_text(_named_cell(rows.get(slot), slot in rows))
        lines.append(line)
    return lines


def _named_cell(row: TaskRow | None, taken: bool) -> Text:
    if not taken or row is None:
        return Text(set_cell_size("·" if not taken else "-", _CELL), "bright_black")
    sign = act(row)
    doing = row.doing.removeprefix("tool ") if sign == "T" else _ACTS[sign][0]
    cell = Text(f"{sign} ", _ACTS[sign][1])
    cell.append(set_cell_size(clean(row.task, 40), 10) + " ")
    return cell.append(set_cell_size(clean(doing.partition("__")[2] or doing, 40), _CELL - 14) + " ", _ACTS[sign][1])


def _signs(rows: dict[int, TaskRow | None], slots: int, width: int) -> list[Text]:
    """Ten signs, a gap, ten signs: so that a slot's number can be told."""
    groups = max(1, (width + 1) // 11)
    lines = []
    for first in range(0, slots, groups * 10):
        line = Text(_MARGIN)
        for slot in range(first, min(slots, first + groups * 10)):
            if slot > first and slot % 10 == 0:
                line.append(" ")
            sign = act(rows[slot]) if slot in rows else "·"
            line.append(sign, _ACTS[sign][1])
        lines.append(line)
    return lines


def _summary(rows: dict[int, TaskRow | None], width: int, most: int) -> list[Text]:
    doings = Counter(row.doing if row is not None else "between calls" for row in rows.values())
    signs = {row.doing: act(row) for row in rows.values() if row is not None}
    lines = []
    for doing, number in doings.most_common(most):
        line = Text(f"{_MARGIN}{set_cell_size(clean(doing, 60), 34)} {number:>6,} ")
        style = _ACTS[signs.get(doing, "-")][1]
        lines.append(line.append_text(_bar([(number, "█", style)], len(rows), max(5, width - 46))))
    return lines


# -- tools and notices -----------------------------------------------------------------------------------------------


def _tools(progress: Progress, width: int) -> list[Text]:
    """Every resource but the agents: the busiest queues first."""
    rows = [row for row in progress.resources.values() if row.resource != AGENTS and (row.granted or row.waiting)]
    if not rows:
        return []
    rows.sort(key=lambda row: (-row.waiting, -row.in_use, row.resource))
    name = min(40, max(22, width - 58))
    head = f"{_MARGIN}{'queues':<{name}} {'in use':>18} {'waiting':>8} {'served':>8} {'wait p99':>9}"
    wide = width >= len(head) + _MORE
    if wide:
        head += f" {'rejected':>8} {'occupied':>8} {'p50':>5} {'p99':>5}"
    return [Text(head, "bold"), *(_tool(row, name, progress.elapsed() if wide else None) for row in rows)]


def _tool(row: ResourceRow, name: int, elapsed: float | None) -> Text:
    line = Text(f"{_MARGIN}{set_cell_size(clean(shown(row.resource), 60), name)} ")
    line.append_text(_bar([(row.in_use, "█", "green" if row.in_use < row.limit else "yellow")], row.limit, 9))
    line.append(f" {row.in_use:>4}/{row.limit:<3}")
    line.append(f" {row.waiting:>8,}", "yellow" if row.waiting else "")
    line.append(f" {row.granted:>8,} {seconds(row.waits.p99):>9}", "bright_black")
    if elapsed is not None:
        line.append(f" {row.rejected:>8,}", "yellow" if row.rejected else "bright_black")
        occupied = row.occupancy(elapsed)
        shares = [None] * 3 if occupied is None else [occupied.mean, occupied.p50, occupied.p99]
        for share, cells in zip(shares, (8, 5, 5), strict=True):
            line.append(f" {percent(share):>{cells}}", "bright_black")
    return line


def _fold(lines: list[Text], most: int, what: str) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text(f"{_MARGIN}and {len(lines) - most + 1} more {what}", "bright_black")]


def _notices(progress: Progress, width: int) -> list[Text]:
    lines = []
    for notice in progress.notices:
        sign = "!" if notice.level != "info" else "·"
        lines.append(Text(f"{_MARGIN}{sign} {clean(notice.text, width)}", _LEVELS.get(notice.level, "")))
    return lines
