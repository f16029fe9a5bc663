"""The listening socket: uvicorn with its loop and parser, and the caps that it does not have.

- Headers above the cap: 431 and the end of the connection, however they are split.
- Whoever does not get on with a request's headers, or does not read an answer, meets a time-out.
- On SIGTERM nothing new is accepted, what is under way has its grace, and then it is told that this is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from centuria.errors import ConfigurationError
from centuria.gateway.corked import CorkedTransport
from centuria.gateway.settings import Caps
from centuria.gateway.web import CONNECTION, Asgi

#: Seconds that an idle connection is kept, and that the last events may take after the grace.
_KEEP_ALIVE, _LAST = 75, 5.0
_BACKLOG = 4096


def _refusal(status: int, phrase: str, code: str, message: str, *more: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    lines = (f"HTTP/1.1 {status} {phrase}", "content-type: application/json", f"content-length: {len(body)}", *more)
    return "\r\n".join((*lines, "connection: close", "", "")).encode() + body


_TOO_LARGE = _refusal(431, "Request Header Fields Too Large", "headers_too_large", "The headers are too large.")
_TOO_SLOW = _refusal(408, "Request Timeout", "request_timeout", "The request did not come on in time.")
_FULL = _refusal(503, "Service Unavailable", "too_many_connections", "Too many connections are open.", "retry-after: 1")


class _UntilClosed(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: where no length is said, it ends with the connection."""

    _open_ended = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                self._open_ended, self.chunked_encoding = True, False
        elif self._open_ended:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class CappedProtocol(HttpToolsProtocol):
    """One connection: counts what comes before the end of the headers, and the time that a request takes to come and
    an answer to be read. `capped` gives it its caps.

    A timer is only set where a request is not whole after a read, which few are.
    """

    caps: Caps

    def connection_made(self, transport: Any) -> None:
        self._unread = 0
        self._lost: Callable[[], None] | None = None
        #: What of a request has not come yet.
        self._missing: Literal["", "headers", "body"] = "headers"
        self._patience: asyncio.TimerHandle | None = None
        self._whole_by = 0.0
        self._reader: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self.transport = CorkedTransport(transport, self.loop)  # type: ignore[assignment]
        if len(self.connections) > self.caps.connections:
            transport.write(_FULL)
            transport.close()
            return
        self._patience = self.loop.call_later(self.caps.stall, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        before = self._missing
        while before != "body" and self._unread + len(data) > self.caps.header:
            # The end of the headers may be in this read, and a body behind it: the parser finds out.
            room = self.caps.header - self._unread
            self._unread += room
            self._feed(data[:room])
            data = data[room:]
            if self._missing == "body":
                break
            if self._unread >= self.caps.header:
                self._refuse(_TOO_LARGE)
            if self.transport.is_closing():
                return
        if self._missing != "body":
            self._unread += len(data)
        self._feed(data)
        if self.transport.is_closing():
            return
        if not self._missing and not before and self.cycle.response_complete:
            self._missing = "headers"  # blank lines, which begin no request
        if self._missing:
            self._expect(before)

    def _feed(self, data: bytes) -> None:
        """As the server's own, but for a request to change the protocol: that is for nobody here, and is left out, or
        its body would be taken for the next request. Java's client asks so each time that it connects."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("Invalid HTTP request received.")
                return
            kept = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
            version = self.parser.get_http_version().encode()
            line = self.parser.get_method() + b" " + self.url + b" HTTP/" + version
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(b"\r\n".join([line, *kept, b"", b""]) + data[upgrade.args[0] :])

    def _expect(self, before: str) -> None:
        """Something is missing: it must come on, and the body must be whole within the time of a request."""
        now = self.loop.time()
        if self._missing == "body":
            self._calm()
            if before != "body":
                self._whole_by = now + self.caps.request
            if self.cycle.response_complete:  # it was answered before it was whole
                self._whole_by = min(self._whole_by, now + self.caps.stall)
            self._patience = self.loop.call_at(min(now + self.caps.send, self._whole_by), self._too_slow)
        elif before != self._missing:
            self._calm()
        if self._patience is None:
            self._patience = self.loop.call_later(self.caps.stall, self._too_slow)

    def on_message_begin(self) -> None:
        self._missing = "headers"
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def when_lost(self, call: Callable[[], None] | None) -> None:
        """What is called when the client goes before its answer is whole; None: nothing any more."""
        self._lost = call
        if call is not None and self.transport.is_closing():
            call()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._missing, self._unread = "body", 0
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and type(self.cycle) is RequestResponseCycle:
            self.cycle.__class__ = _UntilClosed

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._missing = ""
        self._calm()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(self.caps.read, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        if self._reader is not None:
            self._reader.cancel()
        super().connection_lost(exc)
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        """Say why, unless an answer has begun, and end the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(answer)
        self.transport.close()


def capped(caps: Caps) -> type[CappedProtocol]:
    """The protocol with these caps."""
    return type("Capped", (CappedProtocol,), {"caps": caps})


class Server:
    """Serves an application at a socket until it is told to end.

    `serving` is called once it takes connections and misses no signal any more, `stopping` at the first sign of the
    end, `aborting` when the grace is over or at a second signal.
    """

    def __init__(
        self,
        app: Asgi,
        caps: Caps,
        *,
        serving: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
        aborting: Callable[[], None] = lambda: None,
    ) -> None:
        self._caps = caps
        self._serving = serving
        self._stopping = stopping
        self._aborting = aborting
        self._config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
        )
        self._state = ServerState()
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Begin to end: nothing new, and the grace for what is under way. The second time: no grace."""
        if self._end.is_set():
            self._hurry.set()
            return
        self._end.set()
        self._stopping()

    async def serve(self, listener: socket.socket, *, signals: bool = True) -> None:
        """Until `stop`, or (with `signals`) SIGTERM or SIGINT. Returns when nothing is under way any more."""
        loop = asyncio.get_running_loop()
        self._config.load()
        made = capped(self._caps)
        server = await loop.create_server(lambda: made(self._config, self._state, {}), sock=listener, backlog=_BACKLOG)
        try:
            with _signals(self.stop) if signals else contextlib.nullcontext():
                self._serving()
                await self._end.wait()
                server.close()
                await self._wind_down()
        finally:
            server.close()
            for task in list(self._state.tasks):
                task.cancel()
            if self._state.tasks:
                await asyncio.wait(list(self._state.tasks), timeout=_LAST)

    async def _wind_down(self) -> None:
        """Idle connections close at once, others with their answer; after the grace all are told to end."""
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._caps.grace):
                await self._idle_or_hurried()
        if self._state.tasks:
            self._aborting()
            await asyncio.wait(list(self._state.tasks), timeout=_LAST)

    async def _idle_or_hurried(self) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            while self._state.tasks and not hurry.done():
                await asyncio.wait({hurry, *self._state.tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()


@contextlib.contextmanager
def _signals(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    there = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in there:
            loop.add_signal_handler(number, call)
    except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread: who runs us ends us
        yield
        return
    try:
        yield
    finally:
        for number in there:
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `ConfigurationError`."""
    if not 0 <= port <= 65_535:
        raise ConfigurationError(
            f"There is no port {port}.", remedy="Choose one from 1 to 65535, or 0: any that is free."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, or asyncio's own loop leaves Nagle's algorithm on, which costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"The gateway cannot listen at {host}:{port}: {error.strerror}.",
            remedy="Choose another with --host and --port, or end the program that has it.",
        ) from None
    listener.listen(_BACKLOG)
    listener.set_inheritable(False)
    return listener
