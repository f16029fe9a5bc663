"""FairQueue: who of those that wait is next, among many tenants with many members. Pure.

Groups take turns, one ticket each, whoever has how many waiting; one that comes, or comes back, goes behind those
that wait. Within a group the order is:

1. rank, lower first: `priority + floor(asked / aging)`, fixed when a ticket is added, so that whoever comes more than
   `(priority + 1) * aging` seconds later never overtakes it;
2. the member that was served longest ago, as far as that is remembered;
3. arrival.

What is kept is bounded by what waits: a group without tickets is forgotten, and so are members when many of a group
wait for nothing. Cost: O(log n) amortised for each call, n = members of that group that wait; O(groups) for a group's
last ticket.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class _Member:
    """`line` is a heap of (rank, arrival, ticket), gone ones too. `turn` is that of the last one that was served."""

    line: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: int = 0
    turn: int = 0


@dataclass(slots=True)
class _Group:
    """`order` holds an entry (rank, turn, arrival, member) for the head of each member's line, and outdated ones."""

    members: dict[str, _Member] = field(default_factory=dict)
    order: list[tuple[int, int, int, str]] = field(default_factory=list)
    waiting: int = 0


#: Idle members, and outdated entries, that a group may keep beside four for each that waits.
_SPARE = 64


class FairQueue:
    """At most `most` tickets wait, `most_each` of one group. `aging` is in seconds."""

    def __init__(self, *, most: int, most_each: int, aging: float = 30.0) -> None:
        self._most = most
        self._most_each = most_each
        self._aging = aging
        self._groups: dict[str, _Group] = {}
        self._turns: deque[str] = deque()
        self._where: dict[int, tuple[str, str]] = {}
        self._arrivals = 0
        self._served = 0

    def __len__(self) -> int:
        return len(self._where)

    def waiting(self, group: str) -> int:
        """How many tickets of this group wait."""
        known = self._groups.get(group)
        return 0 if known is None else known.waiting

    def add(self, ticket: int, group: str, member: str, *, priority: int, now: float) -> bool:
        """Let a ticket wait. False where the queue, or the group's part of it, is full. Raises `ValueError` twice."""
        if ticket in self._where:
            raise ValueError(f"ticket {ticket} waits already")
        if len(self._where) >= self._most or self.waiting(group) >= self._most_each:
            return False
        own = self._groups.get(group)
        if own is None:
            own = self._groups[group] = _Group()
            self._turns.append(group)
        line = own.members.setdefault(member, _Member())
        self._arrivals += 1
        rank = priority + int(now // self._aging)
        self._where[ticket] = (group, member)
        own.waiting += 1
        line.waiting += 1
        heappush(line.line, (rank, self._arrivals, ticket))
        if line.line[0][1] == self._arrivals:
            heappush(own.order, (rank, line.turn, self._arrivals, member))
        return True

    def first(self) -> int | None:
        """The ticket that is next; it stays."""
        return self._head(self._groups[self._turns[0]]) if self._turns else None

    def pop(self) -> int | None:
        """Take the next ticket out: its group goes behind the others, its member behind those of the group."""
        ticket = self.first()
        if ticket is None:
            return None
        group, member = self._where[ticket]
        self._turns.rotate(-1)
        self._served += 1
        self._groups[group].members[member].turn = self._served
        self.remove(ticket)
        return ticket

    def remove(self, ticket: int) -> None:
        """Take a ticket out, wherever it stands; harmless if it does not wait."""
        where = self._where.pop(ticket, None)
        if where is None:
            return
        group, member = where
        own = self._groups[group]
        line = own.members[member]
        own.waiting -= 1
        line.waiting -= 1
        if not own.waiting:
            self._forget(group)
            return
        if line.waiting:
            while line.line[0][2] not in self._where:
                heappop(line.line)
            rank, arrival, _ = line.line[0]
            heappush(own.order, (rank, line.turn, arrival, member))
        else:
            line.line.clear()
        if max(len(own.members), len(own.order)) > _SPARE + 4 * own.waiting:
            self._tidy(own)

    def _head(self, group: _Group) -> int:
        while True:
            rank, turn, arrival, member = group.order[0]
            line = group.members.get(member)
            if line is not None and line.waiting and line.turn == turn and line.line[0][:2] == (rank, arrival):
                return line.line[0][2]
            heappop(group.order)

    def _tidy(self, group: _Group) -> None:
        """Outdated entries go, and with them members and tickets that wait no more."""
        group.members = {name: line for name, line in group.members.items() if line.waiting}
        for line in group.members.values():
            line.line = sorted(entry for entry in line.line if entry[2] in self._where)
        group.order = sorted(
            (line.line[0][0], line.turn, line.line[0][1], name) for name, line in group.members.items()
        )

    def _forget(self, name: str) -> None:
        """A group without waiting tickets leaves the round."""
        del self._groups[name]
        if self._turns[-1] == name:  # it was just served
            self._turns.pop()
        else:
            self._turns.remove(name)
