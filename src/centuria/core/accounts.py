"""One key's money in one gateway: what is leased, what of it is reserved, and who waits. Pure.

A gateway spends of a lease that its store made durable ahead. `reserved <= lease` as long as no attempt costs more than
its reservation; one that does makes the lease smaller, below zero if need be, and the next lease pays for it.

Who does not fit waits, first come first served: nobody who came later passes. A waiter is refused the moment that it
would not fit even with nothing reserved, the rest of the budget leased, and nobody before it.

Cost: O(log n) for each event and decision, n = waiters.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from centuria.messages import DOLLAR, Pico

#: What a lease is at least, where the budget has it.
LEAST_LEASE: Pico = DOLLAR // 20
_HUNDREDTH = 100


def lease_size(left: Pico, least: Pico, wanted: Pico) -> Pico:
    """How much of what is `left` of a budget to lease: `wanted`, or $0.05, or 1 % of what is left, the largest of them.

    All that is left where it is less than that; 0 where not even `least` is left.
    """
    if left < least or left <= 0:
        return 0
    return min(left, max(least, wanted, LEAST_LEASE, left // _HUNDREDTH))


@dataclass(frozen=True, slots=True)
class Ask:
    """What the store is to lease: `least` lets the first waiter go on, `wanted` all of them."""

    least: Pico
    wanted: Pico


@dataclass(frozen=True, slots=True)
class Decision:
    """A waiter waits no more: its money is reserved, or it never will be."""

    ticket: int
    amount: Pico
    granted: bool


class Account:
    """`limited` False: a key without a budget, which needs no lease; what it reserves is counted all the same.

    Amounts are pico-dollars, never below 0. Tickets are the caller's numbers, each used once.
    """

    def __init__(self, *, limited: bool) -> None:
        self.limited = limited
        self.lease: Pico = 0
        self.reserved: Pico = 0
        #: What of the budget is leased to nobody, as the store last said. None: not known.
        self.left: Pico | None = None
        #: In order; taking the first of many out of a plain dict again and again would be quadratic.
        self._waiting: OrderedDict[int, Pico] = OrderedDict()
        self._wanted: Pico = 0
        #: The waiters, the largest first; who has left is passed over.
        self._largest: list[tuple[Pico, int]] = []

    # -- decisions ----------------------------------------------------------------------------------------------------

    def take(self, amount: Pico) -> bool:
        """Reserve this now, if there is room and nobody waits for it. Nothing is always granted."""
        if amount and self.limited and (self._waiting or amount > self.lease - self.reserved):
            return False
        self.reserved += amount
        return True

    def wait(self, ticket: int, amount: Pico) -> list[Decision]:
        """Stand in line, unless it is refused or granted at once. Raises `ValueError` for a ticket that waits."""
        if ticket in self._waiting:
            raise ValueError(f"ticket {ticket} waits already")
        self._waiting[ticket] = amount
        self._wanted += amount
        heappush(self._largest, (-amount, ticket))
        return self._decide()

    def leave(self, ticket: int) -> list[Decision]:
        """Wait no more. `[]` for a ticket that does not wait."""
        if ticket not in self._waiting:
            return []
        self._drop(ticket)
        return self._decide()

    def settle(self, amount: Pico, cost: Pico) -> list[Decision]:
        """A reservation of `amount` is over and cost this much."""
        self.reserved -= amount
        if self.limited:
            self.lease -= cost
        return self._decide() if self._waiting else []

    def release(self, amount: Pico) -> list[Decision]:
        """A reservation is over and cost nothing."""
        self.reserved -= amount
        return self._decide() if self._waiting else []

    def extended(self, granted: Pico, left: Pico) -> list[Decision]:
        """The store's answer to an ask: what it leased more, and what it could still."""
        self.lease += granted
        self.left = left
        return self._decide()

    def empty(self) -> list[int]:
        """Nobody can be served: all waiters leave. Returns their tickets."""
        tickets = list(self._waiting)
        self._waiting.clear()
        self._largest.clear()
        self._wanted = 0
        return tickets

    def give_back(self) -> None:
        """What is leased goes back to the store. Raises `ValueError` while anything is reserved or anybody waits."""
        if self.reserved or self._waiting:
            raise ValueError("a lease that is in use cannot go back")
        self.lease = 0
        self.left = None

    def _decide(self) -> list[Decision]:
        decisions: list[Decision] = []
        if self.limited and self.left is not None:
            most = self.lease + self.left
            while self._largest and (self._largest[0][1] not in self._waiting or -self._largest[0][0] > most):
                _, ticket = heappop(self._largest)
                if ticket in self._waiting:
                    decisions.append(Decision(ticket, self._drop(ticket), granted=False))
        while self._waiting:
            ticket, amount = next(iter(self._waiting.items()))
            if self.limited and amount > self.lease - self.reserved:
                break
            self._drop(ticket)
            self.reserved += amount
            decisions.append(Decision(ticket, amount, granted=True))
        return decisions

    def _drop(self, ticket: int) -> Pico:
        amount = self._waiting.pop(ticket)
        self._wanted -= amount
        if len(self._largest) > 2 * len(self._waiting) + 64:
            self._largest = [(-each, number) for number, each in self._waiting.items()]
            heapify(self._largest)
        return amount

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self) -> Ask | None:
        """What to ask of the store now. None: nobody waits, or the store has not even that."""
        if not self._waiting:
            return None
        room = self.lease - self.reserved
        least = next(iter(self._waiting.values())) - room
        if self.left is not None and self.left < least:
            return None
        return Ask(least, self._wanted - room)

    @property
    def affordable(self) -> Pico:
        """What one reservation could be at most, with nothing else reserved; as far as is known."""
        return max(0, self.lease + (self.left or 0))

    @property
    def waiting(self) -> tuple[int, ...]:
        """The tickets that wait, in order."""
        return tuple(self._waiting)
