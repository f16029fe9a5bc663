"""Record: a transport that keeps every exchange of a run in a file. The format is in `exchange`; no key is kept."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centuria.core.blotting import Blotter, cover
from centuria.errors import ConfigurationError, ModelError, ModelUnavailable
from centuria.messages import CallKey
from centuria.model.exchange import (
    LINE_CAP,
    Ending,
    Exchange,
    about_line,
    exchange_line,
    path_of,
    redacted,
)
from centuria.ports import HttpRequest, HttpResponse, Transport

#: Bytes that may wait for the disk, which no answer may outgrow. What is beyond ends the recording, never the run.
QUEUE_BYTES = 64 * 2**20
#: Seconds that the writer's thread waits for more before it ends: an idle recording has no thread.
LINGER = 0.5


class RecordingTransport:
    """Passes everything on to `inner` and keeps it in `path`, which must not be there yet (mode 0600).

    `about` goes into the first line; `secrets` are values that must never be written, besides the keys in the
    requests' own headers. Lines are written whole by a thread, as exchanges end. When that fails (a full disk),
    the recording ends with what it has, `warn` is called once, and the run goes on. A recording without an
    exchange leaves no file. Raises `ConfigurationError` where the file cannot be made.
    """

    def __init__(
        self,
        inner: Transport,
        path: Path,
        *,
        about: Mapping[str, Any] | None = None,
        secrets: Iterable[str] = (),
        warn: Callable[[str], None] = lambda text: None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self._inner = inner
        self._warn = warn
        self._most = queue_bytes
        self._writer = _Writer(path, about or {}, frozenset(secrets), queue_bytes)
        self._asked: Counter[str] = Counter()
        self._start: float | None = None
        self._told = False

    @property
    def written(self) -> int:
        """Exchanges on disk."""
        return self._writer.written

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Raises what `inner` raises."""
        return self._send(request)

    async def finish(self) -> None:
        """Write what waits and close the file; exchanges after it are not kept. Doing so again does nothing."""
        await self._writer.close()
        self._tell()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            await self._writer.close()

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        draft = self._begin(request)
        try:
            async with self._inner.send(request) as response:
                draft.answered(response)
                yield _Recorded(response, draft)
        except BaseException as error:
            draft.given_up(error)
            raise
        finally:
            draft.given_up(None)
            self._writer.put(draft.exchange(), draft.size)
            self._tell()

    def _begin(self, request: HttpRequest) -> _Draft:
        now = asyncio.get_running_loop().time()
        if self._start is None:
            self._start = now
        key = request.caller.key if request.caller is not None else None
        self._asked[str(key)] += 1
        return _Draft(request, key, self._asked[str(key)], now - self._start, now, self._most)

    def _tell(self) -> None:
        if self._writer.failure and not self._told:
            self._told = True
            self._warn(self._writer.failure)


