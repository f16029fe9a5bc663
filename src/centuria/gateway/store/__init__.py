"""Where a gateway keeps keys, money, attempts and documents: a SQLite file, or PostgreSQL for several gateways.

rows.py   columns in and out, within bounds    files.py   a SQLite file and its faults
sqlite.py and postgres.py   the `Store` port
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from centuria.errors import ConfigurationError
from centuria.gateway.ports import Store
from centuria.gateway.store.sqlite import SqliteStore


async def open_store(where: str) -> Store:
    """The store at a `postgresql://` URL or in a file, made if it is not there.

    Raises `ConfigurationError` and `StoreUnavailable`.
    """
    scheme, mark, _ = where.partition("://")
    if scheme in ("postgresql", "postgres"):
        try:
            from centuria.gateway.store.postgres import PostgresStore
        except ImportError as error:
            raise ConfigurationError(
                "PostgreSQL needs the package asyncpg, which is not installed.",
                remedy="Install it: pip install 'centuria[postgres]'",
            ) from error
        return await PostgresStore.open(where)
    if mark:
        raise ConfigurationError(
            f"There is no store for {scheme}:// URLs.", remedy="Name a file (SQLite) or a postgresql:// URL."
        )
    if not where or "\0" in where:
        raise ConfigurationError("The store has no name.", remedy="Name a file (SQLite) or a postgresql:// URL.")
    return await asyncio.to_thread(SqliteStore, Path(where))
