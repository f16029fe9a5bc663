"""A model provider on loopback: a real HTTP server that answers as scripted, misbehaves as told, and keeps
the books.

    async with FakeUpstream(lambda body: Text("Hello."), latency=0.02) as upstream:
        endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5")
        ...
    assert upstream.peak == 100

A script gets the parsed body of a request and gives a reply: `Text`, `Calls`, `Document` (they ignored
`stream`), `HttpError`, `Raw`, or one of the faults that wrap a reply or stand for none: `Cut`, `Stall`,
`Reset`, `Silence`. It speaks HTTP/1.1 itself, because a server that can break its own protocol cannot be
built on one that keeps it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from centuria.messages import Usage
from centuria.testing.replies import (
    Answer,
    Calls,
    Cut,
    Document,
    HttpError,
    Raw,
    Reply,
    Reset,
    Script,
    Silence,
    Stall,
    Text,
    as_json,
    chunks,
    document,
    error,
)

__all__ = [
    "Calls",
    "Cut",
    "Document",
    "FakeUpstream",
    "HttpError",
    "Raw",
    "Reply",
    "Reset",
    "Script",
    "Seen",
    "Silence",
    "Stall",
    "Text",
]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def idempotency_key(self) -> str:
        return self.headers.get("idempotency-key", "")


def say_hello(body: dict[str, Any]) -> Reply:
    return Text("Hello.")


# -- the server ----------------------------------------------------------------------------------------------


class FakeUpstream:
    """The server. `latency` is in seconds, to the first byte; `tokenise` counts a prompt's tokens (bytes /
    4).

    `requests` holds what arrived, `attempts` counts it by idempotency key, `in_flight` and `peak` are
    requests being answered, `connections` those that are open, `aborted` requests whose client left before
    the end, and `billed` what a provider would charge for: every answer that it began, the aborted ones too.
    """

    def __init__(
        self,
        script: Script = say_hello,
        *,
        latency: float = 0.0,
        models: tuple[str, ...] = ("kimi-k2.5",),
        key: str | None = None,
        tokenise: Callable[[bytes], int] = lambda body: len(body) // 4,
    ) -> None:
        self.script = script
        self.latency = latency
        self.models = models
        self.key = key
        self.tokenise = tokenise
        self.requests: list[Seen] = []
        self.attempts: Counter[str] = Counter()
        self.billed: list[Usage] = []
        self.in_flight = 0
        self.peak = 0
        self.connections = 0
        self.opened = 0
        self.aborted = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Connection] = set()
        self._changed = asyncio.Event()
        self._answers = count(1)

    @property
    def base_url(self) -> str:
        if self._server is None:
            raise RuntimeError("The upstream is not running: use `async with`.")
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    async def __aenter__(self) -> FakeUpstream:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=4096)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._open):
            connection.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.until(lambda: not self._open)

    async def until(self, holds: Callable[[], bool], *, within: float = 5.0) -> None:
        """Wait until something about this server holds. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # -- used by the connections

    def joined(self, connection: _Connection) -> None:
        self._open.add(connection)
        self.opened += 1
        self._count()

    def parted(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._count()

    def start(self, seen: Seen, connection: _Connection) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._serve(seen, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _count(self) -> None:
        self.connections = len(self._open)
        self._changed.set()

    async def _serve(self, seen: Seen, connection: _Connection) -> None:
        self.requests.append(seen)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self._changed.set()
        ended = False
        try:
            await self._answer(seen, connection)
            ended = True
        finally:
            self.in_flight -= 1
            self.aborted += not ended
            self._changed.set()
        connection.next_request()

    async def _answer(self, seen: Seen, connection: _Connection) -> None:
        if self.key is not None and seen.headers.get("authorization") != f"Bearer {self.key}":
            connection.whole(401, error("invalid_authentication_error", "Invalid Authentication"))
            return
        if seen.path.endswith("/models"):
            listing = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            connection.whole(200, as_json(listing))
            return
        self.attempts[seen.idempotency_key] += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        await self._reply(self.script(seen.json), seen, connection)

    async def _reply(self, reply: Reply, seen: Seen, connection: _Connection) -> None:
        match reply:
            case Text() | Calls():
                await self._stream(reply, seen, connection)
            case Cut(answer, after):
                await self._stream(answer, seen, connection, share=after)
                connection.abort()
            case Stall(answer, after):
                await self._stream(answer, seen, connection, share=after)
                await _for_ever()
            case Document(answer):
                connection.whole(200, as_json(document(answer, seen.json, self._bill(answer, seen), self._id())))
            case HttpError():
                body = error(reply.type, reply.message) if reply.body is None else reply.body
                connection.whole(reply.status, body, headers=reply.headers)
            case Raw():
                await self._raw(reply, connection)
            case Reset():
                connection.abort()
            case Silence():
                await _for_ever()

    async def _stream(self, answer: Answer, seen: Seen, connection: _Connection, *, share: float | None = None) -> None:
        usage = self._bill(answer, seen)
        pieces = list(chunks(answer, seen.json, usage, self._id()))
        if share is not None:
            pieces = pieces[: int(len(pieces) * share)]
        connection.head(200, "text/event-stream")
        async for piece in _paced(pieces, answer.gap):
            connection.piece(b"data: " + piece + b"\n\n")
            await connection.drained()
        if share is None:
            connection.piece(b"data: [DONE]\n\n")
            connection.last()

    async def _raw(self, reply: Raw, connection: _Connection) -> None:
        connection.head(reply.status, reply.content_type)
        async for piece in _paced(list(reply.pieces), reply.gap):
            connection.piece(piece)
            await connection.drained()
        if not reply.end:
            await _for_ever()
        connection.last()

    def _bill(self, answer: Answer, seen: Seen) -> Usage:
        """The usage of an answer: what it states, or counted from its bytes where it states nothing."""
        stated = answer.usage
        if stated is not None and (stated.prompt or stated.output):
            usage = stated
        else:
            written = answer.text + (answer.reasoning or "")
            if isinstance(answer, Calls):
                written += "".join(name + arguments for name, arguments in answer.calls)
            usage = Usage(prompt=self.tokenise(seen.body), output=max(1, len(written.encode()) // 4))
        self.billed.append(usage)
        return usage

    def _id(self) -> str:
        return f"chatcmpl-{next(self._answers)}"


class _Connection(asyncio.Protocol):
    """One connection: requests one after another, each answered by a task that dies with the connection."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._upstream.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        self._upstream.parted(self)

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
        if self._transport is not None:
            self._next()

    def _next(self) -> None:
        start = self._buffer.find(b"\r\n\r\n") + 4
        if start < 4:
            return
        first, *lines = bytes(self._buffer[: start - 4]).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        end = start + int(headers.get("content-length", "0"))
        if len(self._buffer) < end:
            return
        body = bytes(self._buffer[start:end])
        del self._buffer[:end]
        self._task = self._upstream.start(Seen(first.split(" ")[1], headers, body), self)

    async def drained(self) -> None:
        await self._room.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def head(self, status: int, content_type: str) -> None:
        lines = f"content-type: {content_type}\r\ntransfer-encoding: chunked\r\n"
        self._write(f"HTTP/1.1 {status} Reply\r\n{lines}\r\n".encode())

    def piece(self, data: bytes) -> None:
        if data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def last(self) -> None:
        self._write(b"0\r\n\r\n")

    def whole(self, status: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        lines = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._write(f"HTTP/1.1 {status} Reply\r\n{head}\r\n".encode() + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def _paced(pieces: list[bytes], gap: float) -> AsyncIterator[bytes]:
    for place, piece in enumerate(pieces):
        if place and gap:
            await asyncio.sleep(gap)
        yield piece


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
