"""A gateway with its page, swarms and keys at a real socket: what a browser meets. The provider is in memory."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centuria.core.prices import Price
from centuria.gateway.app import App
from centuria.gateway.keys import KeyRing, digest_of
from centuria.gateway.page.service import Page
from centuria.gateway.ports import AttemptRow, Key
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.server import Server, listen
from centuria.gateway.settings import Deployment, GatewaySettings, SwarmLimits
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.web import Reply, Request, Route, Router
from centuria.messages import DOLLAR
from centuria.ports import HostedTool, ToolHost
from centuria.settings import Endpoint
from centuria.testing.funnel import TransportFunnel
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Answer, Calls, Text
from centuria.testing.tools import LocalTool, LocalToolHost
from centuria.testing.transport import Provider, Tariff

MODEL = "kimi-k2.5"
KIMI = Price(input=600_000, output=2_500_000)
TARIFF = Tariff(input=600_000, output=2_500_000, cached=600_000)
ADMIN, ADMIN_TOKEN = Key("key-admin", "operator", admin=True), "ck-" + "a" * 40
ALICE, ALICE_TOKEN = Key("key-alice", "alice", budget=20 * DOLLAR), "ck-" + "b" * 40
#: 2026-11-02, noon, UTC.
NOON = 1_793_620_800.0
_SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_REPORT = (
    "The company grew by 12 % a year over the last five, mostly by selling more to customers that it had already. "
    "Its margin is two points above the median of its peers, and its debt is low. What speaks against it is the price: "
    "at 31 times earnings the market expects the growth to go on.\n\n"
    "| figure | company | median |\n|---|---|---|\n| P/E | 31.2 | 24.8 |\n| margin | 18.4 % | 16.1 % |\n"
)


@dataclass
class Tools:
    """The operator's tools: each call takes a little while. `SwarmService` sees them as its `Tools`."""

    seconds: tuple[float, float] = (0.05, 0.4)
    result: Callable[[str], str] = lambda query: (
        f'{{"query": "{query}", "hits": [{{"title": "Annual report", "page": 12}}]}}'
    )
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    async def _search(self, query: str) -> str:
        await asyncio.sleep(self.dice.uniform(*self.seconds))
        return self.result(query)

    async def _run(self, code: str) -> str:
        await asyncio.sleep(self.dice.uniform(*self.seconds))
        return f"ran {len(code)} characters: 42"

    def _host(self) -> LocalToolHost:
        options = {"slug": "web", "limit": 12}
        return LocalToolHost(
            {
                "search": LocalTool(self._search, _SEARCH, options),
                "run_code": LocalTool(self._run, _CODE, {"slug": "code", "limit": 8}),
            }
        )

    def visible(self, key: Key) -> Sequence[HostedTool]:
        return self._host().catalogue()

    def host_for(self, key: Key, names: Sequence[str] | None) -> ToolHost:
        return self._host()


def prompt_of(body: dict[str, Any]) -> str:
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


