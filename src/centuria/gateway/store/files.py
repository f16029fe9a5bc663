"""The SQLite file of a store: making it, opening it, and what the disk said as an error with a remedy."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from centuria.errors import ConfigurationError
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store.rows import SCHEMA, newer_schema
from centuria.journal.faults import is_damage, primary_code
from centuria.journal.place import network_kind

#: "cent", as a gateway's store: marks the file for `file` and for us.
APPLICATION_ID = 0x63656E67
_PAGES = 8 * 1024

_TABLES = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,            -- SHA-256 of the token, which is nowhere
    budget INTEGER,                         -- money in pico-dollars
    rpm INTEGER,
    tpm INTEGER,
    models TEXT,                            -- JSON
    tools TEXT,
    admin INTEGER NOT NULL,
    created REAL NOT NULL,                  -- seconds since 1970
    revoked REAL,
    spent INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0       -- the sum of its leases
) WITHOUT ROWID;
CREATE UNIQUE INDEX key_names ON keys (name) WHERE revoked IS NULL;
CREATE TABLE leases (
    gateway TEXT NOT NULL,
    key TEXT NOT NULL,
    leased INTEGER NOT NULL DEFAULT 0,
    forfeited INTEGER NOT NULL DEFAULT 0,   -- is in what the key holds: its gateway ended without a word
    PRIMARY KEY (gateway, key)
) WITHOUT ROWID;
CREATE TABLE attempts (
    request TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    deployment TEXT NOT NULL,
    route TEXT NOT NULL,
    "end" TEXT NOT NULL,
    agent TEXT NOT NULL,
    status INTEGER NOT NULL,
    streamed INTEGER NOT NULL,
    prompt INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    cache_written INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    held INTEGER NOT NULL,
    queued_ms REAL NOT NULL,
    first_token_ms REAL,
    total_ms REAL NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (request, attempt)
);
CREATE INDEX attempts_of_keys ON attempts (key, at);
CREATE TABLE documents (
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,                     -- JSON
    at REAL NOT NULL,
    PRIMARY KEY (kind, owner, id)
);
CREATE INDEX documents_by_time ON documents (kind, at);
CREATE INDEX documents_of_owners ON documents (kind, owner, at)
"""

#: SQLite's primary result codes (https://sqlite.org/rescode.html) -> what happened, what to do.
_SAYINGS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space."),
    sqlite3.SQLITE_READONLY: ("it is read-only", "Make the file and its folder writable."),
    sqlite3.SQLITE_PERM: ("permission was denied", "Make the file and its folder writable."),
    sqlite3.SQLITE_BUSY: ("another program holds it locked", "Close that program."),
    sqlite3.SQLITE_LOCKED: ("another program holds it locked", "Close that program."),
    sqlite3.SQLITE_IOERR: ("reading or writing the disk failed", "Check the disk and its quota."),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "Restore it from a copy, or begin with another file."),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "Check that its folder exists and that you may write to it."),
}
#: What does not pass by itself, if it is so at the start.
_WRONG = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN})
_UNKNOWN = ("the disk reported an error", "Check the disk.")


def make(path: Path, patience: float) -> None:
    """Make the file where there is none, only for its owner; check the one that is there.

    Raises `ConfigurationError` and `StoreUnavailable`.
    """
    kind = network_kind(path.parent)
    if kind is not None:
        raise ConfigurationError(
            f"The store {path} lies on a network file system ({kind}), which can damage it.",
            remedy="Choose a file on a local disk, or PostgreSQL: postgresql://...",
        )
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"The store {path} cannot be made: there is no folder {path.parent}.",
            remedy="Make it, or name another file.",
        )
    if path.is_dir():
        raise ConfigurationError(f"The store {path} is a folder.", remedy="Name a file in it.")
    try:
        # SQLite gives the files beside it the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = connect(path, patience, write=True)
        try:
            _ready(connection, path)
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as error:
        if is_damage(error):
            raise _no_store(path) from error
        failure = unavailable(path, error)
        if isinstance(error, PermissionError) or primary_code(error) in _WRONG:
            raise ConfigurationError(failure.message, remedy=failure.remedy) from error
        raise failure from error


def connect(path: Path, patience: float, *, write: bool) -> sqlite3.Connection:
    """A connection in autocommit, for one thread at a time; it never makes a file. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        # Not `ro`: a reader of a WAL needs its shared memory, and makes it if need be.
        f"file:{quote(str(path.absolute()))}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_PAGES}")
        if not write:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _ready(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise ConfigurationError(
            f"The file system of {path.parent} cannot hold a store that is read while it is written.",
            remedy="Choose a file on a local disk, or PostgreSQL: postgresql://...",
        )
    # Two programs may be here at once: the second one finds what the first one made.
    connection.execute("BEGIN IMMEDIATE")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or tables):
        raise _no_store(path)
    if schema > SCHEMA:
        raise newer_schema(str(path), schema)
    if not tables:
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")


def _no_store(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not a store of Centuria's gateway, or it is damaged.", remedy="Name another file: --store FILE"
    )


def unavailable(path: Path, error: BaseException) -> StoreUnavailable:
    saying, remedy = _SAYINGS.get(primary_code(error), _UNKNOWN)
    return StoreUnavailable(f"The store {path} cannot be used: {saying} ({error}).", remedy=remedy)
