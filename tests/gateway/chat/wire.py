"""Upstreams without sockets, for the virtual clock: a `Transport` that answers as scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from centuria.errors import ModelUnavailable
from centuria.gateway.books import Books
from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.chat.funnel import Funnel
from centuria.gateway.ports import AttemptRow, Key
from centuria.gateway.settings import GatewaySettings
from centuria.ports import HttpRequest, HttpResponse
from centuria.testing.gateway import MemoryStore
from tests.gateway.served import ASKED


@dataclass(frozen=True)
class Said:
    """An answer: its pieces come `gap` seconds apart, the headers after `late` seconds. `cut`: then it breaks off."""

    status: int = 200
    pieces: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    late: float = 0.0
    gap: float = 0.0
    cut: bool = False


def fine(tokens: int = 5, *, late: float = 0.0, gap: float = 0.0) -> Said:
    """A whole stream: a role, `tokens` words, the end, usage, [DONE]."""
    deltas = [{"role": "assistant", "content": ""}] + [{"content": "word "}] * tokens
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    events += [{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": tokens}}]
    pieces = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return Said(200, [*pieces, b"data: [DONE]\n\n"], late=late, gap=gap)


def refused(status: int, message: str = "no", headers: Mapping[str, str] | None = None, *, type: str = "") -> Said:
    body = json.dumps({"error": {"message": message, "type": type}}).encode()
    return Said(status, [body], headers or {})


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


Script = Callable[[str, dict[str, Any]], Said]


class Wire:
    """`script` gets the host that was asked and the parsed body. `asked` is (time, host) of each request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[float, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.open = 0
        self.peak = 0

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        host = urlsplit(request.url).hostname or ""
        self.asked.append((now(), host))
        self.bodies.append(json.loads(request.body))
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            said = self.script(host, self.bodies[-1])
            await asyncio.sleep(said.late)
            yield _Heard(said)
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        """Nothing to close."""


class _Heard:
    def __init__(self, said: Said) -> None:
        self.status = said.status
        self.headers = {"content-type": "text/event-stream", **said.headers}
        self._said = said

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._said.pieces:
            await asyncio.sleep(self._said.gap)
            yield piece
        if self._said.cut:
            raise ModelUnavailable("The connection broke off.", kind="cut")


@dataclass
class Rig:
    """A funnel on the virtual clock."""

    funnel: Funnel
    wire: Wire
    books: Books
    rows: list[AttemptRow]
    number: int = 0

    def call(self, *, key: Key | None = None, patience: float = 600.0, **more: Any) -> ChatCall:
        self.number += 1
        fields: dict[str, Any] = {
            "request": f"req-{self.number}",
            "key": key or Key("key", "key"),
            "models": ("kimi",),
            "fields": {"messages": ASKED["messages"], "max_tokens": 50, "stream": True},
            "deadline": asyncio.get_running_loop().time() + patience,
            "stream": True,
            "max_tokens": 50,
            "size": 100,
        }
        return ChatCall(**{**fields, **more})

    async def ask(self, **more: Any) -> bytes:
        async with self.funnel.ask(self.call(**more)) as answer:
            return b"".join([chunk async for chunk in answer.chunks()])


@asynccontextmanager
async def rig(settings: GatewaySettings, script: Script, store: MemoryStore | None = None) -> AsyncIterator[Rig]:
    loop = asyncio.get_running_loop()
    async with Books(store or MemoryStore(), gateway="gw", wall=loop.time) as books:
        rows: list[AttemptRow] = []
        wire = Wire(script)
        funnel = Funnel(settings, books=books, transport=wire, dice=lambda: 0.0, wall=loop.time, ended=rows.append)
        try:
            yield Rig(funnel, wire, books, rows)
            for upstream in funnel.upstreams():
                assert upstream.lane.governor.in_flight() == len(upstream.lane.queue) == 0
            assert books.reserved() == wire.open == funnel.in_flight() == 0
        finally:
            funnel.close()
