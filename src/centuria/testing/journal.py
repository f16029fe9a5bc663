"""A journal without a disk, for tests: what is not durable can be held back, and a commit can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from centuria.codec import decode, encode
from centuria.errors import JournalError
from centuria.events import Record

_Line = tuple[int, float, bytes]


class MemoryJournal:
    """Behaves as `SqliteJournal` does. Records go through the codec: what comes back is what a disk would give.

    Commits at once, or, after `hold()`, only when `flush()` is called: then a test can show that nothing depends on
    what is not durable. With `fail_at` the commit of the batch that holds this record fails, as on a full disk.
    `MemoryJournal(journal.read())` is what a process finds that starts after a crash.
    """

    def __init__(
        self, records: Iterable[Record] = (), *, fail_at: int | None = None, queue_bytes: int = 256 * 2**20
    ) -> None:
        self._lines = [_line(record) for record in records]
        self.last_seq = self._lines[-1][0] if self._lines else 0
        #: Commits so far; a flush of many batches is one.
        self.commits = 0
        self._fail_at = fail_at
        self._room = queue_bytes
        self._held = False
        self._queue: list[_Line] = []
        self._committed = self.last_seq
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._broken = False
        self._refusal = ""
        self._closed = False

    def hold(self) -> None:
        """Commit nothing until `flush`."""
        self._held = True

    def flush(self, *, keep_holding: bool = False) -> None:
        """Commit what waits, and go on committing at once unless `keep_holding`."""
        self._held = keep_holding
        self._commit()

    def fail(self, reason: str = "the disk is full") -> None:
        """From now on nothing is committed any more."""
        self._broken = True
        self._refusal = reason
        self._queue.clear()
        self._wake()

    def append(self, records: Sequence[Record]) -> None:
        if not records:
            return
        lines = [_line(record) for record in records]
        if self._refusal:
            raise self._error()
        if self._closed:
            raise JournalError("The journal is closed.")
        for expected, record in enumerate(records, self.last_seq + 1):
            if record.seq != expected:
                raise ValueError(f"record {record.seq} in place of {expected}")
        size = sum(len(line) for _, _, line in lines)
        if size > self._room:
            self._refusal = "too much waits to be written"
            raise self._error()
        self._room -= size
        self._queue += lines
        self.last_seq = records[-1].seq
        if not self._held:
            self._commit()

    async def durable(self, seq: int) -> None:
        if seq <= self._committed:
            return
        if self._broken or (seq > self.last_seq and self._refusal):
            raise self._error()
        if seq > self.last_seq:
            raise ValueError(f"record {seq} was never appended; the last is {self.last_seq}")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((seq, waiter))
        await waiter

    def read(self, *, after: int = 0) -> Iterator[Record]:
        for seq, at, line in self._lines[after:]:
            yield Record(seq, at, decode(line))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.flush()
        if self._broken:
            raise self._error()

    def _commit(self) -> None:
        if not self._queue or self._broken:
            return
        if self._fail_at is not None and self._queue[-1][0] >= self._fail_at:
            self.fail()
            return
        lines, self._queue = self._queue, []
        self._lines += lines
        self.commits += 1
        self._committed = lines[-1][0]
        self._room += sum(len(line) for _, _, line in lines)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for seq, waiter in waiting:
            if waiter.done():
                continue
            if seq <= self._committed:
                waiter.set_result(None)
            elif self._broken:
                waiter.set_exception(self._error())
            else:
                self._waiters.append((seq, waiter))

    def _error(self) -> JournalError:
        return JournalError(f"The journal cannot be written: {self._refusal}.", remedy="Then: centuria resume.")


def _line(record: Record) -> _Line:
    return record.seq, record.at, encode(record.event)
