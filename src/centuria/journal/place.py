"""Where a journal may live, and the lock of its one writer."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from centuria.errors import JournalError
from centuria.journal.faults import journal_error

#: File systems that other machines reach too. SQLite's WAL needs memory shared between all processes that have the file
#: open, which only exists on one machine (https://sqlite.org/wal.html, "all processes must be on the same host").
_NETWORK = re.compile(
    r"(fuse\.)?(nfs4?|cifs|smb[23]?|smbfs|ncpfs|afs|coda|ceph|lustre|gpfs|beegfs|glusterfs|pvfs2|orangefs"
    r"|davfs2?|sshfs|curlftpfs|s3fs|mountpoint-s3|rclone|gcsfuse|goofys|juicefs|seaweedfs)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_LOCK_TRIES = 10
_LOCK_PAUSE = 0.02


def network_file_system(path: Path, mounts: str) -> str | None:
    """The type of the network file system that `path` lies on, or None. `mounts` is the text of /proc/mounts.

    `path` is absolute and resolved. 9p is refused only where it leads to another system (a Windows drive
    under WSL, or TCP): sandboxes and virtual machines use it for their own disk, and there it works.
    """
    best: tuple[int, str, str] = (-1, "", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[1]))
        # The last of two mounts on one place hides the first.
        if path.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), fields[2].lower(), fields[3].lower())
    _, kind, options = best
    if kind == "9p":
        return kind if "aname=drvfs" in options or "trans=tcp" in options.split(",") else None
    return kind if _NETWORK.fullmatch(kind) else None


def network_kind(folder: Path) -> str | None:
    """The type of the network file system that a folder lies on, or None; without /proc/mounts nobody can tell."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return network_file_system(folder.resolve(), mounts)


def refuse_network(folder: Path) -> None:
    """Raises `JournalError` on a network file system. Without /proc/mounts it cannot tell and says nothing."""
    kind = network_kind(folder)
    if kind is not None:
        raise JournalError(
            f"The run folder {folder} lies on a network file system ({kind}), which can damage a journal.",
            remedy="Choose a folder on a local disk with --out, and copy it when the run has ended.",
        )


class WriterLock:
    """The right to write one journal, held until `release` or the end of the process, however it ends.

    It is a lock on a file of its own: opening and closing the database file itself would drop SQLite's locks.
    """

    def __init__(self, journal: Path) -> None:
        """Raises `JournalError` if another writer holds it."""
        path = _lock_file(journal)
        self._handle: int | None = None
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise journal_error("locked", path, error) from error
        try:
            if not _lock(handle, fcntl.LOCK_EX, tries=_LOCK_TRIES):
                raise _in_use(journal)
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            os.close(handle)
            raise journal_error("locked", path, error) from error
        except JournalError:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)


def writer_of(journal: Path) -> dict[str, Any] | None:
    """Who writes this journal now (`pid`, `host`), or None. Changes nothing."""
    try:
        handle = os.open(_lock_file(journal), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if _lock(handle, fcntl.LOCK_SH, tries=1):
            return None
        return _read_owner(handle)
    finally:
        os.close(handle)


def _lock_file(journal: Path) -> Path:
    return journal.with_name(journal.name + ".lock")


def _lock(handle: int, kind: int, *, tries: int) -> bool:
    # A reader that looks whether anybody writes holds the lock for an instant: hence more than one try.
    for left in reversed(range(tries)):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_LOCK_PAUSE)
        else:
            return True
    return False


def _read_owner(handle: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _in_use(journal: Path) -> JournalError:
    owner = writer_of(journal) or {}
    who = f" (process {owner['pid']} on {owner.get('host', 'this machine')})" if "pid" in owner else ""
    return JournalError(
        f"The run in {journal.parent} is running already{who}.",
        remedy=f"Watch it: centuria watch {journal.parent}, or end it: centuria cancel {journal.parent}.",
    )
