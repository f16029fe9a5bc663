"""What these tests share: the servers that others wrote, as settings and as the entries of an `mcp.json`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from centuria.settings import Timeouts, ToolServer
from centuria.toolhost import McpToolHost
from tests.servers.installed import MODULES, NODE_BIN, OLD_PYTHON

NODE = NODE_BIN / "node"
REFERENCE = MODULES / "@modelcontextprotocol"
EVERYTHING = REFERENCE / "server-everything" / "dist" / "index.js"
#: Where `npx` and `node` are found before any that the machine may have.
PATH = f"{NODE_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

Entry = dict[str, Any]


def everything() -> Entry:
    return {"command": str(NODE), "args": [str(EVERYTHING), "stdio"]}


def filesystem(*roots: Path) -> Entry:
    return {"command": str(NODE), "args": [str(REFERENCE / "server-filesystem/dist/index.js"), *map(str, roots)]}


def memory(file: Path) -> Entry:
    script = REFERENCE / "server-memory" / "dist" / "index.js"
    return {"command": str(NODE), "args": [str(script)], "env": {"MEMORY_FILE_PATH": str(file)}}


def clock() -> Entry:
    return {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "Etc/UTC"]}


def git() -> Entry:
    return {"command": sys.executable, "args": ["-m", "mcp_server_git"]}


def testkit() -> Entry:
    return {"command": str(OLD_PYTHON), "args": ["-m", "mcp_test_server.server"]}


def all_servers(folder: Path) -> dict[str, Entry]:
    """Every one of them, by its name; what they keep lies in `folder`."""
    return {
        "everything": everything(),
        "filesystem": filesystem(folder),
        "git": git(),
        "memory": memory(folder / "memory.jsonl"),
        "testkit": testkit(),
        "time": clock(),
    }


def server(name: str, entry: Mapping[str, Any], **fields: Any) -> ToolServer:
    """An entry as settings."""
    args, env = tuple(entry.get("args", ())), entry.get("env", {})
    return ToolServer(name, name, command=entry.get("command"), args=args, env=env, url=entry.get("url"), **fields)


def host_of(*servers: ToolServer, **more: Any) -> McpToolHost:
    return McpToolHost(servers, timeouts=Timeouts(), dice=lambda: 0.0, **more)


@asynccontextmanager
async def kept(host: McpToolHost) -> AsyncIterator[McpToolHost]:
    """The host for a fixture, which may set up and tear down on different tasks: one task of ours does both."""
    up, over = asyncio.Event(), asyncio.Event()

    async def keep() -> None:
        async with host:
            up.set()
            await over.wait()

    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(keep())
        await asyncio.wait([keeper, group.create_task(up.wait())], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield host
        finally:
            over.set()
