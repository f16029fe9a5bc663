"""A streamable HTTP server of both eras that runs on the test's own loop and does what it is told. Not the SDK's."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

SCHEMA = {"type": "object"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
TOOLS = ("echo", "stream", "hang", "big", "zipped", "resume", "torn", "stray", "ask", "wait")


class Web:
    """`modern`: 2026-07-28, no sessions; else 2025-11-25 with sessions, which `forget` makes it forget.

    Tools: `echo`; `stream` (the same as events); `hang`; `big` (so many characters, as events with `events`); `zipped`;
    `resume` (its stream breaks off and goes on when asked for), `torn` (it does not go on); `stray` (the answer to
    another request); `ask` (the server asks back in the middle); `wait` (for `gate`). `extra` are further
    tools of the catalogue, `meanwhile` those that it has only once somebody subscribes.
    """

    def __init__(self, *, modern: bool = False) -> None:
        self.modern = modern
        self.extra: list[Any] = []
        self.forgotten: dict[str, Any] = {"status": 404, "text": "no such session"}
        self.meanwhile: list[Any] = []
        self.methods: Counter[str] = Counter()
        self.cancelled: list[Any] = []
        self.aborted = 0
        self.deleted: list[str] = []
        self.replies: list[dict[str, Any]] = []
        self.streams: set[asyncio.Queue[dict[str, Any]]] = set()
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()
        self.listed = asyncio.Event()
        self.url = ""
        self.redirects: dict[str, str] = {}
        self._session = 0
        self._known: set[str] = set()
        self._kept: dict[str, dict[str, Any]] = {}

    def forget(self) -> None:
        self._known.clear()

    def changed(self, times: int = 1) -> None:
        """Tell everybody who listens that the catalogue has changed."""
        for queue in self.streams:
            for _ in range(times):
                queue.put_nowait({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Web]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{port}/mcp"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _any(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.redirects:
            return web.Response(status=307, headers={"Location": self.redirects[request.path]})
        session = request.headers.get("mcp-session-id")
        if session is not None and session not in self._known:
            return web.Response(**self.forgotten)
        if request.method == "DELETE":
            self.deleted.append(session or "")
            return web.Response(status=200)
        if request.method == "GET":
            self.methods["GET"] += 1
            return await self._get(request)
        message = await request.json()
        method = message.get("method", "answer")
        self.methods[method] += 1
        if "id" not in message or "method" not in message:
            if method == "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            if method == "answer":
                self.replies.append(message)
                self.gate.set()
            return web.Response(status=202)
        return await self._post(request, message, method)

    async def _post(self, request: web.Request, message: dict[str, Any], method: str) -> web.StreamResponse:
        match method:
            case "server/discover" if self.modern:
                capabilities = {"tools": {"listChanged": True}}
                return self._say(
                    message, supportedVersions=["2026-07-28"], capabilities=capabilities, ttlMs=0, cacheScope="private"
                )
            case "initialize" if not self.modern:
                self._session += 1
                self._known.add(str(self._session))
                answer = self._say(
                    message,
                    protocolVersion="2025-11-25",
                    capabilities={"tools": {"listChanged": True}},
                    serverInfo={"name": "web", "version": "1"},
                )
                answer.headers["mcp-session-id"] = str(self._session)
                return answer
            case "tools/list":
                self.listed.set()
                tools = [{"name": name, "inputSchema": SCHEMA} for name in TOOLS]
                return self._say(message, tools=[*tools, *self.extra], ttlMs=0, cacheScope="private")
            case "subscriptions/listen":
                return await self._subscribe(request, message)
            case "tools/call":
                return await self._call(request, message)
        error = {"code": -32601, "message": "Method not found"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=400)

    def _result(self, message: dict[str, Any], **fields: Any) -> dict[str, Any]:
        fields |= {"resultType": "complete"} if self.modern else {}
        return {"jsonrpc": "2.0", "id": message["id"], "result": fields}

    def _say(self, message: dict[str, Any], **fields: Any) -> web.Response:
        return web.json_response(self._result(message, **fields))

    def _text(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        return self._result(message, content=[{"type": "text", "text": text}], isError=False)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def _call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
        self.arrived.set()
        match name:
            case "echo":
                return web.json_response(self._text(message, arguments["text"]))
            case "hang":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.aborted += 1
                    raise
            case "big" if not arguments.get("events"):
                return web.json_response(self._text(message, "x" * arguments["size"]))
            case "wait":
                await self.gate.wait()
                return web.json_response(self._text(message, arguments["text"]))
            case "zipped":
                body = gzip.compress(json.dumps(self._text(message, "y" * arguments["size"])).encode())
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
                return web.Response(body=body, headers=headers)
            case "stray":
                return web.json_response(self._text({"id": 987654}, "not for you"))
        response = await self._events(request)
        if name in ("resume", "torn"):
            self._kept["7"] = message
            await response.write(b"id: 7\nretry: 10\ndata:\n\n")
            return response
        if name == "ask":
            await response.write(_event({"jsonrpc": "2.0", "id": "q1", "method": "ping"}))
            await self.gate.wait()
        text = "x" * arguments["size"] if name == "big" else arguments.get("text", "")
        await response.write(b": comment\r\n\r\n" + _event(self._text(message, text)))
        return response

    async def _get(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("last-event-id")
        if last is not None:
            message = self._kept[last]
            response = await self._events(request)
            if message["params"]["name"] == "resume":
                await response.write(_event(self._text(message, "the rest")))
            return response
        return await self._pump(request, {})

    async def _subscribe(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        self.extra, self.meanwhile = [*self.extra, *self.meanwhile], []
        return await self._pump(request, {SUBSCRIPTION: message["id"]})

    async def _pump(self, request: web.Request, meta: dict[str, Any]) -> web.StreamResponse:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        response = await self._events(request)
        if meta:
            params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
            acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
            await response.write(_event(acknowledged))
        self.streams.add(queue)
        try:
            while True:
                message = await queue.get()
                if not message:
                    return response
                await response.write(_event({**message, "params": {"_meta": meta}} if meta else message))
        finally:
            self.streams.discard(queue)


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"
