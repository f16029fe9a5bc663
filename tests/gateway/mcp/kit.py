"""A gateway with `/mcp`, over any tools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from centuria.gateway.mcp import McpServing, RunSwarm
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.service import ToolService
from centuria.settings import ToolServer
from centuria.testing.gateway import MemoryStore
from centuria.testing.tools import LocalToolHost
from tests.gateway.kit import ALICE, FixedRing, app_of, serve

ROOT = Path(__file__).parents[3]
SUITE = ToolServer(
    "suite", "suite", command=sys.executable, args=("-m", "tests.gateway.mcp.suite"), cwd=ROOT, limit=10, required=True
)


class OpenRing(FixedRing):
    """Whoever brings no key is Alice, as on loopback without any keys."""

    async def identify(self, request: Any) -> Any:
        return ALICE if "authorization" not in request.headers else await super().identify(request)


@asynccontextmanager
async def mcp_of(
    host: LocalToolHost | None = None,
    *servers: ToolServer,
    run_swarm: RunSwarm | None = None,
    ring: FixedRing | None = None,
    **options: Any,
) -> AsyncIterator[tuple[str, ToolService]]:
    """The URL of its `/mcp`, and its tools."""
    options.setdefault("bare_names", True)
    settings = GatewaySettings({}, servers=servers, **options)
    store = MemoryStore()
    async with (
        ToolService(settings, store, host=host) as service,
        McpServing(service, settings, run_swarm) as serving,
        serve(app_of(settings, [], [serving.mount()], ring or OpenRing())) as url,
    ):
        yield f"{url}/mcp", service
