"""The shells of what is scarce, slots and money: they ask a pure core, publish its answer, and act on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType

from centuria.core.money import Ledger
from centuria.core.slots import SlotTable
from centuria.errors import BudgetExceeded, SlotRefused
from centuria.events import Event, Fact, MoneyRefused, MoneyReserved, SlotGranted, SlotRejected
from centuria.messages import Pico
from centuria.stream import Publisher, Stream


@dataclass(frozen=True, eq=False, slots=True)
class Ticket:
    """A place in a queue, or a slot once `granted` is done. Whoever asked for it leaves it, on every way out."""

    number: int
    resource: str
    granted: asyncio.Future[SlotGranted]


class Slots:
    """Tickets for every resource of a run: agents, model calls, tool calls, leased sessions."""

    def __init__(self, table: SlotTable, stream: Publisher) -> None:
        self.table = table
        self._stream = stream
        self._tickets = count(1)
        self._waiters: dict[int, asyncio.Future[SlotGranted]] = {}
        self._clock: Callable[[], float] | None = None

    def set_limit(self, resource: str, limit: int, reason: str) -> None:
        """Change how many may run at once, now; what is in service is not disturbed."""
        self._act(self.table.set_limit(resource, limit, reason, now=self._now()))

    def hold(
        self, resource: str, *, agent: str, index: int = 0, priority: int = 5, patience: float | None = None
    ) -> Hold:
        """One slot for the length of an `async with`, having waited `patience` seconds at most.

        Entering raises `SlotRefused`.
        """
        return Hold(self, next(self._tickets), resource, agent, index, priority, patience)

    async def _take(self, hold: Hold) -> SlotGranted:
        now, patience = self._now(), hold.patience
        [event] = self.table.ask(
            hold.ticket,
            hold.resource,
            hold.agent,
            index=hold.index,
            priority=hold.priority,
            now=now,
            deadline=None if patience is None else now + patience,
        )
        self._stream.publish(event)
        if isinstance(event, SlotGranted):
            return event
        if isinstance(event, SlotRejected):
            raise _refused(event)
        waiter: asyncio.Future[SlotGranted] = asyncio.get_running_loop().create_future()
        self._waiters[hold.ticket] = waiter
        try:
            async with asyncio.timeout(hold.patience):
                return await waiter
        except TimeoutError:
            raise too_late(hold.resource, hold.patience) from None
        finally:
            del self._waiters[hold.ticket]

    def _leave(self, hold: Hold) -> None:
        facts = self.table.leave(hold.ticket, now=self._now(), told=hold.untold is None)
        hold.untold = None
        if facts:
            self._act(facts)

    def ask(
        self, resource: str, *, agent: str, index: int = 0, priority: int = 5, patience: float | None = None
    ) -> Ticket:
        """A ticket that is granted now or in its turn. Whoever waits for it bounds the wait, and leaves it."""
        number = next(self._tickets)
        ticket = Ticket(number, resource, asyncio.get_running_loop().create_future())
        self._waiters[number] = ticket.granted
        now = self._now()
        deadline = None if patience is None else now + patience
        try:
            self._act(
                self.table.ask(number, resource, agent, index=index, priority=priority, now=now, deadline=deadline)
            )
        except BaseException:
            self.leave(ticket)
            raise
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the slot, or the place in the queue, back; harmless if that was done."""
        if self._waiters.pop(ticket.number, None) is not None:
            self._act(self.table.leave(ticket.number, now=self._now()))

    def _act(self, events: Sequence[Fact]) -> None:
        if events:
            self._stream.publish(*events)
        for event in events:
            if isinstance(event, SlotGranted | SlotRejected):
                waiter = self._waiters.get(event.ticket)
                if waiter is None or waiter.done():
                    continue
                if isinstance(event, SlotGranted):
                    waiter.set_result(event)
                else:
                    waiter.set_exception(_refused(event))

    def _now(self) -> float:
        if self._clock is None:  # of the one loop of this run
            self._clock = asyncio.get_running_loop().time
        return self._clock()


class Hold:
    """One ticket: `take` a slot, once, and `leave` it, in the queue or in service; leaving again does nothing.

    A slot that was taken `at_once` is no fact of its own (`untold`): whoever took it says in another fact that it has
    it, or has it told after all.
    """

    __slots__ = ("_slots", "agent", "granted", "index", "patience", "priority", "resource", "ticket", "untold")

    def __init__(
        self, slots: Slots, ticket: int, resource: str, agent: str, index: int, priority: int, patience: float | None
    ) -> None:
        self._slots = slots
        self.ticket = ticket
        self.resource = resource
        self.agent = agent
        self.index = index
        self.priority = priority
        self.patience = patience
        self.granted: SlotGranted | None = None
        self.untold: SlotGranted | None = None

    def at_once(self) -> bool:
        """Take the slot if no wait is needed, in silence; else nothing is changed, and `take` may follow."""
        slots = self._slots
        granted = slots.table.take(self.ticket, self.resource, self.agent, index=self.index, now=slots._now())
        self.granted = self.untold = granted
        return granted is not None

    def tell(self) -> None:
        """Make a fact of a slot that was taken in silence: it is held for longer than for one call."""
        granted, self.untold = self.untold, None
        if granted is not None:
            self._slots._stream.publish(granted)

    async def take(self) -> SlotGranted:
        """Wait for the slot. Raises `SlotRefused`. Whatever it raises, `leave` follows."""
        self.granted = await self._slots._take(self)
        return self.granted

    def leave(self) -> None:
        self._slots._leave(self)

    async def __aenter__(self) -> SlotGranted:
        try:
            return await self.take()
        except BaseException:
            self.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def _refused(event: SlotRejected) -> SlotRefused:
    return SlotRefused(
        f"No slot of {event.resource}: {event.reason}.", remedy="Raise its limit, or let fewer agents work at once."
    )


