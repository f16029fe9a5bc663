"""What outlives the process: a document for each swarm in the store, and the folder of its run.

A swarm that has not come to its end has a second, empty document of kind `OPEN`: that is how the next start finds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from centuria.errors import ConfigurationError
from centuria.folder import RunFolder
from centuria.gateway.ports import Document, Key
from centuria.messages import Pico

KIND, OPEN = "swarm", "swarm-open"
_MARK = ".gateway"
_FOLDER_ID = re.compile("[0-9a-f]{16}")
_ID = re.compile(r"swarm-[0-9a-f]{24}")


def new_id() -> str:
    return f"swarm-{secrets.token_hex(12)}"


def id_for(owner: str, idempotency: str) -> str:
    """The one swarm that this owner's requests with this `Idempotency-Key` are for."""
    return "swarm-" + sha256(f"{owner}\n{idempotency}".encode()).hexdigest()[:24]


def is_id(id: str) -> bool:
    """Whether this may be a swarm's id: only then is it looked for, and never used as a path otherwise."""
    return _ID.fullmatch(id) is not None


@dataclass(frozen=True, slots=True)
class SwarmRecord:
    """One swarm, as its document has it. `place` is the folder of runs that it lives in, with its request: the body, as
    `digest` (`headers.digest_of_asked`) tells it.

    `budget` is its cap (None: none). `status` is "running" until it has ended; then also `cost`, `held`, `tasks` and
    `ok` are there. `rehearsal`: a scripted model answers it. Money in pico-dollars, times in seconds since 1970.
    """

    id: str
    key: Key
    name: str
    model: str
    budget: Pico | None
    digest: str
    place: str
    at: float
    status: str = "running"
    cause: str = ""
    ended_at: float | None = None
    cost: Pico = 0
    held: Pico = 0
    tasks: int = 0
    ok: int = 0
    rehearsal: bool = False

    @property
    def ended(self) -> bool:
        return self.status != "running"

    def document(self) -> Document:
        fields = asdict(self)
        for name in ("models", "tools"):
            fields["key"][name] = None if fields["key"][name] is None else sorted(fields["key"][name])
        return Document(self.id, json.dumps(fields, ensure_ascii=False), self.at)

    @classmethod
    def read(cls, document: Document) -> SwarmRecord:
        """What a document says; what a newer version says besides is left out."""
        said = json.loads(document.body)
        key = {name: item for name, item in said.pop("key").items() if name in Key.__dataclass_fields__}
        for name in ("models", "tools"):
            key[name] = None if key[name] is None else frozenset(key[name])
        return cls(key=Key(**key), **{name: item for name, item in said.items() if name in cls.__dataclass_fields__})

    def for_key(self, key: Key) -> SwarmRecord:
        """The same, for its key as it is now."""
        return replace(self, key=key)


class RunsFolder:
    """The folder of all runs: one gateway's at a time. `id` tells it from those of other machines."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._handle: int | None = None
        self.id = ""

    @property
    def exists(self) -> bool:
        """Whether a gateway has worked here before."""
        return (self._root / _MARK).exists()

    def lock(self) -> None:
        """Hold it until `unlock`; doing it again does nothing.

        Raises `ConfigurationError` where it cannot be made, or another gateway has it.
        """
        if self._handle is not None:
            return
        handle: int | None = None
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._root / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.id = _id_in(handle)
        except OSError as error:
            if handle is not None:
                os.close(handle)
            if isinstance(error, BlockingIOError):
                raise ConfigurationError(
                    f"Another gateway works in the folder of runs {self._root}.",
                    remedy="Give each a folder of its own.",
                ) from None
            raise ConfigurationError(
                f"The folder of runs {self._root} cannot be used: {error.strerror}.", remedy="Choose another."
            ) from None
        self._handle = handle

    def unlock(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def write_request(self, record: SwarmRecord, value: Any) -> None:
        """Keep what was asked for, durably. Raises `OSError`."""
        path = self._request(record)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with part.open("xb") as file:
                file.write(json.dumps(value).encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read_request(self, record: SwarmRecord) -> Any:
        """What was asked for. Raises `OSError`, `ValueError`."""
        return json.loads(self._request(record).read_bytes())

    def _request(self, record: SwarmRecord) -> Path:
        if not is_id(record.id):
            raise ValueError("not the id of a swarm")
        return self._root / "requests" / f"{record.id}-{record.digest[:16]}.json"

    def folder(self, swarm: str) -> RunFolder:
        """The folder of a swarm's run. Raises `ValueError` for what is no id of ours."""
        if not is_id(swarm):
            raise ValueError("not the id of a swarm")
        return RunFolder(self._root / swarm)


def _id_in(handle: int) -> str:
    """The id of this folder, made where there is none. Raises `OSError`."""
    id = os.read(handle, 100).decode("ascii", "replace")
    if not _FOLDER_ID.fullmatch(id):
        id = secrets.token_hex(8)
        os.ftruncate(handle, 0)
        os.pwrite(handle, id.encode(), 0)
        os.fsync(handle)
    return id
