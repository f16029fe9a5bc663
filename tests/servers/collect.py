"""The schemas of all tools of these servers, to `schemas.json`: `python -m tests.servers.collect`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.servers.kit import all_servers, host_of, server

SCHEMAS = Path(__file__).with_name("schemas.json")


async def collect(folder: Path) -> list[dict[str, Any]]:
    """What the servers say, sorted by server and tool."""
    async with host_of(*(server(name, entry) for name, entry in all_servers(folder).items())) as host:
        found = [{"server": tool.server, "tool": tool.tool, "schema": tool.schema} for tool in host.catalogue()]
    return sorted(found, key=lambda item: (str(item["server"]), str(item["tool"])))


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        tools = asyncio.run(collect(Path(scratch)))
    SCHEMAS.write_text("[\n" + ",\n".join(json.dumps(tool) for tool in tools) + "\n]\n")
    print(f"{len(tools)} tools of {len({tool['server'] for tool in tools})} servers")
