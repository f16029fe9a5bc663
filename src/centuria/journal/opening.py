"""Making a journal file, whole or not at all, and opening one to go on with it, never a damaged one."""

from __future__ import annotations

import os
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from centuria.errors import JournalError
from centuria.journal.faults import is_damage, journal_error
from centuria.journal.reading import JournalReader
from centuria.journal.tables import Meta, begin_writing, connect, create_tables


def make(path: Path, meta: Meta, patience: float) -> sqlite3.Connection:
    """A new file, ready to write, or none at all. Raises `JournalError`."""
    try:
        if path.exists() and path.stat().st_size > 0:
            raise _exists(path)
        path.touch()
        connection = connect(path, write=True, timeout=patience)
        try:
            create_tables(connection, meta)
            begin_writing(connection, path)
            _sync_folder(path.parent)
            _sync_folder(path.parent.parent)
        except BaseException:
            connection.close()
            for suffix in ("", "-journal", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            raise
    except (sqlite3.Error, OSError) as error:
        raise journal_error("made", path, error) from error
    return connection


def reopen(path: Path, patience: float) -> tuple[sqlite3.Connection, Meta, int]:
    """A whole file, ready to go on with, and the number of its last record. Raises `JournalError`."""
    with JournalReader(path) as reader:
        meta = reader.meta
    try:
        connection = connect(path, write=True, timeout=patience)
        try:
            last_seq = _check(connection, path)
            begin_writing(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise (_damage(path, error) if is_damage(error) else journal_error("opened", path, error)) from error
    return connection, meta, last_seq


def current_version() -> str:
    try:
        return version("centuria")
    except PackageNotFoundError:
        return "0"


def _exists(path: Path) -> JournalError:
    return JournalError(
        f"{path} is a run's journal already.",
        remedy=f"Go on with it: centuria resume {path.parent}, or choose another folder with --out.",
    )


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """The number of the last record. Raises `JournalError` where the file is damaged, `sqlite3.Error`."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _damage(path, sqlite3.DatabaseError(verdict))
    last, number = connection.execute("SELECT coalesce(max(seq), 0), count(*) FROM records").fetchone()
    if last != number:
        raise _damage(path, sqlite3.DatabaseError(f"{number} records, but the last is {last}"))
    return int(last)


def _damage(path: Path, error: sqlite3.Error) -> JournalError:
    """From which record on the file is damaged."""
    try:
        with JournalReader(path) as reader:
            for _ in reader.records():
                pass
            whole = reader.last_seq
    except JournalError as found:
        return found
    return JournalError(
        f"The journal {path} is damaged ({error}), though its {whole} records can be read.",
        remedy="See what it holds: centuria show. Then start a new run.",
    )


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files are; not asked of one that may not be read."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
