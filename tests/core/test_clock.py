"""Virtual time: no waiting, exact timers, real order, and a clear error in place of a hang."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from centuria.testing import clock
from centuria.testing.clock import Deadlock, VirtualClockLoop, virtual_clock


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_day_of_sleep_takes_no_time_and_the_clock_is_exact() -> None:
    async def main() -> list[float]:
        seen = [now()]
        for seconds in (0.1, 30.0, 86_400.0 * 10):
            await asyncio.sleep(seconds)
            seen.append(now())
        return seen

    began = time.monotonic()
    assert clock.run(main()) == [0.0, 0.1, 30.1, 864_030.1]
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("start", [0.0, 12.5, 1.8e9, 4e15])
def test_timers_fire_wherever_the_clock_starts(start: float) -> None:
    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            for seconds in (3, 1, 2):
                group.create_task(asyncio.sleep(seconds))
        return now()

    assert clock.run(main(), start=start) == start + 3


def test_tasks_wake_in_the_order_of_their_timers() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def wake(seconds: int) -> None:
            await asyncio.sleep(seconds)
            assert now() == seconds
            order.append(seconds)

        async with asyncio.TaskGroup() as group:
            for seconds in (5, 1, 4, 2, 3):
                group.create_task(wake(seconds))
        return order

    assert clock.run(main()) == [1, 2, 3, 4, 5]


@virtual_clock
async def test_time_stands_still_while_anything_is_ready() -> None:
    timer = asyncio.create_task(asyncio.sleep(1))
    for _ in range(1000):
        await asyncio.sleep(0)
        assert now() == 0
    await timer
    assert now() == 1


@virtual_clock
async def test_a_timeout_fires_on_the_second() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(45):
            await asyncio.Event().wait()
    assert now() == 45


@virtual_clock
async def test_a_timer_that_was_cancelled_does_not_move_the_clock() -> None:
    async with asyncio.timeout(1000):
        await asyncio.sleep(1)
    await asyncio.sleep(1)
    assert now() == 2


def test_a_deadlock_is_an_error_that_names_what_waits() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(7)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever(), name="left-fork")
            group.create_task(wait_for_ever(), name="right-fork")

    with pytest.raises(Deadlock, match=r"At 7 s nothing is ready .* 3 task") as error:
        clock.run(main())
    assert "left-fork at " in str(error.value) and "right-fork at " in str(error.value)
    assert "test_clock.py" in str(error.value)


def test_a_timer_at_infinity_is_no_timer() -> None:
    with pytest.raises(Deadlock):
        clock.run(asyncio.sleep(float("inf")))


def test_after_a_deadlock_every_task_is_still_cleaned_up() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append("yes")

    with pytest.raises(Deadlock):
        clock.run(main())
    assert cleaned == ["yes"]


@virtual_clock
async def test_work_in_a_thread_takes_no_virtual_time() -> None:
    timer = asyncio.create_task(asyncio.sleep(10))
    gate = threading.Event()
    threading.Timer(0.05, gate.set).start()
    assert await asyncio.to_thread(gate.wait, 30)
    assert now() == 0
    await timer
    assert now() == 10


@virtual_clock
async def test_call_soon_threadsafe_reaches_the_loop() -> None:
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(called.set,))
    thread.start()
    thread.join()
    await called.wait()
    assert now() == 0


def test_exceptions_and_results_pass_through() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        clock.run(fail())
    assert clock.run(asyncio.sleep(3, "result")) == "result"


def test_the_loop_can_be_used_with_a_runner_of_ones_own() -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(asyncio.sleep(2))
        runner.run(asyncio.sleep(3))
        assert runner.get_loop().time() == 5


@pytest.mark.parametrize("number", [1, 2])
@virtual_clock
async def test_the_decorator_keeps_the_arguments_of_a_test(number: int) -> None:
    await asyncio.sleep(number)
    assert now() == number
