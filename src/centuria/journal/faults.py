"""What the disk said, as an error with a remedy."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from centuria.errors import JournalError

#: SQLite's primary result codes (https://sqlite.org/rescode.html) -> what happened, what to do.
_SAYINGS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space, then: centuria resume."),
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "Make the folder and the file writable, or choose another folder.",
    ),
    sqlite3.SQLITE_PERM: (
        "permission was denied",
        "Make the folder and the file writable, or choose another folder.",
    ),
    sqlite3.SQLITE_BUSY: ("another program holds it locked", "Close that program, then: centuria resume."),
    sqlite3.SQLITE_LOCKED: ("another program holds it locked", "Close that program, then: centuria resume."),
    sqlite3.SQLITE_IOERR: (
        "reading or writing the disk failed",
        "Check the disk and its quota, then: centuria resume.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged",
        "See what can be read: centuria show; then start a new run.",
    ),
    sqlite3.SQLITE_NOTADB: ("this is not a journal", "Name the folder of a run."),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "Check that the folder exists and that you may write to it.",
    ),
}
_UNKNOWN = ("the disk reported an error", "Check the disk, then: centuria resume.")
_ERRNO = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
    errno.ENOTDIR: sqlite3.SQLITE_CANTOPEN,
    errno.ENOENT: sqlite3.SQLITE_CANTOPEN,
}


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 if it has none."""
    if isinstance(error, OSError):
        return _ERRNO.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    # Errors that the module raises itself, such as text that is no UTF-8, carry no code.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_damage(error: BaseException) -> bool:
    """The bytes in the file are wrong; that is not the same as a disk that cannot be reached."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in (
        0,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_MISMATCH,
    )


def journal_error(doing: str, path: Path, error: BaseException) -> JournalError:
    """`doing` is "written", "read", "made", ...: the journal cannot be that, and why."""
    saying, remedy = _SAYINGS.get(primary_code(error), _UNKNOWN)
    return JournalError(f"The journal {path} cannot be {doing}: {saying} ({error}).", remedy=remedy)
