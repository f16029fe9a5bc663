"""What a second process sees of a run: its records, outcomes and calls, while the run goes on writing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from centuria.codec import decode
from centuria.errors import JournalError
from centuria.events import Record, TaskEnded
from centuria.journal.faults import is_damage, journal_error
from centuria.journal.place import writer_of
from centuria.journal.tables import Meta, check_file, connect, connect_to_read, no_journal, read_meta
from centuria.messages import Outcome, Pico

#: Records in one read transaction. A long one would keep the writer's log from being folded into the file.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class CallRow:
    """One attempt at a model or tool call. Money in pico-dollars, times in seconds since 1970; tokens None: unknown.

    `rerun` is 1 where sending it again is safe. `hold` numbers the reservation that paid for it.
    """

    task: str
    epoch: int
    turn: int
    position: int
    attempt: int
    call: Literal["model", "tool"]
    name: str
    fingerprint: str
    rerun: int
    state: Literal["open", "done", "failed", "lost", "unknown"]
    hold: int | None
    reserved: Pico
    cost: Pico
    held: Pico
    prompt: int | None
    cached: int | None
    output: int | None
    opened_at: float | None
    closed_at: float | None
    error: str


_CALLS = f"SELECT {', '.join(f.name for f in fields(CallRow))} FROM calls"  # noqa: S608
# As bytes: what is damaged need not be text, and what is whole need not be decoded twice.
_OUTCOMES = "SELECT seq, r.at, CAST(r.event AS BLOB) FROM outcomes JOIN records r USING (seq) ORDER BY seq"
_ABOUT = """SELECT r.seq, r.at, CAST(r.event AS BLOB) FROM facts f JOIN records r USING (seq)
WHERE f.kind IN ('task_added', 'task_reset', 'task_ended', 'call_opened', 'call_closed')
AND coalesce(json_extract(f.event, '$.task'), json_extract(f.event, '$.key.task')) = ? ORDER BY r.seq"""
_RECORDS = "SELECT seq, at, CAST(event AS BLOB) FROM records WHERE seq > ? ORDER BY seq LIMIT ?"


class JournalReader:
    """A read-only view of one run's journal. It never blocks the writer, and makes or changes no file of the run.

    Use it as a context manager. All methods read what is committed at that moment.
    """

    def __init__(self, path: Path) -> None:
        """Open `journal.sqlite`. Raises `JournalError`: missing, empty, no journal, or of a newer schema."""
        self.path = path
        self._salvage = False
        check_file(path)
        try:
            self._connection = connect_to_read(path)
        except sqlite3.Error as error:
            self._connection = self._open_damaged(error)
        try:
            self.meta: Meta = read_meta(self._connection, path)
        except sqlite3.Error as error:
            self._connection.close()
            raise (no_journal(path) if is_damage(error) else journal_error("read", path, error)) from error
        except JournalError:
            self._connection.close()
            raise

    @property
    def writer(self) -> dict[str, Any] | None:
        """Who is writing (`pid`, `host`), None where nobody is: the run has ended or was killed."""
        return writer_of(self.path)

    @property
    def last_seq(self) -> int:
        """The number of the last committed record, 0 for none."""
        return int(self._query("SELECT coalesce(max(seq), 0) FROM records")[0][0])

    def records(self, *, after: int = 0) -> Iterator[Record]:
        """The committed records with a higher number, in order, up to the last there is when they run out.

        Raises `JournalError` at the first that cannot be read, having given all before it.
        """
        last = after
        while True:
            count = 0
            for record in self._chunk(last):
                yield record
                last = record.seq
                count += 1
            if count < CHUNK:
                return

    async def follow(self, *, after: int = 0, interval: float = 0.2) -> AsyncIterator[Record]:
        """All records as they come, looking every `interval` seconds; ends once nobody writes any more."""
        last = after
        while True:
            writing = self.writer is not None
            for record in self._chunk(last):
                yield record
                last = record.seq
            if self.last_seq > last:
                await asyncio.sleep(0)
            elif writing:
                await asyncio.sleep(interval)
            else:
                return

    def outcomes(self) -> list[Outcome]:
        """The outcome of each task that has ended, in the order in which they ended."""
        ends = [_decoded(*row) for row in self._query(_OUTCOMES)]
        return [end.event.outcome for end in ends if isinstance(end.event, TaskEnded)]

    def calls(self, *, task: str | None = None) -> list[CallRow]:
        """Every attempt at a model or tool call, in the order in which they were opened."""
        if task is None:
            return [CallRow(*row) for row in self._query(f"{_CALLS} ORDER BY seq")]
        return [CallRow(*row) for row in self._query(f"{_CALLS} WHERE task = ? ORDER BY seq", task)]

    def about(self, task: str) -> list[Record]:
        """What one task is, how it ended, and its calls: its records of these kinds, in order."""
        return [_decoded(*row) for row in self._query(_ABOUT, task)]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _query(self, sql: str, *values: str | int) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise journal_error("read", self.path, error) from error

    def _chunk(self, after: int) -> list[Record] | Iterator[Record]:
        """Up to `CHUNK` records, read in one go unless the file is known to be damaged."""
        if not self._salvage:
            try:
                rows = self._connection.execute(_RECORDS, (after, CHUNK)).fetchall()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise journal_error("read", self.path, error) from error
                self._connection.close()
                self._connection = self._open_damaged(error)
            else:
                return self._checked(iter(rows), after)
        try:
            return self._checked(self._connection.execute(_RECORDS, (after, CHUNK)), after)
        except sqlite3.Error as error:
            raise self._unreadable_from(after + 1, error) from error

    def _checked(self, rows: Iterator[tuple[int, float, bytes]], after: int) -> Iterator[Record]:
        expected = after + 1
        while True:
            try:
                row = next(rows, None)
                if row is None:
                    return
                record = _decoded(*row)
            except (sqlite3.Error, JournalError) as error:
                raise self._unreadable_from(expected, error) from error
            if record.seq != expected:
                raise self._unreadable_from(expected, JournalError(f"The next there is has number {record.seq}."))
            yield record
            expected += 1

    def _open_damaged(self, error: sqlite3.Error) -> sqlite3.Connection:
        """A connection to a file that SQLite refuses as a whole, which reads as far as the pages go."""
        if not is_damage(error):
            raise journal_error("read", self.path, error) from error
        self._salvage = True
        connection = connect(self.path)
        # SQLite opens no file that is shorter than its header says, except for those who want to mend it.
        connection.execute("PRAGMA writable_schema = ON")
        return connection

    def _unreadable_from(self, seq: int, error: sqlite3.Error | JournalError) -> JournalError:
        if isinstance(error, JournalError) and error.remedy:
            cause, remedy = error.message, error.remedy
        else:
            cause, remedy = f"The file is damaged: {error}", ""
        whole = f"records 1 to {seq - 1} can be" if seq > 1 else "no record can be"
        return JournalError(
            f"The journal {self.path} cannot be read from record {seq} on ({whole}). {cause}",
            remedy=remedy or "See what can be read: centuria show. Then start a new run.",
        )


def _decoded(seq: int, at: float | None, event: bytes) -> Record:
    return Record(seq, at or 0.0, decode(event))
