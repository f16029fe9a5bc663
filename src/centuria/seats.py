"""The slot of `agents` that a subagent holds while it works, and gives back while it waits for others."""

from __future__ import annotations

from collections.abc import Callable

from centuria.admission import Hold, Slots
from centuria.core.tallies import AGENTS

#: Whoever comes back from waiting goes before all that have not begun: it is nearer to its end.
_RETURNING = 1000


class Seat:
    """One agent's seat. `await take()` before it works; `leave()` and `await back()` around each of its waits.

    `priority()` is asked whenever it queues. Waits may overlap: the seat is free from the first `leave` to the last
    `back`. `moved(n)` is told of every change in the number of agents at work. `close` ends it, whatever its state.
    """

    def __init__(
        self, slots: Slots, task: str, index: int, priority: Callable[[], int], moved: Callable[[int], None]
    ) -> None:
        self._slots = slots
        self._task = task
        self._index = index
        self._priority = priority
        self._moved = moved
        self._slot: Hold | None = None
        self._away = 0

    async def take(self) -> None:
        await self._take(self._priority())

    def leave(self) -> None:
        """A wait begins."""
        self._away += 1
        if self._away == 1:
            self._give_up()
            self._moved(-1)

    async def back(self) -> None:
        """A wait is over; after the last one, return when there is a seat again."""
        self._away -= 1
        if self._away == 0:
            self._moved(1)
            await self._take(self._priority() - _RETURNING)

    def close(self) -> None:
        """Give up the seat, or the waits that it was left for."""
        self._give_up()
        if self._away:
            self._away = 0
            self._moved(1)

    async def _take(self, priority: int) -> None:
        slot = self._slot = self._slots.hold(AGENTS, agent=self._task, index=self._index, priority=priority)
        try:
            await slot.take()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.leave()
