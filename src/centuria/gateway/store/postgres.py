"""The store of several gateways: PostgreSQL. Each says every 15 seconds that it lives; who has not for a minute is
taken for dead, and its leases are held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from centuria.core.accounts import lease_size
from centuria.errors import ConfigurationError
from centuria.gateway.ports import AttemptRow, Balance, Document, Key, Lease, UsageLine
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store.postgres_tables import Db, make_tables
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
from centuria.messages import Pico

#: Seconds without a sign of life after which a gateway is taken for dead.
DEAD_AFTER = 60.0
#: Seconds for one statement, and for a connection.
_PATIENCE = 10.0
_CONNECTIONS = 8
_MOST = 2**63 - 1
_NEVER = 9e15

_KEY = ", ".join(KEY_COLUMNS)
_ATTEMPT = ", ".join([f'"{name}"' for name in ATTEMPT_COLUMNS])
_TYPES = {
    "streamed": "boolean",
    "at": "float8",
    "queued_ms": "float8",
    "first_token_ms": "float8",
    "total_ms": "float8",
}
_TYPES |= dict.fromkeys(("request", "key", "model", "deployment", "route", "end", "agent", "error"), "text")
_ARRAYS = ", ".join([f"${n}::{_TYPES.get(name, 'bigint')}[]" for n, name in enumerate(ATTEMPT_COLUMNS, 1)])


class PostgresStore:
    """One schema, `centuria`, which is made if it is not there; a pool of at most 8 connections."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        """For `open`."""
        self._pool = pool

    @classmethod
    async def open(cls, url: str) -> PostgresStore:
        """Raises `StoreUnavailable`; `ConfigurationError` for a URL that is none, or a newer schema."""
        try:
            pool = await asyncpg.create_pool(
                url, min_size=1, max_size=_CONNECTIONS, timeout=_PATIENCE, command_timeout=_PATIENCE
            )
        except (ValueError, asyncpg.InterfaceError):
            raise ConfigurationError(
                "The URL of the store is no PostgreSQL URL.", remedy="Write postgresql://USER:PASSWORD@HOST/DATABASE."
            ) from None  # its text has the URL in it
        except (asyncpg.PostgresError, OSError) as error:
            raise _unavailable(error) from error
        store = cls(pool)
        try:
            async with store._transaction() as db:
                await make_tables(db)
        except BaseException:
            await store.aclose()
            raise
        return store

    async def aclose(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def add_key(self, key: Key, digest: bytes) -> None:
        values = ", ".join([f"${n}" for n in range(1, len(KEY_COLUMNS) + 2)])
        try:
            async with self._transaction() as db:
                sql = f"INSERT INTO centuria.keys ({_KEY}, digest) VALUES ({values})"  # noqa: S608
                await db.execute(sql, *key_values(key), digest)
        except asyncpg.UniqueViolationError:
            raise name_taken(key.name) from None

    async def find_key(self, digest: bytes) -> Key | None:
        rows = await self._rows(f"SELECT {_KEY} FROM centuria.keys WHERE digest = $1", digest)  # noqa: S608
        return key_of(tuple(rows[0])) if rows else None

    async def keys(self) -> Sequence[tuple[Key, Balance]]:
        sql = f"SELECT {_KEY}, spent, held, leased FROM centuria.keys ORDER BY created, id"  # noqa: S608
        rows = [tuple(row) for row in await self._rows(sql)]
        return [(key_of(row), Balance(*row[-3:])) for row in rows]

    async def revoke_key(self, id: str, at: float) -> bool:
        sql = "UPDATE centuria.keys SET revoked = $2 WHERE id = $1 AND revoked IS NULL RETURNING id"
        return bool(await self._rows(sql, id, at))

    async def change_budget(self, id: str, budget: Pico) -> bool:
        which = "id = $1 AND budget IS NOT NULL AND revoked IS NULL"
        sql = f"UPDATE centuria.keys SET budget = $2 WHERE {which} RETURNING id"  # noqa: S608
        return bool(await self._rows(sql, id, budget))

    # -- leases: whoever changes one locks its key first ---------------------------------------------------------------

    async def start(self, gateway: str) -> None:
        await self.beat(gateway)

    async def beat(self, gateway: str) -> None:
        async with self._transaction() as db:
            await db.execute(
                "INSERT INTO centuria.gateways (id, beat) VALUES ($1, now()) "
                "ON CONFLICT (id) DO UPDATE SET beat = now()",
                gateway,
            )
            await db.execute("DELETE FROM centuria.gateways WHERE beat < now() - make_interval(secs => $1)", DEAD_AFTER)
            gone = await db.fetch(
                "SELECT DISTINCT gateway FROM centuria.leases WHERE leased > 0 "
                "AND gateway NOT IN (SELECT id FROM centuria.gateways) ORDER BY gateway"
            )
        for row in gone:
            await self.hold_leases(row[0])

    async def extend_lease(self, gateway: str, key: str, least: Pico, wanted: Pico) -> Lease:
        async with self._transaction() as db:
            left = await db.fetchval(
                "SELECT budget - spent - held - leased FROM centuria.keys WHERE id = $1 FOR UPDATE", key
            )
            left = max(0, left or 0)
            granted = lease_size(left, least, wanted)
            if granted:
                await db.execute("UPDATE centuria.keys SET leased = leased + $2 WHERE id = $1", key, granted)
                await db.execute(
                    "INSERT INTO centuria.leases AS l (gateway, key, leased) VALUES ($1, $2, $3) "
                    "ON CONFLICT (gateway, key) DO UPDATE SET leased = l.leased + excluded.leased",
                    gateway,
                    key,
                    granted,
                )
        return Lease(granted, left - granted)

    async def return_leases(self, gateway: str, *, key: str | None = None) -> None:
        async with self._transaction() as db:
            await _lock(db, gateway, key)
            await db.execute(
                "WITH gone AS (DELETE FROM centuria.leases WHERE gateway = $1 AND key = coalesce($2, key) "
                "RETURNING key, leased, forfeited) UPDATE centuria.keys SET leased = keys.leased - gone.leased, "
                "held = keys.held - gone.forfeited FROM gone WHERE keys.id = gone.key",
                gateway,
                key,
            )
            if key is None:
                await db.execute("DELETE FROM centuria.gateways WHERE id = $1", gateway)

    async def hold_leases(self, gateway: str) -> None:
        async with self._transaction() as db:
            await _lock(db, gateway, None)
            await db.execute(
                "UPDATE centuria.keys SET leased = keys.leased - l.leased, held = keys.held + l.leased "
                "FROM centuria.leases AS l WHERE l.gateway = $1 AND l.key = keys.id",
                gateway,
            )
            await db.execute(
                "UPDATE centuria.leases SET forfeited = forfeited + leased, leased = 0 WHERE gateway = $1", gateway
            )

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def write(self, gateway: str, rows: Sequence[AttemptRow]) -> None:
        if not rows:
            return
        columns = list(zip(*[attempt_values(row) for row in rows], strict=True))
        async with self._transaction() as db:
            fresh = await db.fetch(
                f"INSERT INTO centuria.attempts ({_ATTEMPT}) SELECT * FROM unnest({_ARRAYS}) "  # noqa: S608
                "ON CONFLICT (request, attempt) DO NOTHING RETURNING key, cost, held",
                *columns,
            )
            for key, (cost, held) in totals([tuple(row) for row in fresh]).items():
                await _pay(db, gateway, key, cost, held)

    async def attempts(self, request: str, *, key: str | None = None) -> Sequence[AttemptRow]:
        if not is_storable(request):
            return []
        sql = (
            f"SELECT {_ATTEMPT} FROM centuria.attempts WHERE request = $1 "  # noqa: S608
            "AND key = coalesce($2, key) ORDER BY attempt"
        )
        return [attempt_of(tuple(row)) for row in await self._rows(sql, request, key)]

    async def usage(
        self, *, key: str | None = None, since: float = 0.0, until: float | None = None
    ) -> Sequence[UsageLine]:
        # Not `key = coalesce($3, key)`: that would read all rows for one key's.
        which, values = ("", ()) if key is None else (" AND key = $3", (key,))
        rows = await self._rows(
            "SELECT key, model, to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD'), count(DISTINCT request), "  # noqa: S608
            "count(*), sum(prompt), sum(cached), sum(output), sum(cost), sum(held) FROM centuria.attempts "
            f"WHERE at >= $1 AND at < $2{which} GROUP BY 1, 2, 3 ORDER BY 3, 1, 2",
            since,
            _NEVER if until is None else until,
            *values,
        )
        return [UsageLine(*row[:3], *[int(number) for number in row[3:]]) for row in [tuple(row) for row in rows]]

    # -- documents ----------------------------------------------------------------------------------------------------

    async def insert(self, kind: str, owner: str, document: Document) -> bool:
        check_document(owner, document)
        sql = (
            "INSERT INTO centuria.documents (kind, owner, id, body, at) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (kind, owner, id) DO NOTHING RETURNING id"
        )
        return bool(await self._rows(sql, kind, owner, document.id, document.body, document.at))

    async def put(self, kind: str, owner: str, document: Document) -> None:
        check_document(owner, document)
        sql = (
            "INSERT INTO centuria.documents (kind, owner, id, body, at) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (kind, owner, id) DO UPDATE SET body = excluded.body, at = excluded.at"
        )
        await self._rows(sql, kind, owner, document.id, document.body, document.at)

    async def get(self, kind: str, owner: str | None, id: str) -> Document | None:
        if not is_storable(owner or "", id):
            return None
        which, values = ("", ()) if owner is None else (" AND owner = $3", (owner,))
        sql = f"SELECT id, body, at FROM centuria.documents WHERE kind = $1 AND id = $2{which}"  # noqa: S608
        rows = await self._rows(sql, kind, id, *values)
        return Document(*rows[0]) if rows else None

    async def find(self, kind: str, owner: str | None, *, limit: int = 100) -> Sequence[tuple[str, Document]]:
        which, values = ("", ()) if owner is None else (" AND owner = $3", (owner,))
        rows = await self._rows(
            f"SELECT owner, id, body, at FROM centuria.documents WHERE kind = $1{which} "  # noqa: S608
            'ORDER BY at DESC, id COLLATE "C" DESC LIMIT $2',
            kind,
            limit,
            *values,
        )
        return [(row[0], Document(row[1], row[2], row[3])) for row in rows]

    async def delete(self, kind: str, owner: str, id: str) -> bool:
        if not is_storable(owner, id):
            return False
        sql = "DELETE FROM centuria.documents WHERE kind = $1 AND owner = $2 AND id = $3 RETURNING id"
        return bool(await self._rows(sql, kind, owner, id))

    # -- connections --------------------------------------------------------------------------------------------------

    async def _rows(self, sql: str, *values: Any) -> list[Any]:
        async with self._connection() as db:
            rows: list[Any] = await db.fetch(sql, *values)
            return rows

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Db]:
        async with self._connection() as db, db.transaction():
            yield db

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Db]:
        try:
            async with self._pool.acquire(timeout=_PATIENCE) as db:
                yield db
        except asyncpg.UniqueViolationError:
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:  # a TimeoutError is an OSError
            raise _unavailable(error) from error


async def _lock(db: Db, gateway: str, key: str | None) -> None:
    """The keys that a gateway has leases of, in the order in which everyone locks keys."""
    await db.execute(
        "SELECT id FROM centuria.keys WHERE id IN (SELECT key FROM centuria.leases WHERE gateway = $1 "
        "AND key = coalesce($2, key)) ORDER BY id FOR UPDATE",
        gateway,
        key,
    )


async def _pay(db: Db, gateway: str, key: str, cost: Pico, held: Pico) -> None:
    await db.execute("SELECT id FROM centuria.keys WHERE id = $1 FOR UPDATE", key)
    found = await db.fetchrow(
        "SELECT leased, forfeited FROM centuria.leases WHERE gateway = $1 AND key = $2", gateway, key
    )
    leased, forfeited = draw(cost + held, *(tuple(found) if found else (0, 0)))
    if found:
        await db.execute(
            "UPDATE centuria.leases SET leased = leased - $3, forfeited = forfeited - $4 WHERE gateway = $1 "
            "AND key = $2",
            gateway,
            key,
            leased,
            forfeited,
        )
    await db.execute(
        f"UPDATE centuria.keys SET spent = least(spent::numeric + $2, {_MOST})::bigint, "  # noqa: S608
        f"held = least(held::numeric + $3, {_MOST})::bigint, leased = leased - $4 WHERE id = $1",
        key,
        cost,
        held - forfeited,
        leased,
    )


def _unavailable(error: Exception) -> StoreUnavailable:
    """Without the URL, which has a password in it."""
    reason = "it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return StoreUnavailable(
        f"The store in PostgreSQL cannot be used: {reason}.", remedy="Check that the server runs and takes this user."
    )
