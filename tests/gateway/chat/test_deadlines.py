"""Time-outs of many waits: late only when late, and a cancellation from outside always has the last word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

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
    with pytest.raises(Late):
        with deadlines.until(5.0, Late):
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
    with pytest.raises(Late):
        with deadlines.until(100.0, Late) as wait:
            wait.end()
            raise ConnectionError
    await asyncio.sleep(1)


@virtual_clock
async def test_an_error_that_a_cancellation_was_turned_into_is_told_as_late() -> None:
    deadlines = Deadlines()
    with pytest.raises(Late):
        with deadlines.until(1.0, Late):
            try:
                await idle()
            except asyncio.CancelledError:
                raise ConnectionError from None


#: Waits from the outermost on: when each is due; each block works for so long when nothing ends it.
_TIMES = st.lists(st.integers(1, 12), min_size=1, max_size=3)
#: What befalls the task from outside: (tick, wait that is ended, or None: the task is cancelled).
_EVENTS = st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 2))), max_size=4)


@given(due=_TIMES, events=_EVENTS, work=st.integers(0, 12), slow=st.integers(0, 3))
def test_nested_waits_end_in_their_own_errors_and_a_cancellation_always_arrives(
    due: Sequence[int], events: Sequence[tuple[int, int | None]], work: int, slow: int
) -> None:
    """Every due time is at a tick of the one timer, so that ends, cancels and the work's own end meet in one tick."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines()
        waits: list[Wait] = []
        left: list[int] = []

        async def level(depth: int) -> str:
            if depth == len(due):
                try:
                    await asyncio.sleep(work / 10)
                finally:
                    if slow:  # as transports that close
                        await asyncio.sleep(slow / 10)
                return "whole"
            own = type(f"Late{depth}", (Late,), {"depth": depth})
            with deadlines.until(due[depth] / 10, own) as wait:
                waits.append(wait)
                try:
                    return await level(depth + 1)
                finally:
                    left.append(depth)

        cancels = sorted(at for at, wait in events if wait is None)
        counts: list[int] = []

        async def whole() -> str:
            try:
                return await level(0)
            finally:
                task = asyncio.current_task()
                assert task is not None
                counts.append(task.cancelling())

        task = asyncio.create_task(whole())
        arrived = 0

        def cancel() -> None:
            nonlocal arrived
            arrived += task.cancel()

        for at, wait in events:
            if wait is None:
                loop.call_at(at / 10, cancel)
            else:
                loop.call_at(at / 10, lambda number=wait: waits[number].end() if number < len(waits) else None)
        done, _ = await asyncio.wait([task], timeout=100)
        assert done, "it never ended"
        assert not deadlines._waits
        if arrived:
            assert task.cancelled(), "a cancellation was swallowed"
        elif task.cancelled():
            raise AssertionError("a cancellation came from nowhere")
        elif task.exception() is not None:
            error = task.exception()
            assert isinstance(error, Late)
            depth = error.depth  # type: ignore[attr-defined]
            assert waits[depth]._ended
            assert not any(wait._ended for wait in waits[:depth])
        else:
            assert task.result() == "whole"
        if counts:
            assert counts[0] == arrived, "a wait did not take back its cancellation, or another's"
        else:
            assert cancels and cancels[0] == 0
        with suppress(asyncio.CancelledError, Late):
            await task
        deadlines.close()

    clock.run(main())