@dataclass
class Analysts:
    """What every agent does: search, compute, write. `turns N` in a prompt sets how many turns use tools."""

    gap: float = 0.03
    text: str = _REPORT

    def __call__(self, body: dict[str, Any]) -> Answer:
        prompt = prompt_of(body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        turns = re.search(r"turns (\d+)", prompt)
        names = {tool["function"]["name"] for tool in body.get("tools", [])}
        if turn < (int(turns[1]) if turns is not None else 2) and "web__search" in names:
            if turn % 2 == 0:
                calls = (
                    ("web__search", f'{{"query": "{prompt[:40]}"}}'),
                    ("code__run_code", '{"code": "sum([40, 2])"}'),
                )
                return Calls(
                    calls, text="I look it up first.", gap=self.gap, reasoning="The figures have to be from the report."
                )
            return Calls((("code__run_code", '{"code": "median([31.2, 24.8])"}'),), gap=self.gap)
        return Text(self.text, gap=self.gap, piece=12)


@dataclass
class Refusals:
    """A prompt that says `fail N` is refused `N` times."""

    message: str = "The prompt was refused by the provider's policy."
    tried: Counter[str] = field(default_factory=Counter)

    def __call__(self, call: Any) -> Problem | None:
        prompt = prompt_of(call.fields)
        fail = re.search(r"fail (\d+)", prompt)
        if fail is None:
            return None
        self.tried[prompt] += 1
        return bad_request(self.message) if self.tried[prompt] <= int(fail[1]) else None


def companies(count: int, **more: Any) -> list[dict[str, Any]]:
    """Tasks, all but the last of which are independent; it needs them all."""
    tasks = [
        {"id": f"company-{number:03}", "prompt": f"Write about company {number}.", **more}
        for number in range(count - 1)
    ]
    return [*tasks, {"id": "summary", "prompt": "Sum it up.", "needs": ["*"]}]


@dataclass
class Served:
    """A gateway that listens at `url`."""

    url: str
    store: MemoryStore
    swarms: SwarmService
    provider: Provider
    page: Page

    async def spawn(self, key: Key = ADMIN, **body: Any) -> str:
        return (await self.swarms.spawn(key, body)).id


def _catalogue(tools: Tools) -> list[Route]:
    """What the rooms of models and tools answer."""

    async def models(request: Request) -> Reply:
        model = {"id": MODEL, "object": "model", "context_length": 262_144, "pricing": {"input": 0.6, "output": 2.5}}
        return Reply.of({"object": "list", "data": [model]})

    async def manifest(request: Request) -> Reply:
        return Reply.of({"object": "list", "data": [{"name": tool.name} for tool in tools.visible(request.key)]})

    return [Route("GET", "/v1/models", models), Route("GET", "/v1/mcp/tools", manifest)]


async def furnished(store: MemoryStore) -> MemoryStore:
    """Two keys, and a month of what they used."""
    await store.add_key(ADMIN, digest_of(ADMIN_TOKEN))
    await store.add_key(ALICE, digest_of(ALICE_TOKEN))
    await store.start("gw-1")
    await store.extend_lease("gw-1", ALICE.id, 0, 2 * DOLLAR)
    dice = random.Random(3)
    rows = [
        AttemptRow(
            request=f"req-{number}",
            attempt=1,
            at=NOON + 86_400 * dice.randrange(0, 28),
            key=dice.choice([ADMIN.id, ALICE.id]),
            model=dice.choice([MODEL, MODEL, "gpt-4.1"]),
            deployment="fake/kimi",
            route="chat",
            end="done",
            prompt=dice.randrange(1_000, 40_000),
            cached=500,
            output=dice.randrange(100, 9_000),
            cost=dice.randrange(1, 60) * DOLLAR // 1_000,
        )
        for number in range(300)
    ]
    await store.write("gw-1", rows)
    return store


@asynccontextmanager
async def served(
    folder: Path,
    script: Callable[[dict[str, Any]], Answer] | None = None,
    *,
    latency: tuple[float, float] = (0.1, 0.6),
    tools: Tools | None = None,
    port: int = 0,
    keys: bool = True,
    refusals: Refusals | None = None,
    routes: Sequence[Route] = (),
    **limits: Any,
) -> AsyncIterator[Served]:
    """A gateway for the length of the block. Without `keys` it is open to this machine."""
    store = MemoryStore()
    if keys:
        await furnished(store)
    tools = tools or Tools()
    provider = Provider(script or Analysts(), tariff=TARIFF, latency=latency)
    funnel = TransportFunnel(provider, price=KIMI, problem=refusals or Refusals())
    deployment = Deployment("fake/kimi", Endpoint("moonshot", "http://127.0.0.1:9/v1", MODEL), KIMI)
    known = GatewaySettings(models={MODEL: (deployment,)}, swarms=SwarmLimits(folder=folder / "runs", **limits))
    ring = KeyRing(store, wall=lambda: NOON, open_on_loopback=not keys)
    page = Page(ring, store)
    listener = listen("127.0.0.1", port)
    async with SwarmService(known, store, funnel.ask, tools) as swarms:
        router = Router([*page.routes(), *swarms.routes(), *_catalogue(tools), *routes])
        server = Server(App(known, router, page.ring), known.caps)
        serving = asyncio.create_task(server.serve(listener, signals=False))
        try:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", store, swarms, provider, page)
        finally:
            swarms.stop()
            server.stop()
            server.stop()
            with suppress(asyncio.CancelledError):
                await serving
