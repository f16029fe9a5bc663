"""A gateway over real HTTP, in front of fake upstreams, and what tests ask of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from centuria.core.prices import Price
from centuria.core.rates import RateLimits
from centuria.core.retry import RetryPolicy
from centuria.gateway.app import App
from centuria.gateway.keys import digest_of
from centuria.gateway.ports import AttemptRow, Key, Store
from centuria.gateway.server import listen
from centuria.gateway.service import Gateway
from centuria.gateway.settings import Caps, Deployment, GatewaySettings
from centuria.gateway.web import Asgi, Message, Receive, Scope, Send
from centuria.messages import Pico, Usage
from centuria.settings import Endpoint, Secret, Timeouts
from centuria.testing import FakeUpstream
from centuria.testing.gateway import MemoryStore
from tests.waiting import until

#: A token of input costs a millionth of a dollar, one of output ten.
PRICE = Price(input=10**6, output=10**7)
MODEL = "kimi"
UPSTREAM_KEY = "sk-upstream-0123456789abcdef"
#: None of these is met where no test is about them.
PATIENT = Timeouts(connect=5.0, first_token=10.0, silence=5.0, total=20.0)
QUICK = Timeouts(connect=2.0, first_token=1.0, silence=0.6, total=3.0)
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 50}


def deployment(
    upstream: FakeUpstream | str,
    *,
    name: str = "fake/kimi-k2.5",
    price: Price | None = PRICE,
    concurrency: int = 200,
    known: RateLimits | None = None,
    key: str = UPSTREAM_KEY,
    max_tokens: int = 1_000,
) -> Deployment:
    url = upstream if isinstance(upstream, str) else upstream.base_url
    return Deployment(
        name,
        Endpoint("fake", url, name.partition("/")[2], key=Secret(key)),
        price,
        concurrency=concurrency,
        concurrency_written=True,
        known=known or RateLimits(concurrency=concurrency),
        max_tokens=max_tokens,
    )


def settings(
    models: Mapping[str, Sequence[Deployment]], *, caps: Caps | None = None, timeouts: Timeouts = PATIENT, **more: Any
) -> GatewaySettings:
    return GatewaySettings(
        models={name: tuple(each) for name, each in models.items()},
        port=0,
        caps=caps or Caps(queue=3.0, request=20.0, grace=1.0),
        timeouts=timeouts,
        **more,
    )


def one(upstream: FakeUpstream, **more: Any) -> GatewaySettings:
    """A gateway with one model at one upstream."""
    return settings({MODEL: [deployment(upstream)]}, **more)


@dataclass(slots=True)
class Hit:
    """One request at the gateway: how often a client really asked, and what it was told."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    request_id: str = ""


@dataclass
class Served:
    """A gateway that listens, and a client of it."""

    gateway: Gateway
    app: App
    url: str
    session: aiohttp.ClientSession
    store: Store
    port: int
    rows: list[AttemptRow] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)

    async def token(self, name: str, **more: Any) -> str:
        """A new key's token. `more` as in `Key`."""
        token = f"ck-{name}-0123456789"
        await self.store.add_key(Key(f"key-{name}", name, **more), digest_of(token))
        self.gateway.ring.forget()
        return token

    async def add_key(self, name: str, **more: Any) -> dict[str, str]:
        """A key, as the headers that show it."""
        return {"Authorization": f"Bearer {await self.token(name, **more)}"}

    @asynccontextmanager
    async def post(self, headers: Mapping[str, str], **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.session.post(
            f"{self.url}/v1/chat/completions", json={**ASKED, **fields}, headers=headers
        ) as got:
            yield got

    async def ask(self, headers: Mapping[str, str], **fields: Any) -> Reply:
        """A request and its answer, whole or as a stream."""
        async with self.post(headers, **fields) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Reply:
        async with self.session.request(method, f"{self.url}{path}", headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def until_quiet(self) -> None:
        """Every attempt has ended and its row is durable."""
        async with asyncio.timeout(10):
            await until(lambda: not self.gateway.funnel.in_flight())
            await self.gateway.books.flush()

    def spent(self, key: str) -> Pico:
        return sum(row.cost + row.held for row in self.rows if row.key == f"key-{key}")


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def error(self) -> dict[str, Any]:
        value: dict[str, Any] = self.json["error"]
        return value

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def events(self) -> list[str]:
        """The data of each event of a stream."""
        return [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]

    @property
    def last_error(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.events[-1])["error"]
        return value

    @property
    def text(self) -> str:
        """What a stream said."""
        found = ""
        for event in self.events:
            if event.startswith("{"):
                for choice in json.loads(event).get("choices", []):
                    found += choice["delta"].get("content") or ""
        return found


class _Seen:
    """The server's own `send`, through which a whole answer goes in one call here too, and what of it was seen."""

    def __init__(self, send: Any, hit: Hit) -> None:
        self._send = send
        self._hit = hit

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._see(message["status"], dict(message["headers"]).get(b"x-request-id", b""))
        await self._send(message)

    @property
    def blocked(self) -> bool:
        return bool(self._send.blocked)

    async def respond(self, status: int, lines: bytes, body: bytes) -> None:
        self._see(status, lines.partition(b"x-request-id: ")[2].partition(b"\r\n")[0])
        await self._send.respond(status, lines, body)

    def _see(self, status: int, request_id: bytes) -> None:
        self._hit.status, self._hit.request_id = status, request_id.decode()


class _Counted:
    """Keeps the books of what passes between its clients and the application."""

    def __init__(self, app: Asgi, hits: list[Hit]) -> None:
        self._app = app
        self._hits = hits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        hit = Hit(scope["method"], scope["path"], headers)
        self._hits.append(hit)
        await self._app(scope, receive, _Seen(send, hit))


@asynccontextmanager
async def serving(
    settings: GatewaySettings, store: Store | None = None, *, retry: RetryPolicy | None = None
) -> AsyncIterator[Served]:
    """A gateway on a free port. The dice always say 0, so retries wait no longer than they must."""
    store = store or MemoryStore()
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    connector = aiohttp.TCPConnector(limit=0)
    with TemporaryDirectory() as folder:
        swarms = replace(settings.swarms, folder=Path(folder))
        rows: list[AttemptRow] = []
        known = replace(settings, port=port, swarms=swarms)
        made = Gateway(known, store=store, dice=lambda: 0.0, retry=retry, ended=rows.append)
        async with _serving(made, rows, listener, connector) as served:
            yield served


@asynccontextmanager
async def _serving(
    made: Gateway, rows: list[AttemptRow], listener: socket.socket, connector: aiohttp.TCPConnector
) -> AsyncIterator[Served]:
    port = listener.getsockname()[1]
    async with made as gateway:
        app = gateway.app
        hits: list[Hit] = []
        gateway.app = _Counted(app, hits)
        task = asyncio.create_task(gateway.serve(listener, signals=False))
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Served(gateway, app, f"http://127.0.0.1:{port}", session, gateway.store, port, rows, hits)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            listener.close()


def usage(prompt: int = 100, output: int = 10, cached: int = 0) -> Usage:
    return Usage(prompt, cached, 0, output)


async def raw(port: int, data: bytes, *, within: float = 5.0) -> bytes:
    """What comes back for exactly these bytes, until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(within):
            return await reader.read()
    finally:
        writer.close()
