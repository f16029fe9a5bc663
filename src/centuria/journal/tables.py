"""The schema of a journal file, and what opening one must find in it.

The table `records` is the truth. `calls` and `outcomes` are derived from it in the same transaction, for
readers and for whoever opens the file with SQL.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from centuria.codec import SCHEMA
from centuria.errors import JournalError
from centuria.journal.faults import journal_error, primary_code

#: "cent": marks the file as a journal, for `file` and for us.
APPLICATION_ID = 0x63656E74

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,    -- 1, 2, 3, ...
    at REAL,                    -- seconds since 1970
    kind TEXT NOT NULL,
    event TEXT NOT NULL         -- JSON
);
CREATE TABLE calls (            -- one row for each attempt; money in pico-dollars
    task TEXT, epoch INTEGER, turn INTEGER, position INTEGER, attempt INTEGER,
    call TEXT,                  -- model, tool
    name TEXT, fingerprint TEXT,
    rerun INTEGER,              -- 1: sending it again is safe
    state TEXT,                 -- open, done, failed, lost, unknown
    hold INTEGER,               -- the reservation that pays for it
    reserved INTEGER DEFAULT 0, cost INTEGER DEFAULT 0, held INTEGER DEFAULT 0,
    prompt INTEGER, cached INTEGER, output INTEGER,     -- tokens, NULL: not reported
    opened_at REAL, closed_at REAL,
    error TEXT DEFAULT '',
    PRIMARY KEY (task, epoch, turn, position, attempt)
);
CREATE INDEX calls_by_hold ON calls (hold) WHERE hold IS NOT NULL;
CREATE TABLE outcomes (         -- one row for each task that has ended
    task TEXT PRIMARY KEY, status TEXT, cause TEXT, cut_short INTEGER,
    steps INTEGER, attempts INTEGER, repairs INTEGER,
    prompt INTEGER, cached INTEGER, output INTEGER,
    cost INTEGER, held INTEGER,
    started_at REAL, ended_at REAL,
    seq INTEGER                 -- the record that holds it whole, with its text
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a journal says about itself. `created` is seconds since 1970, `version` that of Centuria."""

    schema: int
    run: str
    name: str
    created: float
    version: str


def connect(path: Path, *, write: bool = False, timeout: float = 5.0, immutable: bool = False) -> sqlite3.Connection:
    """A connection in autocommit; it never creates a file that is not there."""
    mode = "rw" if write else "ro&immutable=1" if immutable else "ro"
    # Serialised by SQLite itself, and by us: only one thread uses it at a time.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A read-only connection that has been tried. Raises `sqlite3.Error`.

    A WAL journal in a folder that cannot be written to is readable as it stands, once nothing is left in its log.
    """
    connection = connect(path)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or has_log(path):
            raise
        return connect(path, immutable=True)
    return connection


def has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def create_tables(connection: sqlite3.Connection, meta: Meta) -> None:
    """All in one transaction: a crash leaves a whole journal or an empty file. Raises `sqlite3.Error`."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", asdict(meta).items())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {meta.schema}")
    connection.execute("COMMIT")


def begin_writing(connection: sqlite3.Connection, path: Path) -> None:
    """Set a connection up to write. Raises `sqlite3.Error`; `JournalError` where the disk cannot do it."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise JournalError(
            f"The file system of {path.parent} cannot hold a journal that is read while it is written.",
            remedy="Choose a folder on a local disk with --out.",
        )
    connection.execute("PRAGMA synchronous = FULL")


def read_meta(connection: sqlite3.Connection, path: Path) -> Meta:
    """Check that this is a journal which this version can read. Raises `JournalError`, `sqlite3.Error`."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise no_journal(path)
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema > SCHEMA:
        raise JournalError(
            f"The journal {path} was written by a newer Centuria (schema {schema}; this one reads {SCHEMA}).",
            remedy="Install the newer version: pip install --upgrade centuria.",
        )
    values = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    return Meta(
        schema=schema,
        run=str(values.get("run", "")),
        name=str(values.get("name", "")),
        created=float(values.get("created") or 0.0),
        version=str(values.get("version", "")),
    )


def no_journal(path: Path) -> JournalError:
    return JournalError(f"{path} is not a journal of Centuria.", remedy="Name the folder of a run; see: centuria runs.")


def check_file(path: Path) -> None:
    """Raises `JournalError` if there is nothing to open. Reads no more than the file's size."""
    try:
        size = path.stat().st_size if path.is_file() else -1
    except OSError as error:
        raise journal_error("opened", path, error) from error
    if size < 0:
        raise JournalError(f"There is no journal {path}.", remedy="Name the folder of a run; see: centuria runs.")
    if size == 0:
        raise JournalError(f"The journal {path} is empty: its run ended before it began.", remedy="Start it again.")
