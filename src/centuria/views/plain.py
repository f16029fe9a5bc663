"""The plain view: lines for a log or a pipe. However many tasks there are, their number is bounded."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import IO

from centuria.core.progress import Progress
from centuria.events import Notice, PhaseStarted, Record, RunResumed, ServerDown, ServerUp, TaskEnded
from centuria.messages import Status
from centuria.stream import Feed, Item, Subscription
from centuria.views.digest import replicas_line, server_remedy
from centuria.views.terminal import TerminalWriter
from centuria.views.text import census_line
from centuria.views.words import clean, counted, dollars, seconds, short, spending

#: At most so many lines of each kind; what is beyond is counted in the summary.
MOST_FAILURES = 20
MOST_NOTICES = 20
#: After so many lines about the time, they come half as often.
_LINES_A_PACE = 20
_STEPS = 10
#: Facts are read in batches, so that a run of many events wakes this view a few times a second only.
_BATCH_SECONDS = 0.1


class PlainView:
    """Decides which lines there are; `write` gets each one."""

    def __init__(self, progress: Progress, write: Callable[[str], None], *, every: float = 5.0) -> None:
        self._progress = progress
        self._write = write
        self._step = 0
        self._failures = 0
        self._notices = 0
        self._said = 0
        #: Seconds until the next line about the time is due.
        self.pace = every

    def see(self, item: Item) -> None:
        """Take one item of the stream."""
        if not isinstance(item, Record):
            return
        match item.event:
            case PhaseStarted(phase):
                self._phase(phase)
            case RunResumed(reused, rerun, in_doubt):
                self._write(f"resumed: {reused:,} reused, {rerun:,} run, {in_doubt:,} in doubt")
            case TaskEnded():
                self._ended(item.event, item.at)
            case ServerDown():
                reason = clean(item.event.reason, 300)
                self._notice(f"server {clean(item.event.slug, 40)} is down: {reason} {server_remedy(reason)}".rstrip())
            case ServerUp() if any(item.event.replicas):
                row = self._progress.servers[item.event.slug]
                self._notice(f"server {clean(item.event.slug, 40)}: {replicas_line(row)}")
            case Notice(text, level):
                self._notice(f"{level}: {clean(text, 400)}")

    def _phase(self, phase: str) -> None:
        progress = self._progress
        if phase == "work":
            self._write(opening_line(progress))
        elif phase == "merge":
            self._write(f"merging what {counted(progress.ended_count, 'task')} came to")

    def _ended(self, event: TaskEnded, at: float) -> None:
        if event.outcome.status is not Status.OK:
            self._failures += 1
            if self._failures <= MOST_FAILURES:
                cause = clean(event.outcome.cause, 300) or "no cause given"
                self._write(f"{event.outcome.status.value}: {clean(event.task, 80)}: {cause}")
            elif self._failures == MOST_FAILURES + 1:
                self._write("more tasks are not ok; the summary counts them by cause")
        total = len(self._progress.tasks)
        step = self._progress.ended_count * _STEPS // total if total else 0
        if step > self._step:
            self._step = step
            self._write(progress_line(self._progress, at))

    def _notice(self, text: str) -> None:
        self._notices += 1
        if self._notices <= MOST_NOTICES:
            self._write(text)
        elif self._notices == MOST_NOTICES + 1:
            self._write("more notices are in the report")

    def tick(self, now: float) -> None:
        """Say where the run is: less often, the longer it takes."""
        if self._progress.status != "running" or self._progress.phase != "work":
            return
        self._write(progress_line(self._progress, now))
        self._said += 1
        if self._said % _LINES_A_PACE == 0:
            self.pace *= 2


def opening_line(progress: Progress) -> str:
    """What begins: the job, its size, its model, its cap."""
    rehearsal = "REHEARSAL (a scripted model, no key, no money): " if progress.rehearsal else ""
    if progress.replay:
        rehearsal = "REPLAY (recorded answers, no key, no money): "
    cap = progress.money().cap
    budget = "no cap" if cap is None else f"at most {dollars(cap)}"
    agents = min(progress.agents, len(progress.tasks)) or progress.agents
    return (
        f"{rehearsal}{clean(progress.name, 60)}: {counted(progress.unfinished_count, 'task')}, "
        f"{counted(agents, 'agent')} at once, {clean(progress.model, 60)}, {budget}"
    )


def progress_line(progress: Progress, now: float) -> str:
    """Where the run is, in one line."""
    money = progress.money()
    total = len(progress.tasks)
    share = progress.ended_count / total if total else 0.0
    parts = [
        f"{share:4.0%} {census_line(progress)}",
        f"{progress.states['running']:,} running",
        spending(money.spent, paid=progress.paid, priced=progress.priced),
    ]
    if money.held:
        parts.append(f"{dollars(money.held)} held")
    parts.append(f"{short(progress.tokens_per_second(now))} tokens/s")
    eta = progress.eta(now)
    if eta:
        parts.append(f"about {seconds(eta)} left")
    return " · ".join(parts)


async def plain(
    stream: Feed,
    *,
    file: IO[str] | None = None,
    every: float = 5.0,
    clock: Callable[[], float] = time.time,
    begin: str = "",
) -> None:
    """Write lines to `file` (standard error) until the stream closes, each with `begin` before it. The run never waits
    for the file."""
    writer = TerminalWriter(sys.stderr if file is None else file)
    view = PlainView(stream.progress, lambda text: writer.line(begin + text), every=every)
    reader = stream.subscribe(deltas=False)
    try:
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(_tick(view, clock))
            await _read(view, reader)
            ticker.cancel()
    finally:
        stream.unsubscribe(reader)
        writer.close()


async def _tick(view: PlainView, clock: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(view.pace)
        view.tick(clock())


async def _read(view: PlainView, reader: Subscription) -> None:
    loop = asyncio.get_running_loop()
    rested = loop.time()
    async for item in reader:
        view.see(item)
        if loop.time() - rested >= _BATCH_SECONDS:
            await asyncio.sleep(_BATCH_SECONDS)
            rested = loop.time()
