"""One connection to an upstream, and the answer that is on its way over it: HTTP/1.1 on the parser of Node.js (llhttp).

A connection carries one request at a time. What it reads goes to the answer; its reader takes what has arrived in one
piece, and the connection stops reading while too much lies there.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from centuria.errors import ModelError, ModelUnavailable
from centuria.model.inflating import ENCODINGS, Inflater

#: Bytes of a body that lie unread before the connection stops reading.
HIGH = 256 * 2**10
#: Bytes of one line of a head, their number, and bytes of all that is read without a byte of a body.
_FIELD = 32_768
_FIELDS = 256
_SILENT = 256 * 2**10
#: Names of headers as they come, in lower case: nearly always the same few.
_NAMES: dict[bytes, str] = {}


class Answer:
    """An upstream's answer (`ports.HttpResponse`), and the iterator over its body. `status` 0: no head has come."""

    __slots__ = (
        "_connection",
        "_ended",
        "_loop",
        "_parts",
        "_size",
        "bodiless",
        "error",
        "headers",
        "host",
        "status",
        "waiter",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, *, bodiless: bool) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.host = host
        self.bodiless = bodiless
        self.error: ModelError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self._loop = loop
        self._connection: Connection | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False

    def close(self) -> None:
        """A body that has arrived whole has given its connection back; else this aborts it."""
        if self._connection is not None:
            self._connection.cut()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `ModelUnavailable` (kind "cut") where it breaks off."""
        encoding = self.headers.get("content-encoding", "").lower()
        return _Unpacked(self, encoding) if encoding in ENCODINGS else self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            parts = self._parts
            if parts:
                chunk = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                self._size = 0
                if self._connection is not None:
                    self._connection.resume()
                return chunk
            if self._ended:
                raise StopAsyncIteration
            if self.error is not None:
                raise self.error
            self.waiter = waiter = self._loop.create_future()
            await waiter

    # -- what the connection tells -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, why: str) -> None:
        """It broke off: what has arrived is still to be had."""
        self._fail_with(broken_off(self.host, why))

    def _fail_with(self, error: ModelError) -> None:
        self._connection = None
        if self.error is None:
            self.error = error
        self._wake()


class _Unpacked:
    """A body that is compressed, unpacked."""

    def __init__(self, answer: Answer, encoding: str) -> None:
        self._answer = answer
        self._inflater = Inflater(encoding)
        self._pieces: Iterator[bytes] = iter(())

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                piece = next(self._pieces, None)
            except zlib.error:
                raise self._broken() from None
            if piece is not None:
                return piece
            try:
                self._pieces = self._inflater.feed(await self._answer.__anext__())
            except StopAsyncIteration:
                if not self._inflater.whole():
                    raise self._broken() from None
                raise

    def _broken(self) -> ModelError:
        return ModelUnavailable(f"The answer of {self._answer.host} cannot be unpacked.", kind="cut")


class Connection(asyncio.Protocol):
    """`free` takes it back when its answer has arrived whole and it can carry another; `gone` hears of its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        free: Callable[[Connection], None],
        made: Callable[[Connection], None],
        gone: Callable[[Connection], None],
    ) -> None:
        self.since = 0.0
        self._loop = loop
        self._free = free
        self._made = made
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._fields = 0
        self._silent = 0
        self._size = 0
        self._whole = False
        self._keep = False
        self._heard = False
        self._paused = False
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # What servers get wrong and every client forgives.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    # -- for its user ------------------------------------------------------------------------------------------------

    @property
    def untouched(self) -> bool:
        """Whether not a byte of the present answer has come."""
        return not self._heard

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, answer: Answer) -> None:
        """Send a request, head and body; its answer goes to `answer`."""
        if self._transport is None:
            answer._fail("closed")
            return
        self._answer = answer
        answer._connection = self
        self._headers = {}
        self._fields = self._silent = self._size = 0
        self._whole = self._heard = False
        self._transport.write(request)

    def drop(self) -> None:
        """End it at once. Its answer hears of that when it is lost, unless it was given up before."""
        answer = self._answer
        self._answer = None
        if answer is not None:
            answer._connection = None
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """End it at once, and with it the answer on its way."""
        answer = self._answer
        self.drop()
        if answer is not None:
            answer._fail("closed")

    def resume(self) -> None:
        """What had arrived is taken."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # -- what the loop tells -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        answer, parser = self._answer, self._parser
        if answer is None or parser is None:  # nobody asked
            self.drop()
            return
        self._heard = True
        self._size = answer._size
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._keep = False
            if not self._whole:
                self._misunderstood(answer)
                return
        if self._whole:
            self._finish(answer)
        elif answer._size == self._size:
            # Heads, trailers, and what surrounds chunks: a server may not send them for ever.
            self._silent += len(data)
            if self._silent > _SILENT:
                self._misunderstood(answer)
                return
        else:
            self._silent = 0
            if answer._size > HIGH and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        if answer.waiter is not None and answer.status:
            answer._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        self._transport = None
        self._parser = None  # each holds the other
        self._gone(self)
        if answer is None:
            return
        if exc is None and answer.status and _ends_with_connection(answer.headers):
            answer._connection = None
            answer._ended = True
            answer._wake()
        else:
            answer._fail("closed" if exc is None else type(exc).__name__)

    def _finish(self, answer: Answer) -> None:
        """The answer is whole. Whoever answers before the whole request was read is not asked again."""
        self._answer = answer._connection = None
        answer._ended = True
        transport = self._transport
        if transport is None:
            return
        if self._keep and not transport.is_closing() and not transport.get_write_buffer_size():
            self.resume()
            self._free(self)
        else:
            transport.abort()

    def _misunderstood(self, answer: Answer) -> None:
        self.drop()
        if answer.status:
            answer._fail("not HTTP")
        else:
            text = f"{answer.host} answered with something that is not HTTP."
            answer._fail_with(ModelUnavailable(text, kind="rubbish"))

    # -- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._whole:  # an answer to nothing
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if len(name) + len(value) > _FIELD or self._fields > _FIELDS:
            raise ValueError("the head is too large")
        if self._whole:
            return
        key = _NAMES.get(name) or _name(name)
        headers = self._headers
        if key not in headers:
            headers[key] = value.decode("utf-8", "surrogateescape")
        elif key == "transfer-encoding":  # codings of one body, in their order
            headers[key] += f", {value.decode('latin-1')}"

    def on_headers_complete(self) -> None:
        answer, parser = self._answer, self._parser
        if answer is None or parser is None or self._whole:
            return
        status = parser.get_status_code()
        if status < 200 and status != 101:
            if status < 100:
                raise ValueError("no status")
            self._headers = {}
            return
        headers = self._headers
        if headers.get("content-encoding", "").lower() in ("br", "zstd"):
            raise ValueError("an encoding that nobody asked for")
        self._headers = {}  # trailers are read over
        answer.status, answer.headers = status, headers
        if answer.bodiless or (status in (204, 304) and _says_length(headers)):
            # The parser would wait for the body whose length is said.
            self._whole, self._keep = True, False

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if answer is not None and not self._whole:
            answer._parts.append(body)
            answer._size += len(body)

    def on_message_complete(self) -> None:
        answer, parser = self._answer, self._parser
        if answer is None or parser is None or not answer.status:
            return
        if not self._whole:
            self._whole = True
            self._keep = parser.should_keep_alive()


def broken_off(host: str, why: str) -> ModelError:
    return ModelUnavailable(f"The connection to {host} broke off ({why}).", kind="cut")


def _says_length(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _ends_with_connection(headers: Mapping[str, str]) -> bool:
    """Whether a body is whole when its connection ends well."""
    return "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "").lower()


def _name(raw: bytes) -> str:
    name = raw.decode("latin-1").lower()
    if len(_NAMES) < 1000 and len(raw) < 100:
        _NAMES[raw] = name
    return name
