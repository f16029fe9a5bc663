"""Replay: a transport that answers from a recording, byte for byte; needs no key and no network."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from centuria.core.blotting import cover
from centuria.core.retry import RetryPolicy
from centuria.errors import CenturiaError, ConfigurationError, ModelRefused
from centuria.messages import CallKey
from centuria.model.difference import first_difference
from centuria.model.exchange import LINE_CAP, Damaged, Ending, Exchange, read_line
from centuria.ports import HttpRequest, HttpResponse

#: The kind of the error that a request gets which was not recorded.
NOT_RECORDED = "not_recorded"


@dataclass(slots=True)
class Entry:
    """Where an exchange stands in the file, and what a request must be to get it."""

    offset: int
    size: int
    key: CallKey | None
    attempt: int
    at: float
    digest: str
    length: int
    masked: tuple[tuple[int, int], ...]
    used: bool = False

    def fits(self, method: str, body: bytes) -> bool:
        return len(body) == self.length and _digest(method, cover(body, self.masked)) == self.digest


class Recording:
    """A recording, opened for reading. `about` is what its first line tells.

    All of it is read once and checked; only an index of it is kept. A last line without an end is what a killed
    recorder leaves behind, and is not looked at. Raises `ConfigurationError`, naming the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: Mapping[str, Any] = {}
        self.entries: list[Entry] = []
        try:
            self._file: BinaryIO = _open(path)
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None
        try:
            self._index()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self.entries)

    def close(self) -> None:
        self._file.close()

    def exchange(self, entry: Entry) -> Exchange:
        """Read one exchange. Raises `ModelRefused` where the file is not any more what it was."""
        try:
            self._file.seek(entry.offset)
            found = read_line(self._file.read(entry.size))
            if isinstance(found, Exchange):
                return found
        except (OSError, ValueError, Damaged, ConfigurationError):
            pass
        raise ModelRefused(
            f"The recording {self.path} has changed under its reader.",
            kind="recording",
            served=False,
            remedy="Nothing may write to it or replace it while it is replayed.",
        )

    def _index(self) -> None:
        offset, number = 0, 0
        try:
            while line := self._file.readline(LINE_CAP + 1):
                number += 1
                if not line.endswith(b"\n") and len(line) <= LINE_CAP:
                    break
                self._take(line, offset)
                offset += len(line)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        except Damaged as why:
            raise ConfigurationError(
                f"{self.path}, line {number}, is no line of a recording: {why}.",
                remedy="Give a file that --record wrote.",
            ) from None
        if not self.entries:
            raise ConfigurationError(f"The recording {self.path} is empty.", remedy="Give a file that --record wrote.")

    def _take(self, line: bytes, offset: int) -> None:
        if len(line) > LINE_CAP:
            raise Damaged("it is longer than any line may be")
        found = read_line(line)
        if not isinstance(found, Exchange):
            self.about = self.about or found
            return
        self.entries.append(
            Entry(
                offset=offset,
                size=len(line),
                key=found.caller,
                attempt=found.attempt,
                at=found.at,
                digest=_digest(found.method, found.body),
                length=len(found.body),
                masked=found.masked,
            )
        )


def about_of(path: Path) -> Mapping[str, Any]:
    """What a recording's first line tells of it; nothing where it tells nothing. Raises `ConfigurationError`."""
    try:
        with _open(path) as file:
            found = read_line(file.readline(LINE_CAP))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    except Damaged:
        return {}  # whoever reads all of it will say what is wrong
    return {} if isinstance(found, Exchange) else found