@dataclass(slots=True)
class _Draft:
    """An exchange as far as it has come."""

    request: HttpRequest
    key: CallKey | None
    attempt: int
    at: float
    began: float
    most: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    head_after: float = 0.0
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    size: int = 0
    ending: Ending | None = None

    def __post_init__(self) -> None:
        self.size = len(self.request.body)

    def answered(self, response: HttpResponse) -> None:
        self.status, self.headers, self.head_after = response.status, dict(response.headers), self._now()

    def arrived(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size <= self.most:
            self.chunks.append((self._now(), chunk))
        else:  # the writer will refuse it as too large: no reason to hold it
            self.chunks.clear()

    def ended(self) -> None:
        self.ending = self.ending or Ending("end", self._now())

    def broke(self, error: ModelError) -> None:
        self.ending = self.ending or Ending("cut" if error.kind == "cut" else "error", self._now(), error)

    def given_up(self, error: BaseException | None) -> None:
        """The reader left, or was made to; nothing is changed where the exchange had ended before."""
        if self.ending is not None:
            return
        if isinstance(error, asyncio.CancelledError):
            self.ending = Ending("cancelled", self._now())
        elif not self.status and isinstance(error, ModelError):
            self.ending = Ending("reset" if error.kind == "cut" else "error", self._now(), error)
        elif self.status:
            self.ending = Ending("left", self._now())
        else:
            said = f"The transport failed ({type(error).__name__})."
            self.ending = Ending("error", self._now(), ModelUnavailable(said))

    def exchange(self) -> Exchange:
        assert self.ending is not None
        return Exchange(
            at=self.at,
            caller=self.key,
            attempt=self.attempt,
            method=self.request.method,
            path=path_of(self.request.url),
            request_headers=self.request.headers,
            body=self.request.body,
            ending=self.ending,
            status=self.status,
            headers=self.headers,
            head_after=self.head_after,
            chunks=self.chunks,
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.began


class _Recorded:
    """A response whose chunks are noted as they pass."""

    def __init__(self, response: HttpResponse, draft: _Draft) -> None:
        self._response = response
        self._draft = draft
        self._chunks: AsyncIterator[bytes] | None = None

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        self._chunks = self._response.chunks()
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._draft.ended()
            raise
        except ModelError as error:
            self._draft.broke(error)
            raise
        self._draft.arrived(chunk)
        return chunk


class _Writer:
    """The file and the thread that writes it. `failure` says why nothing more is written ("" = all is well)."""

    def __init__(self, path: Path, about: Mapping[str, Any], secrets: frozenset[str], room: int) -> None:
        self.written = 0
        self.failure = ""
        self._path = path
        self._secrets = secrets
        self._file: int | None = _make(path)
        head = about_line(about)
        self._head = cover(head, Blotter(secrets).spans(head))
        self._good = 0
        # What the loop and the thread share, all of it under `_change`.
        self._change = threading.Condition()
        self._room = room
        self._queue: list[tuple[Exchange, int]] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, exchange: Exchange, size: int) -> None:
        """Queue an exchange. Never waits and never raises."""
        with self._change:
            if self._closing or self.failure:
                return
            if size > self._room:
                self._fail("more waits to be written than may wait: the disk is too slow, or an answer too large")
                return
            self._room -= size
            self._queue.append((exchange, size))
            if self._thread is None:
                # Not a daemon: a program that ends without closing still writes what it has.
                self._thread = threading.Thread(target=self._work, name="centuria-recording")
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    self._fail("no thread could be started")
                    return
            self._change.notify()

    async def close(self) -> None:
        with self._change:
            self._closing = True
            self._change.notify()
            thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
            if not self.written:
                self._path.unlink(missing_ok=True)

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._queue and not self._closing:
                    self._change.wait(LINGER)
                batch, self._queue = self._queue, []
                if not batch:
                    self._thread = None
                    return
            for exchange, size in batch:
                if not self.failure:
                    self._keep(exchange)
                with self._change:
                    self._room += size

    def _keep(self, exchange: Exchange) -> None:
        try:
            line = exchange_line(redacted(exchange, self._secrets))
            if len(line) > LINE_CAP:
                self._fail("an answer is larger than a recording holds")
                return
            self._write(line if self.written else self._head + line)
        except OSError as error:
            self._undo()
            self._fail(f"it cannot be written: {error.strerror}")
        except Exception as error:  # the edge of the thread: a run never ends because of its recording
            self._undo()
            self._fail(f"an exchange cannot be written: {type(error).__name__}")
        else:
            self.written += 1

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        self._good += len(data)

    def _undo(self) -> None:
        """Take back half a line."""
        with suppress(OSError):
            if self._file is not None:
                os.ftruncate(self._file, self._good)

    def _fail(self, why: str) -> None:
        kept = f"{self.written} exchanges are kept" if self.written else "nothing is kept"
        self.failure = f"The recording {self._path} ends here: {why}. The run goes on; {kept}."


def _make(path: Path) -> int:
    """A new file that nobody else reads."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"{path} is there already; a recording never writes over a file.", remedy="Give --record another name."
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file can have this name"
        raise ConfigurationError(
            f"The recording {path} cannot be made: {why}.", remedy="Give --record a name in a folder of yours."
        ) from None
