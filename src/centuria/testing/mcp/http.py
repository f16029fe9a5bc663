"""The fake MCP server over streamable HTTP, on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Literal

from centuria.testing.connection import Connection, Seen
from centuria.testing.mcp.books import Books
from centuria.testing.mcp.faults import Plan
from centuria.testing.mcp.service import (
    ERAS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN,
    PARSE_ERROR,
    VERSION_KEY,
    Service,
    for_ever,
)
from centuria.testing.mcp.shapes import Message, encoded, failure
from centuria.testing.mcp.toolbox import Toolbox

HEADER_MISMATCH = -32020
Answers = Literal["json", "sse"]
_SSE = "text/event-stream"


class FakeMcp:
    """An MCP server in this process, for as long as the `async with` lasts.

        async with FakeMcp("429=0.5@/10", "half@3", seed=7) as server:
            ...  # a client of `server.url`
        assert server.books.calls["echo"] == 20

    `eras`: the protocol's. `answers`: JSON documents or event streams. More than `at_once` calls are refused (HTTP
    429). With a `token` only requests with that bearer are served (else 401). Raises `ValueError` for a fault that does
    not exist.
    """

    def __init__(
        self,
        *faults: str,
        seed: int = 0,
        eras: Sequence[str] = ERAS,
        answers: Answers = "json",
        at_once: int | None = None,
        token: str | None = None,
        tools: Sequence[str] | None = None,
        books: Books | None = None,
        plan: Plan | None = None,
        port: int = 0,
    ) -> None:
        self._changed = asyncio.Event()
        self.books = books or Books()
        self.books.changed = self._changed.set
        plan = plan or Plan.of(faults, seed, "http")
        self.service = Service(plan, eras=eras, toolbox=Toolbox(tools), books=self.books)
        self.answers: Answers = answers
        self.at_once = at_once
        self.token = token
        #: The ids of the sessions that it knows.
        self.sessions: set[str] = set()
        #: What arrived, the newest last.
        self.requests: list[Seen] = []
        self._numbers = count(1)
        self._port = port
        self._server: asyncio.Server | None = None
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        if not self._port:
            raise RuntimeError("The server is not running: use `async with`.")
        return f"http://127.0.0.1:{self._port}/mcp"

    async def __aenter__(self) -> FakeMcp:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self._port, backlog=4096)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in tuple(self._open):
            connection.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.until(lambda: not self._open)

    async def until(self, holds: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something about this server holds. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def forget(self) -> None:
        """Forget every session: whoever uses one gets HTTP 404."""
        self.books.note("forgotten")
        self.sessions.clear()

    def change_tools(self, names: Sequence[str], *, tell: int = 1) -> None:
        """List these tools from now on, and tell all who listen so often."""
        self.service.change_tools(names, tell=tell)

    def cut(self) -> None:
        """Reset every connection."""
        for connection in tuple(self._open):
            connection.abort()

    # -- used by the connections

    def joined(self, connection: Connection) -> None:
        self._open.add(connection)
        self.books.connected(1)

    def parted(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.books.connected(-1)

    def start(self, seen: Seen, connection: Connection) -> asyncio.Task[None]:
        self.requests.append(seen)
        return self._task(self._serve(seen, connection))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, seen: Seen, connection: Connection) -> None:
        try:
            await self._answer(seen, connection)
        except asyncio.CancelledError:
            connection.close()  # given up, by a notification or by hanging up
            raise
        connection.next_request()

    async def _answer(self, seen: Seen, connection: Connection) -> None:
        if self.token is not None and seen.headers.get("authorization") != f"Bearer {self.token}":
            connection.whole(401, b"", headers={"www-authenticate": "Bearer"})
            return
        session = seen.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            connection.whole(404, encoded(failure(None, INVALID_REQUEST, "Session not found")))
            return
        if seen.method == "POST":
            await self._post(seen, connection, session)
        elif seen.method == "GET" and session is not None:
            await self._stream(connection, session)
        elif seen.method == "DELETE" and session is not None:
            self.books.note("deleted")
            self.sessions.discard(session)
            connection.whole(200, b"")
        else:
            connection.whole(405, b"", headers={"allow": "POST"})

    async def _stream(self, connection: Connection, session: str) -> None:
        """The stream of what belongs to no request, of a session of before 2026."""
        connection.head(200, _SSE)
        connection.piece(b": the stream is open\n\n")
        self.service.channels[connection] = lambda message: connection.piece(_event(encoded(message)))
        self.books.note("stream")
        try:
            while session in self.sessions:
                self._changed.clear()
                await self._changed.wait()
            connection.last()
        finally:
            del self.service.channels[connection]

    async def _post(self, seen: Seen, connection: Connection, session: str | None) -> None:
        try:
            message: Any = json.loads(seen.body)
        except (ValueError, RecursionError):
            connection.whole(400, encoded(failure(None, PARSE_ERROR, "This is no JSON.")))
            return
        wrong = self._mismatch(message, seen.headers, session)
        if wrong is not None:
            connection.whole(400, encoded(wrong))
            return
        way = _Exchange(self, connection, message, session)
        work = self._task(self.service.handle(message, way))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                way.end()  # a notification has cancelled it
            elif way.modern:
                self.service.cancel(way.peer, way.number)  # hanging up does; before 2026 it means nothing
            raise
        if not way.begun:
            connection.whole(202, b"")

    def _mismatch(self, message: Any, headers: Mapping[str, str], session: str | None) -> Message | None:
        """What is wrong with a request whose headers and body do not fit, or that has no session."""
        if not isinstance(message, dict):
            return None
        number, method = message.get("id"), message.get("method")
        params = message.get("params") if isinstance(message.get("params"), dict) else {}
        assert params is not None
        version = (params.get("_meta") or {}).get(VERSION_KEY)
        if version is None:
            opens = method == "initialize" or headers.get("mcp-protocol-version") == MODERN
            if session is None and not opens:
                return failure(number, INVALID_REQUEST, "There is no session: send initialize first.")
            return None
        name = params.get("name") if method == "tools/call" else None
        for header, value in (("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)):
            if value is not None and _decoded(headers.get(header)) != value:
                return failure(number, HEADER_MISMATCH, f"The header {header} is not what the body says.")
        return None

    def opened(self) -> str:
        """A new session of the protocol of before 2026."""
        session = f"session-{next(self._numbers)}"
        self.sessions.add(session)
        self.books.note("session")
        return session


class _Exchange:
    """One POST and its answer; implements `Way`."""

    def __init__(self, server: FakeMcp, connection: Connection, message: Any, session: str | None) -> None:
        self.server = server
        self.connection = connection
        self.message = message if isinstance(message, dict) else {}
        self.number = self.message.get("id")
        self.session = session
        self.peer = session or f"connection-{id(connection)}"
        self.begun = False
        self.streams = server.answers == "sse" and self.message.get("method") == "tools/call"
        meta = (self.message.get("params") or {}).get("_meta") if isinstance(self.message.get("params"), dict) else {}
        self.modern = VERSION_KEY in (meta or {})

    async def turned_away(self, hits: Mapping[str, float]) -> bool:
        server = self.server
        if "forget" in hits and self.session is not None:
            server.forget()
            self._whole(404, encoded(failure(None, INVALID_REQUEST, "Session not found")))
            return True
        full = server.at_once is not None and server.books.in_flight >= server.at_once
        if "429" in hits or full:
            self._whole(429, b"Too many requests", {"retry-after": f"{hits.get('429', 0.1):g}"})
            return True
        return False

    async def before(self, hits: Mapping[str, float]) -> None:
        pass

    def push(self, message: Message) -> None:
        self._begin_stream()
        self.connection.piece(_event(encoded(message)))

    async def reply(self, messages: Sequence[bytes], hits: Mapping[str, float]) -> None:
        body = messages[0]
        if "reset" in hits:
            self.begun = True
            self.connection.abort()
        elif "status" in hits:
            self._whole(int(hits["status"]), b"<html>Something went wrong.</html>", {"content-type": "text/html"})
        elif "html" in hits:
            self._whole(200, b"<html>Please log in.</html>", {"content-type": "text/html"})
        elif "half" in hits:
            self.begun = True
            self.connection.head(200, "application/json", length=len(body))
            self.connection.write(body[: len(body) // 2])
            self.connection.close()
        elif "cut-sse" in hits:
            self._begin_stream()
            await self.connection.drained()
            self.connection.close()
        elif self.streams or self.begun or len(messages) > 1:
            self._begin_stream()
            for message in messages:
                self.connection.piece(_event(message))
            await self.connection.drained()
            self.connection.last()
        else:
            self._whole(self._status(body), body, self._session_header())
            await self.connection.drained()

    def end(self) -> None:
        """Without an answer, as the request was cancelled."""
        if self.begun:
            self.connection.last()
        else:
            self._whole(200, encoded(failure(self.number, 0, "Request cancelled")))

    def _begin_stream(self) -> None:
        if not self.begun:
            self.begun = True
            self.connection.head(200, _SSE, headers=self._session_header())
            self.connection.piece(b": begun\n\n")

    def _session_header(self) -> dict[str, str]:
        if self.message.get("method") == "initialize" and self.session is None:
            return {"mcp-session-id": self.server.opened()}
        return {}

    def _status(self, body: bytes) -> int:
        """Errors of the protocol have a status of their own since 2026."""
        if not self.modern or b'"error":{"code":' not in body[:200]:
            return 200
        return 404 if f'"code":{METHOD_NOT_FOUND}'.encode() in body else 400

    def _whole(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.begun = True
        self.connection.whole(status, body, headers=headers or {})


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message.replace(b"\n", b"\ndata: ") + b"\n\n"


def _decoded(header: str | None) -> str | None:
    """A header's value; what is not plain ASCII is sent as `=?base64?...?=`."""
    if header is None or not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    with suppress(ValueError):
        return base64.b64decode(header[9:-2], validate=True).decode()
    return None


async def serve_for_ever(server: FakeMcp) -> None:
    """The server of a process of its own; its URL is the first line on standard output."""
    async with server:
        print(server.url, flush=True)
        await for_ever()
