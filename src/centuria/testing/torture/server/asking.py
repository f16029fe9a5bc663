"""One server under examination: requests as a plain client sends them, and what came back, unjudged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from centuria.errors import ModelError
from centuria.model.sse import EventDecoder
from centuria.model.wire import authorization
from centuria.ports import HttpRequest, HttpResponse, Transport
from centuria.settings import Endpoint

_BODY_CAP = 16 * 2**20
#: What the unknown model of a check is called; and a key that no server gave out.
NO_MODEL, NO_KEY = "no-such-model-centuria", "sk-centuria-no-such-key-0000"


@dataclass(frozen=True, slots=True)
class Heard:
    """`status` 0: no answer, `broken` says why. `events` are the data of a stream, `rest` what stood between them."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    broken: str = ""
    seconds: float = 0.0

    @property
    def value(self) -> Any:
        """The body as JSON, or None."""
        return parsed(self.body.decode("utf-8", "replace"))

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def events(self) -> list[str]:
        decoder = EventDecoder()
        return [event.data for event in (*decoder.feed(self.body), *decoder.close())]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [value for value in map(parsed, self.events) if isinstance(value, dict)]

    def __str__(self) -> str:
        if self.broken:
            return self.broken
        text = " ".join(self.body[:300].decode("utf-8", "replace").split())
        return f"HTTP {self.status}: {text[:160]}" if self.status != 200 else f"HTTP 200, {len(self.body):,} bytes"


class Examiner:
    """Asks. `patience` is in seconds, for each request; `sent` counts them, `heard_429` keeps refusals."""

    def __init__(self, endpoint: Endpoint, transport: Transport, *, patience: float = 60.0) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self.sent = 0
        self.heard_429: list[Heard] = []
        self._transport = transport

    def body(self, text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
        """A request of one user message. A field given as None is left out."""
        whole = {
            **self.endpoint.sampling,
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": text}],
            self.endpoint.limit_field: self.room(max_tokens),
            **more,
        }
        return {name: value for name, value in whole.items() if value is not None}

    def room(self, max_tokens: int) -> int:
        """A model that thinks first needs room for it."""
        return max(max_tokens, 4096) if self.endpoint.thinks else max_tokens

    async def ask(self, body: Any, *, key: str | None = None, keep: bool = False) -> Heard:
        """POST; a body of bytes goes out as it is. Never raises for what the server does.

        Each request has a connection of its own, so that no row answers for another, unless `keep`.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._whole(self._request("POST", "/chat/completions", data, key, keep=keep))

    async def get(self, path: str) -> Heard:
        return await self._whole(self._request("GET", path))

    @asynccontextmanager
    async def open(self, body: Any) -> AsyncIterator[HttpResponse]:
        """The response while it streams; leaving hangs up. Raises `ModelError`."""
        request = self._request("POST", "/chat/completions", json.dumps(body).encode())
        async with self._transport.send(request) as got:
            yield got

    async def _whole(self, request: HttpRequest) -> Heard:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(self.patience), self._transport.send(request) as got:
                body = bytearray()
                async for piece in got.chunks():
                    body += piece
                    if len(body) > _BODY_CAP:
                        break
        except TimeoutError:
            return Heard(broken=f"no whole answer within {self.patience:g} s", seconds=now() - began)
        except ModelError as error:
            return Heard(broken=error.message, seconds=now() - began)
        heard = Heard(got.status, dict(got.headers), bytes(body), seconds=now() - began)
        if heard.status == 429:
            self.heard_429.append(heard)
        return heard

    def _request(
        self, method: str, path: str, data: bytes = b"", key: str | None = None, *, keep: bool = False
    ) -> HttpRequest:
        self.sent += 1
        credentials = authorization(self.endpoint) if key is None else {"Authorization": f"Bearer {key}"}
        headers = {**self.endpoint.headers, **credentials, "Accept": "text/event-stream, application/json"}
        if not keep:
            headers["Connection"] = "close"
        if data:
            headers["Content-Type"] = "application/json"
        return HttpRequest(method, self.endpoint.base_url.rstrip("/") + path, headers, data)


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def choice_of(value: Any) -> dict[str, Any]:
    """The first choice of a document or a chunk; {} where there is none."""
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def part_of(value: Any, name: str) -> dict[str, Any]:
    """A member that is an object; {} where there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
