"""A model provider on loopback: a real HTTP server that answers as scripted, misbehaves as told, and keeps
the books.

    async with FakeUpstream(lambda body: Text("Hello."), latency=0.02) as upstream:
        endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5")
        ...
    assert upstream.peak == 100

A script gets the parsed body of a request and gives a reply: `Text`, `Calls`, `Document` (they ignored
`stream`), `HttpError`, `Raw`, `Verbatim`, or one of the faults that wrap a reply or stand for none: `Written`,
`Late`, `Cut`, `Stall`, `Reset`, `Silence`. It speaks HTTP/1.1 itself, because a server that can break its own
protocol cannot be built on one that keeps it.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from centuria.core.prices import Price, cost
from centuria.messages import Pico, Usage
from centuria.testing.connection import Connection, Seen
from centuria.testing.limits import Meter, Overrun, RateLimits
from centuria.testing.replies import (
    Answer,
    Calls,
    Cut,
    Document,
    HttpError,
    Late,
    Raw,
    Reply,
    Reset,
    Script,
    Silence,
    Stall,
    Text,
    Verbatim,
    Written,
    as_json,
    chunks,
    counted,
    document,
    error,
    say_hello,
)

__all__ = [
    "Calls",
    "Cut",
    "Document",
    "FakeUpstream",
    "HttpError",
    "Late",
    "RateLimits",
    "Raw",
    "Reply",
    "Reset",
    "Script",
    "Seen",
    "Silence",
    "Stall",
    "Text",
    "Verbatim",
    "Written",
]

Bill = Literal["begun", "sent"]
_NO_JSON = HttpError(400, "invalid_request_error", "The body of the request is no JSON object.")


# -- the server ----------------------------------------------------------------------------------------------


class FakeUpstream:
    """The server. `latency` is in seconds, to the first byte; `tokenise` counts a prompt's tokens (bytes /
    4); `limits` are enforced; `no_json` is the reply to a body that is no JSON object.

    `requests` holds what arrived, `attempts` counts it by idempotency key, `in_flight` and `peak` are
    requests being answered, `connections` those that are open, `aborted` requests whose client left before
    the end, and `billed` what a provider would charge for. `bill` is its rule for answers that break off: "begun"
    charges the whole answer once it began, whoever broke it off; "sent" the prompt and the part that was sent.
    """

    def __init__(
        self,
        script: Script = say_hello,
        *,
        latency: float = 0.0,
        models: tuple[str, ...] = ("kimi-k2.5",),
        key: str | None = None,
        tokenise: Callable[[bytes], int] = lambda body: len(body) // 4,
        limits: RateLimits | None = None,
        bill: Bill = "begun",
        no_json: Reply = _NO_JSON,
    ) -> None:
        self.script = script
        self.latency = latency
        self.models = models
        self.key = key
        self.tokenise = tokenise
        self.meter = Meter(limits or RateLimits())
        self.bill = bill
        self.no_json = no_json
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
        self._open: set[Connection] = set()
        self._changed = asyncio.Event()
        self._answers = count(1)

    @property
    def base_url(self) -> str:
        if self._server is None:
            raise RuntimeError("The upstream is not running: use `async with`.")
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    def charged(self, price: Price) -> Pico:
        """What `billed` comes to."""
        return sum(cost(price, usage) for usage in self.billed)

    async def __aenter__(self) -> FakeUpstream:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=4096)
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

    async def until(self, holds: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something about this server holds. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    # -- used by the connections

    def joined(self, connection: Connection) -> None:
        self._open.add(connection)
        self.opened += 1
        self._count()

    def parted(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._count()

    def start(self, seen: Seen, connection: Connection) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._serve(seen, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _count(self) -> None:
        self.connections = len(self._open)
        self._changed.set()

    async def _serve(self, seen: Seen, connection: Connection) -> None:
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

    async def _answer(self, seen: Seen, connection: Connection) -> None:
        if self.key is not None and seen.headers.get("authorization") != f"Bearer {self.key}":
            connection.whole(401, error("invalid_authentication_error", "Invalid Authentication"))
            return
        if seen.path.endswith("/models"):
            listing = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            connection.whole(200, as_json(listing))
            return
        self.attempts[seen.idempotency_key] += 1
        body = _parsed(seen.body)
        if body is None:
            await self._reply(self.no_json, seen, connection)
            return
        limits = self.meter.limits
        counted = limits.tokens is not None or limits.day is not None
        over = self.meter.enter(seen.at, self.tokenise(seen.body) + _asked(body) if counted else 0)
        if over is not None:
            await self._reply(_too_many(over, limits), seen, connection)
            return
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
            reply = self.script(body)
            if not body.get("stream") and isinstance(reply, Text | Calls):
                reply = Document(reply)
            await self._reply(reply, seen, connection)
        finally:
            self.meter.leave()

    async def _reply(self, reply: Reply, seen: Seen, connection: Connection) -> None:
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
                self.billed += [reply.billed] if reply.billed is not None else []
                body = error(reply.type, reply.message) if reply.body is None else reply.body
                connection.whole(reply.status, body, headers=reply.headers)
            case Late(later, seconds):
                await asyncio.sleep(seconds)
                await self._reply(later, seen, connection)
            case Reset():
                connection.abort()
            case Silence():
                await _for_ever()
            case Raw() | Verbatim() | Written():
                await self._exactly(reply, seen, connection)

    async def _exactly(self, reply: Raw | Verbatim | Written, seen: Seen, connection: Connection) -> None:
        if isinstance(reply, Written):
            reply = self._rewritten(reply, seen)
        elif reply.billed is not None:
            self.billed.append(reply.billed)
        if isinstance(reply, Raw):
            await self._raw(reply, connection)
            return
        async for piece in _paced(reply.pieces, reply.gap, apart=True):
            connection.write(piece)
            await connection.drained()
        await self._afterwards(reply.after, connection)

    async def _stream(self, answer: Answer, seen: Seen, connection: Connection, *, share: float | None = None) -> None:
        usage = self._usage(answer, seen)
        pieces = list(chunks(answer, seen.json, usage, self._id()))
        whole = len(pieces)
        if share is not None:
            pieces = pieces[: int(whole * share)]
        connection.head(200, "text/event-stream")
        sent, line = 0, len(self.billed)
        self.billed.append(usage)
        try:
            async for piece in _paced(pieces, answer.gap):
                connection.piece(b"data: " + piece + b"\n\n")
                sent += 1
                await connection.drained()
        finally:
            if self.bill == "sent":
                self.billed[line] = replace(usage, output=math.ceil(usage.output * sent / whole))
        if share is None:
            connection.piece(b"data: [DONE]\n\n")
            connection.last()

    def _rewritten(self, reply: Written, seen: Seen) -> Raw:
        usage, id_ = self._bill(reply.answer, seen), self._id()
        if reply.document:
            body = as_json(document(reply.answer, seen.json, usage, id_))
        else:
            parts = [*chunks(reply.answer, seen.json, usage, id_), b"[DONE]"]
            body = b"".join(b"data: " + part + b"\n\n" for part in parts)
        return replace(reply.raw, pieces=tuple(reply.rewrite(body)))

    async def _raw(self, reply: Raw, connection: Connection) -> None:
        pieces = _encoded(reply.pieces, reply.encoding)
        length = (reply.length if reply.length is not None else sum(map(len, pieces))) if _sized(reply) else None
        headers = [
            *reply.headers,
            *([("content-encoding", reply.encoding.removesuffix("-cut"))] if reply.encoding else []),
        ]
        connection.head(
            reply.status,
            reply.content_type,
            headers=headers,
            length=length,
            chunked=reply.framing == "chunked",
            protocol=reply.protocol,
        )
        async for piece in _paced(pieces, reply.gap, apart=True):
            connection.piece(piece)
            await connection.drained()
        if reply.end:
            connection.last(reply.trailers)
        elif reply.after == "keep":
            await _for_ever()
        await self._afterwards("close" if reply.framing == "close" else reply.after, connection)

    async def _afterwards(self, after: str, connection: Connection) -> None:
        if after == "close":
            connection.close()
        elif after == "reset":
            await asyncio.sleep(0.01)  # a reset throws away what the other side has not read yet
            connection.abort()

    def _bill(self, answer: Answer, seen: Seen) -> Usage:
        usage = self._usage(answer, seen)
        self.billed.append(usage)
        return usage

    def _usage(self, answer: Answer, seen: Seen) -> Usage:
        return counted(answer, self.tokenise(seen.body))

    def _id(self) -> str:
        return f"chatcmpl-{next(self._answers)}"


# -- parts ---------------------------------------------------------------------------------------------------


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _asked(body: dict[str, Any]) -> int:
    """The tokens of answer that a request asks for."""
    asked = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    return asked if isinstance(asked, int) and asked > 0 else 0


def _too_many(over: Overrun, limits: RateLimits) -> HttpError:
    headers: dict[str, str] = {}
    if limits.told == "ms":
        headers["retry-after-ms"] = str(math.ceil(over.wait * 1000))
    elif limits.told == "seconds":
        headers["retry-after"] = str(math.ceil(over.wait))
    scope: str = over.scope
    if scope in ("RPM", "TPM") and limits.window < 60:  # it does not lie about what it counts
        scope = f"{'requests' if scope == 'RPM' else 'tokens'} in {limits.window:g} s"
    said = f"Your request reached max organization {scope}: {over.limit}, please try again after "
    return HttpError(429, "rate_limit_reached_error", f"{said}{math.ceil(over.wait)} seconds", headers)


def _sized(reply: Raw) -> bool:
    return reply.framing == "length" or reply.length is not None


def _encoded(pieces: Sequence[bytes], encoding: str) -> list[bytes]:
    """The pieces compressed into one body, each flushed so that it can be read when it arrives."""
    if not encoding:
        return list(pieces)
    press = zlib.compressobj(wbits=31 if encoding.startswith("gzip") else 15)
    pressed = [press.compress(piece) + press.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    pressed.append(press.flush())
    if encoding == "gzip-cut":
        whole = b"".join(pressed)
        return [whole[: len(whole) * 3 // 4]]
    return pressed


async def _paced(pieces: Sequence[bytes], gap: float, *, apart: bool = False) -> AsyncIterator[bytes]:
    """`apart`: each piece is a write of its own that the other side can read alone, also without a gap."""
    for place, piece in enumerate(pieces):
        if place and (gap or apart):
            await asyncio.sleep(gap)
        yield piece


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
