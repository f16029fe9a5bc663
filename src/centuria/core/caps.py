"""The tree of caps and the lines of those who wait at them: the inside of `money.Ledger`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from centuria.messages import Pico


class Node:
    """One cap and what its subtree came to. `path` leads from here to the root, both included."""

    __slots__ = ("cap", "held", "name", "path", "reserved", "spent")

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = name
        self.cap: Pico | None = None
        self.spent: Pico = 0
        self.reserved: Pico = 0
        self.held: Pico = 0
        self.path: tuple[Node, ...] = (self, *parent.path) if parent else (self,)

    @property
    def parent(self) -> str | None:
        return self.path[1].name if len(self.path) > 1 else None

    def hopeless(self, amount: Pico) -> bool:
        return self.cap is not None and self.spent + self.held + amount > self.cap

    def full(self, amount: Pico) -> bool:
        return self.cap is not None and self.spent + self.held + self.reserved + amount > self.cap


@dataclass(frozen=True, slots=True)
class Ask:
    node: Node
    amount: Pico


class Lines:
    """Where each waiter stands: an index of the ledger's waiters, never a state of its own.

    Holds are numbered in order of arrival, so a heap of holds is a FIFO line. Entries of waiters that went
    elsewhere linger until they come to the front.
    """

    def __init__(self, waiting: Mapping[int, Ask]) -> None:
        self._waiting = waiting
        self._standing: dict[int, Node] = {}
        self._lines: dict[str, list[int]] = {}
        self._largest: dict[str, list[tuple[int, int]]] = {}

    def add(self, hold: int, ask: Ask, at: Node) -> None:
        """A new waiter stands at this node."""
        self.stand(hold, at)
        for node in ask.node.path:
            asks = self._largest.setdefault(node.name, [])
            heappush(asks, (-ask.amount, hold))
            if len(asks) > 64 + 2 * len(self._waiting):
                asks[:] = [entry for entry in asks if entry[1] in self._waiting]
                heapify(asks)

    def stand(self, hold: int, at: Node) -> None:
        if self._standing.get(hold) is not at:
            self._standing[hold] = at
            heappush(self._lines.setdefault(at.name, []), hold)

    def leave(self, hold: int) -> Node | None:
        return self._standing.pop(hold, None)

    def first(self, node: Node) -> int | None:
        line = self._lines.get(node.name)
        while line and self._standing.get(line[0]) is not node:
            heappop(line)
        return line[0] if line else None

    def obstacle(self, hold: int, ask: Ask) -> Node | None:
        """The first cap on the way up that stops this request, or None."""
        for node in ask.node.path:
            first = self.first(node)
            if node.full(ask.amount) or (first is not None and first < hold):
                return node
        return None

    def hopeless(self, nodes: Iterable[Node]) -> list[int]:
        """The waiters that these caps will never let pass, in order of arrival."""
        found: set[int] = set()
        for node in nodes:
            asks = self._largest.get(node.name)
            while asks and (asks[0][1] not in self._waiting or node.hopeless(-asks[0][0])):
                hold = heappop(asks)[1]
                if hold in self._waiting:
                    found.add(hold)
        return sorted(found)
