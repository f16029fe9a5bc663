"""A gateway of tools alone, over plain functions or real MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from centuria.gateway.settings import Caps, GatewaySettings
from centuria.gateway.tools.routes import ToolRoutes
from centuria.gateway.tools.service import ToolService
from centuria.settings import ToolServer
from centuria.testing.gateway import MemoryStore
from centuria.testing.tools import LocalTool, LocalToolHost
from tests.gateway.kit import Caller, app_of, calling

ANY = {"type": "object"}
QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["query"],
    "additionalProperties": False,
}


def tool(function: Callable[..., Any], schema: Mapping[str, Any] = ANY, **options: Any) -> LocalTool:
    return LocalTool(function, schema, options)


def host_of(**tools: LocalTool) -> LocalToolHost:
    return LocalToolHost(tools)


def settings_of(*servers: ToolServer, caps: Caps | None = None, **options: Any) -> GatewaySettings:
    return GatewaySettings({}, servers=servers, caps=caps or Caps(), **options)


@asynccontextmanager
async def service_of(
    host: LocalToolHost | None = None, *servers: ToolServer, store: MemoryStore | None = None, **options: Any
) -> AsyncIterator[ToolService]:
    options.setdefault("bare_names", True)
    service = ToolService(settings_of(*servers, **options), store or MemoryStore(), dice=lambda: 0.0, host=host)
    async with service:
        yield service


@asynccontextmanager
async def gateway_of(
    host: LocalToolHost | None = None, *servers: ToolServer, store: MemoryStore | None = None, **options: Any
) -> AsyncIterator[Caller]:
    store = store or MemoryStore()
    async with service_of(host, *servers, store=store, **options) as service:
        settings = settings_of(*servers, **options)
        routes = ToolRoutes(service, store, settings)
        async with calling(app_of(settings, routes.routes())) as caller:
            yield caller


async def search(query: str, count: int = 1) -> str:
    """Search the web."""
    await asyncio.sleep(0)
    return f"{count} about {query}"


def web(**options: Any) -> LocalTool:
    """`web_search`, safe to run again."""
    return LocalTool(search, QUERY, {"slug": "web", "limit": 20, "rerun": True, **options})


def named(tool: LocalTool, **options: Any) -> LocalTool:
    return tool._replace(options={**tool.options, **options})


__all__ = [
    "ANY",
    "QUERY",
    "gateway_of",
    "host_of",
    "named",
    "replace",
    "search",
    "service_of",
    "settings_of",
    "tool",
    "web",
]
