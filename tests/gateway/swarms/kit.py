"""A gateway with swarms alone: the real application over ASGI, a provider in memory, and a reader of SSE."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import random
from typing import Any

from centuria.core.prices import Price
from centuria.core.rates import RateLimits
from centuria.gateway.app import App
from centuria.gateway.books import Books
from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.chat.funnel import Funnel
from centuria.gateway.keys import KeyRing, digest_of
from centuria.gateway.ports import AttemptRow, Balance, Key
from centuria.gateway.problems import Problem
from centuria.gateway.settings import Deployment, GatewaySettings, SwarmLimits
from centuria.gateway.swarms.routes import SwarmRoutes
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.tools.service import ToolService
from centuria.gateway.web import Router
from centuria.messages import DOLLAR, Pico
from centuria.settings import Endpoint
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Answer, Text
from centuria.testing.tools import LocalToolHost
from centuria.testing.transport import Provider, Tariff

MODEL = "kimi-k2.5"
KIMI = Price(input=600_000, output=2_500_000)
TARIFF = Tariff(input=600_000, output=2_500_000, cached=600_000)
ROOT = "/v1/agents/swarm"
ALICE = Key("key-alice", "alice", budget=20 * DOLLAR)
BOB = Key("key-bob", "bob")
ADMIN = Key("key-admin", "admin", admin=True)
_PATIENCE = 30.0


async def store_with(*keys: Key) -> MemoryStore:
    """A store that has these keys; the token of each is its id."""
    store = MemoryStore()
    for key in keys:
        await store.add_key(key, digest_of(key.id))
    return store


async def pay(store: MemoryStore, key: Key, *, cost: Pico = 0, held: Pico = 0) -> None:
    """Something that this key has paid, or may have to."""
    request = f"paid-{len(store._attempts)}"
    row = AttemptRow(request, 1, 0.0, key.id, MODEL, "fake/kimi", "chat", "done", cost=cost, held=held)
    await store.write("elsewhere", [row])


def settings(folder: Path, url: str = "http://127.0.0.1:9/v1", **limits: Any) -> GatewaySettings:
    known = RateLimits(concurrency=100)
    deployment = Deployment("fake/kimi", Endpoint("moonshot", url, MODEL), KIMI, known=known)
    return GatewaySettings(models={MODEL: (deployment,)}, swarms=SwarmLimits(folder=folder / "runs", **limits))


# -- what is read -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One event of a stream. `id` None: it is no fact."""

    kind: str
    data: Any
    id: int | None = None


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error, with its remedy."""
        return str(self.json["error"]["message"])


def parse(text: str) -> Event | None:
    """One block of an SSE stream; None for a comment, and for what only sets the time to come back."""
    fields: dict[str, str] = {}
    for part in text.split("\n"):
        name, _, value = part.partition(":")
        if name:
            assert name not in fields, f"{name} stands twice: {text!r}"
            fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return None
    return Event(fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None)


@dataclass
class Caller:
    """Somebody with a key, before the application."""

    app: App
    key: str
    headers: dict[str, str] = field(default_factory=dict)

    def _scope(self, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        whole = {"host": "127.0.0.1:8080", "authorization": f"Bearer {self.key}", **self.headers, **headers}
        place, _, query = path.partition("?")
        return {
            "type": "http",
            "method": method,
            "path": place,
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in whole.items()],
            "client": ("127.0.0.1", 5),
        }

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """A whole answer. Keywords are headers, `_` for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        messages: list[Any] = [{"type": "http.request", "body": data, "more_body": False}]
        started: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            return await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        async with asyncio.timeout(_PATIENCE):
            await self.app(self._scope(method, path, given), receive, send)
        names = {name.decode(): value.decode("latin-1") for name, value in started["headers"]}
        return Reply(started["status"], names, b"".join(parts))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.call("POST", path, body, **headers)

    async def spawn(self, **body: Any) -> str:
        """The id of a new swarm."""
        reply = await self.post(f"{ROOT}/spawn", body)
        assert reply.status == 202, reply.body
        return str(reply.json["id"])

    @asynccontextmanager
    async def events(
        self, path: str, body: Any = None, *, slow: asyncio.Event | None = None, **headers: str
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """The events at an address, for as long as one stays. While `slow` is clear, nothing is taken."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else json.dumps(body).encode()
        came: asyncio.Queue[bytes | None] = asyncio.Queue()
        gone = asyncio.Event()
        asked: list[Any] = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if slow is not None:
                await slow.wait()
            if message["type"] == "http.response.start":
                assert message["status"] == 200, message
            else:
                came.put_nowait(message.get("body", b"") or None)

        async def read() -> AsyncIterator[Event]:
            rest = ""
            while (chunk := await came.get()) is not None:
                *blocks, rest = (rest + chunk.decode()).split("\n\n")
                for block in blocks:
                    event = parse(block)
                    if event is not None:
                        yield event

        method = "GET" if body is None else "POST"
        served = asyncio.create_task(self.app(self._scope(method, path, given), receive, send))
        served.add_done_callback(lambda _: came.put_nowait(None))
        try:
            async with asyncio.timeout(_PATIENCE):
                yield read()
        finally:
            gone.set()
            async with asyncio.timeout(_PATIENCE):
                await served

    async def all_events(self, id: str, after: int | None = None) -> list[Event]:
        headers = {} if after is None else {"last_event_id": str(after)}
        async with self.events(f"{ROOT}/{id}/events", **headers) as events:
            return [event async for event in events]

    async def ended(self, id: str) -> dict[str, Any]:
        """The result of a swarm, once it has one."""
        async with self.events(f"{ROOT}/{id}/events") as events:
            async for event in events:
                if event.kind == "end":
                    break
        reply = await self.get(f"{ROOT}/{id}/result")
        assert reply.status == 200, reply.body
        found: dict[str, Any] = reply.json
        return found


# -- the gateway ------------------------------------------------------------------------------------------------------


@dataclass
class Gateway:
    """What a test has of it. `calls` are those that came to the funnel, which `problem` may refuse there."""

    app: App
    service: SwarmService
    books: Books
    provider: Provider
    store: MemoryStore
    calls: list[ChatCall] = field(default_factory=list)
    problem: Callable[[ChatCall], Problem | None] = lambda call: None

    def as_(self, key: Key) -> Caller:
        return Caller(self.app, key.id)

    @property
    def alice(self) -> Caller:
        return self.as_(ALICE)

    @property
    def bob(self) -> Caller:
        return self.as_(BOB)

    async def spent(self, key: Key) -> Balance:
        await self.books.flush()
        return next(balance for known, balance in await self.store.keys() if known.id == key.id)

    def documents(self, kind: str) -> list[str]:
        return [id for of, _, id in self.store.documents if of == kind]


def say(body: dict[str, Any]) -> Answer:
    """What every agent answers: its task, done."""
    return Text(f"Done: {prompt_of(body)}")


def prompt_of(body: Mapping[str, Any]) -> str:
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


@asynccontextmanager
async def gateway(
    folder: Path,
    script: Callable[[dict[str, Any]], Answer] = say,
    *,
    store: MemoryStore | None = None,
    provider: Provider | None = None,
    tools: Any = None,
    latency: tuple[float, float] = (0.001, 0.005),
    look: float = 15.0,
    rehearsal: bool = False,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway for the length of the block; leaving it is its SIGTERM. `tools`: functions that stand for servers."""
    store = store or await store_with(ALICE, BOB, ADMIN)
    provider = provider or Provider(script, tariff=TARIFF, latency=latency)
    known = replace(settings(folder, **limits), rehearsal=rehearsal)
    async with AsyncExitStack() as stack:
        books = await stack.enter_async_context(Books(store, gateway="test", wall=time.time))
        funnel = Funnel(known, books=books, transport=provider, dice=random, wall=time.time)
        made: list[Gateway] = []

        @asynccontextmanager
        async def ask(call: ChatCall) -> AsyncIterator[Any]:
            made[0].calls.append(call)
            problem = made[0].problem(call)
            if problem is not None:
                raise problem
            async with funnel.ask(call) as answer:
                yield answer

        if isinstance(tools, LocalToolHost):
            tools = await stack.enter_async_context(ToolService(known, store, host=tools))
        service = SwarmService(known, store, ask, tools, look=look)
        ring = KeyRing(store, wall=time.time, open_on_loopback=False)
        made.append(Gateway(App(known, Router(SwarmRoutes(service).routes()), ring), service, books, provider, store))
        async with service:
            yield made[0]
        funnel.close()


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"t{number}", "prompt": f"Task {number}.", **more} for number in range(count)]