def too_late(resource: str, patience: float | None) -> SlotRefused:
    """What is said to one that waited for as long as it may."""
    return SlotRefused(
        f"No slot of {resource} came free within {patience:g} s.", remedy="Raise its limit, or the queue's time-out."
    )


class Money:
    """Reservations against the tree of caps. Whoever holds one ends it: settle, forfeit or release, exactly once.

    With a `purse`, what several runs share, each reservation is made there too, after its own: the order is fixed, so
    that no two wait crosswise. `stream` None: nothing is published.
    """

    def __init__(self, ledger: Ledger, stream: Stream | None, purse: Purse | None = None) -> None:
        self.ledger = ledger
        self._stream = stream
        self._purse = purse
        self._holds = count(ledger.last_hold + 1)
        self._waiters: dict[int, asyncio.Future[None]] = {}
        #: By our hold: the purse's for the same call.
        self._shared: dict[int, int] = {}

    def set_cap(self, node: str, cap: Pico | None, *, parent: str | None = None) -> None:
        self._act(self.ledger.set_cap(node, cap, parent=parent))

    async def reserve(self, node: str, amount: Pico) -> int:
        """Reserve at every cap from `node` up, waiting for what is only reserved. Returns the number of the hold.

        Raises `BudgetExceeded` with what would be affordable.
        """
        hold = next(self._holds)
        events = self.ledger.reserve(hold, node, amount)
        waiter: asyncio.Future[None] | None = None
        if not isinstance(events[-1], MoneyReserved):
            waiter = self._waiters[hold] = asyncio.get_running_loop().create_future()
        try:
            self._act(events)
            if waiter is not None:
                await waiter
        except BaseException:
            # Given up while waiting, or granted in the very tick of the cancellation: either way nothing was sent.
            self._act(self.ledger.release(hold))
            raise
        finally:
            self._waiters.pop(hold, None)
        if self._purse is not None:
            try:
                self._shared[hold] = await self._purse.money.reserve(_PURSE, amount)
            except BaseException:
                self._act(self.ledger.release(hold))
                raise
        return hold

    def settle(self, hold: int, cost: Pico, *also: Event) -> None:
        """The reservation cost this much; `also` is published in the same transaction."""
        self._act(self.ledger.settle(hold, cost), also)
        if self._purse is not None and hold in self._shared:
            self._purse.money.settle(self._shared.pop(hold), cost)

    def forfeit(self, hold: int, *also: Event) -> None:
        """The attempt was lost: its whole reservation stays held."""
        self._act(self.ledger.forfeit(hold), also)
        if self._purse is not None and hold in self._shared:
            self._purse.money.forfeit(self._shared.pop(hold))

    def release(self, hold: int, *also: Event) -> None:
        """The reservation cost nothing."""
        self._act(self.ledger.release(hold), also)
        if self._purse is not None and hold in self._shared:
            self._purse.money.release(self._shared.pop(hold))

    def used(self, node: str) -> float:
        """The spent part of a node's own cap, or of the purse where more of that is; 0.0 without a cap."""
        cap = self.ledger.cap(node)
        own = self.ledger.spent(node) / cap if cap else 0.0
        return own if self._purse is None else max(own, self._purse.money.used(_PURSE))

    def unspent(self, node: str) -> Pico | None:
        """What of a node's own cap is neither spent nor held, or what is this run's share of that in the purse, if it
        is less. None: there is no cap."""
        cap = self.ledger.cap(node)
        left = None if cap is None else cap - self.ledger.spent(node) - self.ledger.held(node)
        shared = None if self._purse is None else self._purse.money.unspent(_PURSE)
        if self._purse is None or shared is None:
            return left
        share = shared // max(1, self._purse.runs)
        return share if left is None else min(left, share)

    def _act(self, events: Sequence[Fact], also: Sequence[Event] = ()) -> None:
        if self._stream is not None and (events or also):
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


#: The only node of a purse, as its refusals call it.
_PURSE = "all runs together"


class Purse:
    """One cap over several runs of this process at once; `runs` of them still work. It is in no journal: what it holds
    is what their own journals say, added up."""

    def __init__(self, cap: Pico | None, *, runs: int) -> None:
        self.money = Money(Ledger(), None)
        self.money.set_cap(_PURSE, cap)
        self.runs = runs
