"""Time-outs of many waits: late only when late, and a cancellation from outside always has the last word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.gateway.chat.deadlines import Deadlines, Wait
from centuria.testing import clock
from centuria.testing.clock import virtual_clock


class Late(Exception):
    """One wait's own."""


async def idle() -> None:
    await asyncio.get_running_loop().create_future()


@virtual_clock
async def test_a_wait_is_late_after_its_time_and_leaves_no_cancellation_behind() -> None:
    deadlines = Deadlines()
    with pytest.raises(Late), deadlines.until(5.0, Late):
        await idle()
    assert 5.0 <= asyncio.get_running_loop().time() <= 5.2
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)


@virtual_clock
async def test_who_ends_a_wait_that_is_over_cancels_nobody() -> None:
    deadlines = Deadlines()
    over: list[Wait] = []

    async def reader() -> str:
        with deadlines.until(100.0, Late) as wait:
            over.append(wait)
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        return "whole"

    task = asyncio.create_task(reader())
    await asyncio.sleep(5)
    over[0].end()
    assert await task == "whole"


@virtual_clock
async def test_a_task_that_is_being_cancelled_has_its_waits_end_as_any_other() -> None:
    deadlines = Deadlines()
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await idle()
        finally:
            try:
                with deadlines.until(3.0, Late):
                    await idle()
            except Late:
                seen.append("late")

    task = asyncio.create_task(tidy())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["late"]


@virtual_clock
async def test_a_task_that_ends_its_own_wait_goes_on_behind_it() -> None:
    deadlines = Deadlines()
    with deadlines.until(100.0, Late) as wait:
        wait.end()
    await asyncio.sleep(1)
    with pytest.raises(Late), deadlines.until(100.0, Late) as wait:
        wait.end()
        raise ConnectionError
    await asyncio.sleep(1)


@virtual_clock
async def test_an_error_that_a_cancellation_was_turned_into_is_told_as_late() -> None:
    deadlines = Deadlines()
    with pytest.raises(Late), deadlines.until(1.0, Late):
        try:
            await idle()
        except asyncio.CancelledError:
            raise ConnectionError from None


#: Tenths of a second, at each of which the one timer looks, so that ends, cancels and the work's own end meet in one.
_AT = st.integers(0, 12)


@dataclass(frozen=True)
class Story:
    """Waits, the outermost first, and when each is due; work inside them that takes so long, and so long to leave.

    `ends`: (when, the wait that somebody ends). `cancels`: when the task is cancelled.
    """

    due: Sequence[int]
    work: int
    leaves: int
    ends: Sequence[tuple[int, int]]
    cancels: Sequence[int]


class Told:
    """A story as it happens, on the virtual clock."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.deadlines = Deadlines()
        self.waits: list[Wait] = []
        #: Cancellations that came before its end, and what the task counted of them when it was outside of all waits.
        self.arrived = 0
        self.counted: int | None = None
        self.task = asyncio.create_task(self._whole())

    async def _whole(self) -> str:
        try:
            return await self._inside(0)
        finally:
            self.counted = self.task.cancelling()

    async def _inside(self, depth: int) -> str:
        if depth < len(self.story.due):
            with self.deadlines.until(self.story.due[depth] / 10, lambda: Late(depth)) as wait:
                self.waits.append(wait)
                return await self._inside(depth + 1)
        try:
            await asyncio.sleep(self.story.work / 10)
        finally:
            if self.story.leaves:
                await asyncio.sleep(self.story.leaves / 10)
        return "whole"

    def _cancel(self) -> None:
        self.arrived += self.task.cancel()

    def _end(self, number: int) -> None:
        if number < len(self.waits):
            self.waits[number].end()

    async def tell(self) -> None:
        loop = asyncio.get_running_loop()
        for at in self.story.cancels:
            loop.call_at(at / 10, self._cancel)
        for at, number in self.story.ends:
            loop.call_at(at / 10, self._end, number)
        done, _ = await asyncio.wait([self.task], timeout=100)
        assert done, "it never ended"
        assert not self.deadlines.waits
        self.deadlines.close()

    def check(self) -> None:
        if self.counted is not None:
            assert self.counted == self.arrived, "a wait kept its cancellation, or took another's back"
        assert self.task.cancelled() == (self.arrived > 0), "a cancellation was swallowed, or came from nowhere"
        if self.task.cancelled():
            return
        error = self.task.exception()
        if error is None:
            assert self.task.result() == "whole"
            return
        assert isinstance(error, Late)
        ended = [wait._ended for wait in self.waits]
        assert ended.index(True) == error.args[0], "the outermost one that ended says why"


@given(
    st.builds(
        Story,
        due=st.lists(st.integers(1, 12), min_size=1, max_size=3),
        work=_AT,
        leaves=st.integers(0, 3),
        ends=st.lists(st.tuples(_AT, st.integers(0, 2)), max_size=3),
        cancels=st.lists(_AT, max_size=2),
    )
)
def test_nested_waits_end_in_their_own_errors_and_a_cancellation_always_arrives(story: Story) -> None:
    async def main() -> None:
        told = Told(story)
        await told.tell()
        told.check()

    clock.run(main())