def _open(path: Path) -> BinaryIO:
    """A file that can be read again from any place. A pipe cannot, and would be waited for."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file (a pipe has to be written to one first)")
    return path.open("rb")


def _unreadable(path: Path, error: Exception) -> ConfigurationError:
    why = getattr(error, "strerror", None) or "no file can have this name"
    return ConfigurationError(
        f"The recording {path} cannot be read: {why}.", remedy="Give a file that --record wrote and that you may read."
    )


class ReplayTransport:
    """Answers from a recording, byte for byte, in the chunks that were recorded; needs no key and no network.

    A request gets the exchange of its caller's key and attempt where its body is the recorded one, else the
    first unused exchange with its body. `paced`: as slowly as it was recorded, instead of at once. What was cut
    or reset is so again; where a reader had left or been stopped, nothing comes any more, as then.
    """

    def __init__(self, recording: Recording, *, paced: bool = False) -> None:
        self._recording = recording
        self._paced = paced
        self._asked: Counter[CallKey | None] = Counter()
        self._by_key: dict[tuple[CallKey | None, int], list[Entry]] = defaultdict(list)
        self._by_digest: dict[str, list[Entry]] = defaultdict(list)
        self._masked: list[Entry] = []
        for entry in sorted(recording.entries, key=lambda entry: (entry.attempt, entry.at)):
            self._by_key[entry.key, entry.attempt].append(entry)
            (self._masked if entry.masked else self._by_digest[entry.digest]).append(entry)

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Raises what was raised then; `ModelRefused` (kind "not_recorded") says what was asked, and what differs."""
        return self._send(request)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._recording.close()

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        began = asyncio.get_running_loop().time()
        exchange = self._recording.exchange(self._find(request))
        clock = _Clock(began if self._paced else None)
        if not exchange.status:
            await clock.until(exchange.ending.after)
            await _end(exchange.ending)
        await clock.until(exchange.head_after)
        yield _Replayed(exchange, clock)

    def _find(self, request: HttpRequest) -> Entry:
        key = request.caller.key if request.caller is not None else None
        self._asked[key] += 1
        attempt = self._asked[key]
        for entry in self._candidates(key, attempt, request):
            if not entry.used and entry.fits(request.method, request.body):
                entry.used = True
                return entry
        raise self._unknown(request, key, attempt)

    def _candidates(self, key: CallKey | None, attempt: int, request: HttpRequest) -> Iterator[Entry]:
        yield from self._by_key.get((key, attempt), ())
        yield from self._by_digest.get(_digest(request.method, request.body), ())
        yield from self._masked

    # -- what is told of a request that is not there

    def _unknown(self, request: HttpRequest, key: CallKey | None, attempt: int) -> ModelRefused:
        who = f"Task {key.task}, turn {key.turn + 1}, attempt {attempt}" if key is not None else "A request of no task"
        return ModelRefused(
            f"{who}: this request is not in the recording {self._recording.path}: {self._why(request, key, attempt)}.",
            kind=NOT_RECORDED,
            served=False,
            remedy="Undo what changed it, or record the run again with --record.",
        )

    def _why(self, request: HttpRequest, key: CallKey | None, attempt: int) -> str:
        nearest = self._nearest(key)
        if nearest is None:
            there = dict.fromkeys(entry.key.task for entry in self._recording.entries if entry.key is not None)
            some = ", ".join([*there][:5]) + (", ..." if len(there) > 5 else "")
            return f"it has no request of this task, only of {some or 'none'}"
        recorded = self._recording.exchange(nearest)
        difference = first_difference(recorded.body, cover(request.body, nearest.masked))
        if not difference:
            times = sum(entry.key == nearest.key for entry in self._recording.entries)
            return f"it was recorded {'once' if times == 1 else f'{times} times'}, and all of that is used up"
        if nearest.key == key:
            return f"it differs from the recorded one in {difference}"
        assert nearest.key is not None
        return f"the task's nearest one there is of turn {nearest.key.turn + 1} and differs in {difference}"

    def _nearest(self, key: CallKey | None) -> Entry | None:
        """The recorded request that was most likely meant."""
        candidates = [
            entry
            for entry in self._recording.entries
            if entry.key == key or (key is not None and entry.key is not None and entry.key.task == key.task)
        ]
        if key is None:
            return candidates[0] if candidates else None

        def distance(entry: Entry) -> tuple[int, int, int]:
            assert entry.key is not None
            return abs(entry.key.turn - key.turn), abs(entry.key.epoch - key.epoch), entry.attempt

        return min(candidates, key=distance) if candidates else None


class _Clock:
    """Waits until so many seconds after `began`; with None only lets others go first."""

    def __init__(self, began: float | None) -> None:
        self._began = began

    async def until(self, after: float) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(0 if self._began is None else max(0.0, self._began + after - now))


class _Replayed:
    """A recorded response."""

    def __init__(self, exchange: Exchange, clock: _Clock) -> None:
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.headers or {}
        self._left = iter(exchange.chunks)
        self._ending = exchange.ending
        self._clock = clock

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        after, chunk = next(self._left, (self._ending.after, None))
        await self._clock.until(after)
        if chunk is not None:
            return chunk
        await _end(self._ending)
        raise StopAsyncIteration


async def _end(ending: Ending) -> None:
    """Return for a body that was whole; raise or wait for ever for the rest."""
    if ending.error is not None:
        raise ending.error
    if ending.how != "end":
        await asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True)
class RetryAtOnce(RetryPolicy):
    """What would be tried again is, and without a wait: in a replay there is nothing to wait for."""

    def delay(self, failures: int, error: CenturiaError, dice: float) -> float | None:
        return None if RetryPolicy.delay(self, failures, error, dice) is None else 0.0


def _digest(method: str, body: bytes) -> str:
    return hashlib.sha256(method.encode() + b"\n" + body).hexdigest()
