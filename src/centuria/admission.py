"""The shells of what is scarce, slots and money: they ask a pure core, publish its answer, and act on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from centuria.core.money import Ledger
from centuria.core.slots import SlotTable
from centuria.errors import BudgetExceeded, SlotRefused
from centuria.events import Event, Fact, MoneyRefused, MoneyReserved, SlotGranted, SlotRejected
from centuria.messages import Pico
from centuria.stream import Stream


class Slots:
    """Tickets for every resource of a run: agents, model calls, tool calls."""

    def __init__(self, table: SlotTable, stream: Stream) -> None:
        self.table = table
        self._stream = stream
        self._tickets = count(1)
        self._waiters: dict[int, asyncio.Future[SlotGranted]] = {}

    def set_limit(self, resource: str, limit: int, reason: str) -> None:
        """Change how many may run at once, now; what is in service is not disturbed."""
        self._act(self.table.set_limit(resource, limit, reason, now=self._now()))

    @asynccontextmanager
    async def hold(
        self, resource: str, *, agent: str, index: int = 0, priority: int = 5, patience: float | None = None
    ) -> AsyncIterator[SlotGranted]:
        """Hold one slot for the length of the block, having waited `patience` seconds at most.

        Raises `SlotRefused`.
        """
        ticket = next(self._tickets)
        waiter: asyncio.Future[SlotGranted] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        now = self._now()
        deadline = None if patience is None else now + patience
        try:
            self._act(
                self.table.ask(ticket, resource, agent, index=index, priority=priority, now=now, deadline=deadline)
            )
            if not waiter.done():
                try:
                    async with asyncio.timeout(patience):
                        await waiter
                except TimeoutError:
                    raise SlotRefused(
                        f"No slot of {resource} came free within {patience:g} s.",
                        remedy="Raise its limit, or the queue's time-out.",
                    ) from None
            yield waiter.result()
        finally:
            del self._waiters[ticket]
            self._act(self.table.leave(ticket, now=self._now()))

    def _act(self, events: Sequence[Fact]) -> None:
        if events:
            self._stream.publish(*events)
        for event in events:
            if isinstance(event, SlotGranted):
                self._wake(event)
            elif isinstance(event, SlotRejected):
                waiter = self._waiters.get(event.ticket)
                if waiter is not None and not waiter.done():
                    waiter.set_exception(SlotRefused(f"No slot of {event.resource}: {event.reason}."))

    def _wake(self, event: SlotGranted) -> None:
        waiter = self._waiters.get(event.ticket)
        if waiter is not None and not waiter.done():
            waiter.set_result(event)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class Money:
    """Reservations against the tree of caps. Whoever holds one ends it: settle, forfeit or release, exactly once."""

    def __init__(self, ledger: Ledger, stream: Stream) -> None:
        self.ledger = ledger
        self._stream = stream
        self._holds = count(ledger.last_hold + 1)
        self._waiters: dict[int, asyncio.Future[None]] = {}

    def set_cap(self, node: str, cap: Pico | None, *, parent: str | None = None) -> None:
        self._act(self.ledger.set_cap(node, cap, parent=parent))

    async def reserve(self, node: str, amount: Pico) -> int:
        """Reserve at every cap from `node` up, waiting for what is only reserved. Returns the number of the hold.

        Raises `BudgetExceeded` with what would be affordable.
        """
        hold = next(self._holds)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[hold] = waiter
        try:
            self._act(self.ledger.reserve(hold, node, amount))
            await waiter
        except BaseException:
            # Given up while waiting, or granted in the very tick of the cancellation: either way nothing was sent.
            self._act(self.ledger.release(hold))
            raise
        finally:
            del self._waiters[hold]
        return hold

    def settle(self, hold: int, cost: Pico, *also: Event) -> None:
        """The reservation cost this much; `also` is published in the same transaction."""
        self._act(self.ledger.settle(hold, cost), also)

    def forfeit(self, hold: int, *also: Event) -> None:
        """The attempt was lost: its whole reservation stays held."""
        self._act(self.ledger.forfeit(hold), also)

    def release(self, hold: int, *also: Event) -> None:
        """The reservation cost nothing."""
        self._act(self.ledger.release(hold), also)

    def _act(self, events: Sequence[Fact], also: Sequence[Event] = ()) -> None:
        if events or also:
            self._stream.publish(*also, *events)
        for event in events:
            if isinstance(event, MoneyReserved | MoneyRefused):
                waiter = self._waiters.get(event.hold)
                if waiter is None or waiter.done():
                    continue
                if isinstance(event, MoneyReserved):
                    waiter.set_result(None)
                else:
                    waiter.set_exception(
                        BudgetExceeded(
                            f"The cap of {event.limited_by} leaves no room for this call.",
                            affordable=event.affordable,
                            node=event.limited_by,
                            remedy="Raise it in [limits], or with --budget, and resume the run.",
                        )
                    )
