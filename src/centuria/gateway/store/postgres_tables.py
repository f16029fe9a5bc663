"""The tables of the store in PostgreSQL."""

from __future__ import annotations

from typing import TypeAlias

import asyncpg

from centuria.errors import ConfigurationError
from centuria.gateway.store.rows import SCHEMA, newer_schema

Db: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

#: Any number that is ours: two gateways that start at once make the tables one after the other.
_MAKING = 0x63656E67

_TABLES = """
CREATE SCHEMA IF NOT EXISTS centuria;
CREATE TABLE IF NOT EXISTS centuria.meta (schema integer NOT NULL);
CREATE TABLE IF NOT EXISTS centuria.keys (
    id text PRIMARY KEY,
    name text NOT NULL,
    digest bytea NOT NULL UNIQUE,           -- SHA-256 of the token, which is nowhere
    budget bigint,                          -- money in pico-dollars
    rpm bigint,
    tpm bigint,
    models text,                            -- JSON
    tools text,
    admin boolean NOT NULL,
    created double precision NOT NULL,      -- seconds since 1970
    revoked double precision,
    spent bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0,
    leased bigint NOT NULL DEFAULT 0        -- the sum of its leases
);
CREATE UNIQUE INDEX IF NOT EXISTS key_names ON centuria.keys (name) WHERE revoked IS NULL;
CREATE TABLE IF NOT EXISTS centuria.gateways (id text PRIMARY KEY, beat timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS centuria.leases (
    gateway text NOT NULL,
    key text NOT NULL,
    leased bigint NOT NULL DEFAULT 0,
    forfeited bigint NOT NULL DEFAULT 0,    -- is in what the key holds: its gateway ended without a word
    PRIMARY KEY (gateway, key)
);
CREATE TABLE IF NOT EXISTS centuria.attempts (
    request text NOT NULL,
    attempt bigint NOT NULL,
    at double precision NOT NULL,
    key text NOT NULL,
    model text NOT NULL,
    deployment text NOT NULL,
    route text NOT NULL,
    "end" text NOT NULL,
    agent text NOT NULL,
    status bigint NOT NULL,
    streamed boolean NOT NULL,
    prompt bigint NOT NULL,
    cached bigint NOT NULL,
    cache_written bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    cost bigint NOT NULL,
    held bigint NOT NULL,
    queued_ms double precision NOT NULL,
    first_token_ms double precision,
    total_ms double precision NOT NULL,
    error text NOT NULL,
    PRIMARY KEY (request, attempt)
);
CREATE INDEX IF NOT EXISTS attempts_of_keys ON centuria.attempts (key, at);
CREATE TABLE IF NOT EXISTS centuria.documents (
    kind text NOT NULL,
    owner text NOT NULL,
    id text NOT NULL,
    body text NOT NULL,                     -- JSON
    at double precision NOT NULL,
    PRIMARY KEY (kind, owner, id)
);
CREATE INDEX IF NOT EXISTS documents_by_time ON centuria.documents (kind, at);
CREATE INDEX IF NOT EXISTS documents_of_owners ON centuria.documents (kind, owner, at);
"""


async def make_tables(db: Db) -> None:
    """Make them where there are none. Raises `ConfigurationError` for those of a newer version."""
    await db.execute("SELECT pg_advisory_xact_lock($1)", _MAKING)
    if not await db.fetchval("SELECT to_regclass('centuria.meta') IS NOT NULL"):
        try:
            await db.execute(_TABLES)
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigurationError(
                "The user of the store may not make its tables.",
                remedy="Grant it: GRANT CREATE ON DATABASE the_database TO the_user;",
            ) from error
        await db.execute("INSERT INTO centuria.meta (schema) VALUES ($1)", SCHEMA)
    schema = await db.fetchval("SELECT max(schema) FROM centuria.meta")
    if schema > SCHEMA:
        raise newer_schema("in PostgreSQL", schema)
