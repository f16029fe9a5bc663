"""A gateway with its page, swarms and keys at a real socket: what a browser meets. The provider is in memory."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centuria.core.prices import Price
from centuria.gateway.app import App
from centuria.gateway.books import Books
from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.chat.funnel import Funnel
from centuria.gateway.chat.routes import ChatRoutes
from centuria.gateway.keys import KeyRing, digest_of
from centuria.gateway.page.service import Page
from centuria.gateway.ports import AttemptRow, Key
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.server import Server, listen
from centuria.gateway.settings import Deployment, GatewaySettings, SwarmLimits
from centuria.gateway.swarms.routes import SwarmRoutes
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.tools.routes import ToolRoutes
from centuria.gateway.tools.service import ToolService
from centuria.gateway.web import Route, Router
from centuria.messages import DOLLAR
from centuria.settings import Endpoint
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Answer, Calls, Text
from centuria.testing.tools import LocalTool, LocalToolHost
from centuria.testing.transport import Provider, Tariff

MODEL = "kimi-k2.5"
KIMI = Price(input=600_000, output=2_500_000)
TARIFF = Tariff(input=600_000, output=2_500_000, cached=600_000)
ADMIN, ADMIN_TOKEN = Key("key-admin", "operator", admin=True), "ck-" + "a" * 40
ALICE, ALICE_TOKEN = Key("key-alice", "alice", budget=20 * DOLLAR), "ck-" + "b" * 40
_SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_REPORT = (
    "The company grew by 12 % a year over the last five, mostly by selling more to customers that it had already. "
    "Its margin is two points above the median of its peers, and its debt is low. What speaks against it is the price: "
    "at 31 times earnings the market expects the growth to go on.\n\n"
    "| figure | company | median |\n|---|---|---|\n| P/E | 31.2 | 24.8 |\n| margin | 18.4 % | 16.1 % |\n"
)


def tool_host(
    result: Callable[[str], str] = lambda query: f'{{"query": "{query}", "hits": [{{"title": "Annual report"}}]}}',
    seconds: tuple[float, float] = (0.05, 0.4),
) -> LocalToolHost:
    """The operator's tools: each call takes a little while."""
    dice = random.Random(7)

    async def search(query: str) -> str:
        """Search the web."""
        await asyncio.sleep(dice.uniform(*seconds))
        return result(query)

    async def run_code(code: str) -> str:
        """Run a piece of code."""
        await asyncio.sleep(dice.uniform(*seconds))
        return f"ran {len(code)} characters: 42"

    return LocalToolHost(
        {
            "search": LocalTool(search, _SEARCH, {"slug": "web", "limit": 12}),
            "run_code": LocalTool(run_code, _CODE, {"slug": "code", "limit": 8}),
        }
    )


def prompt_of(body: dict[str, Any]) -> str:
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


@dataclass
class Analysts:
    """What every agent does: search, compute, write. `turns N` in a prompt sets how many turns use tools."""

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
                return Calls(calls, text="I look it up first.", reasoning="The figures have to be from the report.")
            return Calls((("code__run_code", '{"code": "median([31.2, 24.8])"}'),))
        return Text(self.text, piece=12)


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
            at=time.time() - 86_400 * dice.randrange(0, 28),
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
    gap: tuple[float, float] = (0.0, 0.0),
    tools: LocalToolHost | None = None,
    port: int = 0,
    refusals: Refusals | None = None,
    routes: Sequence[Route] = (),
    **limits: Any,
) -> AsyncIterator[Served]:
    """A gateway for the length of the block."""
    store = await furnished(MemoryStore())
    provider = Provider(script or Analysts(), tariff=TARIFF, latency=latency, gap=gap)
    where = Endpoint("moonshot", "http://127.0.0.1:9/v1", MODEL)
    deployment = Deployment("fake/kimi", where, KIMI, concurrency=1_000, concurrency_written=True)
    known = GatewaySettings(models={MODEL: (deployment,)}, swarms=SwarmLimits(folder=folder / "runs", **limits))
    refused = refusals or Refusals()
    listener = listen("127.0.0.1", port)
    async with AsyncExitStack() as stack:
        books = await stack.enter_async_context(Books(store, gateway="gw-2", wall=time.time))
        funnel = Funnel(known, books=books, transport=provider, dice=random.random, wall=time.time)
        stack.callback(funnel.close)
        stack.callback(funnel.abort)

        @asynccontextmanager
        async def ask(call: ChatCall) -> AsyncIterator[Any]:
            problem = refused(call)
            if problem is not None:
                raise problem
            async with funnel.ask(call) as answer:
                yield answer

        service = await stack.enter_async_context(ToolService(known, store, host=tools or tool_host()))
        swarms = await stack.enter_async_context(SwarmService(known, store, ask, service))
        page = Page(KeyRing(store, wall=time.time, open_on_loopback=False), store)
        rooms = [*page.routes(), *SwarmRoutes(swarms).routes(), *ToolRoutes(service, store, known).routes()]
        rooms += [*ChatRoutes(funnel, known.caps).routes(), *routes]
        server = Server(App(known, Router(rooms), page.ring), known.caps)
        serving = asyncio.create_task(server.serve(listener, signals=False))
        try:
            yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", store, swarms, provider, page)
        finally:
            swarms.stop()
            server.stop()
            server.stop()
            with suppress(asyncio.CancelledError):
                await serving
