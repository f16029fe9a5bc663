"""One connection of a fake upstream: HTTP/1.1 by hand, so that it can be spoken wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
#: Bytes of a request's head.
_HEAD_CAP = 2**20


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, at `at` seconds of the loop's clock."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float = 0.0
    method: str = "POST"

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def idempotency_key(self) -> str:
        return self.headers.get("idempotency-key", "")


class Server(Protocol):
    """What a connection tells its server."""

    def joined(self, connection: Connection) -> None: ...
    def parted(self, connection: Connection) -> None: ...
    def start(self, seen: Seen, connection: Connection) -> asyncio.Task[None]: ...


class Connection(asyncio.Protocol):
    """Requests one after another, each answered by a task that dies with the connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._chunked = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        self._server.parted(self)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._next()

    def next_request(self) -> None:
        self._task = None
        if self._transport is not None and not self._transport.is_closing():
            self._next()

    def _next(self) -> None:
        try:
            found = _read(self._buffer)
        except ValueError:
            self.whole(400, b"This is no HTTP request.", headers={"content-type": "text/plain", "connection": "close"})
            self.close()
            return
        if found is None:
            return
        method, path, headers, body, end = found
        del self._buffer[:end]
        seen = Seen(path, headers, body, asyncio.get_running_loop().time(), method)
        self._task = self._server.start(seen, self)

    # -- writing

    async def drained(self) -> None:
        await self._room.wait()

    def abort(self) -> None:
        """Reset."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """The orderly end, after what is already written."""
        if self._transport is not None:
            self._transport.close()

    def head(
        self,
        status: int,
        content_type: str | None,
        *,
        headers: Headers = (),
        length: int | None = None,
        chunked: bool = True,
        protocol: str = "HTTP/1.1",
    ) -> None:
        """Without a length and not chunked, the end of the connection is the end of the body."""
        self._chunked = chunked and length is None
        pairs = [("content-type", content_type)] if content_type is not None else []
        pairs += headers.items() if isinstance(headers, Mapping) else headers
        if self._chunked:
            pairs.append(("transfer-encoding", "chunked"))
        elif length is not None:
            pairs.append(("content-length", str(length)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        self.write(f"{protocol} {status} Reply\r\n{lines}\r\n".encode("latin-1"))

    def piece(self, data: bytes) -> None:
        if data:
            self.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def last(self, trailers: Headers = ()) -> None:
        if self._chunked:
            pairs = trailers.items() if isinstance(trailers, Mapping) else trailers
            lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
            self.write(f"0\r\n{lines}\r\n".encode("latin-1"))

    def whole(self, status: int, body: bytes, *, headers: Headers = ()) -> None:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        names = {name.lower() for name, _ in pairs}
        content_type = None if "content-type" in names else "application/json"
        self.head(status, content_type, headers=pairs, length=len(body))
        self.write(body)

    def write(self, data: bytes) -> None:
        """Exactly these bytes."""
        if self._transport is not None:
            self._transport.write(data)


def _read(buffer: bytearray) -> tuple[str, str, dict[str, str], bytes, int] | None:
    """The first request: method, path, headers, body, and where it ends. None: it is not all there. Raises
    `ValueError`."""
    start = buffer.find(b"\r\n\r\n") + 4
    if start < 4:
        if len(buffer) > _HEAD_CAP:
            raise ValueError("a head without an end")
        return None
    first, *lines = bytes(buffer[: start - 4]).decode("latin-1").split("\r\n")
    method, path = first.split(" ")[:2]
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        chunks = _chunks(buffer, start)
        return None if chunks is None else (method, path, headers, *chunks)
    end = start + _number(headers.get("content-length", "0"), 10)
    return None if len(buffer) < end else (method, path, headers, bytes(buffer[start:end]), end)


def _chunks(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """A body in chunks, and where it ends; its trailers are not looked at."""
    body = bytearray()
    while True:
        line = buffer.find(b"\r\n", at)
        if line < 0:
            return None
        size = _number(bytes(buffer[at:line]).partition(b";")[0].decode("latin-1").strip(), 16)
        at = line + 2
        if not size:
            end = buffer.find(b"\r\n\r\n", line)
            return None if end < 0 else (bytes(body), end + 4)
        if len(buffer) < at + size + 2:
            return None
        body += buffer[at : at + size]
        at += size + 2


def _number(text: str, base: int) -> int:
    """A size; `int` alone takes signs, underscores and the digits of every script."""
    if not text.isascii() or not text.isalnum() or len(text) > 15:
        raise ValueError(text)
    return int(text, base)
