"""A server that is a function, behind the same `Dispatch` as the others: for tests on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.dispatcher import CallOptions

from centuria.toolhost.session import Session
from centuria.toolhost.wire import Dispatch, Message, Number, Wire

Answering = Callable[["Local", str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Local(Dispatch):
    """`answering(self, method, params)` gives the `result` or `error` part of each answer, `asked` what was asked."""

    def __init__(self, answering: Answering) -> None:
        super().__init__()
        self.asked: list[tuple[str, float]] = []
        self.abandoned: list[Number] = []
        self._answering = answering
        self._over = asyncio.Event()

    async def room(self) -> None:
        """There always is."""

    async def _exchange(self, number: Number, message: Message, opts: CallOptions) -> Message:
        self.asked.append((message["method"], asyncio.get_running_loop().time()))
        return {"id": number, **await self._answering(self, message["method"], dict(message.get("params") or {}))}

    def _abandon(self, number: Number, opts: CallOptions, reason: str) -> None:
        self.abandoned.append(number)

    async def _post(self, message: Message, opts: CallOptions) -> None:
        """Nobody listens."""

    async def _receive(self) -> None:
        await self._over.wait()

    def retire(self) -> None:
        """Nothing outlives it."""

    async def tell(self, method: str) -> None:
        await self._take({"jsonrpc": "2.0", "method": method})

    def times(self, method: str) -> list[float]:
        return [at for asked, at in self.asked if asked == method]


def handshake(method: str, **result: Any) -> dict[str, Any]:
    """The answers of a server of 2025-11-25; `result` is that of every other request."""
    if method == "server/discover":
        return {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        info = {"name": "local", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
    return {"result": result}


@asynccontextmanager
async def session_with(server: Local, *, start: float = 10.0) -> AsyncIterator[Session]:
    """A session that is up, or has failed once."""

    @asynccontextmanager
    async def opened(wire: Wire) -> AsyncIterator[Dispatch]:
        yield server

    starts = asyncio.Semaphore(1)
    session = Session("local", opened, start_timeout=start, starts=starts, dice=lambda: 0.5, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        session.start(group)
        await session.settled()
        try:
            yield session
        finally:
            session.stop()
