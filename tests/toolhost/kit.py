"""What the tests of this room share: servers, hosts, and a way to see which processes are left."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from centuria.ports import ServerState
from centuria.settings import Timeouts, ToolServer
from centuria.testing import fake_mcp_command
from centuria.toolhost import McpToolHost

HERE = Path(__file__).parent
RAW = HERE / "servers" / "raw.py"
SDK = HERE / "servers" / "sdk.py"


def raw(slug: str = "raw", *modes: str, **fields: Any) -> ToolServer:
    return ToolServer(slug, fields.pop("name", slug), command=sys.executable, args=(str(RAW), *modes), **fields)


def fake(
    *faults: str, slug: str = "fake", seed: int = 0, era: str = "both", books: Path | None = None, **fields: Any
) -> ToolServer:
    """The fake MCP server over stdio."""
    command, *args = fake_mcp_command(*faults, seed=seed, era=era, books=books)
    return ToolServer(slug, fields.pop("name", slug), command=command, args=tuple(args), **fields)


def shell(slug: str, script: str) -> ToolServer:
    return ToolServer(slug, slug, command="/bin/sh", args=("-c", script))


def host_of(
    *servers: ToolServer,
    start: float = 20.0,
    on_change: Callable[[ServerState], None] | None = None,
    **more: Any,
) -> McpToolHost:
    return McpToolHost(servers, timeouts=Timeouts(server_start=start), dice=lambda: 0.0, on_change=on_change, **more)


def processes_with(nonce: str) -> list[int]:
    """Every running process that has the nonce on its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if nonce.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def left_after(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of the processes that still run when the time is over; returns as soon as none does."""
    watched: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            watched[os.pidfd_open(pid)] = pid
    deadline = time.monotonic() + seconds
    try:
        while watched and (rest := deadline - time.monotonic()) > 0:
            for fd in select.select(list(watched), [], [], rest)[0]:
                os.close(fd)
                del watched[fd]
        return list(watched.values())
    finally:
        for fd in watched:
            os.close(fd)
