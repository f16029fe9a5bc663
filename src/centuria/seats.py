"""The slot of `agents` that a subagent holds while it works, and gives back while it waits for others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from centuria.admission import Slots
from centuria.core.tallies import AGENTS

#: Whoever comes back from waiting goes before all that have not begun: it is nearer to its end.
_RETURNING = 1000


class Seat:
    """One agent's seat. `await take()` before it works; `leave()` and `await back()` around each of its waits.

    Waits may overlap: the seat is free from the first `leave` to the last `back`. `moved(n)` is told of every change
    in the number of agents at work. `close` ends it, whatever its state.
    """

    def __init__(self, slots: Slots, task: str, index: int, priority: int, moved: Callable[[int], None]) -> None:
        self._slots = slots
        self._task = task
        self._index = index
        self._priority = priority
        self._moved = moved
        self._stack = AsyncExitStack()
        self._away = 0

    async def take(self) -> None:
        await self._hold(self._priority)

    async def leave(self) -> None:
        """A wait begins."""
        self._away += 1
        if self._away == 1:
            await self._stack.aclose()
            self._moved(-1)

    async def back(self) -> None:
        """A wait is over; after the last one, return when there is a seat again."""
        self._away -= 1
        if self._away == 0:
            self._moved(1)
            await self._hold(self._priority - _RETURNING)

    async def close(self) -> None:
        """Give up the seat, or the waits that it was left for."""
        await self._stack.aclose()
        if self._away:
            self._away = 0
            self._moved(1)

    async def _hold(self, priority: int) -> None:
        await self._stack.enter_async_context(
            self._slots.hold(AGENTS, agent=self._task, index=self._index, priority=priority)
        )
