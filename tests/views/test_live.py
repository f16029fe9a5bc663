"""The live view: it fits every terminal, says what matters first, and never lets a text steer the terminal."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from functools import cache

import pytest
from rich.cells import cell_len
from rich.console import Console

from centuria import events as e
from centuria.core.progress import Progress
from centuria.messages import CallKey, Outcome, Status
from centuria.stream import Stream
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal
from centuria.views.frame import frame
from centuria.views.live import Screen, live
from tests.views.stories import Story, fold
from tests.views.test_text import hostile


@cache
def hundred() -> list[e.Record]:
    return Story().tell()


@cache
def thousand() -> list[e.Record]:
    return Story(tasks=1500, agents=1000).tell()


SIZES = ((80, 23), (200, 50), (60, 12), (40, 8), (20, 3), (300, 100))
_STEERING = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")


def shown(progress: Progress, width: int, height: int) -> str:
    return "\n".join(line.plain for line in frame(progress, progress.at, width, height))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("told", [hundred, thousand], ids=["100", "1000"])
def test_a_frame_fits_every_terminal(told: Callable[[], list[e.Record]], part: float, width: int, height: int) -> None:
    progress = fold(told(), part)
    lines = frame(progress, progress.at, width, height)
    assert 1 <= len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)
    assert not any("\n" in line.plain for line in lines)


def test_half_way_it_shows_the_hundred_agents_the_queues_the_money_and_the_time_left() -> None:
    text = shown(fold(hundred(), 0.5), 80, 23)
    for words in (
        "REHEARSAL",
        "6/100",
        "6 ok",
        "left",
        "would cost $0.235",
        "reserved",
        "held",
        "of $5.00",
        "agents 94/100",
        "M 35 model",
        "T 25 tool",
        "q 33 queued",
        "web__web_search",
        "20/20",
    ):
        assert words in text, words
    grid = [line for line in text.splitlines() if re.fullmatch(r" [MTq$·\- ]{20,}", line)]
    assert sum(len(line.replace(" ", "")) for line in grid) == 100


def test_a_wide_terminal_names_every_agent_and_its_tool() -> None:
    text = shown(fold(hundred(), 0.5), 200, 50)
    assert sum(len(re.findall(r"[MTq$-] T\d{4}", line)) for line in text.splitlines()) == 94
    assert "T T0015      web_search" in text


def test_a_thousand_agents_are_summed_up_where_they_do_not_fit() -> None:
    text = shown(fold(thousand(), 0.5), 80, 23)
    assert "agents 1,000/1,000" in text
    assert re.search(r"queued for web__web_search +\d+ █+", text)
    wide = shown(fold(thousand(), 0.5), 200, 50)
    signs = [line for line in wide.splitlines() if re.fullmatch(r" [MTq$·\- ]{20,}", line)]
    assert sum(len(line.replace(" ", "")) for line in signs) == 1000


def test_a_call_that_is_silent_for_long_is_named() -> None:
    progress = Progress()
    facts: list[e.Fact] = [
        e.RunStarted("r", "job", "m", False, None, 2, 2, "0"),
        e.TaskAdded("slow", 0, "s"),
        e.SlotGranted(1, "agents", 0, "slow", 0.0),
        e.TaskStarted("slow", 0),
        e.CallOpened(CallKey("slow", 0, 0, 0), 1, "model", "m", "f", True),
    ]
    for fact in facts:
        progress.record(e.Record(1, 1000.0, fact))
    said = ["\n".join(line.plain for line in frame(progress, now, 80, 23)) for now in (1010.0, 1042.0)]
    assert "waits" not in said[0]
    assert "slow waits 42 s for m" in said[1]


def test_at_the_end_the_census_stays_and_the_agents_go() -> None:
    text = shown(fold(hundred()), 80, 23)
    assert "100/100  93 ok  1 failed  6 budget" in text
    assert "partial" in text.splitlines()[0]
    assert "agents" not in text


def test_before_anything_has_happened_there_is_a_frame_already() -> None:
    assert "starting" in shown(Progress(), 80, 23)


def test_untrusted_text_never_steers_the_terminal_nor_is_read_as_markup() -> None:
    progress = hostile()
    for width, height in SIZES:
        file = io.StringIO()
        console = Console(
            file=file, width=width, height=height, force_terminal=True, color_system="truecolor", legacy_windows=False
        )
        text = Screen(console).draw(progress, progress.at)
        bare = _STEERING.sub("", text)
        assert all(char in "\n\r" or char.isprintable() for char in bare)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
    assert "[bold]" in shown(progress, 200, 50)


def test_each_frame_takes_the_place_of_the_one_before_even_when_the_terminal_became_narrower() -> None:
    progress = fold(hundred(), 0.5)
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, legacy_windows=False)
    screen = Screen(console)
    first = screen.draw(progress, progress.at)
    rows = first.count("\n")
    assert rows <= 23
    assert not re.search(r"\x1b\[\d+A", first)
    assert f"\x1b[{rows}A" in screen.draw(progress, progress.at)
    console.size = (40, 24)  # type: ignore[assignment]
    lines = frame(progress, progress.at, 80, 23)
    wrapped = sum(max(1, -(-cell_len(line.plain) // 40)) for line in lines)
    assert f"\x1b[{wrapped}A" in screen.draw(progress, progress.at)


@virtual_clock
async def test_the_live_view_follows_a_stream_to_its_end_and_gives_the_terminal_back() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, legacy_windows=False)
    loop = asyncio.get_running_loop()
    stream = Stream(MemoryJournal(), clock=loop.time, progress=Progress())
    async with asyncio.TaskGroup() as group:
        group.create_task(live(stream, console=console, clock=loop.time))
        await asyncio.sleep(0)
        stream.publish(e.RunStarted("r", "job", "m", True, None, 2, 2, "0"), e.TaskAdded("a", 0, "s"))
        await asyncio.sleep(60)
        stream.publish(e.TaskEnded("a", Outcome("a", Status.OK)), e.RunEnded("ok", 0))
        began = loop.time()
        stream.close()
    assert loop.time() - began <= 0.5
    text = file.getvalue()
    assert "REHEARSAL" in text
    assert text.endswith("\x1b[J\x1b[?25h")


@virtual_clock
async def test_a_view_that_is_cancelled_gives_the_terminal_back_too() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, legacy_windows=False)
    loop = asyncio.get_running_loop()
    stream = Stream(MemoryJournal(), clock=loop.time, progress=Progress())
    view = asyncio.create_task(live(stream, console=console, clock=loop.time))
    await asyncio.sleep(1)
    view.cancel()
    with pytest.raises(asyncio.CancelledError):
        await view
    assert file.getvalue().endswith("\x1b[?25h")
    stream.publish(e.Notice("nobody listens any more"))
