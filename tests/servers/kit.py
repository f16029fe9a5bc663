"""What these tests share: the servers that others wrote, as settings and as the entries of an `mcp.json`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from centuria.admission import Slots
from centuria.core.calls import CallLedger
from centuria.core.progress import Progress
from centuria.core.retry import RetryPolicy
from centuria.core.slots import SlotTable
from centuria.messages import CallKey, ToolCall, ToolEnd, ToolResult
from centuria.ports import Caller
from centuria.scheduler import ToolScheduler
from centuria.settings import Timeouts, ToolServer
from centuria.stream import Stream
from centuria.testing.journal import MemoryJournal
from centuria.toolhost import McpToolHost
from tests.servers.installed import MODULES, NODE_BIN, OLD_PYTHON

NODE = NODE_BIN / "node"
REFERENCE = MODULES / "@modelcontextprotocol"
EVERYTHING = REFERENCE / "server-everything" / "dist" / "index.js"
#: Where `npx` and `node` are found before any that the machine may have.
PATH = f"{NODE_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

Entry = dict[str, Any]
E = TypeVar("E")


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


def mcp_testkit() -> Entry:
    return {"command": str(OLD_PYTHON), "args": ["-m", "mcp_test_server.server"]}


def all_servers(folder: Path) -> dict[str, Entry]:
    """Every one of them, by its name; what they keep lies in `folder`."""
    return {
        "everything": everything(),
        "filesystem": filesystem(folder),
        "git": git(),
        "memory": memory(folder / "memory.jsonl"),
        "testkit": mcp_testkit(),
        "time": clock(),
    }


def server(name: str, entry: Mapping[str, Any], **fields: Any) -> ToolServer:
    """An entry as settings."""
    args, env = tuple(entry.get("args", ())), entry.get("env", {})
    return ToolServer(name, name, command=entry.get("command"), args=args, env=env, url=entry.get("url"), **fields)


def host_of(*servers: ToolServer, **more: Any) -> McpToolHost:
    return McpToolHost(servers, timeouts=Timeouts(), dice=lambda: 0.0, **more)


@asynccontextmanager
async def serving(script: Path, mode: str) -> AsyncIterator[str]:
    """A Node.js server that listens on a port of its own, with `PORT` in its environment; gives the URL's beginning."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(script),
        mode,
        env={"PATH": PATH, "PORT": str(port)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            while not await _listens(port):
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def kept(host: McpToolHost) -> AsyncIterator[McpToolHost]:
    """The host for a fixture, which may set up and tear down on different tasks: one task of ours does both."""
    up, over = asyncio.Event(), asyncio.Event()

    async def keep() -> None:
        async with host:
            up.set()
            await over.wait()

    keeper = asyncio.ensure_future(keep())
    started = asyncio.ensure_future(up.wait())
    await asyncio.wait([keeper, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    try:
        if up.is_set():
            yield host
    finally:
        over.set()
        await keeper


class Bench:
    """The real scheduler over a real host, with a journal in memory that tells everything."""

    def __init__(self, host: McpToolHost, *, result_chars: int = 20_000) -> None:
        self.host = host
        self.journal = MemoryJournal()
        self.calls = CallLedger()
        self.spilled: dict[str, str] = {}
        self.stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress(), seq=0)
        self.slots = Slots(SlotTable(), self.stream)
        self.scheduler = ToolScheduler(
            host=host,
            slots=self.slots,
            calls=self.calls,
            stream=self.stream,
            retry=RetryPolicy(jitter=0.0),
            timeouts=Timeouts(),
            dice=lambda: 0.0,
            spill=self._spill,
            result_chars=result_chars,
        )
        self._places = count(1)

    def _spill(self, key: str, text: str) -> str:
        self.spilled[key] = text
        return f"spill/{len(self.spilled)}.txt"

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, *, agent: str = "a") -> ToolResult:
        """One call as a model makes it; it ends in a value, whatever happens."""
        caller = Caller(CallKey(agent, 0, 0, next(self._places)), agent)
        call = ToolCall("id", name, json.dumps(arguments or {}))
        return await self.scheduler.call(call, caller, self.scheduler.view())

    async def text(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The text of a call that goes well."""
        result = await self.call(name, arguments)
        assert result.end is ToolEnd.OK, result
        return result.text

    def events(self, kind: type[E]) -> list[E]:
        return [record.event for record in self.journal.read() if isinstance(record.event, kind)]
