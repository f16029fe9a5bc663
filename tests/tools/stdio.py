"""A built-in server as any MCP host would run it: a process, spoken to over stdio by the SDK's own client."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, Tool


class Session:
    """One open session. Its owner, a task on a loop of its own, opens and closes it; any thread may call."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def call(self, name: str, /, **arguments: Any) -> CallToolResult:
        return self.calls(name, [arguments])[0]

    def calls(self, name: str, many: Sequence[Mapping[str, Any]]) -> list[CallToolResult]:
        """All at once; the results in the order of the calls."""

        async def all_of_them() -> list[CallToolResult]:
            return list(await asyncio.gather(*(self._client.call_tool(name, dict(one)) for one in many)))

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(60)

    def tools(self) -> list[Tool]:
        async def listed() -> list[Tool]:
            return (await self._client.list_tools()).tools

        return asyncio.run_coroutine_threadsafe(listed(), self._loop).result(60)


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    return content.text


@contextmanager
def session(module: str, *flags: str, env: Mapping[str, str] | None = None, mode: str = "auto") -> Iterator[Session]:
    opened: list[Session] = []
    ready, done = threading.Event(), threading.Event()
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", f"centuria.tools.{module}", *flags], env=dict(env or {})
    )

    async def own() -> None:
        async with Client(stdio_client(parameters), mode=mode) as client:
            opened.append(Session(client, asyncio.get_running_loop()))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(own()))
    thread.start()
    try:
        if not ready.wait(60):
            raise TimeoutError(f"centuria.tools.{module} did not open a session")
        yield opened[0]
    finally:
        done.set()
        thread.join(60)
