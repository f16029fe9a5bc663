"""The store of one gateway: one SQLite file. Commands may read and write it meanwhile, another gateway may not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from centuria.core.accounts import lease_size
from centuria.errors import ConfigurationError, JournalError
from centuria.gateway.ports import AttemptRow, Balance, Document, Key, Lease, UsageLine
from centuria.gateway.store.files import connect, make, unavailable
from centuria.gateway.store.rows import (
    ATTEMPT_COLUMNS,
    KEY_COLUMNS,
    attempt_of,
    attempt_values,
    check_document,
    draw,
    is_storable,
    key_of,
    key_values,
    name_taken,
    totals,
)
from centuria.journal.place import WriterLock
from centuria.messages import Pico

T = TypeVar("T")

#: Seconds that reading and writing wait while another program holds the file locked.
PATIENCE = 5.0
#: Rows of one statement.
_SIZES = (64, 16, 4, 1)
_MOST = 2**63 - 1
_NEVER = 9e15

_KEY = ", ".join(KEY_COLUMNS)
_ATTEMPT = ", ".join([f'"{name}"' for name in ATTEMPT_COLUMNS])
_ONE_ATTEMPT = f"({', '.join('?' * len(ATTEMPT_COLUMNS))})"


class SqliteStore:
    """WAL and `synchronous=FULL`: what has been written stays written. One thread writes, another one reads, so that
    nobody who only asks for a key waits for the disk. After a fault the file is opened anew.

    Raises `ConfigurationError` where the file is something else, of a newer schema, or on a network file system.
    """

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        """Opens the file, or makes it (mode 0600); `patience` in seconds. Raises `StoreUnavailable` too."""
        self.path = path
        make(path, patience)
        self._writer = _Room(path, patience, write=True)
        self._reader = _Room(path, patience, write=False)
        self._lock: WriterLock | None = None

    async def aclose(self) -> None:
        await self._reader.close()
        await self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def add_key(self, key: Key, digest: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            try:
                db.execute(
                    f"INSERT INTO keys ({_KEY}, digest) VALUES ({', '.join('?' * len(KEY_COLUMNS))}, ?)",  # noqa: S608
                    (*key_values(key), digest),
                )
            except sqlite3.IntegrityError:
                raise name_taken(key.name) from None

        await self._writer.change(work)

    async def find_key(self, digest: bytes) -> Key | None:
        rows = await self._reader.rows(f"SELECT {_KEY} FROM keys WHERE digest = ?", digest)  # noqa: S608
        return key_of(rows[0]) if rows else None

    async def keys(self) -> Sequence[tuple[Key, Balance]]:
        sql = f"SELECT {_KEY}, spent, held, leased FROM keys ORDER BY created, id"  # noqa: S608
        return [(key_of(row), Balance(*row[-3:])) for row in await self._reader.rows(sql)]

    async def revoke_key(self, id: str, at: float) -> bool:
        return await self._writer.count("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", at, id) > 0

    async def change_budget(self, id: str, budget: Pico) -> bool:
        sql = "UPDATE keys SET budget = ? WHERE id = ? AND budget IS NOT NULL AND revoked IS NULL"
        return await self._writer.count(sql, budget, id) > 0

    # -- leases -------------------------------------------------------------------------------------------------------

    async def start(self, gateway: str) -> None:
        if self._lock is None:
            try:
                self._lock = await asyncio.to_thread(
                    lambda: WriterLock(self.path.resolve())
                )  # a link is no other store
            except JournalError as error:
                raise ConfigurationError(
                    f"Another gateway works with {self.path}, or its lock file cannot be written.",
                    remedy="Give this one another store. Several gateways share one in PostgreSQL: postgresql://...",
                ) from error

        def work(db: sqlite3.Connection) -> None:
            # Whoever leased here before is no more, for nobody else has the lock, and will write nothing.
            _hold(db, "gateway <> ?", "")
            db.execute("DELETE FROM leases")

        await self._writer.change(work)

    async def beat(self, gateway: str) -> None:
        """Nothing to do: the lock says it."""

    async def extend_lease(self, gateway: str, key: str, least: Pico, wanted: Pico) -> Lease:
        def work(db: sqlite3.Connection) -> Lease:
            found = db.execute("SELECT budget - spent - held - leased FROM keys WHERE id = ?", (key,)).fetchone()
            left = max(0, found[0]) if found and found[0] is not None else 0
            granted = lease_size(left, least, wanted)
            if granted:
                db.execute("UPDATE keys SET leased = leased + ? WHERE id = ?", (granted, key))
                db.execute(
                    "INSERT INTO leases (gateway, key, leased) VALUES (?, ?, ?) "
                    "ON CONFLICT (gateway, key) DO UPDATE SET leased = leased + excluded.leased",
                    (gateway, key, granted),
                )
            return Lease(granted, left - granted)

        return await self._writer.change(work)

    async def return_leases(self, gateway: str, *, key: str | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            one, values = ("", (gateway,)) if key is None else (" AND key = ?", (gateway, key))
            sql = f"SELECT key, leased, forfeited FROM leases WHERE gateway = ?{one}"  # noqa: S608
            for id, leased, forfeited in db.execute(sql, values).fetchall():
                db.execute("UPDATE keys SET leased = leased - ?, held = held - ? WHERE id = ?", (leased, forfeited, id))
            db.execute(f"DELETE FROM leases WHERE gateway = ?{one}", values)  # noqa: S608

        await self._writer.change(work)

    async def hold_leases(self, gateway: str) -> None:
        await self._writer.change(lambda db: _hold(db, "gateway = ?", gateway))

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def write(self, gateway: str, rows: Sequence[AttemptRow]) -> None:
        def work(db: sqlite3.Connection) -> None:
            fresh = [row for some in _parts([attempt_values(row) for row in rows]) for row in _insert(db, some)]
            sums = totals([(row[_AT_KEY], row[_AT_COST], row[_AT_HELD]) for row in fresh])
            for key, (cost, held) in sums.items():
                _pay(db, gateway, key, cost, held)

        await self._writer.change(work)

    async def attempts(self, request: str, *, key: str | None = None) -> Sequence[AttemptRow]:
        if not is_storable(request):
            return []
        sql = f"SELECT {_ATTEMPT} FROM attempts WHERE request = ? ORDER BY attempt"  # noqa: S608
        rows = [attempt_of(row) for row in await self._reader.rows(sql, request)]
        return [row for row in rows if key in (None, row.key)]

    async def usage(
        self, *, key: str | None = None, since: float = 0.0, until: float | None = None
    ) -> Sequence[UsageLine]:
        # Not `key = coalesce(?, key)`: that would read all rows for one key's.
        which, values = ("", ()) if key is None else ("key = ? AND ", (key,))
        rows = await self._reader.rows(
            "SELECT key, model, strftime('%Y-%m-%d', at, 'unixepoch'), count(DISTINCT request), count(*), "  # noqa: S608
            f"sum(prompt), sum(cached), sum(output), sum(cost), sum(held) FROM attempts WHERE {which}"
            "at >= ? AND at < ? GROUP BY 1, 2, 3 ORDER BY 3, 1, 2",
            *values,
            since,
            _NEVER if until is None else until,
        )
        return [UsageLine(*row) for row in rows]

    # -- documents ----------------------------------------------------------------------------------------------------

    async def insert(self, kind: str, owner: str, document: Document) -> bool:
        check_document(owner, document)
        sql = (
            "INSERT INTO documents (kind, owner, id, body, at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (kind, owner, id) DO NOTHING"
        )
        return await self._writer.count(sql, kind, owner, document.id, document.body, document.at) > 0

    async def put(self, kind: str, owner: str, document: Document) -> None:
        check_document(owner, document)
        sql = (
            "INSERT INTO documents (kind, owner, id, body, at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (kind, owner, id) DO UPDATE SET body = excluded.body, at = excluded.at"
        )
        await self._writer.count(sql, kind, owner, document.id, document.body, document.at)

    async def get(self, kind: str, owner: str | None, id: str) -> Document | None:
        if not is_storable(owner or "", id):
            return None
        which, values = ("", ()) if owner is None else (" AND owner = ?", (owner,))
        sql = f"SELECT id, body, at FROM documents WHERE kind = ? AND id = ?{which}"  # noqa: S608
        rows = await self._reader.rows(sql, kind, id, *values)
        return Document(*rows[0]) if rows else None

    async def find(self, kind: str, owner: str | None, *, limit: int = 100) -> Sequence[tuple[str, Document]]:
        which, values = ("", ()) if owner is None else ("AND owner = ? ", (owner,))
        sql = f"SELECT owner, id, body, at FROM documents WHERE kind = ? {which}ORDER BY at DESC, id DESC LIMIT ?"  # noqa: S608
        rows = await self._reader.rows(sql, kind, *values, limit)
        return [(row[0], Document(*row[1:])) for row in rows]

    async def delete(self, kind: str, owner: str, id: str) -> bool:
        if not is_storable(owner, id):
            return False
        sql = "DELETE FROM documents WHERE kind = ? AND owner = ? AND id = ?"
        return await self._writer.count(sql, kind, owner, id) > 0


_AT_KEY, _AT_COST, _AT_HELD = (ATTEMPT_COLUMNS.index(name) for name in ("key", "cost", "held"))


def _insert(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Insert the rows that are not there yet; returns them."""
    try:
        _insert_all(db, rows)
    except sqlite3.IntegrityError:
        # Some are there: of this statement nothing was done. Looking first would cost each row a search.
        fresh = {row[:2]: row for row in reversed(rows)}
        known = (
            f"WITH ids (request, attempt) AS (VALUES {', '.join(['(?, ?)'] * len(fresh))}) "  # noqa: S608
            "SELECT request, attempt FROM ids CROSS JOIN attempts USING (request, attempt)"
        )
        for there in db.execute(known, [value for id in fresh for value in id]).fetchall():
            del fresh[there]
        rows = list(fresh.values())
        for some in _parts(rows):
            _insert_all(db, some)
    return rows


