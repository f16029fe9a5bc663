"""A gateway on loopback, for the length of an `async with`, and programs of others that talk to it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centuria.core.prices import Price
from centuria.gateway.keys import digest_of, new_key_id, new_token
from centuria.gateway.ports import Key
from centuria.gateway.server import listen
from centuria.gateway.service import Gateway
from centuria.gateway.settings import Deployment, GatewaySettings
from centuria.gateway.web import Asgi, Receive, Scope, Send
from centuria.settings import Endpoint
from tests.servers.installed import CLIENTS_PYTHON

#: Kimi K2.5 at Moonshot: pico-dollars a token.
KIMI = Price(input=600_000, cached=100_000, output=3_000_000)
SECONDS = 90.0


@dataclass(slots=True)
class Hit:
    """One request at the gateway: how often a client really asked, and what it was told."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    request_id: str = ""


@dataclass(slots=True)
class Served:
    gateway: Gateway
    port: int
    hits: list[Hit] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def key(self, name: str, **fields: Any) -> str:
        """A new key's token. `fields` as in `Key`."""
        token = new_token()
        key = Key(new_key_id(), name, created=time.time(), **fields)
        await self.gateway.store.add_key(key, digest_of(token))
        self.gateway.ring.forget()
        return token


class _Counted:
    """Keeps the books of what passes between its clients and the application."""

    def __init__(self, app: Asgi, hits: list[Hit]) -> None:
        self._app = app
        self._hits = hits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        hit = Hit(scope["method"], scope["path"], headers)
        self._hits.append(hit)

        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start":
                hit.status = message["status"]
                hit.request_id = dict(message["headers"]).get(b"x-request-id", b"").decode()
            await send(message)

        await self._app(scope, receive, seen)


@asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncIterator[Served]:
    """The whole gateway behind a socket of its own."""
    async with Gateway(settings) as gateway:
        listener = listen("127.0.0.1", 0)
        served = Served(gateway, listener.getsockname()[1])
        gateway.app = _Counted(gateway.app, served.hits)
        task = asyncio.create_task(gateway.serve(listener, signals=False))
        try:
            yield served
        finally:
            task.cancel()
            await asyncio.wait([task])
            listener.close()


def deployment(base_url: str, model: str = "kimi-k2.5", *, price: Price | None = KIMI, **fields: Any) -> Deployment:
    """A model at an upstream."""
    return Deployment(f"fake/{model}", Endpoint("fake", base_url, model), price, **fields)


async def run(
    argv: Sequence[str | Path], env: Mapping[str, str], *, within: float = SECONDS, cwd: Path | None = None
) -> tuple[int, str, str]:
    """A program to its end: its exit code, its output, and what it says beside it. It is killed with us."""
    # Nothing of the developer's own (keys, proxies, base URLs) reaches it.
    own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        env={**own, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", **env},
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within):
            out, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()


async def run_client(file: Path, env: Mapping[str, str], *, interpreter: Path = CLIENTS_PYTHON) -> dict[str, Any]:
    """What a program of `clients/programs` prints: one JSON object."""
    code, out, said = await run([interpreter, file], env)
    assert code == 0, f"{file.name} ended with {code}:\n{said[-4000:]}"
    result: dict[str, Any] = json.loads(out)
    return result
