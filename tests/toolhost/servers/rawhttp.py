"""A streamable HTTP server of few lines that fails on request; runs on the test's own loop. Not the SDK's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

SCHEMA = {"type": "object"}


class RawHttp:
    """Tools: `echo` (with `X-User`, a cookie of that user), `sleep`, `busy` (429 with Retry-After), `gone` (503),
    `later` (503 with Retry-After), `late` (408), `broken` (500), `cut` (closes the connection), `half` (closes it in
    mid-answer), `denied` (401), `page` (a web page), `accepted` (202), `stray` (the answer to another request),
    `malformed` (no HTTP). `limited` runs `at_once` calls, and refuses others (429). With `sessions` it has sessions,
    which `forget` makes it forget. `seen` are the tool calls that reached it.
    """

    def __init__(self, *, sessions: bool = False, at_once: int = 10) -> None:
        self.at_once = at_once
        self.running = 0
        self.seen: list[str] = []
        self.arrived = asyncio.Event()
        self.sessions = sessions
        self.generation = 0
        self.headers: list[dict[str, str]] = []
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._port = 0

    def forget(self) -> None:
        self.generation += 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RawHttp]:
        async with asyncio.TaskGroup() as group:
            tasks: set[asyncio.Task[None]] = set()

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.add(group.create_task(self._serve(reader, writer)))

            self._server = await asyncio.start_server(accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{self._port}/mcp"
            try:
                yield self
            finally:
                self._server.close()
                for task in tasks:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.headers.append(headers)
            await self._answer(head[0].split()[0], headers, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        session = headers.get("mcp-session-id")
        if method != "POST":
            return _write(writer, 405, b"")
        if session is not None and session != str(self.generation):
            return _write(writer, 404, b"")
        message = json.loads(body)
        self.requests.append((message, headers))
        if "id" not in message:
            return _write(writer, 202, b"")
        match message["method"]:
            case "initialize":
                version = message["params"]["protocolVersion"]
                info = {"name": "rawhttp", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
                more = {"mcp-session-id": str(self.generation)} if self.sessions else {}
                return _reply(writer, message, result, more)
            case "tools/list":
                names = ("echo", "sleep", "busy", "gone", "broken", "cut", "half", "denied", "limited")
                names += ("late", "later", "page", "accepted", "stray", "malformed")
                return _reply(writer, message, {"tools": [{"name": n, "inputSchema": SCHEMA} for n in names]})
            case "tools/call":
                return await self._call(message, headers, writer)
        error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
        return _write(writer, 400, json.dumps(error).encode())

    async def _call(  # noqa: C901 - one case for each tool
        self, message: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
        self.seen.append(name)
        self.arrived.set()
        match name:
            case "echo":
                user = headers.get("x-user")
                more = {} if user is None else {"set-cookie": f"who={user}; Path=/"}
                _say(writer, message, arguments["text"], more)
            case "late":
                _write(writer, 408, b"")
            case "later":
                _write(writer, 503, b"", {"retry-after": "7"})
            case "page":
                _write(writer, 200, b"<html>", {"content-type": "text/html"})
            case "accepted":
                _write(writer, 202, b"")
            case "stray":
                _say(writer, {"id": 987654}, "not for you")
            case "malformed":
                writer.write(b"HTTP/1.1 abc\r\n\r\n")
            case "sleep":
                await asyncio.sleep(arguments["seconds"])
                _say(writer, message, "awake")
            case "busy":
                _write(writer, 429, b"slow down", {"retry-after": "7", "content-type": "text/plain"})
            case "gone":
                _write(writer, 503, b"")
            case "broken":
                _write(writer, 500, b"<html>")
            case "denied":
                _write(writer, 401, b"")
            case "limited" if self.running >= self.at_once:
                _write(writer, 429, b"slow down", {"retry-after": "0.3", "content-type": "text/plain"})
            case "limited":
                self.running += 1
                try:
                    await asyncio.sleep(0.05)
                finally:
                    self.running -= 1
                _say(writer, message, "done")
            case "half":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{")
                await writer.drain()


def _say(writer: asyncio.StreamWriter, message: dict[str, Any], text: str, more: dict[str, str] | None = None) -> None:
    _reply(writer, message, {"content": [{"type": "text", "text": text}], "isError": False}, more)


def _reply(
    writer: asyncio.StreamWriter, message: dict[str, Any], result: Any, more: dict[str, str] | None = None
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    _write(writer, 200, body, more)


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in (headers | (more or {})).items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
