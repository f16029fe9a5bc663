"""One connection: what its client sends, within the caps, and whose turn it is to be answered.

- Headers above the cap: 431 and the end of the connection, however they are split.
- Whoever does not get on with a request, or does not read an answer, meets a time-out.
- Requests that come before the one ahead of them is answered wait, and so does their client.

A timer is only set where a request is not whole after a read, which few are. What is idle is looked at now and then,
all connections together (`sweep`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections import deque
from typing import Literal, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from centuria.gateway.server.exchange import Exchange, wait, wake
from centuria.gateway.server.heads import FULL, NOT_HTTP, TOO_LARGE, TOO_SLOW
from centuria.gateway.server.scope import address, scope_of
from centuria.gateway.server.traffic import Traffic
from centuria.gateway.web import CONNECTION, Scope

#: Seconds that an idle connection is kept, and one that closes may take.
KEEP_ALIVE = 75.0
#: Bytes of a body that nobody takes, above which no more are read.
_HIGH = 65_536
#: Requests of one connection that wait for the one before them.
_WAITING = 100


class Connection(asyncio.Protocol):
    """`closed`: nothing can be sent any more. `blocked`: the client does not read what was sent; `paused`: we do not
    read what it sends."""

    closed = blocked = paused = False

    #: What of a request has not come yet.
    _missing: Literal["", "headers", "body"] = "headers"
    #: Bytes of a head so far, and bytes around a body's own (sizes of chunks, trailers) since the last of those.
    _head_size = _framing_size = 0
    #: The head began behind something else in one read, so that not all of it was counted.
    _behind = False
    _url = b""
    _expects = False
    #: Nothing that comes is read any more: this was its last request, or it does not speak HTTP.
    _done_reading = False
    #: What is said when all that came before is answered, and then the connection ends.
    _last_words = b""
    #: The request that came last, and the one that is being answered.
    _reading: Exchange | None = None
    _current: Exchange | None = None
    #: For more of a request to come, and for an answer to be read.
    _timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    #: When more must have come, when all of a body must have, and since when it is idle.
    _due = _whole_by = _since = math.inf

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.loop, self._caps = traffic.loop, traffic.caps
        self._headers: list[tuple[bytes, bytes]] = []
        self._waiting: deque[Exchange] = deque()
        self._drained: list[asyncio.Future[None]] = []
        self._transport: asyncio.Transport
        self._parser = HttpRequestParser(self)

    # -- for its exchanges and its server ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drained(self) -> None:
        """The client reads again, or has gone."""
        while self.blocked and not self.closed:
            await wait(self._drained, self.loop)

    def read_on(self) -> None:
        """Somebody has taken what had come of a body, or the next request has its turn."""
        if self.paused and not self._waiting and not self.closed:
            self.paused = False
            self._transport.resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """The answer is whole: the next one, if any."""
        if not exchange.keep:
            self.close()
            return
        if self._waiting:
            self._current = self._waiting.popleft()
            self._start(self._current)
        else:
            self._current = None
            if self._done_reading:
                self.write(self._last_words)
                self.close()
                return
            now = self._since = self.loop.time()
            if self._missing == "body":  # it was answered before it was whole
                self._stop_timer()
                self._whole_by = min(self._whole_by, now + self._caps.stall)
                self._await_until(self._whole_by)
        self.read_on()

    def shut(self) -> None:
        """Close it if it is idle, else with the answer that is under way."""
        if self._current is None:
            self.close()
        else:
            self._current.keep = False

    def sweep(self, now: float) -> None:
        """End it if it has been idle for too long."""
        if self._timer is None and self._current is None and now - self._since >= KEEP_ALIVE:
            if self.closed:  # and does not read the last that was sent
                self._transport.abort()
            else:
                self.close()

    def close(self) -> None:
        """When what was written is sent."""
        self._leave()
        self._transport.close()

    def cut(self) -> None:
        """At once, and so that its client sees that this is no proper end."""
        self._leave()
        wire = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it has gone
            if wire is not None:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _leave(self) -> None:
        self.closed = self._done_reading = True
        self._since = self.loop.time()
        self._stop_timer()
        self._waiting.clear()
        current, self._current = self._current, None
        wake(self._drained)
        if current is not None and not current.complete:
            current.lose()

    # -- what the loop tells -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        traffic, self._transport = self.traffic, cast(asyncio.Transport, transport)
        traffic.connections.add(self)
        self._client = address(transport.get_extra_info("peername"))
        self._server = address(transport.get_extra_info("sockname"))
        if traffic.ending:
            self.close()
        elif len(traffic.connections) > self._caps.connections:
            self.write(FULL)
            self.close()
        else:
            self._await_until(self.loop.time() + self._caps.stall)

    def data_received(self, data: bytes) -> None:
        if self._done_reading:
            return
        before = self._missing
        if before == "body":
            self._framing_size += len(data)
        elif self._head_size + len(data) > self._caps.header:
            data = self._headers_to_the_cap(data)
        else:
            self._head_size += len(data)
        if not self._done_reading:
            self._feed(data)
        if (current := self._current) is not None and current.scope is not None:
            self._start(current)
        if self._waiting and not self.paused:
            self._pause()
        if self._done_reading or (not self._missing and (before or current is not None)):
            return
        # What came was no request where none is missing and none is answered, but blank lines.
        self._missing = self._missing or "headers"
        self._expect(before)

    def pause_writing(self) -> None:
        self.blocked = True
        self._read_timer = self.loop.call_later(self._caps.read, self.cut)

    def resume_writing(self) -> None:
        self.blocked = False
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        wake(self._drained)

    def connection_lost(self, exc: Exception | None) -> None:
        self.traffic.lost(self)
        del self._parser  # each holds the other
        self._leave()
        self.resume_writing()
        self._reading = None  # it holds this connection, too

    # -- what comes --------------------------------------------------------------------------------------------------

    def _headers_to_the_cap(self, data: bytes) -> bytes:
        """The end of the headers may be in what was read, and a body behind it: the parser finds out. What is left."""
        cap = self._caps.header
        while self._head_size + len(data) > cap:
            room = cap - self._head_size
            self._head_size = cap
            self._feed(data[:room])
            data = data[room:]
            if self._done_reading or self._missing == "body":
                return data
            if self._head_size >= cap:
                self._refuse(TOO_LARGE)
                return b""
        self._head_size += len(data)
        return data

    def _feed(self, data: bytes) -> None:
        while data and not self._done_reading:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
            except HttpParserError:
                if not self._done_reading:  # what follows the last request is for nobody
                    self._refuse(NOT_HTTP)

    def _without_upgrade(self, rest: bytes) -> bytes:
        """To change the protocol is for nobody here, and is left out, or a body would be taken for the next request.
        Java's client asks so each time that it connects. What is to be read by another parser in place of this one."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        if method == b"CONNECT" and not self._done_reading:
            self._refuse(NOT_HTTP)
        line = b"%b %b HTTP/%b" % (method, self._url, version)
        kept = [name + b": " + value for name, value in self._headers if name != b"upgrade"]
        self._url, self._headers = b"", []
        self._parser = HttpRequestParser(self)
        return b"\r\n".join([line, *kept, b"", b""]) + rest

    def _expect(self, before: str) -> None:
        """Something is missing: it must come on, and the body must be whole within the time of a request."""
        caps, now, reading = self._caps, self.loop.time(), self._reading
        if before != self._missing:
            self._stop_timer()
        if self._missing == "body" and reading is not None:
            if self._framing_size > caps.header:  # trailers, and what surrounds chunks
                self._refuse(TOO_LARGE)
                return
            if self._whole_by == math.inf:
                self._whole_by = now + caps.request
            if reading.size > _HIGH and not self.paused:
                self._pause()
            if reading.complete:
                self._whole_by = min(self._whole_by, now + caps.stall)
            self._await_until(min(now + caps.send, self._whole_by))
        elif self._timer is None:
            self._await_until(now + caps.stall)

    def _await_until(self, due: float) -> None:
        """A timer that is set already looks again when it rings."""
        self._due = due
        if self._timer is None:
            self._timer = self.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self.paused:  # it is we who do not read
            self._await_until(now + self._caps.send)
        elif now < self._due:
            self._await_until(self._due)
        else:
            self._refuse(TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause(self) -> None:
        self.paused = True
        self._transport.pause_reading()

    def _refuse(self, answer: bytes) -> None:
        """Say why, once all that came before is answered, and end the connection."""
        self._done_reading = True
        self._stop_timer()
        broken = self._reading if self._missing == "body" else None
        if broken is not None and self._waiting and self._waiting[-1] is broken:
            self._waiting.pop()
        if self._current is not None and self._current is not broken:
            self._last_words = answer
            return
        if broken is None or not broken.started:
            self.write(answer)
        self.close()

    def _start(self, exchange: Exchange) -> None:
        scope, exchange.scope = cast(Scope, exchange.scope), None
        self.traffic.running[exchange] = self.loop.create_task(exchange.run(self.traffic.app, scope))

    # -- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._missing = "headers"
        self._behind = not self._head_size

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._missing != "headers":  # trailers are read over
            return
        name = name.lower()
        if name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._done_reading or parser.should_upgrade():
            return
        if self._behind and len(self._url) + sum([len(n) + len(v) for n, v in self._headers]) > self._caps.header:
            self._refuse(TOO_LARGE)
            return
        method, version = parser.get_method().decode(), parser.get_http_version()
        scope = scope_of(method, self._url, version, self._headers, self._client, self._server)
        new = version == "1.1"
        keep = new and parser.should_keep_alive() and len(self._waiting) < _WAITING
        exchange = scope[CONNECTION] = Exchange(self, scope, keep, new)
        if self._expects:
            self._expects, exchange.expects = False, new
        self._url, self._headers = b"", []
        self._missing, self._head_size, self._framing_size, self._whole_by = "body", 0, 0, math.inf
        self._reading = exchange
        if self._current is None:
            self._current = exchange
        else:
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        if self._missing == "body" and self._reading is not None:
            self._framing_size = 0
            self._reading.add(body)

    def on_message_complete(self) -> None:
        exchange = self._reading
        if self._missing != "body" or exchange is None:
            return
        self._missing = ""
        self._stop_timer()
        exchange.finish()
        if not exchange.keep:
            self._done_reading = True
