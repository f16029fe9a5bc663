"""Commands from a second process to the run: small files in the run's folder, each put there whole and taken once.

A second process must not write into the journal, which has one writer; so `centuria cancel` leaves a note here, and
the run looks for notes. A command is a JSON object: `{"command": "cancel"}`, `{"command": "cancel", "task": "AAPL"}`,
`{"command": "limit", "resource": "server:web", "limit": 5}`; `steering.Commands` knows them all.
"""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from centuria.errors import JournalError
from centuria.journal.faults import journal_error

FOLDER = "commands"
#: Bytes of one command, and commands that may wait: the run reads them within a second, or is not running.
MAX_SIZE = 16_384
MAX_WAITING = 100


def post_command(folder: Path, command: Mapping[str, Any]) -> None:
    """Leave a command for the run whose folder this is; it is there whole once this returns.

    Raises `JournalError`: no such folder, not writable, too large, or too many that nobody took.
    """
    content = json.dumps(dict(command)).encode()
    if len(content) > MAX_SIZE:
        raise JournalError(f"The command is too large: {len(content):,} bytes, {MAX_SIZE:,} at most.")
    if not folder.is_dir():
        raise JournalError(f"There is no run folder {folder}.", remedy="See which there are: centuria runs.")
    box = folder / FOLDER
    try:
        box.mkdir(mode=0o700, exist_ok=True)
        if len(_waiting(box)) >= MAX_WAITING:
            raise JournalError(
                f"{MAX_WAITING} commands wait in {box} and nobody takes them.",
                remedy="The run is not running, or hangs: end its process.",
            )
        # The name sorts by time; the part after it keeps two of the same instant apart.
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}"
        draft = box / f".{name}.part"
        draft.write_bytes(content)
        draft.rename(box / f"{name}.json")
    except OSError as error:
        raise journal_error("sent a command", folder, error) from error


def take_commands(folder: Path) -> list[dict[str, Any]]:
    """The commands that were left, oldest first; each is taken once. What is no command is removed, never an error."""
    box = folder / FOLDER
    taken = []
    try:
        waiting = _waiting(box)
    except OSError:
        return []
    for path in waiting[:MAX_WAITING]:
        content = _read(path)
        try:
            path.unlink()
        except FileNotFoundError:
            continue  # another reader was first
        except OSError:
            pass  # it will come again: to be told twice is better than never
        try:
            command = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(command, dict):
            taken.append(command)
    return taken


def _waiting(box: Path) -> list[Path]:
    if box.is_symlink():
        raise NotADirectoryError(20, "the box of commands must not be a link", str(box))
    return sorted(path for path in box.iterdir() if path.suffix == ".json")


def _read(path: Path) -> bytes:
    """The file, if it is a plain and small one, else nothing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(handle, "rb") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SIZE:
            return b""
        return file.read(MAX_SIZE)
