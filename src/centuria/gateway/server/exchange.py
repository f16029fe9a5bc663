"""One request and its answer: what an ASGI application calls `receive` and `send`, and a shorter way for ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from centuria.gateway.server.heads import CONTINUE, FAILED, head_of, status_line
from centuria.gateway.web import BODILESS, Asgi, Message, Scope

if TYPE_CHECKING:
    from centuria.gateway.server.connection import Connection

_log = logging.getLogger("centuria.gateway")


class Exchange:
    """It is `send` itself, and of its request's scope the `CONNECTION`.

    An answer's head goes with what comes behind it in one write; that of a stream waits until the loop turns.
    """

    #: The request has come whole; its answer has begun, and is whole.
    whole = started = complete = False
    #: The client waits to be asked for the body.
    expects = False
    #: Bytes of the body that nobody has taken.
    size = 0

    _given = False
    _head = b""
    #: How the answer ends: after so many bytes more, or with its last chunk, or (neither) with the connection.
    _left: int | None = None
    _chunked = False
    #: None of its body is sent, whatever the application gives.
    _bodiless = False
    _lost: Callable[[], None] | None = None

    def __init__(self, connection: Connection, scope: Scope, keep: bool, chunks: bool) -> None:
        """`keep`: its answer leaves the connection open. `chunks`: its client knows them."""
        self.loop = connection.loop
        self.scope: Scope | None = scope
        self.keep = keep
        self._connection = connection
        self._chunks = chunks
        self._head_only = scope["method"] == "HEAD"
        self._parts: list[bytes] = []
        self._waiters: list[asyncio.Future[None]] = []

    # -- for the application -----------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Its client does not read what was sent: the next `send` waits for that."""
        return self._connection.blocked

    async def receive(self) -> Message:
        """ASGI's `receive`: the body as it comes, then the end of the connection or of the answer."""
        connection = self._connection
        if self.expects and not connection.closed:
            self.expects = False
            connection.write(CONTINUE)
        while not (self.complete or connection.closed):
            parts = self._parts
            if parts or (self.whole and not self._given):
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                self.size = 0
                self._given = self.whole
                if connection.paused:
                    connection.read_on()
                return {"type": "http.request", "body": body, "more_body": not self.whole}
            await wait(self._waiters, self.loop)
        return {"type": "http.disconnect"}

    async def __call__(self, message: Message) -> None:
        """ASGI's `send`. Says nothing of a client that has gone: `receive` and `when_lost` do."""
        connection = self._connection
        if connection.blocked:
            await connection.drained()
        if connection.closed and not self.complete:
            await asyncio.sleep(0)  # who goes on for ever all the same keeps nobody else from his turn
            return
        kind = message["type"]
        if self.complete or kind != ("http.response.body" if self.started else "http.response.start"):
            raise RuntimeError(f"{kind} is not what comes next in an answer")
        if self.started:
            self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    async def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """A whole answer. `lines` are headers as they are sent, each with its end, but for those of the framing."""
        connection = self._connection
        if connection.blocked:
            await connection.drained()
        if self.started:
            raise RuntimeError("an answer has begun already")
        if connection.closed:
            return
        parts = [status_line(status), b"\r\n", lines]
        if self.expects and not self.whole:  # what comes next may be the body that was not asked for
            self.keep = False
        if not self.keep:
            parts.append(b"connection: close\r\n")
        if status in BODILESS:
            parts.append(b"\r\n")
        else:
            parts.append(b"content-length: %d\r\n\r\n" % len(body))
            if not self._head_only:
                parts.append(body)
        self.started = True
        connection.write(b"".join(parts))
        self._end()

    def when_lost(self, call: Callable[[], None] | None) -> None:
        """What is called when the client goes before its answer is whole; None: nothing any more."""
        self._lost = call
        if call is not None and self._connection.closed:
            call()

    # -- for the connection ------------------------------------------------------------------------------------------

    def add(self, body: bytes) -> None:
        """A piece of the body has come; nobody wants it who has answered."""
        if not self.complete:
            self._parts.append(body)
            self.size += len(body)
            if self._waiters:
                wake(self._waiters)

    def finish(self) -> None:
        """The request has come whole."""
        self.whole = True
        if self._waiters:
            wake(self._waiters)

    def lose(self) -> None:
        """The client has gone."""
        wake(self._waiters)
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()

    async def run(self, app: Asgi, scope: Scope) -> None:
        """The application, to its end, which is no answer yet."""
        connection = self._connection
        try:
            await app(scope, self.receive, self)
            if not self.complete and not connection.closed:
                _log.error("The application ended before its answer was whole.")
        except Exception as error:  # the edge of a request
            _log.error("The application failed.", exc_info=error)
        finally:
            del connection.traffic.running[self]
            if not self.complete and not connection.closed:
                self._give_up()

    # -- the answer --------------------------------------------------------------------------------------------------

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines, self._left, closes = head_of(status, headers)
        self.started = True
        self._bodiless = self._head_only or status in BODILESS
        if closes or (self.expects and not self.whole):
            self.keep = False
        if self._left is not None:
            lines += b"content-length: %d\r\n" % self._left
        elif self._bodiless:
            pass
        elif self._chunks:
            self._chunked = True
            lines += b"transfer-encoding: chunked\r\n"
        self._head = lines + (b"\r\n" if self.keep else b"connection: close\r\n\r\n")
        if self._left is None and not self._bodiless:  # a stream, whose first piece may be long in coming
            self.loop.call_soon(self._flush)

    def _write(self, body: bytes, *, more: bool) -> None:
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            data = body
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("the body of an answer is not as long as its head says")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self._connection.write(data)
        if not more:
            self._end()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            if not self._connection.closed:
                self._connection.write(head)

    def _give_up(self) -> None:
        """Nobody takes for whole what is not."""
        connection = self._connection
        if self._head or not self.started:  # nothing was sent
            connection.write(FAILED)
            connection.close()
        elif self._chunked or self._left is not None:
            connection.close()
        else:
            connection.cut()

    def _end(self) -> None:
        self.complete = True
        self._parts.clear()
        self.size = 0
        if self._waiters:
            wake(self._waiters)
        self._connection.answered(self)


async def wait(waiters: list[asyncio.Future[None]], loop: asyncio.AbstractEventLoop) -> None:
    """Until the next `wake`. Each who waits has a future of its own, so that the end of one is not the end of all."""
    waiter = loop.create_future()
    waiters.append(waiter)
    try:
        await waiter
    finally:
        waiters.remove(waiter)


def wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
