"""What slots and gates tell, as counts: nothing here grows with the number of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from centuria.events import Event, GateClosed, GateOpened, LimitSet, SlotGranted, SlotLeft, SlotQueued, SlotRejected

#: The weight of the newest call in how long one holds its slot.
_NEWEST = 0.1


@dataclass(slots=True)
class Gauge:
    """One resource (`server:SLUG`, `tool:NAME`, `lease:SLUG`). `waited` are all seconds that calls waited for a slot,
    `longest` the longest such wait, `holding` for how many seconds a call has its slot, lately."""

    resource: str
    limit: int = 0
    in_use: int = 0
    waiting: int = 0
    granted: int = 0
    rejected: int = 0
    waited: float = 0.0
    longest: float = 0.0
    holding: float = 0.0
    closed: str = ""

    def free_in(self) -> float:
        """Seconds until whoever asks now may have a slot, as far as can be told."""
        return (self.waiting + 1) * (self.holding or 1.0) / max(1, self.limit)


class Gauges:
    """Implements `stream.Publisher`."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        #: Of each ticket that is queued or in service: what it is, and since when it is served.
        self._tickets: dict[int, tuple[Gauge, float | None]] = {}
        self._count = 0

    def of(self, resource: str) -> Gauge:
        return self._gauges.get(resource) or Gauge(resource)

    def all(self) -> Sequence[Gauge]:
        """In the order in which their limits were first set."""
        return tuple(self._gauges.values())

    def open_tickets(self) -> int:
        """How many tickets wait or are served; 0 when nothing runs."""
        return len(self._tickets)

    def publish(self, *events: Event) -> int:
        for event in events:
            self._count += 1
            match event:
                case LimitSet():
                    self._gauge(event.resource).limit = event.limit
                case SlotQueued():
                    self._queued(event)
                case SlotGranted():
                    self._granted(event)
                case SlotLeft():
                    self._left(event)
                case SlotRejected():
                    self._rejected(event)
                case GateClosed():
                    self._gauge(event.model).closed = event.reason
                case GateOpened():
                    self._gauge(event.model).closed = ""
                case _:
                    pass
        return self._count

    def forget(self, resource: str) -> None:
        """Nobody will ask for it any more."""
        self._gauges.pop(resource, None)

    def _gauge(self, resource: str) -> Gauge:
        return self._gauges.setdefault(resource, Gauge(resource))

    def _queued(self, event: SlotQueued) -> None:
        gauge = self._gauge(event.resource)
        gauge.waiting += 1
        self._tickets[event.ticket] = (gauge, None)

    def _granted(self, event: SlotGranted) -> None:
        gauge = self._gauge(event.resource)
        if event.ticket in self._tickets:
            gauge.waiting -= 1
        gauge.in_use += 1
        gauge.granted += 1
        gauge.waited += event.waited
        gauge.longest = max(gauge.longest, event.waited)
        self._tickets[event.ticket] = (gauge, event.at)

    def _left(self, event: SlotLeft) -> None:
        gauge, since = self._tickets.pop(event.ticket, (None, None))
        if gauge is None:
            return
        if since is None:
            gauge.waiting -= 1
            return
        gauge.in_use -= 1
        held = event.at - since
        gauge.holding = held if not gauge.holding else gauge.holding + _NEWEST * (held - gauge.holding)

    def _rejected(self, event: SlotRejected) -> None:
        gauge = self._gauge(event.resource)
        gauge.rejected += 1
        if self._tickets.pop(event.ticket, None) is not None:
            gauge.waiting -= 1
