"""What the fake MCP server answers, whatever carries it: both eras of the protocol, its tools, its faults.

2025-11-25 and before: `initialize`, then a session. 2026-07-28: `server/discover`, then requests that stand alone, each
with its protocol version in `params._meta`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from centuria.testing.mcp.books import Books
from centuria.testing.mcp.faults import Plan
from centuria.testing.mcp.shapes import Message, answers, encoded, failure, notification, result
from centuria.testing.mcp.toolbox import Toolbox

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
ERAS = ("2025-11-25", MODERN)
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
UNSUPPORTED_VERSION = -32022
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
_INFO = {"name": "centuria-fake", "version": "1"}
_CAPABILITIES = {"tools": {"listChanged": True}}
GARBAGE = b"Welcome!\n[1, 2]\n{broken\n\x00\xff\n"

Push = Callable[[Message], None]


class Way(Protocol):
    """How the answers to one request go back to its sender. `peer` names the session, or the connection."""

    peer: str

    async def turned_away(self, hits: Mapping[str, float]) -> bool:
        """Refuse a call before it runs, where its faults say so."""
        ...

    async def before(self, hits: Mapping[str, float]) -> None:
        """Make the noise that comes before an answer."""
        ...

    def push(self, message: Message) -> None:
        """Send a notification that belongs to this request."""
        ...

    async def reply(self, messages: Sequence[bytes], hits: Mapping[str, float]) -> None:
        """Send the answers, or whatever the faults make of them."""
        ...


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[Any]
    listens: bool = False
    late: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


class Service:
    """One server. `channels` are where it tells of changes: who asks for them registers there."""

    def __init__(self, plan: Plan, *, eras: Sequence[str] = ERAS, toolbox: Toolbox, books: Books) -> None:
        self.plan = plan
        self.eras = tuple(eras)
        self.toolbox = toolbox
        self.books = books
        self.channels: dict[object, Push] = {}
        self.begun = plan.hits("start", books.note("start", pid=os.getpid()))
        self._running: dict[tuple[str, Any], _Running] = {}
        self._ready: float | None = None
        for tool, arguments in books.ran:
            if tool == "counter":
                with suppress(ValueError):
                    toolbox.recall(arguments)

    def change_tools(self, names: Sequence[str], *, tell: int = 1) -> None:
        """List these tools from now on, and tell all clients so often."""
        self.toolbox.listed = list(names)
        self.announce(tell)

    def announce(self, times: int = 1) -> None:
        """Say that the list of tools has changed."""
        message = notification("notifications/tools/list_changed")
        for _ in range(times):
            for push in tuple(self.channels.values()):
                push(message)

    async def handle(self, message: Any, way: Way) -> None:
        """Serve one message. A request that is cancelled ends here, without an answer."""
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            if not isinstance(message, dict) or "method" in message:  # else it answers a request, and none was made
                await self._send(way, failure(None, INVALID_REQUEST, "This is no JSON-RPC message."))
            return
        await self._begin()
        if "silent" in self.begun:
            if "id" in message:
                await for_ever()
            return
        if "id" not in message:
            self._notified(message, way)
        elif "garbage" in self.begun:
            await way.reply([GARBAGE], {})
        else:
            await self._request(message, way)

    async def _begin(self) -> None:
        seconds = self.begun.get("slow-start")
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        if self._ready is None:
            self._ready = loop.time() + seconds
        await asyncio.sleep(self._ready - loop.time())

    def _notified(self, message: Message, way: Way) -> None:
        self.books.note(str(message["method"]))
        if message["method"] == "notifications/cancelled":
            self.cancel(way.peer, (message.get("params") or {}).get("requestId"))

    def cancel(self, peer: str, number: Any) -> None:
        """A client has given up a request."""
        running = self._running.get((peer, number))
        if running is None:
            return
        self.books.note("unlistened" if running.listens else "cancelled", id=number)
        running.cancelled.set()
        if not running.late:
            running.task.cancel()

    async def _request(self, message: Message, way: Way) -> None:
        number, method = message["id"], message["method"]
        params = message.get("params") if isinstance(message.get("params"), dict) else {}
        assert params is not None
        version = (params.get("_meta") or {}).get(VERSION_KEY)
        modern = version is not None
        task = asyncio.current_task()
        assert task is not None
        running = self._running[way.peer, number] = _Running(task, method == "subscriptions/listen")
        try:
            if modern and (version != MODERN or MODERN not in self.eras):
                await self._send(way, self._unserved(number, method, version))
            elif method == "initialize":
                await self._send(way, self._initialized(number, params))
            elif method == "server/discover" and modern:
                self.books.note("discover")
                discovered = {"supportedVersions": list(self.eras), "capabilities": _CAPABILITIES}
                await self._send(way, result(number, stamped({**discovered, **_UNCACHED})))
            elif method == "ping" and not modern:
                await self._send(way, result(number, {}))
            elif method == "tools/list":
                await self._list(number, params, way, modern=modern)
            elif method == "tools/call":
                await self._call(number, params, way, running, modern=modern)
            elif method == "subscriptions/listen" and modern:
                await self._listen(number, way)
            else:
                await self._send(way, failure(number, METHOD_NOT_FOUND, f"There is no method {method}."))
        finally:
            if self._running.get((way.peer, number)) is running:
                del self._running[way.peer, number]

    async def _send(self, way: Way, message: Message) -> None:
        await way.reply([encoded(message)], {})

    def _unserved(self, number: Any, method: str, version: Any) -> Message:
        if MODERN not in self.eras:  # a server of before knows nothing of all this
            return failure(number, METHOD_NOT_FOUND, f"There is no method {method}.")
        data = {"supported": list(self.eras), "requested": version}
        return failure(number, UNSUPPORTED_VERSION, "Unsupported protocol version", data)

    def _initialized(self, number: Any, params: Message) -> Message:
        asked = params.get("protocolVersion")
        if not set(HANDSHAKE) & set(self.eras):
            data = {"supported": list(self.eras), "requested": asked}
            return failure(number, UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        self.books.note("initialize")
        version = asked if asked in HANDSHAKE else HANDSHAKE[-1]
        return result(number, {"protocolVersion": version, "capabilities": _CAPABILITIES, "serverInfo": _INFO})

    async def _list(self, number: Any, params: Message, way: Way, *, modern: bool) -> None:
        cursor = params.get("cursor")
        if cursor is None:
            self.books.note("list")
        page = self.books.note("page")
        hits = self._met(self.plan.hits("list", page), page)
        if "mute-list" in hits:
            await for_ever()
        listing: Message = {"tools": self.toolbox.catalogue()}
        if "loop" in hits:
            listing["nextCursor"] = "again"
        if "endless" in hits:
            listing["nextCursor"] = f"page {page + 1}"
        if "wrong-list" in hits:
            listing["tools"] = Random(f"{self.plan.seed}/{page}").choice([{"echo": {}}, [{"title": "no name"}], "none"])
        await self._send(way, result(number, stamped({**listing, **_UNCACHED}) if modern else listing))

    async def _call(self, number: Any, params: Message, way: Way, running: _Running, *, modern: bool) -> None:
        tool, arguments = str(params.get("name")), params.get("arguments") or {}
        count = self.books.note("call", tool=tool)
        hits = self._met(self.plan.hits("call", count, tool), count)
        if not self.toolbox.has(tool):
            await self._send(way, failure(number, INVALID_PARAMS, f"There is no tool {tool}."))
            return
        if await way.turned_away(hits):
            self.books.note("refused", tool=tool)
            return
        self.books.served(1)
        try:
            value = await self._run(tool, arguments, way, running, hits)
        finally:
            self.books.served(-1)
        sent = answers(result(number, stamped(value) if modern else value), hits, Random(f"{self.plan.seed}/{count}"))
        if "mute" in hits:
            await for_ever()
        if "late" in hits:
            await running.cancelled.wait()
            await asyncio.sleep(hits["late"])
        self.books.note("answer", tool=tool)
        await way.reply(sent, hits)

    async def _run(
        self, tool: str, arguments: Mapping[str, Any], way: Way, running: _Running, hits: Mapping[str, float]
    ) -> Message:
        running.late = "late" in hits
        value = await self.toolbox.run(tool, arguments, self.books.run(tool, arguments))
        if "slow" in hits:
            await asyncio.sleep(hits["slow"])
        if tool == "set_tools":
            self.announce()
        if "storm" in hits:
            self.announce(int(hits["storm"]))
        await way.before(hits)
        return value

    def _met(self, hits: dict[str, float], number: int) -> dict[str, float]:
        for name in hits:
            self.books.note(f"fault:{name}", number=number)
        return hits

    async def _listen(self, number: Any, way: Way) -> None:
        meta = {_SUBSCRIPTION_KEY: number}
        self.books.note("listen")
        said = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        way.push(notification("notifications/subscriptions/acknowledged", said))
        self.channels[way] = lambda message: way.push({**message, "params": {"_meta": meta}})
        try:
            await for_ever()
        finally:
            del self.channels[way]


_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


def stamped(value: Message) -> Message:
    """A result as 2026-07-28 wants it."""
    return {**value, "resultType": "complete", "_meta": {_SERVER_KEY: _INFO}}


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()
