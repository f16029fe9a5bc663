"""The one writer of a run's journal: append never waits, one thread commits in groups, `durable` says so."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from centuria.codec import SCHEMA, encode
from centuria.errors import JournalError
from centuria.events import Record
from centuria.journal.faults import journal_error
from centuria.journal.opening import current_version, make, reopen
from centuria.journal.place import WriterLock, refuse_network
from centuria.journal.reading import JournalReader
from centuria.journal.tables import Meta, check_file

#: Seconds that the thread waits for more before it ends: an idle journal has no thread.
LINGER = 0.5
#: Seconds between two commits, for what a busy loop publishes meanwhile: however little it writes, a commit takes the
#: interpreter from the loop a dozen times.
GATHER = 0.002
#: Seconds that a commit waits while another program holds the file locked.
PATIENCE = 10.0
#: Characters of encoded events that may wait for the disk.
QUEUE_BYTES = 256 * 2**20

#: Rows that one statement inserts, at most. Before each statement the interpreter is given away and then waited for:
#: row by row, a commit beside a busy loop takes many times as long.
_ROWS = 50
#: The columns of a row: seq, at, kind, event.
_COLUMNS = 4


class SqliteJournal:
    """The journal of one run in one SQLite file: WAL, `synchronous=FULL`, all that waits in one transaction.

    `append` puts a batch into a queue, whole; a thread that exists only while there is work commits
    everything that waits at once. Callers wait in `durable` before they act on a fact, so what can pile up
    is what a run publishes between two such waits. Should more than `queue_bytes` wait all the same (a disk
    that hangs), `append` refuses from then on, as it does when the disk is full: what it took is still
    committed, and the run ends with an error that can be mended, rather than with the machine's memory.

    Once a commit has failed nothing more is written: `append` and `durable` say why. All that was committed stays.
    """

    def __init__(
        self,
        path: Path,
        meta: Meta,
        connection: sqlite3.Connection,
        lock: WriterLock,
        last_seq: int,
        queue_bytes: int,
    ) -> None:
        """For `create` and `open`."""
        self.path = path
        self.meta = meta
        self.last_seq = last_seq
        #: Transactions so far.
        self.commits = 0
        self._connection = connection
        self._lock = lock
        self._room = queue_bytes
        # What the writer's thread and the loop share, all of it under `_mutex`.
        self._mutex = threading.RLock()
        self._change = threading.Condition(self._mutex)
        #: What waits for the disk, value by value: a tuple for each row would be work for the garbage collector.
        self._queue: list[int | float | str] = []
        self._committed = last_seq
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ended = False
        self._refusal: Callable[[], JournalError] | None = None
        self._broken = False
        # The loop's own.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._closers: list[asyncio.Future[None]] = []
        self._order = count()

    @classmethod
    def create(
        cls, path: Path, *, run: str, name: str, queue_bytes: int = QUEUE_BYTES, patience: float = PATIENCE
    ) -> SqliteJournal:
        """Begin a journal and hold it for writing, making its folder; what is there already is never touched.

        A commit waits `patience` seconds while another program holds the file locked. Raises `JournalError`.
        """
        meta = Meta(SCHEMA, run, name, time.time(), current_version())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise journal_error("made", path, error) from error
        refuse_network(path.parent)
        lock = WriterLock(path)
        try:
            connection = make(path, meta, patience)
        except BaseException:
            lock.release()
            raise
        return cls(path, meta, connection, lock, 0, queue_bytes)

    @classmethod
    def open(cls, path: Path, *, queue_bytes: int = QUEUE_BYTES, patience: float = PATIENCE) -> SqliteJournal:
        """Go on with a journal, holding it for writing.

        Raises `JournalError`: the run is running already; the file is damaged (it says from which record on),
        of a newer schema, or no journal.
        """
        check_file(path)
        refuse_network(path.parent)
        lock = WriterLock(path)
        try:
            connection, meta, last_seq = reopen(path, patience)
        except BaseException:
            lock.release()
            raise
        return cls(path, meta, connection, lock, last_seq, queue_bytes)

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        if not records:
            return
        rows: list[int | float | str] = []
        size = 0
        for record in records:
            text = encode(record.event).decode()
            size += len(text)
            rows += (record.seq, record.at, record.event.kind, text)
        with self._mutex:
            if self._refusal is not None:
                raise self._refusal()
            if self._closing:
                raise _closed(self.path)
            for expected, record in enumerate(records, self.last_seq + 1):
                if record.seq != expected:
                    raise ValueError(f"record {record.seq} in place of {expected}")
            if size > self._room:
                self._refusal = lambda: _overrun(self.path)
                raise self._refusal()
            self._ensure_thread()
            self._room -= size
            if not self._queue:  # else the thread knows
                self._change.notify()
            self._queue += rows
            self.last_seq += len(records)

    async def durable(self, seq: int) -> None:
        self._loop = asyncio.get_running_loop()
        with self._mutex:
            if seq <= self._committed:
                return
            if self._broken or (seq > self.last_seq and self._refusal is not None):
                assert self._refusal is not None
                raise self._refusal()
            if seq > self.last_seq:
                raise ValueError(f"record {seq} was never appended; the last is {self.last_seq}")
            waiter = self._loop.create_future()
            heappush(self._waiters, (seq, next(self._order), waiter))
        await waiter

    def read(self, *, after: int = 0) -> Iterator[Record]:
        """The committed records with a higher number, in order.

        Raises `JournalError` at the first that cannot be read, having given all before it.
        """
        with JournalReader(self.path) as reader:
            yield from reader.records(after=after)

    async def aclose(self) -> None:
        """Commit what is queued, close the file and give up the lock. Closing again does nothing.

        Raises `JournalError` where something that `append` took could not be committed.
        """
        self._loop = asyncio.get_running_loop()
        with self._mutex:
            first = not self._closing
            self._closing = True
            closer = None if self._ended else self._loop.create_future()
            if closer is not None:
                self._closers.append(closer)
                self._close_by_thread()
            thread = self._thread
        if closer is not None:
            await closer
        if thread is not None:
            thread.join()  # it has ended, or is about to return
        if first and self._broken and self._refusal is not None:
            raise self._refusal()

    def _wake(self) -> None:
        """After a commit, a failure or the end: let everyone go who needs to wait no longer."""
        with self._mutex:
            committed, broken, ended, refusal = self._committed, self._broken, self._ended, self._refusal
        while self._waiters and (broken or self._waiters[0][0] <= committed):
            seq, _, waiter = heappop(self._waiters)
            if waiter.done():
                continue
            if seq <= committed or refusal is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(refusal())
        if ended:
            for closer in self._closers:
                if not closer.done():
                    closer.set_result(None)
            self._closers.clear()

    # -- the thread's side --------------------------------------------------------------------------------------------

    def _ensure_thread(self) -> None:
        """Called under `_mutex`, for which the new thread then waits."""
        if self._thread is not None:
            return
        # Not a daemon: a program that ends without closing still commits what it published.
        thread = threading.Thread(target=self._write, name="centuria-journal")
        try:
            thread.start()
        except RuntimeError as error:
            raise JournalError(
                f"The journal {self.path} cannot be written: no thread could be started ({error}).",
                remedy="Raise the limit of processes (ulimit -u).",
            ) from error
        self._thread = thread

    def _close_by_thread(self) -> None:
        """Called under `_mutex`. Where no thread can be had there is none, and so nothing that waits."""
        try:
            self._ensure_thread()
        except JournalError:
            self._finish()
        else:
            self._change.notify()

    def _write(self) -> None:
        ended = -GATHER
        while True:
            with self._mutex:
                if not self._queue and not self._closing:
                    self._change.wait(LINGER)
                if not self._queue and not self._closing:
                    self._thread = None
                    return
            time.sleep(max(0.0, ended + GATHER - time.monotonic()))
            with self._mutex:
                rows, self._queue = self._queue, []
            if rows and not self._broken:
                self._commit(rows)
                ended = time.monotonic()
            elif self._closing and not rows:
                self._finish()
                return

    def _commit(self, rows: list[int | float | str]) -> None:
        try:
            self._transact(rows)
        except Exception as error:
            # Whatever it was, those who wait must learn of it: this is the edge of the thread.
            cause = error.with_traceback(None)  # its frames hold the records
            with self._mutex:
                self._broken = True
                self._refusal = lambda: _failed(self.path, cause)
            self._try("ROLLBACK")
        else:
            with self._mutex:
                self.commits += 1
                self._committed += len(rows) // _COLUMNS
                self._room += sum(map(len, rows[_COLUMNS - 1 :: _COLUMNS]))  # type: ignore[arg-type]  # all texts
        self._call_loop()

    def _transact(self, rows: list[int | float | str]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), _ROWS * _COLUMNS):
            some = rows[start : start + _ROWS * _COLUMNS]
            connection.execute(_insert(len(some) // _COLUMNS), some)
        connection.execute("COMMIT")

    def _try(self, sql: str) -> None:
        """What SQLite would do by itself, later."""
        with suppress(sqlite3.Error):
            self._connection.execute(sql)

    def _finish(self) -> None:
        """Leave one plain file, without a log beside it, unless someone is reading or the disk refuses."""
        try:
            if not self._broken:
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error:
            self._try("PRAGMA wal_checkpoint(TRUNCATE)")
        with suppress(sqlite3.Error):
            self._connection.close()
        self._lock.release()
        with self._mutex:
            self._ended = True
        self._call_loop()

    def _call_loop(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._wake)


@cache
def _insert(rows: int) -> str:
    return f"INSERT INTO records (seq, at, kind, event) VALUES {', '.join(['(?, ?, ?, ?)'] * rows)}"  # noqa: S608


def _failed(path: Path, error: Exception) -> JournalError:
    saying = journal_error("written", path, error)
    saying.__cause__ = error
    return saying


def _overrun(path: Path) -> JournalError:
    return JournalError(
        f"The journal {path} cannot keep up: too much waits to be written.",
        remedy="Use a faster disk or fewer agents at once, then: centuria resume.",
    )


def _closed(path: Path) -> JournalError:
    return JournalError(f"The journal {path} is closed.")
