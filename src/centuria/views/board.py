"""Several runs at once on a terminal: a line for each, drawn again in its place."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO

from rich.cells import set_cell_size

from centuria.core.progress import Progress
from centuria.views.plain import progress_line
from centuria.views.terminal import TerminalWriter
from centuria.views.text import census_line
from centuria.views.words import clean, seconds, spending

FRAMES_A_SECOND = 4
_LABEL = 32
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


def board_lines(runs: Mapping[str, Progress | None], now: float) -> list[str]:
    """One line for each run, by its name; None: it has not begun."""
    width = max((len(clean(name, _LABEL)) for name in runs), default=0)
    return [f"{clean(name, _LABEL):<{width}}  {_line(progress, now)}" for name, progress in runs.items()]


def _line(progress: Progress | None, now: float) -> str:
    if progress is None:
        return "waiting"
    rehearsal = "REHEARSAL " if progress.rehearsal else ""
    if progress.ended_at is None:
        return rehearsal + progress_line(progress, now)
    took, money = seconds(progress.elapsed()), progress.money()
    spent = spending(money.spent, paid=progress.paid, priced=progress.priced)
    return f"{rehearsal}{progress.status}: {census_line(progress)} · {spent} · {took}"


async def board(
    runs: Mapping[str, Progress | None],
    *,
    file: IO[str] | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Show the runs on `file` (standard error, a terminal) until it is cancelled, then take the lines away.

    `runs` may change meanwhile, but for its names. A terminal that is slow or gone stops nothing.
    """
    writer = TerminalWriter(sys.stderr if file is None else file)
    drawn = 0
    try:
        while True:
            width = shutil.get_terminal_size().columns
            lines = [set_cell_size(line, max(1, width - 1)).rstrip() for line in board_lines(runs, clock())]
            text = "".join(f"{line}\x1b[K\n" for line in lines)
            writer.frame(f"{_HIDE}{_back(drawn)}{text}\x1b[J")
            drawn = len(lines)
            await asyncio.sleep(1 / FRAMES_A_SECOND)
    finally:
        writer.line(f"{_back(drawn)}\x1b[J{_SHOW}", end="")
        writer.close()


def _back(rows: int) -> str:
    return f"\r\x1b[{rows}A" if rows else "\r"
