"""SlotTable: who may run now, who waits, and who is next. Pure; for subagents, model calls and tool calls alike.

A ticket is asked for and is granted, queued or rejected at once; it is left exactly once (twice is harmless). A
resource has slots 0..limit-1. Agent *i* tries its home slots i, i+1, i+2 first, so that it tends to meet a warm
session; where those are taken, any free slot is its own in the same step. No slot is free while anyone waits.

The order in the queue:

1. Effective priority, lower first. All waiting tickets of a table are raised by one together, each time its
   clock passes a multiple of `aging` seconds. The rank `priority + floor(asked_at / aging)` is therefore
   fixed when a ticket is asked for, and whoever asks more than `(priority + 1) * aging` seconds later never
   overtakes it.
2. Fairness: among equal ranks, the agent with the fewest calls in service on this resource.
3. Arrival.

Cost: O(log n) amortised for each event, n = agents waiting for that resource; `set_limit` O(log n) for each
ticket that it grants; `expire`, `waiting_tickets` and `snapshot` read everything that waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from centuria.events import (
    Event,
    Fact,
    LimitSet,
    RunResumed,
    SlotGranted,
    SlotLeft,
    SlotQueued,
    SlotRejected,
)


@dataclass(frozen=True, slots=True)
class _Waiter:
    asked: SlotQueued
    rank: int
    arrival: int

    def late(self, now: float) -> bool:
        return self.asked.deadline is not None and now >= self.asked.deadline


@dataclass(slots=True)
class _Agent:
    """One agent's part of one resource. `line` is a heap of (rank, arrival, ticket); gone tickets linger in it."""

    in_service: int = 0
    waiting: int = 0
    line: list[tuple[int, int, int]] = field(default_factory=list)


class _Resource:
    """The slots and the queue of one resource.

    The queue is a heap with one live entry for each waiting agent: its first ticket, at the number of its
    calls in service. Whenever either changes a new entry is pushed; an old one is known by its number or its
    gone ticket, and dropped when it surfaces or when dead entries outnumber the living.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.held: dict[int, SlotGranted] = {}
        self.waiters: dict[int, _Waiter] = {}
        self._slot_of: dict[int, int] = {}
        self._agents: dict[str, _Agent] = {}
        self._queue: list[tuple[int, int, int, int, str]] = []
        self._arrivals = 0
        # Free slots: those at or above `_unused` that are not held, and those below it that `_free` lists.
        self._unused = 0
        self._free: list[int] = []
        self._listed: set[int] = set()

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.limit

    # Looking. Dead entries are dropped on the way, which changes no answer.

    def home_slot(self, index: int, tries: int) -> int:
        """The first free home slot, else any free slot. Needs room."""
        for attempt in range(min(tries, self.limit)):
            slot = (index + attempt) % self.limit
            if slot not in self.held:
                return slot
        # The lowest that is listed is below the limit: with room, a free slot below it exists.
        while self._free and self._free[0] in self.held:
            self._listed.discard(heappop(self._free))
        if self._free:
            return self._free[0]
        while self._unused in self.held:
            self._unused += 1
        return self._unused

    def first(self) -> _Waiter | None:
        """Who is next."""
        while self._queue:
            _, in_service, arrival, ticket, agent = self._queue[0]
            waiter = self.waiters.get(ticket)
            if waiter is not None and waiter.arrival == arrival and self._agents[agent].in_service == in_service:
                return waiter
            heappop(self._queue)
        return None

    # Changing: from `apply` alone.

    def enqueue(self, asked: SlotQueued, rank: int) -> None:
        self._arrivals += 1
        self.waiters[asked.ticket] = _Waiter(asked, rank, self._arrivals)
        agent = self._agents.setdefault(asked.agent, _Agent())
        agent.waiting += 1
        heappush(agent.line, (rank, self._arrivals, asked.ticket))
        if agent.line[0][1] == self._arrivals:
            self._show(asked.agent, agent)

    def dequeue(self, ticket: int) -> None:
        waiter = self.waiters.pop(ticket, None)
        if waiter is None:
            return
        agent = self._agents[waiter.asked.agent]
        agent.waiting -= 1
        if agent.line[0][1] == waiter.arrival:
            heappop(agent.line)
            self._show(waiter.asked.agent, agent)
        elif len(agent.line) > 16 + 2 * agent.waiting:
            agent.line = [entry for entry in agent.line if self._waits(entry)]
            heapify(agent.line)

    def seat(self, granted: SlotGranted) -> None:
        self.held[granted.slot] = granted
        self._slot_of[granted.ticket] = granted.slot
        agent = self._agents.get(granted.agent)
        if agent is None:
            agent = self._agents[granted.agent] = _Agent()
        agent.in_service += 1
        if agent.line:
            self._show(granted.agent, agent)

    def unseat(self, ticket: int) -> None:
        slot = self._slot_of.pop(ticket, None)
        if slot is None:
            return
        name = self.held.pop(slot).agent
        agent = self._agents[name]
        agent.in_service -= 1
        if agent.line or not agent.in_service:
            self._show(name, agent)
        if slot < self._unused and slot not in self._listed:
            self._listed.add(slot)
            heappush(self._free, slot)

    def _waits(self, entry: tuple[int, int, int]) -> bool:
        waiter = self.waiters.get(entry[2])
        return waiter is not None and waiter.arrival == entry[1]

    def _show(self, name: str, agent: _Agent) -> None:
        """Put the agent's first ticket into the queue as things are now; forget an agent that has nothing here."""
        while agent.line and not self._waits(agent.line[0]):
            heappop(agent.line)
        if agent.line:
            rank, arrival, ticket = agent.line[0]
            heappush(self._queue, (rank, agent.in_service, arrival, ticket, name))
            if len(self._queue) > 64 + 2 * len(self._agents):
                self._rebuild()
        elif not agent.in_service:
            del self._agents[name]

    def _rebuild(self) -> None:
        queue = []
        for name, agent in self._agents.items():
            while agent.line and not self._waits(agent.line[0]):
                heappop(agent.line)
            if agent.line:
                rank, arrival, ticket = agent.line[0]
                queue.append((rank, agent.in_service, arrival, ticket, name))
        heapify(queue)
        self._queue = queue


