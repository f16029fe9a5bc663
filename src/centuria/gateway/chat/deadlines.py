"""Time-outs of many waits with one timer between them all.

    with deadlines.within(30, late) as wait:
        await something                       # raises what `late()` gives, 30 s from now

A timer of its own for each wait costs ten microseconds, more than all else that a wait does; here it costs one. A wait
ends up to a tenth of a second late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

#: Seconds between two looks at all that wait.
TICK = 0.1


class Deadlines:
    """Every wait of one event loop. The timer runs while there is one."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        #: Those that have begun and not ended.
        self.waits: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def until(self, at: float, late: Callable[[], Exception]) -> Wait:
        """A wait that ends when the loop's clock says `at`, with the error that `late` makes then."""
        return Wait(self, at, late)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self.loop.time()
        for wait in [wait for wait in self.waits if wait.at <= now]:
            wait.end()
        self._timer = self.loop.call_later(TICK, self._look) if self.waits else None

    def add(self, wait: Wait) -> None:
        """It has begun. Whatever ends it takes it out of `waits`."""
        self.waits.add(wait)
        if self._timer is None:
            self._timer = self.loop.call_later(TICK, self._look)


class Wait:
    """One wait, for the length of a `with`, once."""

    __slots__ = ("_cancelling", "_cancels", "_deadlines", "_ended", "_late", "_task", "at")

    def __init__(self, deadlines: Deadlines, at: float, late: Callable[[], Exception]) -> None:
        self._deadlines = deadlines
        self._late = late
        self._ended = self._cancels = False
        #: While it lasts.
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.at = at

    def end(self) -> None:
        """End it now. Does nothing to one that has not begun, or is over."""
        task = self._task
        if self._ended or task is None:
            return
        self._ended = True
        self._deadlines.waits.discard(self)
        # A task that runs would meet its own cancellation behind the block.
        if task is not asyncio.current_task(self._deadlines.loop):
            self._cancels = task.cancel()

    def __enter__(self) -> Wait:
        task = self._task = asyncio.current_task(self._deadlines.loop)
        self._cancelling = 0 if task is None else task.cancelling()
        self._deadlines.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.waits.discard(self)
        task, self._task = self._task, None
        # Whoever made this wait may keep it: each would hold the other until the garbage collector finds them.
        late, self._late = self._late, _over
        if not self._ended or task is None:
            return
        if self._cancels and task.uncancel() > self._cancelling:
            return  # somebody else cancelled it too, and has the last word
        if isinstance(error, asyncio.CancelledError | Exception):
            raise late() from None


def _over() -> Exception:
    return RuntimeError("a wait is for one block")
