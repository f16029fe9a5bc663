"""Opening files below given folders and nowhere else, also while someone else renames and links."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from centuria.tools.serving import Refusal

#: Bytes of a file that may be opened at all.
MAX_FILE = 512 * 1024 * 1024
MAX_PATH = 4096
#: Names that `listing` looks at before it gives up.
MAX_LOOKED_AT = 20_000

# Nor are hidden files, which is where keys are kept (.env, .git, .ssh).
# Never files of a user, whatever the root: /proc/self/environ alone would give away every key.
_SYSTEM = ("/proc", "/sys", "/dev")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that nobody writes to waits for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a listing: `path` is relative to its root, a `/` behind a folder; `size` in bytes."""

    path: str
    size: int


class Roots:
    """The folders that may be read. Raises `OSError` for one that cannot be opened.

    A path is resolved first, which only says where it *seems* to lead; then it is walked from the root's own
    descriptor, one name at a time, never following a link. So a link that is put there in between is an
    error, not a way out.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots: list[tuple[str, int]] = []
        for folder in folders:
            real = os.path.realpath(folder)
            self._roots.append((real, os.open(real, _DIRECTORY)))

    def close(self) -> None:
        while self._roots:
            os.close(self._roots.pop()[1])

    @property
    def folders(self) -> list[str]:
        return [real for real, _ in self._roots]

    @contextmanager
    def open(self, path: str) -> Iterator[tuple[BinaryIO, str]]:
        """Open a regular file to read; gives the file and its path relative to its root. Raises `Refusal`."""
        root, relative = self._place(path)
        descriptor = self._walk(root, relative, path, directory=not relative)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise Refusal(f'"{_short(path)}" is {_kind(info.st_mode)}, not a regular file.')
            if info.st_size > MAX_FILE:
                raise Refusal(f'"{_short(path)}" has {info.st_size:,} bytes; at most {MAX_FILE:,} are read.')
            file = os.fdopen(descriptor, "rb", closefd=False)
            yield file, relative
        finally:
            os.close(descriptor)

    def listing(self, path: str, limit: int) -> tuple[list[Entry], bool]:
        """Names below a folder, in order, hidden ones left out; True: there are more. Raises `Refusal`."""
        root, relative = self._place(path or ".")
        top = self._walk(root, relative, path, directory=True)
        found: list[Entry] = []
        try:
            more = self._collect(top, relative, found, limit, [MAX_LOOKED_AT])
        finally:
            os.close(top)
        return found, more

    def _collect(self, folder: int, prefix: str, found: list[Entry], limit: int, left: list[int]) -> bool:
        for name in sorted(os.listdir(folder)):
            left[0] -= 1
            if len(found) >= limit or left[0] < 0 or prefix.count("/") > 20:
                return True
            if name.startswith("."):
                continue
            path = f"{prefix}/{name}" if prefix else name
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode):
                found.append(Entry(path, info.st_size))
            elif stat.S_ISDIR(info.st_mode):
                found.append(Entry(path + "/", 0))
                try:
                    inner = os.open(name, _DIRECTORY, dir_fd=folder)
                except OSError:
                    continue
                try:
                    if self._collect(inner, path, found, limit, left):
                        return True
                finally:
                    os.close(inner)
        return False

    def _place(self, path: str) -> tuple[int, str]:
        """A root's descriptor, and the path below it with no link and no `..` in it ("" = the root itself).

        A relative path belongs to the first root that has such a file.
        """
        if not path or "\0" in path:
            raise Refusal("A path is a non-empty text without NUL characters.")
        if len(path) > MAX_PATH:
            raise Refusal(f"The path is longer than {MAX_PATH:,} characters.")
        inside: list[tuple[str, int, str]] = []
        for folder, descriptor in self._roots:
            real = _resolved(folder, path)
            if _inside(real, folder):
                inside.append((real, descriptor, folder))
        if not inside:
            raise Refusal(
                f'"{_short(path)}" is outside the folders that may be read. Give a path relative to '
                f"{' or '.join(self.folders)}, without .. or links that lead out."
            )
        real, descriptor, folder = next((place for place in inside if os.path.lexists(place[0])), inside[0])
        if any(_inside(real, system) for system in _SYSTEM):
            raise Refusal(f'"{_short(path)}" belongs to the system ({", ".join(_SYSTEM)}) and is never read.')
        relative = "" if real == folder else os.path.relpath(real, folder)
        if any(part.startswith(".") for part in relative.split("/")):
            raise Refusal(f'"{_short(path)}" is hidden (a name with a dot in front), and such files are never read.')
        return descriptor, relative

    @staticmethod
    def _walk(root: int, relative: str, path: str, *, directory: bool = False) -> int:
        parts = relative.split("/") if relative else []
        current = os.dup(root)
        try:
            for position, part in enumerate(parts):
                last = position == len(parts) - 1
                flags = _FILE if last and not directory else _DIRECTORY
                following = os.open(part, flags, dir_fd=current)
                os.close(current)
                current = following
        except OSError as error:
            os.close(current)
            raise Refusal(_sentence(error, path)) from None
        return current


def _resolved(folder: str, path: str) -> str:
    try:
        # os.path, not pathlib: the path may be absolute, and resolving must follow links before "..".
        return os.path.realpath(os.path.join(folder, path))  # noqa: PTH118
    except (OSError, ValueError) as error:
        raise Refusal(f'"{_short(path)}" cannot be resolved: {type(error).__name__}.') from None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _short(path: str) -> str:
    return path if len(path) <= 200 else path[:200] + "..."


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder (file_list shows what is in it)"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _sentence(error: OSError, path: str) -> str:
    shown = _short(path)
    match error.errno:
        case errno.ENOENT:
            return f'There is no file "{shown}". Use file_list to see what there is.'
        case errno.ELOOP:
            return f'"{shown}" is a link that leads out of the readable folders, or it changed meanwhile.'
        case errno.ENOTDIR:
            return f'"{shown}" leads through something that is not a folder.'
        case errno.EACCES | errno.EPERM:
            return f'"{shown}" may not be read: the file\'s permissions do not allow it.'
        case errno.ENXIO:
            return f'"{shown}" is a socket or a device, not a regular file.'
        case errno.ENAMETOOLONG:
            return f'"{shown}" has a name that is too long.'
        case _:
            return f'"{shown}" cannot be opened: {os.strerror(error.errno or 0)}.'
