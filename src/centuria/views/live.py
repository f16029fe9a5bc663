"""The live view: what every agent does, who waits for what, what it has cost. For a terminal."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from centuria.core.progress import Progress
from centuria.stream import Feed, Subscription
from centuria.views.frame import frame
from centuria.views.terminal import TerminalWriter

FRAMES_A_SECOND = 8
#: Drawing takes at most this share of the time: where frames are dear they are fewer.
MOST_OF_THE_TIME = 0.05
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
#: Terminals that know it show a frame at once or not at all; others ignore it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


class Screen:
    """Turns frames into what a terminal must be sent so that each takes the place of the one before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []

    def draw(self, progress: Progress, now: float) -> str:
        """The next frame, for the terminal as large as it is now."""
        width, height = self._console.size
        lines = frame(progress, now, width, height - 1)
        up = self._rows_taken(width)
        self._widths = [cell_len(line.plain) for line in lines]
        text = "".join(f"{line}\x1b[K\n" for line in self._styled(lines, width))
        return f"{_BEGIN}{_HIDE}{_back(up)}{text}\x1b[J{_END}"

    def clear(self) -> str:
        """Take the last frame away and give the cursor back."""
        up = self._rows_taken(self._console.size.width)
        self._widths = []
        return f"{_back(up)}\x1b[J{_SHOW}"

    def _rows_taken(self, width: int) -> int:
        """How many rows the last frame has in a terminal that may have become narrower since."""
        return sum(max(1, -(-taken // max(1, width))) for taken in self._widths)

    def _styled(self, lines: list[Text], width: int) -> Iterator[str]:
        file = io.StringIO()
        paper = Console(
            file=file,
            width=width,
            force_terminal=True,
            legacy_windows=False,
            no_color=self._console.no_color,
            color_system=self._console.color_system,  # type: ignore[arg-type]
            highlight=False,
            markup=False,
            emoji=False,
        )
        for line in lines:
            paper.print(line, no_wrap=True, overflow="crop", crop=True, end="\n")
        return iter(file.getvalue().splitlines())


def _back(rows: int) -> str:
    """To the beginning of the line that is so many rows up."""
    return f"\r\x1b[{rows}A" if rows else "\r"


async def live(
    stream: Feed,
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Show the run on `console` (standard error) until the stream closes, then take the view away.

    The run never waits for the terminal: a thread writes, and frames that it has no time for are dropped.
    """
    console = Console(stderr=True) if console is None else console
    file: IO[str] = console.file if console.file is not None else sys.stderr
    writer = TerminalWriter(file)
    screen = Screen(console)
    # All that is shown is in `Progress`; the subscription only tells when the stream ends.
    reader = stream.subscribe(bound=1, deltas=False)
    try:
        async with asyncio.TaskGroup() as group:
            drawing = group.create_task(_draw(stream, screen, writer, clock))
            await _until_closed(stream, reader)
            drawing.cancel()
    finally:
        stream.unsubscribe(reader)
        writer.line(screen.clear(), end="")
        writer.close()


async def _draw(stream: Feed, screen: Screen, writer: TerminalWriter, clock: Callable[[], float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        writer.frame(screen.draw(stream.progress, clock()))
        took = loop.time() - began
        await asyncio.sleep(max(1 / FRAMES_A_SECOND, took / MOST_OF_THE_TIME))


async def _until_closed(stream: Feed, reader: Subscription) -> None:
    """Return when the stream has closed, waking a few times a second and not for each fact."""
    async for _ in reader:
        if stream.progress.ended_at is None:
            await asyncio.sleep(1 / FRAMES_A_SECOND)
