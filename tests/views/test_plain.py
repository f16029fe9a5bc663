"""Lines for a log: what matters, and never more of them than a person reads."""

from __future__ import annotations

import asyncio
import io
import threading

from centuria import events as e
from centuria.core.progress import Progress
from centuria.messages import Outcome, Status
from centuria.stream import Stream
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal
from centuria.views.plain import PlainView, plain
from centuria.views.terminal import TerminalWriter
from tests.views.stories import Story


def lines_of(records: list[e.Record], *, tick: float = 0.0) -> list[str]:
    lines: list[str] = []
    progress = Progress()
    view = PlainView(progress, lines.append)
    due = records[0].at + view.pace
    for record in records:
        while tick and record.at > due:
            view.tick(due)
            due += view.pace
        progress.record(record)
        view.see(record)
    return lines


def test_a_run_is_told_from_its_opening_over_each_tenth_to_its_merge() -> None:
    lines = lines_of(Story().tell())
    assert lines[0].startswith("REHEARSAL (a scripted model, no key, no money): market-reports: 100 tasks, 100 agents")
    assert [line[:4] for line in lines if line[3:4] == "%"] == [f"{part:3d}%" for part in range(10, 101, 10)]
    assert "failed: T0093: Your answer does not fit the schema: at $.rank: 'n/a' is not a number." in lines
    assert "merging what 100 tasks came to" in lines


def test_ten_thousand_failing_tasks_over_a_day_are_a_bounded_number_of_lines() -> None:
    records = [e.Record(1, 0.0, e.RunStarted("r", "n", "m", False, None, 100, 100, "0"))]
    records += [e.Record(2 + n, 0.0, e.TaskAdded(f"t{n}", n, "s")) for n in range(10_000)]
    records.append(e.Record(10_002, 0.0, e.PhaseStarted("work")))
    for n in range(10_000):
        at = n * 8.64
        records.append(e.Record(20_000 + n, at, e.TaskEnded(f"t{n}", Outcome(f"t{n}", Status.FAILED, f"cause {n}"))))
        records.append(e.Record(20_000 + n, at, e.Notice(f"notice {n}", "warning")))
    lines = lines_of(records, tick=5.0)
    assert 50 < len(lines) < 350
    assert "more tasks are not ok; the summary counts them by cause" in lines


@virtual_clock
async def test_the_plain_view_follows_a_stream_to_its_end_and_says_where_it_is_while_nothing_happens() -> None:
    file = io.StringIO()
    loop = asyncio.get_running_loop()
    stream = Stream(MemoryJournal(), clock=loop.time, progress=Progress())
    async with asyncio.TaskGroup() as group:
        group.create_task(plain(stream, file=file, every=5.0, clock=loop.time))
        await asyncio.sleep(0)
        stream.publish(e.RunStarted("r", "n", "m", False, None, 2, 2, "0"), e.TaskAdded("a", 0, "s"))
        stream.publish(e.PhaseStarted("work"), e.TaskStarted("a", 0))
        await asyncio.sleep(12)
        stream.publish(e.TaskEnded("a", Outcome("a", Status.TIMEOUT, "too slow")), e.RunEnded("failed", 1))
        stream.close()
    assert file.getvalue().splitlines() == [
        "n: 1 task, 1 agent at once, m, no cap",
        "  0% 1 unfinished of 1 · 1 running · $0.00 spent · 0 tokens/s",
        "  0% 1 unfinished of 1 · 1 running · $0.00 spent · 0 tokens/s",
        "timeout: a: too slow",
        "100% 1 timeout of 1 · 0 running · $0.00 spent · 0 tokens/s",
    ]


class StuckFile(io.StringIO):
    """A terminal that was stopped with Ctrl-S: a write returns when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.writing = threading.Event()

    def write(self, text: str) -> int:
        self.writing.set()
        assert self.go.wait(30)
        return super().write(text)


def test_a_stopped_terminal_makes_nobody_wait_and_gets_the_newest_frame_when_it_goes_on() -> None:
    file = StuckFile()
    writer = TerminalWriter(file)
    writer.frame("first")
    assert file.writing.wait(30)
    for number in range(10_000):
        writer.frame(f"frame {number} ")
        writer.line(f"line {number}")
    writer.close(patience=0.01)
    file.go.set()
    writer.close(patience=30)
    text = file.getvalue()
    assert text.startswith("firstframe 9999 line 8000\n")
    assert text.endswith("line 9999\n")


def test_a_terminal_that_is_gone_ends_the_view_and_not_the_run() -> None:
    file = io.StringIO()
    file.close()
    writer = TerminalWriter(file)
    writer.line("nobody reads this")
    writer.close(patience=30)
    writer.line("nor this")
