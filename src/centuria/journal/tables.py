"""The schema of a journal file, and what opening one must find in it.

The table `records` is all there is. `calls` and `outcomes` are views of it, for readers and for whoever opens the file
with SQL: they cost nothing while a run writes.
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
-- Without what SQLite cannot read as JSON (Infinity, NaN) or would end a text at (NUL).
CREATE VIEW facts AS SELECT seq, at, kind, CASE
    WHEN instr(event, '\\u0000') OR instr(event, 'NaN') OR instr(event, 'Infinity')
    THEN replace(replace(replace(replace(event, '\\u0000', '\\ufffd'), '-Infinity', 'null'), 'Infinity', 'null'),
                 'NaN', 'null')
    ELSE event END AS event FROM records;
CREATE VIEW calls AS            -- one row for each attempt; money in pico-dollars
WITH told AS (
    SELECT seq, at, kind, event,
        json_extract(event, '$.key.task') AS task, json_extract(event, '$.key.epoch') AS epoch,
        json_extract(event, '$.key.turn') AS turn, json_extract(event, '$.key.position') AS position,
        json_extract(event, '$.attempt') AS attempt
    FROM facts WHERE kind IN ('call_opened', 'call_closed')
), attempts AS (
    SELECT min(seq) AS seq, task, epoch, turn, position, attempt,
        max(CASE kind WHEN 'call_opened' THEN event END) AS opened,
        max(CASE kind WHEN 'call_opened' THEN at END) AS opened_at,
        max(CASE kind WHEN 'call_closed' THEN event END) AS closed,
        max(CASE kind WHEN 'call_closed' THEN at END) AS closed_at
    FROM told GROUP BY task, epoch, turn, position, attempt
), paying AS (                  -- a reservation pays for the last attempt that it was for
    SELECT *, json_extract(opened, '$.hold') AS hold,
        CAST(coalesce(json_extract(opened, '$.reserved'), 0) AS INTEGER) AS reserved,
        seq = max(seq) OVER (PARTITION BY json_extract(opened, '$.hold')) AS pays
    FROM attempts
), paid AS (
    SELECT json_extract(event, '$.hold') AS hold, kind, json_extract(event, '$.cost') AS cost, max(seq)
    FROM facts WHERE kind IN ('money_settled', 'money_held', 'money_released') GROUP BY 1
)
SELECT seq, task, epoch, turn, position, attempt,
    json_extract(opened, '$.call') AS call,                     -- model, tool
    json_extract(opened, '$.name') AS name,
    json_extract(opened, '$.fingerprint') AS fingerprint,
    json_extract(opened, '$.rerun') AS rerun,                   -- 1: sending it again is safe
    coalesce(json_extract(closed, '$.end'), 'open') AS state,   -- open, done, failed, lost, unknown
    CAST(a.hold AS INTEGER) AS hold,                            -- the reservation that pays for it
    reserved,
    CAST(coalesce(CASE WHEN p.kind IS NULL THEN json_extract(closed, '$.cost') ELSE p.cost END, 0) AS INTEGER) AS cost,
    CASE WHEN p.kind = 'money_held' THEN reserved ELSE 0 END AS held,
    CAST(json_extract(closed, '$.usage.prompt') AS INTEGER) AS prompt,      -- tokens, NULL: not reported
    CAST(json_extract(closed, '$.usage.cached') AS INTEGER) AS cached,
    CAST(json_extract(closed, '$.usage.output') AS INTEGER) AS output,
    opened_at, closed_at,
    coalesce(json_extract(closed, '$.error'), '') AS error
FROM paying a LEFT JOIN paid p ON a.pays AND p.hold = a.hold;
CREATE VIEW outcomes AS         -- one row for each task that has ended
WITH told AS (
    SELECT max(seq) AS seq, kind, event, json_extract(event, '$.task') AS task
    FROM facts WHERE kind IN ('task_ended', 'task_reset') GROUP BY 4
)
SELECT task, json_extract(event, '$.outcome.status') AS status, json_extract(event, '$.outcome.cause') AS cause,
    json_extract(event, '$.outcome.cut_short') AS cut_short, json_extract(event, '$.outcome.steps') AS steps,
    json_extract(event, '$.outcome.attempts') AS attempts, json_extract(event, '$.outcome.repairs') AS repairs,
    json_extract(event, '$.outcome.usage.prompt') AS prompt, json_extract(event, '$.outcome.usage.cached') AS cached,
    json_extract(event, '$.outcome.usage.output') AS output, json_extract(event, '$.outcome.cost') AS cost,
    json_extract(event, '$.outcome.held') AS held, json_extract(event, '$.outcome.started_at') AS started_at,
    json_extract(event, '$.outcome.ended_at') AS ended_at,
    seq                         -- the record that holds it whole, with its text
FROM told WHERE kind = 'task_ended';
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
