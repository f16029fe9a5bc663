"""Asking the application directly, as a browser or a program would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from centuria.gateway.app import App
from centuria.gateway.keys import KeyRing, digest_of
from centuria.gateway.page.service import Page
from centuria.gateway.ports import Key
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.web import Reply, Request, Route, Router
from centuria.messages import DOLLAR
from centuria.testing.gateway import MemoryStore

ADMIN, ADMIN_TOKEN = Key("key-admin", "operator", admin=True), "ck-" + "a" * 40
ALICE, ALICE_TOKEN = Key("key-alice", "alice", budget=20 * DOLLAR, models=frozenset({"kimi-k2.5"})), "ck-" + "b" * 40
HOST = "127.0.0.1:8080"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """The cookie that it sets, as a browser would send it back."""
        return self.headers["set-cookie"].partition(";")[0]


class Gateway:
    """The page and one route that changes something. `now` is the clock of sessions and of keys."""

    def __init__(self, *, keys: bool = True) -> None:
        self.now = 1_000.0
        self.store = MemoryStore()
        self._with_keys = keys
        self.ring = KeyRing(self.store, wall=lambda: self.now, open_on_loopback=not keys)
        self.page = Page(self.ring, self.store, clock=lambda: self.now)
        self.changed: list[str] = []
        routes = [*self.page.routes(), Route("POST", "/v1/change", self._change)]
        self.app = App(GatewaySettings(models={}), Router(routes), self.page.ring)

    async def begin(self) -> Gateway:
        if self._with_keys:
            await self.store.add_key(ADMIN, digest_of(ADMIN_TOKEN))
            await self.store.add_key(ALICE, digest_of(ALICE_TOKEN))
        return self

    async def _change(self, request: Request) -> Reply:
        self.changed.append(request.key.id)
        return Reply.of({})

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        scheme: str = "http",
        client: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        """One request. Keywords are headers, `_` for `-`; a body that is no bytes is sent as JSON."""
        whole = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            whole.setdefault("content-type", "application/json")
        place, _, query = path.partition("?")
        scope = {
            "type": "http",
            "scheme": scheme,
            "method": method,
            "path": place,
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in whole.items()],
            "client": (client, 9),
        }
        sent: list[Any] = []
        came = [{"type": "http.request", "body": body or b"", "more_body": False}]

        async def receive() -> Any:
            return came.pop() if came else await _never()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        assert len(pairs) == len(dict(pairs)), f"a header stands twice: {pairs}"
        return Answer(sent[0]["status"], dict(pairs), b"".join(part.get("body", b"") for part in sent[1:]))

    async def sign_in(self, token: str = ALICE_TOKEN, **more: str) -> tuple[str, str]:
        """The cookie and the token of a new session."""
        answer = await self.ask("POST", "/session", {"key": token}, **more)
        assert answer.status == 200, answer.body
        return answer.cookie, answer.json["csrf_token"]


async def _never() -> Any:
    return await asyncio.get_running_loop().create_future()
