"""A gateway of chat with tools: the loop over a plain funnel that has one upstream, a real one on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.settings import Deployment, GatewaySettings
from centuria.gateway.tools.loop import ToolLoop
from centuria.gateway.tools.service import ToolService
from centuria.gateway.web import Reply, Request, Route, Streaming
from centuria.settings import Endpoint
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Calls, Document, Text
from centuria.testing.tools import LocalToolHost
from centuria.testing.upstream import FakeUpstream
from tests.gateway.kit import Caller, FixedRing, app_of, calling


@dataclass(frozen=True)
class PlainCall:
    """A request to the funnel."""

    request: str
    key: Key
    models: tuple[str, ...]
    fields: Mapping[str, Any]
    deadline: float
    agent: str = ""
    stream: bool = False
    wants_usage: bool = False
    answers: int = 1
    first_attempt: int = 1
    size: int = 0


@dataclass
class PlainAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    response: aiohttp.ClientResponse
    attempts: int = 1
    cost: int = 10**9

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self.response.content.iter_any():
            yield chunk


@dataclass
class PlainFunnel:
    """One attempt to one upstream; `rows` are the requests and attempts that it saw, `under_way` how many are open."""

    session: aiohttp.ClientSession
    base_url: str
    rows: list[tuple[str, int]] = field(default_factory=list)
    calls: list[PlainCall] = field(default_factory=list)
    under_way: int = 0

    @asynccontextmanager
    async def ask(self, call: PlainCall) -> AsyncIterator[PlainAnswer]:
        self.calls.append(call)
        self.rows.append((call.request, call.first_attempt))
        body = {**call.fields, "model": call.models[0], "stream": call.stream}
        if call.stream:
            body["stream_options"] = {"include_usage": True}
        self.under_way += 1
        try:
            async with self.session.post(f"{self.base_url}/chat/completions", json=body) as response:
                if response.status != 200:
                    error = (await response.json())["error"]
                    raise Problem(response.status, error["type"], error["message"])
                whole = b"" if call.stream else await response.read()
                headers = {"x-centuria-attempts": "1", "x-centuria-cost-usd": "0.001"}
                yield PlainAnswer(response.status, headers, whole, response)
        finally:
            self.under_way -= 1


class Asked(NamedTuple):
    mcp_tools: tuple[str, ...]


class Bench(NamedTuple):
    call: Caller
    upstream: FakeUpstream
    funnel: PlainFunnel

    async def chat(
        self, *tools: str, token: str | None = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Any:
        body = {
            "model": "kimi-k2.5",
            "messages": [{"role": "user", "content": "Go."}],
            "mcp_tools": list(tools),
            **more,
        }
        return await self.call("POST", "/v1/chat/completions", body, token=token, **(headers or {}))

    def seen(self) -> list[Any]:
        """The bodies of the requests to the upstream."""
        return [json.loads(request.body) for request in self.upstream.requests]


def events_of(body: bytes) -> list[Any]:
    """The data of each event, `[DONE]` as text."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def turns(*replies: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A model that answers so, one after the other by the number of its own messages so far; the last for ever."""

    def script(body: Mapping[str, Any]) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        reply = replies[min(turn, len(replies) - 1)]
        reply = reply(body) if callable(reply) else reply
        return reply if body.get("stream") or not isinstance(reply, Text | Calls) else Document(reply)

    return script


@asynccontextmanager
async def bench(
    host: LocalToolHost,
    script: Callable[..., Any],
    *,
    seconds: float = 60.0,
    dialect: str = "plain",
    ring: FixedRing | None = None,
    **options: Any,
) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream(script))
        endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5", dialect=dialect)
        models = {"kimi-k2.5": (Deployment("fake/kimi-k2.5", endpoint),)}
        settings = GatewaySettings(models, bare_names=True, **options)
        store = MemoryStore()
        service = await stack.enter_async_context(ToolService(settings, store, dice=lambda: 0.0, host=host))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        funnel = PlainFunnel(session, upstream.base_url)
        loop = ToolLoop(service, funnel.ask, settings)

        async def complete(request: Request) -> Reply | Streaming:
            fields = request.json()
            model, names = fields.pop("model"), fields.pop("mcp_tools")
            wants = bool((fields.pop("stream_options", None) or {}).get("include_usage"))
            if not isinstance(names, list):
                raise bad_request("no list")
            call = PlainCall(
                request.id,
                request.key,
                (model,),
                fields,
                asyncio.get_running_loop().time() + seconds,
                agent=request.headers.get("x-agent-id", ""),
                stream=bool(fields.pop("stream", False)),
                wants_usage=wants,
                answers=fields.pop("n", 1),
                size=len(request.body),
            )
            return await loop(request, Asked(tuple(names)), call)

        app = app_of(settings, [Route("POST", "/v1/chat/completions", complete)], ring=ring)
        yield Bench(await stack.enter_async_context(calling(app)), upstream, funnel)
