"""What tests of the gateway's rooms share: a ring of keys, and a real server on a free port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import uvicorn

from centuria.gateway.app import App
from centuria.gateway.ports import Key
from centuria.gateway.problems import unauthenticated
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.web import Asgi, Mount, Request, Route, Router

ALICE = Key("key-alice", "alice")
BOB = Key("key-bob", "bob")
ADMIN = Key("key-admin", "admin", admin=True)


class FixedRing:
    """Keys by their token."""

    def __init__(self, keys: Mapping[str, Key] | None = None) -> None:
        self.keys = dict(keys or {"alice": ALICE, "bob": BOB, "admin": ADMIN})

    async def identify(self, request: Request) -> Key:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.keys:
            raise unauthenticated()
        return self.keys[token]


def app_of(
    settings: GatewaySettings, routes: Sequence[Route], mounts: Sequence[Mount] = (), ring: FixedRing | None = None
) -> App:
    return App(settings, Router(routes, mounts), ring or FixedRing())


@asynccontextmanager
async def serve(app: Asgi) -> AsyncIterator[str]:
    """The application on a free port of this machine; gives its URL, without a slash at the end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = _Server(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(10):
                await server.up.wait()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def error(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.body["error"]
        return found


class Caller:
    """A caller of a gateway at `url`, with a key."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str = "alice") -> None:
        self._session = session
        self.url = url
        self.token = token

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        raw: bytes | None = None,
        **headers: str,
    ) -> Answered:
        """Send JSON, or bytes as they are; header names with `_` for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given["Authorization"] = f"Bearer {token or self.token}"
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        async with self._session.request(method, self.url + path, data=data, headers=given) as response:
            read = await response.read()
            kind = response.headers.get("content-type", "")
            return Answered(response.status, response.headers, json.loads(read) if read and "json" in kind else read)


@asynccontextmanager
async def calling(app: Asgi) -> AsyncIterator[Caller]:
    """A caller of this application, served for real."""
    connector = aiohttp.TCPConnector(limit=0)
    async with serve(app) as url, aiohttp.ClientSession(connector=connector) as session:
        yield Caller(session, url)
