"""The folder of a run: everything that a run leaves behind, under one roof, each file whole or not there."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from centuria.errors import ConfigurationError, JournalError

JOURNAL = "journal.sqlite"
#: What stands at a temporary file's place is overwritten; a link there is not followed.
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_WINDOWS_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


class RunFolder:
    """Paths below one run's folder. `path` is absolute; every name given out is relative to it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._folders: dict[str, Path] = {}

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    def create(self) -> None:
        """Make the folder. Raises `ConfigurationError` if it holds a run or anything else already."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            occupied = next(self.path.iterdir(), None)
        except OSError as error:
            raise ConfigurationError(
                f"The run folder {self.path} cannot be made: {error.strerror}.", remedy="Choose another with --out."
            ) from error
        if self.journal.exists():
            raise ConfigurationError(
                f"{self.path} holds a run already.",
                remedy=f"Go on with it: centuria resume {self.path}, or choose another folder with --out.",
            )
        if occupied is not None:
            raise ConfigurationError(f"The folder {self.path} is not empty.", remedy="Choose another with --out.")

    def write(self, name: str, text: str) -> str:
        """Put a file in place in one step: readers see all of it or the one before. Returns `name`.

        One writer at a time: whoever holds the journal's lock. Raises `JournalError` where the disk refuses.
        """
        target = self._inside(name)
        try:
            self._put(target, text)
        except OSError as error:
            raise JournalError(
                f"{target} cannot be written: {error.strerror or type(error).__name__}.",
                remedy="Free some space, or make its folder writable, then: centuria resume.",
            ) from error
        return name

    @staticmethod
    def _put(target: Path, text: str) -> None:
        temporary = str(target.with_name(f".{target.name}.part"))
        try:
            handle = os.open(temporary, _WRITE, 0o666)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(temporary, _WRITE, 0o666)
        try:
            try:
                data = memoryview(text.encode("utf-8", "replace"))
                while data:
                    data = data[os.write(handle, data) :]
            finally:
                os.close(handle)
            os.replace(temporary, target)  # noqa: PTH105 - a thousand agents write a thousand files: each call counts
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def spill(self, key: str, text: str) -> str:
        """Keep the whole of a text that is too long to be passed on. Returns the file's name in this folder."""
        return self.write(f"spill/{file_stem(key)}.txt", text)

    def read(self, name: str) -> str:
        return self._inside(name).read_text(encoding="utf-8")

    def exists(self, name: str) -> bool:
        return self._inside(name).exists()

    def _inside(self, name: str) -> Path:
        """The path of a file, in a folder that was resolved, once, and found to be inside."""
        parent, _, last = name.rpartition("/")
        folder = self._folders.get(parent)
        if folder is None:
            folder = (self.path / parent if parent or name == last else Path("/")).resolve()
            if not folder.is_relative_to(self.path.resolve()):
                raise ConfigurationError(f"{name!r} leads out of the run folder.")
            self._folders[parent] = folder
        if last in ("", ".", ".."):
            raise ConfigurationError(f"{name!r} leads out of the run folder.")
        return folder / last


def file_stem(identity: str) -> str:
    """A file name for any identity: itself where it is a safe name, else a safe likeness with a hash of the whole."""
    likeness = _UNSAFE.sub("-", identity).strip("-.")[:80]
    if likeness == identity and not _WINDOWS_DEVICES.fullmatch(identity):
        return identity
    return f"{likeness or 'task'}-{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:8]}"


class Stems:
    """A file name for each identity; no two are one file, also where case does not count (macOS, Windows)."""

    def __init__(self, identities: Sequence[str] = ()) -> None:
        self._stems: dict[str, str] = {}
        self._taken: set[str] = set()
        crowd = Counter(file_stem(identity).casefold() for identity in identities)
        for identity in identities:
            self._put(identity, alone=crowd[file_stem(identity).casefold()] == 1)

    def add(self, identity: str) -> None:
        """One more; those that are there keep their names."""
        if identity not in self._stems:
            self._put(identity, alone=file_stem(identity).casefold() not in self._taken)

    def of(self, identity: str) -> str:
        return self._stems[identity]

    def _put(self, identity: str, *, alone: bool) -> None:
        stem = file_stem(identity)
        if not alone:
            stem = f"{stem[:80]}-{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:32]}"
        while stem.casefold() in self._taken:
            stem += "_"
        self._taken.add(stem.casefold())
        self._stems[identity] = stem


def find_run(name: str, root: Path) -> RunFolder:
    """The run that a user means: a folder, an id, the unique start of one, or `last`.

    `root` is the folder of runs. Raises `ConfigurationError` naming what there is.
    """
    as_path = Path(name)
    with suppress(OSError, ValueError):  # what cannot be a path is no folder
        if (as_path / JOURNAL).is_file():
            return RunFolder(as_path)
    runs = list_runs(root)
    if name == "last" and runs:
        return runs[-1]
    exact = [run for run in runs if run.path.name == name]
    matches = exact or [run for run in runs if run.path.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(run.path.name for run in matches[:5])
        raise ConfigurationError(f"{name!r} is the start of {len(matches)} runs: {some}.", remedy="Give more of it.")
    there = ", ".join(run.path.name for run in runs[-5:])
    raise ConfigurationError(
        f"There is no run {name!r} in {root}.",
        remedy=f"The latest there are: {there}." if there else "Start one: centuria run job.toml.",
    )


def list_runs(root: Path) -> list[RunFolder]:
    """All runs below a folder, oldest first (their ids begin with their time); pointers lead to runs elsewhere."""
    if not root.is_dir():
        return []
    runs = []
    for entry in sorted(root.iterdir()):
        if (entry / JOURNAL).is_file():
            runs.append(RunFolder(entry.resolve() if entry.is_symlink() else entry))
    return runs


def register(run: RunFolder, root: Path, run_id: str) -> None:
    """Let `list_runs` find a run that lives outside the folder of runs. Costs nothing where links cannot be made."""
    if run.path.parent.resolve() == root.resolve():
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / run_id).symlink_to(run.path, target_is_directory=True)
    except OSError:
        return
