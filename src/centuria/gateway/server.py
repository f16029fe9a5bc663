"""The listening socket: uvicorn with its loop and parser, and the caps that it does not have.

- Headers above the cap: 431 and the end of the connection, however they are split.
- Whoever does not get on with a request's headers, or does not read an answer, meets a time-out.
- On SIGTERM nothing new is accepted, what is under way has its grace, and then it is told that this is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from centuria.errors import ConfigurationError
from centuria.gateway.settings import Caps
from centuria.gateway.web import Asgi

#: Seconds that an idle connection is kept, and that the last events may take after the grace.
_KEEP_ALIVE, _LAST = 75, 5.0
_BACKLOG = 4096
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s"
)
_TOO_LARGE_BODY = (
    b'{"error": {"message": "The headers of the request are too large.", "type": "invalid_request_error", '
    b'"param": null, "code": "headers_too_large"}}'
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class CappedProtocol(HttpToolsProtocol):
    """One connection: counts what comes before the end of the headers, and the time it takes; and how long a reader
    stalls. `capped` gives it its caps."""

    caps: Caps

    def connection_made(self, transport: Any) -> None:
        self._unread = 0
        self._in_headers = True
        self._stall: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.caps.connections:
            transport.write(_FULL)
            transport.close()
            return
        self._stall = self.loop.call_later(self.caps.stall, self._stalled)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._unread += len(data)
            if self._unread > self.caps.header:  # the end of the headers may be in this read, and a body behind it
                end = data.find(b"\r\n\r\n")
                self._unread -= 0 if end < 0 else len(data) - end
            if self._unread > self.caps.header:
                self.transport.write(_TOO_LARGE % (len(_TOO_LARGE_BODY), _TOO_LARGE_BODY))
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_headers = True
        if self._stall is None:
            self._stall = self.loop.call_later(self.caps.stall, self._stalled)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._unread = 0
        self._calm()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._in_headers = True
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow = self.loop.call_later(self.caps.read, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        if self._slow is not None:
            self._slow.cancel()
        super().connection_lost(exc)

    def _calm(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()


def capped(caps: Caps) -> type[CappedProtocol]:
    """The protocol with these caps."""
    return type("Capped", (CappedProtocol,), {"caps": caps})


class Server:
    """Serves an application at a socket until it is told to end.

    `stopping` is called at the first sign of the end, `aborting` when the grace is over or at a second signal.
    """

    def __init__(
        self,
        app: Asgi,
        caps: Caps,
        *,
        stopping: Callable[[], None] = lambda: None,
        aborting: Callable[[], None] = lambda: None,
    ) -> None:
        self._caps = caps
        self._stopping = stopping
        self._aborting = aborting
        self._config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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
