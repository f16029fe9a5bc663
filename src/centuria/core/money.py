"""The Ledger: reserve, then settle, forfeit or release, at every cap of a tree; the bound of a prompt. Pure.

All money is integer pico-dollars. A node counts its whole subtree: limits are inherited and only tighten:

    spent + reserved + held <= cap     at every node, as long as no call costs more than its reservation

A call that does cost more is written down as it is; `overrun` shows by how much a cap was then passed.

Waiting. A request that does not fit now, but would with nothing reserved, waits. The line is FIFO at each
cap: a waiter stands at the first cap on its way up (its own first, the root last) where it does not fit or
where someone who came earlier stands, and nobody who came later passes that cap. So a big request is not
overtaken for ever by small ones, and a waiter that only its own subtree's cap holds up stands in nobody
else's way. A waiter is refused the moment that it would not fit even with nothing reserved.

Cost: O(depth x log n) for each event and each grant, n = waiters.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from centuria.core.caps import Ask, Lines, Node
from centuria.errors import JournalError
from centuria.events import (
    CapSet,
    Event,
    Fact,
    MoneyHeld,
    MoneyQueued,
    MoneyRefused,
    MoneyReleased,
    MoneyReserved,
    MoneySettled,
)
from centuria.messages import Pico


class Ledger:
    """The tree of caps, its open reservations and its waiters.

    Holds are numbered by the caller, each higher than `last_hold`. Every hold is ended once, by `settle`,
    `forfeit` or `release`; ending it again, or one that never was, gives `[]`.
    """

    def __init__(self) -> None:
        self.last_hold = 0
        self._nodes: dict[str, Node] = {}
        self._open: dict[int, Ask] = {}
        self._waiting: dict[int, Ask] = {}
        self._lines = Lines(self._waiting)
        #: Events were folded in since the lines were last in order.
        self._stale = False

    # -- decisions ----------------------------------------------------------------------------------------------------

    def set_cap(self, node: str, cap: Pico | None, *, parent: str | None = None) -> list[Fact]:
        """Make a node, or change its cap (None: no cap of its own) and keep its totals.

        `parent` None leaves a known node where it is and makes a new one a root. Raises `ValueError` for an
        unknown parent, a node that is to move, or a negative cap.
        """
        known = self._nodes.get(node)
        if cap is not None and cap < 0:
            raise ValueError(f"The cap of {node} is negative: {cap}.")
        if parent is not None and (parent not in self._nodes or (known and known.parent != parent)):
            raise ValueError(f"{node} cannot be put under {parent}: unknown, or {node} has another place already.")
        if known and known.cap == cap:
            return []
        event = CapSet(node, known.parent if known else parent, cap)
        self._change(event)
        return [event, *(self._line_up() if known or self._stale else [])]

    def reserve(self, hold: int, node: str, amount: Pico) -> list[Fact]:
        """Ask for money at every cap from `node` up: `MoneyReserved`, `MoneyQueued` or `MoneyRefused`.

        Nothing is always granted. Raises `ValueError` for an unknown node, a negative amount, a used number.
        """
        where = self._nodes.get(node)
        if where is None:
            raise ValueError(f"{node} is not a node of the tree of caps.")
        if amount < 0 or hold <= self.last_hold:
            raise ValueError(f"Hold {hold} over {amount}: negative, or its number was used before.")
        facts = self._line_up() if self._stale else []
        ask = Ask(where, amount)
        event: Fact
        obstacle: Node | None = None
        if amount and any(each.hopeless(amount) for each in where.path):
            event = self._refusal(hold, ask)
        elif amount and (obstacle := self._lines.obstacle(hold, ask)):
            event = MoneyQueued(hold, node, amount)
        else:
            event = MoneyReserved(hold, node, amount)
        self._change(event)
        if obstacle is not None:
            self._lines.add(hold, ask, obstacle)
        return [*facts, event]

    def settle(self, hold: int, cost: Pico) -> list[Fact]:
        """The reservation is over and cost this much. Raises `ValueError`: a cost below 0, one who waits."""
        if cost < 0:
            raise ValueError(f"Hold {hold} cannot have cost {cost}.")
        return self._end(hold, MoneySettled(hold, cost))

    def forfeit(self, hold: int) -> list[Fact]:
        """The attempt was lost: all of its reservation stays held. Raises `ValueError` for one who waits."""
        return self._end(hold, MoneyHeld(hold))

    def release(self, hold: int) -> list[Fact]:
        """Nothing was spent, or the wait is given up."""
        ask = self._waiting.get(hold)
        if ask is None:
            return self._end(hold, MoneyReleased(hold))
        event = MoneyReleased(hold)
        stood = self._lines.leave(hold)
        self._change(event)
        return [event, *self._rearrange([stood] if stood else [])]

    def recover(self) -> list[Fact]:
        """After a crash, when the calls in doubt are held: release all that waits or is reserved.

        Nobody is left who waits, and a reservation without a call in doubt never left.
        """
        facts: list[Fact] = [MoneyReleased(hold) for hold in sorted([*self._waiting, *self._open])]
        for event in facts:
            self.apply(event)
        return facts

    def _end(self, hold: int, event: MoneySettled | MoneyHeld | MoneyReleased) -> list[Fact]:
        if hold in self._waiting:
            raise ValueError(f"Hold {hold} still waits: it can only be released.")
        ask = self._open.get(hold)
        if ask is None:
            return []
        self._change(event)
        return [event, *self._rearrange(ask.node.path)]

    # -- the waiters --------------------------------------------------------------------------------------------------

    def _rearrange(self, changed: Iterable[Node]) -> list[Fact]:
        """Refuse and grant what a change at these nodes has decided; all others stand where they stood."""
        if self._stale:
            return self._line_up()
        nodes = list(changed)
        facts: list[Fact] = []
        for hold in self._lines.hopeless(nodes):
            stood = self._lines.leave(hold)
            facts.append(self._refuse(hold))
            if stood is not None:
                nodes.append(stood)
        return facts + self._advance(nodes)

    def _advance(self, nodes: Iterable[Node]) -> list[Fact]:
        """Let the first of each of these lines go on, oldest first: to its money or to the next obstacle."""
        facts: list[Fact] = []
        moving = {node.name: node for node in nodes}
        heap = [(first, name) for name, node in moving.items() if (first := self._lines.first(node)) is not None]
        heapify(heap)
        while heap:
            hold, name = heappop(heap)
            node = moving[name]
            if self._lines.first(node) == hold:
                ask = self._waiting[hold]
                obstacle = self._lines.obstacle(hold, ask)
                if obstacle is node:
                    continue
                if obstacle is None:
                    self._lines.leave(hold)
                    facts.append(self._grant(hold))
                else:
                    self._lines.stand(hold, obstacle)
            following = self._lines.first(node)
            if following is not None:
                heappush(heap, (following, name))
        return facts

    def _line_up(self) -> list[Fact]:
        """Put every waiter in its place anew, after a change of a cap or after a replay."""
        facts: list[Fact] = []
        self._stale = False
        self._lines = Lines(self._waiting)
        for hold, ask in sorted(self._waiting.items(), key=lambda item: item[0]):
            if any(node.hopeless(ask.amount) for node in ask.node.path):
                facts.append(self._refuse(hold))
        for hold, ask in sorted(self._waiting.items(), key=lambda item: item[0]):
            obstacle = self._lines.obstacle(hold, ask)
            if obstacle is None:
                facts.append(self._grant(hold))
            else:
                self._lines.add(hold, ask, obstacle)
        return facts

    def _grant(self, hold: int) -> Fact:
        ask = self._waiting[hold]
        event = MoneyReserved(hold, ask.node.name, ask.amount)
        self._change(event)
        return event

    def _refuse(self, hold: int) -> Fact:
        event = self._refusal(hold, self._waiting[hold])
        self._change(event)
        return event

    @staticmethod
    def _refusal(hold: int, ask: Ask) -> MoneyRefused:
        rooms = [(node.cap - node.spent - node.held, node) for node in ask.node.path if node.cap is not None]
        room, node = min(rooms, key=lambda pair: pair[0])  # the nearest of equals
        return MoneyRefused(hold, ask.node.name, ask.amount, max(0, room), node.name)

    # -- facts --------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event that another ledger decided."""
        self._stale = True
        self._change(event)

    def _change(self, event: Event) -> None:
        match event:
            case CapSet(name, parent, cap):
                if name not in self._nodes:
                    self._nodes[name] = Node(name, self._node(parent) if parent is not None else None)
                self._nodes[name].cap = cap
            case MoneyQueued(hold, name, amount):
                self._waiting[hold] = Ask(self._node(name), amount)
                self.last_hold = max(self.last_hold, hold)
            case MoneyReserved(hold, name, amount):
                self._waiting.pop(hold, None)
                self._open[hold] = Ask(self._node(name), amount)
                self.last_hold = max(self.last_hold, hold)
                for node in self._open[hold].node.path:
                    node.reserved += amount
            case MoneyRefused(hold):
                self._waiting.pop(hold, None)
                self.last_hold = max(self.last_hold, hold)
            case MoneySettled(hold, cost):
                self._close(hold, spent=cost)
            case MoneyHeld(hold):
                self._close(hold, held=True)
            case MoneyReleased(hold):
                self._waiting.pop(hold, None)
                self._close(hold)
            case _:
                pass

    def _close(self, hold: int, *, spent: Pico = 0, held: bool = False) -> None:
        ask = self._open.pop(hold, None)
        if ask is None:
            return
        for node in ask.node.path:
            node.reserved -= ask.amount
            node.spent += spent
            node.held += ask.amount if held else 0

    def _node(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise JournalError(f"The journal speaks of the cap {name}, which was never set.") from None

    # -- queries ------------------------------------------------------------------------------------------------------

    def spent(self, node: str) -> Pico:
        """What the calls of this subtree cost. 0 for a node that is unknown, here and below."""
        return self._nodes[node].spent if node in self._nodes else 0

    def reserved(self, node: str) -> Pico:
        return self._nodes[node].reserved if node in self._nodes else 0

    def held(self, node: str) -> Pico:
        """What the lost calls of this subtree may have cost."""
        return self._nodes[node].held if node in self._nodes else 0

    def cap(self, node: str) -> Pico | None:
        """The node's own cap; those above it hold as well (`left` knows)."""
        return self._nodes[node].cap if node in self._nodes else None

    def left(self, node: str) -> Pico | None:
        """What could be reserved here now, at every cap on the way up. None: there is no cap."""
        path = self._nodes[node].path if node in self._nodes else ()
        rooms = [each.cap - each.spent - each.reserved - each.held for each in path if each.cap is not None]
        return max(0, min(rooms)) if rooms else None

    def overrun(self, node: str) -> Pico:
        """By how much what was spent, held and reserved here is above the node's cap."""
        where = self._nodes.get(node)
        if where is None or where.cap is None:
            return 0
        return max(0, where.spent + where.reserved + where.held - where.cap)

    def open_holds(self) -> tuple[int, ...]:
        """The reservations that were not ended yet."""
        return tuple(sorted(self._open))

    def waiting(self) -> tuple[int, ...]:
        """The holds that wait, in order of arrival."""
        return tuple(sorted(self._waiting))

    def snapshot(self) -> dict[str, Any]:
        """All of the state, comparable."""
        return {
            "last_hold": self.last_hold,
            "nodes": {
                node.name: (node.parent, node.cap, node.spent, node.reserved, node.held)
                for node in self._nodes.values()
            },
            "open": {hold: (ask.node.name, ask.amount) for hold, ask in self._open.items()},
            "waiting": {hold: (ask.node.name, ask.amount) for hold, ask in self._waiting.items()},
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]


class PromptBound:
    """An upper bound of the tokens of one model's prompts, from the size of the encoded request body.

    A byte-level tokenizer never makes more than one token of a byte, so the bound is `size + overhead`, all in UTF-8
    bytes; `overhead` is what the provider's own template adds, and grows if more than that is ever seen.
    """

    def __init__(self, *, overhead: int = 512) -> None:
        self._overhead = overhead

    def observe(self, size: int, prompt_tokens: int) -> None:
        """A body of `size` bytes was a prompt of this many tokens."""
        self._overhead = max(self._overhead, prompt_tokens - size)

    def bound(self, size: int) -> int:
        """The most tokens that a body of `size` bytes can be."""
        return size + self._overhead