class SlotTable:
    """Every limited resource of a run. `ask`, `leave`, `set_limit` and `expire` decide, apply and return the facts.

    `now` is any clock that never goes back, in seconds. `home_tries` is how many home slots are tried;
    `aging` is in seconds, `math.inf` for none; a resource's queue holds `queue_cap` tickets at most.
    """

    def __init__(self, *, home_tries: int = 3, aging: float = 10.0, queue_cap: int = 100_000) -> None:
        if not aging > 0:
            raise ValueError("aging is in seconds and above zero; math.inf is for none")
        self._home_tries = home_tries
        self._aging = aging
        self._queue_cap = queue_cap
        self._resources: dict[str, _Resource] = {}
        self._tickets: dict[int, str] = {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def set_limit(self, resource: str, limit: int, reason: str, *, now: float) -> list[Fact]:
        """Give the resource this many slots; 0 pauses it. What is in service above it runs on."""
        if limit < 0:
            raise ValueError(f"the limit of {resource} cannot be {limit}")
        events: list[Fact] = [self._applied(LimitSet(resource, limit, reason))]
        return events + self._serve(resource, now)

    def ask(
        self,
        ticket: int,
        resource: str,
        agent: str,
        *,
        index: int,
        priority: int,
        now: float,
        deadline: float | None,
    ) -> list[Fact]:
        """Exactly one of `SlotGranted`, `SlotQueued`, `SlotRejected`.

        `index` chooses the home slot. `deadline` is by when the wait must be over: at `deadline == now` the ticket is
        granted at once or rejected. Raises `ValueError` for an unknown resource and for a ticket that is in use.
        """
        place = self._place(resource)
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} is in use")
        if deadline is not None and now > deadline:
            return [self._reject(ticket, resource, agent, "its deadline had passed", now)]
        if place.has_room and not place.waiters:
            slot = place.home_slot(index, self._home_tries)
            return [self._applied(SlotGranted(ticket, resource, slot, agent, now))]
        if deadline is not None and now >= deadline:
            return [self._reject(ticket, resource, agent, "none is free and it may not wait", now)]
        if len(place.waiters) >= self._queue_cap:
            reason = f"{self._queue_cap} wait for it already, which is the cap"
            return [self._reject(ticket, resource, agent, reason, now)]
        return [self._applied(SlotQueued(ticket, resource, agent, index, priority, now, deadline))]

    def take(self, ticket: int, resource: str, agent: str, *, index: int, now: float) -> SlotGranted | None:
        """A slot without a wait; None, and nothing is changed, where `ask` would have it wait. Raises as `ask` does."""
        place = self._place(resource)
        if place.waiters or len(place.held) >= place.limit:
            return None
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} is in use")
        granted = SlotGranted(ticket, resource, place.home_slot(index, self._home_tries), agent, now)
        self.apply(granted)
        return granted

    def leave(self, ticket: int, *, now: float, told: bool = True) -> list[Fact]:
        """Give the slot back, or the place in the queue; whoever is next has the slot in the same step.

        `told` False: nobody heard that it was taken, and the facts are those of the others alone.
        """
        resource = self._tickets.get(ticket)
        if resource is None:
            return []
        events: list[Fact] = []
        if told:
            events.append(self._applied(SlotLeft(ticket, resource, now)))
        else:
            self._left(ticket, resource)
        if self._resources[resource].waiters:
            events += self._serve(resource, now)
        return events

    def expire(self, *, now: float) -> list[Fact]:
        """Reject every waiter whose deadline has passed."""
        late = [
            waiter.asked for place in self._resources.values() for waiter in place.waiters.values() if waiter.late(now)
        ]
        return [self._reject_late(asked, now) for asked in late]

    def _serve(self, resource: str, now: float) -> list[Fact]:
        place = self._resources[resource]
        events: list[Fact] = []
        while place.has_room and (waiter := place.first()) is not None:
            asked = waiter.asked
            if waiter.late(now):
                events.append(self._reject_late(asked, now))
                continue
            slot = place.home_slot(asked.index, self._home_tries)
            granted = SlotGranted(asked.ticket, resource, slot, asked.agent, now, now - asked.at)
            events.append(self._applied(granted))
        return events

    def _reject_late(self, asked: SlotQueued, now: float) -> Fact:
        return self._reject(asked.ticket, asked.resource, asked.agent, "its deadline passed while it waited", now)

    def _reject(self, ticket: int, resource: str, agent: str, reason: str, now: float) -> Fact:
        return self._applied(SlotRejected(ticket, resource, agent, reason, now))

    def _applied(self, event: Fact) -> Fact:
        self.apply(event)
        return event

    # -- state --------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Where the table changes, but for a slot that is left in silence.

        A resumed run is a new process: the tickets of the old are gone.
        """
        if isinstance(event, SlotGranted):
            place = self._place(event.resource)
            if place.waiters:
                place.dequeue(event.ticket)
            place.seat(event)
            self._tickets[event.ticket] = event.resource
        elif isinstance(event, SlotLeft):
            self._left(event.ticket, event.resource)
        elif isinstance(event, SlotQueued):
            rank = event.priority + math.floor(event.at / self._aging)
            self._place(event.resource).enqueue(event, rank)
            self._tickets[event.ticket] = event.resource
        elif isinstance(event, SlotRejected):
            self._place(event.resource).dequeue(event.ticket)
            self._tickets.pop(event.ticket, None)
        elif isinstance(event, LimitSet):
            self._resources.setdefault(event.resource, _Resource()).limit = event.limit
        elif isinstance(event, RunResumed):
            self._forget_tickets()

    def _left(self, ticket: int, resource: str) -> None:
        place = self._place(resource)
        if place.waiters:
            place.dequeue(ticket)
        place.unseat(ticket)
        self._tickets.pop(ticket, None)

    def _forget_tickets(self) -> None:
        self._tickets.clear()
        for name, old in self._resources.items():
            self._resources[name] = _Resource()
            self._resources[name].limit = old.limit

    def _place(self, resource: str) -> _Resource:
        place = self._resources.get(resource)
        if place is None:
            raise ValueError(f"no limit was set for {resource!r}")
        return place

    def forget(self, resource: str) -> bool:
        """Drop a resource that nobody has or waits for; False where somebody does."""
        place = self._resources.get(resource)
        if place is None or place.held or place.waiters:
            return False
        del self._resources[resource]
        return True

    # -- questions ----------------------------------------------------------------------------------------------------

    def resources(self) -> tuple[str, ...]:
        """In the order in which their limits were first set."""
        return tuple(self._resources)

    def limit(self, resource: str) -> int:
        return self._place(resource).limit

    def in_use(self, resource: str) -> int:
        return len(self._place(resource).held)

    def waiting(self, resource: str) -> int:
        """How many tickets are queued."""
        return len(self._place(resource).waiters)

    def waiting_tickets(self, resource: str) -> tuple[SlotQueued, ...]:
        """The queued tickets in order of arrival."""
        return tuple(waiter.asked for waiter in self._place(resource).waiters.values())

    def holders(self, resource: str) -> Mapping[int, SlotGranted]:
        """Slot -> who has it; after a lowering also slots at or above the limit."""
        return dict(self._place(resource).held)

    def snapshot(self) -> dict[str, Any]:
        """All state that decides what happens next, as plain data."""
        return {
            name: {
                "limit": place.limit,
                "held": {slot: (grant.ticket, grant.agent) for slot, grant in sorted(place.held.items())},
                "queue": [(waiter.asked, waiter.rank) for waiter in place.waiters.values()],
            }
            for name, place in self._resources.items()
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SlotTable):
            return NotImplemented
        return self._tickets == other._tickets and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]