def _insert_all(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    db.execute(
        f"INSERT INTO attempts ({_ATTEMPT}) VALUES {', '.join([_ONE_ATTEMPT] * len(rows))}",  # noqa: S608
        [value for row in rows for value in row],
    )


def _parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """In few sizes: each is a statement of its own, which stays prepared, with the values that it was last given."""
    start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


def _pay(db: sqlite3.Connection, gateway: str, key: str, cost: Pico, held: Pico) -> None:
    where = (gateway, key)
    found = db.execute("SELECT leased, forfeited FROM leases WHERE gateway = ? AND key = ?", where).fetchone()
    leased, forfeited = draw(cost + held, *(found or (0, 0)))
    if found:
        db.execute(
            "UPDATE leases SET leased = leased - ?, forfeited = forfeited - ? WHERE gateway = ? AND key = ?",
            (leased, forfeited, *where),
        )
    db.execute(
        "UPDATE keys SET spent = min(spent + ?, ?), held = min(held + ?, ?), leased = leased - ? WHERE id = ?",
        (cost, _MOST, held - forfeited, _MOST, leased, key),
    )


def _hold(db: sqlite3.Connection, which: str, gateway: str) -> None:
    """Hold what these gateways leased; it stays theirs, for what they may still write. `which` is ours."""
    sql = f"SELECT key, sum(leased) FROM leases WHERE leased > 0 AND {which} GROUP BY key"  # noqa: S608
    for key, leased in db.execute(sql, (gateway,)).fetchall():
        db.execute("UPDATE keys SET leased = leased - ?, held = held + ? WHERE id = ?", (leased, leased, key))
    db.execute(f"UPDATE leases SET forfeited = forfeited + leased, leased = 0 WHERE {which}", (gateway,))  # noqa: S608


class _Room:
    """A thread with its own connection. Every fault is a `StoreUnavailable`, after which the file is opened anew."""

    def __init__(self, path: Path, patience: float, *, write: bool) -> None:
        self._path = path
        self._patience = patience
        self._write = write
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="centuria-store")

    async def rows(self, sql: str, *values: Any) -> list[Any]:
        return await self._do(lambda db: db.execute(sql, values).fetchall())

    async def count(self, sql: str, *values: Any) -> int:
        """How many rows one statement changed."""
        return await self.change(lambda db: db.execute(sql, values).rowcount)

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """All of the work, or nothing of it."""

        def whole(db: sqlite3.Connection) -> T:
            with _transaction(db):
                return work(db)

        return await self._do(whole)

    async def close(self) -> None:
        def work() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        with suppress(sqlite3.Error):
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._thread.shutdown()

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, work)

    def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = connect(self._path, self._patience, write=self._write)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None
            raise unavailable(self._path, error) from error.with_traceback(None)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
