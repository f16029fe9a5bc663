"""The composition root of a gateway: store, books, keys, funnel and rooms, for the length of an `async with`."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from centuria.core.retry import RetryPolicy
from centuria.errors import ConfigurationError
from centuria.gateway import openapi
from centuria.gateway.app import App
from centuria.gateway.books import Books
from centuria.gateway.chat.funnel import Funnel
from centuria.gateway.chat.routes import ChatRoutes
from centuria.gateway.keys import KeyRing
from centuria.gateway.mcp import McpServing
from centuria.gateway.metrics import Sample, Tally
from centuria.gateway.page.service import Page
from centuria.gateway.ports import AttemptRow, Store
from centuria.gateway.problems import StoreUnavailable, shutting_down
from centuria.gateway.server import Server
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.store import open_store
from centuria.gateway.swarms.routes import SwarmRoutes
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.tools.loop import ToolLoop
from centuria.gateway.tools.routes import ToolRoutes
from centuria.gateway.tools.service import ToolService
from centuria.gateway.web import Reply, Request, Route, Router
from centuria.messages import DOLLAR
from centuria.model.direct import DirectTransport
from centuria.ports import Transport

_log = logging.getLogger("centuria.gateway")
#: Seconds within which the store of a gateway that is ready answers.
_STORE_ANSWERS = 5.0


class Gateway:
    """One gateway. `transport` and `store` stand in for the upstreams' HTTP and for `settings.store`.

    `retry` says when an upstream is asked again, `ended` is told each attempt's row.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        transport: Transport | None = None,
        store: Store | None = None,
        dice: Callable[[], float] = random.random,
        wall: Callable[[], float] = time.time,
        retry: RetryPolicy | None = None,
        ended: Callable[[AttemptRow], None] = lambda row: None,
    ) -> None:
        self.settings = settings
        self.tally = Tally()
        self._transport = transport
        self._store = store
        self._dice = dice
        self._wall = wall
        self._retry = retry
        self._told = ended
        self._stack = AsyncExitStack()
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Raises `ConfigurationError`, `StoreUnavailable`."""
        async with AsyncExitStack() as stack:
            settings = self.settings
            self.store = self._store or await open_store(settings.store)
            stack.push_async_callback(self.store.aclose)
            await self._check_openness()
            transport = self._transport or DirectTransport()
            stack.push_async_callback(transport.aclose)
            books = Books(self.store, gateway=f"gw-{secrets.token_hex(8)}", wall=self._wall)
            self.books = await stack.enter_async_context(books)
            self.ring = KeyRing(self.store, wall=self._wall, open_on_loopback=is_loopback(settings.host))
            self.funnel = Funnel(
                settings,
                books=self.books,
                transport=transport,
                dice=self._dice,
                wall=self._wall,
                ended=self._ended,
                retry=self._retry,
            )
            stack.callback(self.funnel.close)
            stack.callback(self.funnel.abort)
            self.tools = await stack.enter_async_context(ToolService(settings, self.store, dice=self._dice))
            loop = ToolLoop(self.tools, self.funnel.ask, settings, wall=self._wall)
            chat = ChatRoutes(self.funnel, settings.caps, loop)
            tools = ToolRoutes(self.tools, self.store, settings)
            swarms = SwarmService(settings, self.store, self.funnel.ask, self.tools, wall=self._wall)
            self.swarms = await stack.enter_async_context(swarms)
            serving = McpServing(self.tools, settings, swarms.run_swarm)
            self.mcp = await stack.enter_async_context(serving)
            page = Page(self.ring, self.store)
            rooms = [*chat.routes(), *tools.routes(), *SwarmRoutes(swarms).routes(), *page.routes()]
            self.router = Router([*rooms, *openapi.routes(), *self._own_routes()], [self.mcp.mount()])
            self.app = App(settings, self.router, page.ring)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        await self._stack.__aexit__(kind, error, trace)

    async def serve(
        self,
        listener: socket.socket,
        *,
        signals: bool = True,
        serving: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer requests until SIGTERM or SIGINT, or until cancelled; streams under way have their grace.

        `serving` is called once that has begun, and `stopping` when it begins to end.
        """

        def stop() -> None:
            self._stop()
            stopping()

        server = Server(self.app, self.settings.caps, serving=serving, stopping=stop, aborting=self.funnel.abort)
        await server.serve(listener, signals=signals)

    def _stop(self) -> None:
        self._stopping = True
        self.swarms.stop()
        self.mcp.stop()

    def _ended(self, row: AttemptRow) -> None:
        self.tally.record(row)
        self._told(row)

    async def _check_openness(self) -> None:
        """Whoever can reach a gateway without keys can spend its owner's money: only this machine may."""
        if not is_loopback(self.settings.host) and not await self.store.keys():
            raise ConfigurationError(
                f"There is no key, so the gateway may not listen at {self.settings.host}.",
                remedy="Make one first: centuria keys add NAME --admin",
            )

    # -- health and metrics -------------------------------------------------------------------------------------------

    def _own_routes(self) -> list[Route]:
        return [
            Route("GET", "/healthz", self._health, access="public"),
            Route("GET", "/readyz", self._ready, access="public"),
            Route("GET", "/metrics", self._metrics, access="admin"),
        ]

    async def _health(self, request: Request) -> Reply:
        """The process answers."""
        return Reply.of({"status": "ok"})

    async def _ready(self, request: Request) -> Reply:
        """Requests are taken: it is not ending, and its store can be read."""
        if self._stopping:
            raise shutting_down()
        try:
            async with asyncio.timeout(_STORE_ANSWERS):
                await self.store.find_key(b"\0" * 32)
        except TimeoutError:
            raise StoreUnavailable("The gateway's store does not answer.") from None
        return Reply.of({"status": "ready"})

    async def _metrics(self, request: Request) -> Reply:
        return Reply(self.metrics().encode(), type="text/plain; version=0.0.4; charset=utf-8")

    def metrics(self) -> str:
        """What was done and is under way, in Prometheus's text format."""
        return "".join(self.tally.lines(self._gauges()))

    def _gauges(self) -> Iterator[Sample]:
        yield "in_flight", {}, self.funnel.in_flight()
        yield "reserved_dollars", {}, self.books.reserved() / DOLLAR
        yield "rows_pending", {}, self.books.pending()
        lanes = [upstream.lane for upstream in self.funnel.upstreams()]
        for lane in lanes:
            yield "upstream_in_flight", {"deployment": lane.deployment.name}, lane.governor.in_flight()
        for lane in lanes:
            yield "upstream_limit", {"deployment": lane.deployment.name}, lane.governor.concurrency
        for lane in lanes:
            yield "upstream_waiting", {"deployment": lane.deployment.name}, len(lane.queue)
        for lane in lanes:
            yield "upstream_closed", {"deployment": lane.deployment.name}, lane.governor.closed_until() is not None
        # Of the operator's own servers and tools alone: what keys registered would be labels without end.
        tools = self.tools.occupancy()
        for tool in tools:
            yield "tool_in_use", {"resource": tool.resource}, tool.in_use
        for tool in tools:
            yield "tool_limit", {"resource": tool.resource}, tool.limit
        for tool in tools:
            yield "tool_waiting", {"resource": tool.resource}, tool.waiting


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
