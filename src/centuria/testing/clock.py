"""Virtual time: an asyncio event loop that jumps to the next timer when every task waits, instead of sleeping.

`loop.time()` starts where the test says and moves only from timer to timer, so a test of a 45-second time-out
takes no time and gives the same answer always. Where nothing is ready and no timer is set nothing can ever
happen again: `Deadlock` is raised and names what waits.

What it is not for: sockets and subprocesses. They take real time, during which virtual time would run out; wait for
them on an ordinary loop. `call_soon_threadsafe` works, but a thread that nobody announces counts for nothing: if all
tasks wait for it, that is a deadlock. `run_in_executor` and `asyncio.to_thread` are announced: while such a call runs,
the clock stands still and the loop really waits, so it takes no virtual time at all.

    def test_a_silent_stream_ends_after_thirty_seconds():
        async def main():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(30):
                    await asyncio.Event().wait()
            assert asyncio.get_running_loop().time() == 30
        clock.run(main())
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

_SHOWN = 10


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: every task waits for something that no one will do."""


class _JumpingSelector(selectors.BaseSelector):
    """The real selector, asked without waiting; where the loop would wait, `idle(timeout)` is called."""

    def __init__(self, idle: Callable[[float | None], float | None]) -> None:
        self._real = selectors.DefaultSelector()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._real.select(self._idle(timeout))

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time that starts at `start` seconds."""

    def __init__(self, *, start: float = 0.0) -> None:
        self._now = start
        self._in_threads = 0
        super().__init__(_JumpingSelector(self._idle))
        self._fit_resolution()

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        # A runner joins the executor's threads from a thread of its own.
        self._in_threads += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._in_threads -= 1

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def _idle(self, timeout: float | None) -> float | None:
        """Every task waits: jump to the next timer. Returns the real seconds to wait, None for no bound."""
        if self._in_threads:
            return None
        # The loop caps `timeout` at a day and rounds; the timer itself knows exactly when it is due.
        timers = getattr(self, "_scheduled", ())
        due = timers[0].when() if timers else math.inf
        if timeout is None or due == math.inf:
            raise Deadlock(_describe(self))
        self._now = max(self._now, due)
        self._fit_resolution()
        return 0

    def _fit_resolution(self) -> None:
        # A timer runs when it is due before now + resolution; far from zero a nanosecond is less than a float's step.
        self._clock_resolution = max(1e-9, math.ulp(self._now))


def _describe(loop: asyncio.AbstractEventLoop) -> str:
    waiting = [task for task in asyncio.all_tasks(loop) if not task.done()]
    lines = [f"At {loop.time():g} s nothing is ready and no timer is set; {len(waiting)} task(s) wait for ever:"]
    for task in sorted(waiting, key=lambda task: task.get_name())[:_SHOWN]:
        stack = task.get_stack(limit=1)
        where = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "?"
        lines.append(f"  {task.get_name()} at {where}")
    if len(waiting) > _SHOWN:
        lines.append(f"  and {len(waiting) - _SHOWN} more")
    lines.append("Sockets, subprocesses and threads of your own cannot be awaited on virtual time.")
    return "\n".join(lines)


def run(main: Coroutine[Any, Any, T], *, start: float = 0.0) -> T:
    """`asyncio.run` on virtual time. Raises `Deadlock` where it would have hung."""
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(start=start)) as runner:
        return runner.run(main)


def virtual_clock(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an `async def` test: it becomes a plain function that runs on virtual time from 0 on."""

    @wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return on_virtual_time
