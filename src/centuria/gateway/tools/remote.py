"""MCP servers that keys brought along, by their address: each is its key's own, and none of the operator's.

One is opened when it is registered or first called, and closed when it has not been called for long. Nothing of the
gateway is shown to it: no header, no login, no proxy; and its address is looked at whenever a connection is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from centuria.gateway.problems import bad_request, not_found, overloaded, unavailable
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.calls import ToolCalls
from centuria.gateway.tools.manifest import Registered
from centuria.gateway.tools.naming import Names, unknown
from centuria.ports import HostedTool, ToolHost
from centuria.settings import ToolServer
from centuria.toolhost import McpToolHost, any_host, public_only

_log = logging.getLogger("centuria.gateway")
#: Servers that are open at once, of one key and of all.
MOST_OF_KEY, MOST = 8, 64
#: Calls of one such server at once, and seconds without any after which it is closed.
LIMIT, IDLE = 10, 300.0


@dataclass(slots=True)
class _Open:
    """One server, from when it is wanted. `calls` is there once it is open; `used` is when it last was."""

    url: str
    used: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    calls: ToolCalls | None = None
    host: ToolHost | None = None


class Remotes:
    """The servers are open for as long as the `async with` lasts at most. `dice` gives numbers in [0, 1)."""

    def __init__(self, settings: GatewaySettings, *, dice: Callable[[], float]) -> None:
        self._settings = settings
        self._dice = dice
        self._open: dict[tuple[str, str], _Open] = {}
        self._group: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Remotes:
        self._group = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._group is not None
        for server in self._open.values():
            server.stop.set()
        await self._group.__aexit__(None, None, None)

    def catalogue(self, key: str, entry: Registered) -> Sequence[HostedTool]:
        """Its tools as far as they are known: none while it is not open."""
        server = self._open.get((key, entry.name))
        return () if server is None or server.host is None or server.url != entry.url else server.host.catalogue()

    async def find(self, key: str, entry: Registered, name: str) -> tuple[ToolCalls, HostedTool]:
        """One of its tools. Raises `Problem`: 404, 503 where it cannot be reached."""
        calls = await self.reach(key, entry)
        names = Names.of(calls.host.catalogue(), None, bare=False)
        tool = names.by_name.get(name)
        if tool is None or tool.name != name:
            raise not_found(unknown(name, names), code="tool_not_found", param="name")
        return calls, tool

    async def reach(self, key: str, entry: Registered) -> ToolCalls:
        """Open it if need be. Raises `Problem`: 503 where it cannot be reached."""
        server = self._open.get((key, entry.name))
        if server is None or server.url != entry.url or server.stop.is_set():
            server = self._begin(key, entry)
        server.used = asyncio.get_running_loop().time()
        await server.ready.wait()
        if server.calls is None:
            raise unavailable(f"The server {entry.name} cannot be opened.", code="tool_unavailable")
        [state] = server.calls.host.servers()
        if not state.up and not server.calls.host.catalogue():
            server.stop.set()
            raise unavailable(
                f"The server {entry.name} is not available. {state.reason}", code="tool_unavailable", seconds=5
            )
        return server.calls

    def drop(self, key: str, name: str) -> None:
        """Close it."""
        server = self._open.get((key, name))
        if server is not None:
            server.stop.set()

    def _begin(self, key: str, entry: Registered) -> _Open:
        assert self._group is not None
        self.drop(key, entry.name)
        of_key = Counter(owner for owner, _ in self._open)[key]
        if of_key >= MOST_OF_KEY:
            raise bad_request(
                f"{of_key} servers of this key are open, which is the cap.",
                code="too_many_servers",
                remedy="Remove one: DELETE /v1/mcp/tools/NAME.",
            )
        if len(self._open) >= MOST:
            raise overloaded("The gateway has as many servers of its callers open as it may.", seconds=60)
        server = _Open(entry.url, asyncio.get_running_loop().time())
        self._open[key, entry.name] = server
        self._group.create_task(self._serve(key, entry, server), name=f"remote {entry.name}")
        return server

    async def _serve(self, key: str, entry: Registered, server: _Open) -> None:
        settings = self._settings
        limit = min(entry.limit or LIMIT, LIMIT)
        described = ToolServer(entry.name, entry.name, url=entry.url, limit=limit)
        guard = any_host if settings.remote_private else public_only
        try:
            async with McpToolHost([described], timeouts=settings.timeouts, dice=self._dice, guard=guard) as host:
                calls = ToolCalls(host, timeouts=settings.timeouts, dice=self._dice, waiting=settings.caps.waiting)
                host.on_change = calls.server_changed
                server.host, server.calls = host, calls
                server.ready.set()
                try:
                    await self._until_idle(server)
                finally:
                    calls.close()
        except Exception:  # the edge: a server costs its own key something, and nobody else
            _log.warning("A server of a caller's could not be opened", exc_info=True)
        finally:
            server.stop.set()
            server.ready.set()
            if self._open.get((key, entry.name)) is server:
                del self._open[key, entry.name]

    async def _until_idle(self, server: _Open) -> None:
        loop = asyncio.get_running_loop()
        while not server.stop.is_set():
            busy = server.calls is not None and server.calls.gauges.open_tickets()
            left = IDLE if busy else server.used + IDLE - loop.time()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await server.stop.wait()
            except TimeoutError:
                continue
