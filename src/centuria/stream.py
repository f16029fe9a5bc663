"""The spine: one event stream for each run. Publishing never waits; the journal sees a fact before anyone else does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from centuria.core.progress import Progress
from centuria.events import Event, Record, TextDelta
from centuria.ports import Journal


class Publisher(Protocol):
    """Where slots and gates tell what they decide: a run's `Stream`, or gauges that keep nothing of it."""

    def publish(self, *events: Event) -> int: ...


@dataclass(frozen=True, slots=True)
class Gap:
    """A reader was too slow: records up to `seq` were skipped for it. `Stream.progress` holds what they came to."""

    seq: int


Item = Record | TextDelta | Gap


class Subscription:
    """One reader's bounded view of the stream, from now on. Iterate it; it ends when the stream closes."""

    def __init__(self, bound: int, *, deltas: bool) -> None:
        self._bound = bound
        self._deltas = deltas
        self._items: deque[Item] = deque()
        self._lagged_to = 0
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    def _offer(self, items: Sequence[Record | TextDelta]) -> None:
        if self._deltas and len(self._items) + len(items) <= self._bound:
            self._items.extend(items)
        else:
            for item in items:
                if isinstance(item, TextDelta) and (not self._deltas or len(self._items) >= self._bound):
                    continue
                if len(self._items) >= self._bound:
                    self._shed(item)
                self._items.append(item)
        self._rouse()

    def _shed(self, newest: Record | TextDelta) -> None:
        """Drop deltas; if facts alone fill the bound, drop all and remember that there is a gap."""
        facts: deque[Item] = deque(item for item in self._items if not isinstance(item, TextDelta))
        if len(facts) >= self._bound:
            facts.clear()
            self._lagged_to = newest.seq - 1 if isinstance(newest, Record) else self._lagged_to
        self._items = facts

    @property
    def waiting(self) -> int:
        """How many items are held for it."""
        return len(self._items)

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _close(self) -> None:
        self._closed = True
        self._rouse()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            if self._lagged_to:
                seq, self._lagged_to = self._lagged_to, 0
                return Gap(seq)
            if self._items:
                return self._items.popleft()
            if self._closed:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None


class Feed:
    """What readers of a run have: the fold so far, and a subscription to what follows."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._readers: list[Subscription] = []
        self._closed = False

    def relay(self, record: Record) -> None:
        """Show a record that is kept already: this is how a second process watches a run."""
        self.progress.record(record)
        self._show([record])

    def subscribe(self, *, bound: int = 10_000, deltas: bool = True) -> Subscription:
        """A reader of everything from now on, holding at most `bound` items for it."""
        reader = Subscription(bound, deltas=deltas)
        if self._closed:
            reader._close()
        else:
            self._readers.append(reader)
        return reader

    def unsubscribe(self, reader: Subscription) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        reader._close()

    def close(self) -> None:
        """End every subscription, later ones too, after what it still holds."""
        self._closed = True
        for reader in self._readers:
            reader._close()
        self._readers.clear()

    def _show(self, items: Sequence[Record | TextDelta]) -> None:
        for reader in self._readers:
            reader._offer(items)


class Stream(Feed):
    """Facts and deltas of one run. `clock` gives seconds since 1970; `seq` is the number of the last record."""

    def __init__(self, journal: Journal, *, clock: Callable[[], float], progress: Progress, seq: int = 0) -> None:
        super().__init__(progress)
        self.seq = seq
        self._journal = journal
        self._clock = clock

    def publish(self, *events: Event) -> int:
        """Number and journal the facts together, or not at all, then show everything to all readers.

        Returns the number of the last record. Raises `JournalError` when facts can no longer be kept.
        """
        at, seq = self._clock(), self.seq
        items: list[Record | TextDelta] = []
        records: list[Record] = []
        for event in events:
            if isinstance(event, TextDelta):
                items.append(event)
            else:
                seq += 1
                records.append(record := Record(seq, at, event))
                items.append(record)
        if records:
            self._journal.append(records)
            self.seq = seq
            for record in records:
                self.progress.record(record)
        if self._readers:
            self._show(items)
        return seq

    def durable(self, seq: int | None = None) -> Coroutine[Any, Any, None]:
        """Return when everything up to `seq` (default: published so far) is on disk."""
        return self._journal.durable(self.seq if seq is None else seq)
