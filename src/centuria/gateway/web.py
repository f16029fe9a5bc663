"""Requests, replies and routes: what every room of the gateway has in common. `app` serves them.

A handler is an `async def` that gets a `Request` and returns a `Reply` or a `Streaming`, or raises `Problem`. It is
cancelled the moment its client goes away. Which handler runs, and whether it may, is decided by the matched route
alone; a route is for keys unless it says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl, unquote

from centuria.core.strict_json import strict_json
from centuria.gateway.parts import check_parts
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, bad_request, not_found

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
#: That of the house's own server is a `WholeSend`, too.
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
#: In the scope of a request: its connection, which has `when_lost(call)`: to be called once when it is lost.
CONNECTION = "centuria.connection"
#: In the scope of a mounted application: the `Key` that asks.
CALLER = "centuria.key"
Access = Literal["public", "key", "admin"]
#: Answers that have no body by their status.
BODILESS = frozenset({204, 304})

_JSON = "application/json"
#: Who asks where that was not found out.
_NOBODY = Key("", "")


class WholeSend(Protocol):
    """Takes a whole answer in one call; `lines` are its headers as they are sent, but for those of the framing."""

    @property
    def blocked(self) -> bool:
        """The client does not read what was sent: what is sent next waits for that."""
        ...

    async def respond(self, status: int, lines: bytes, body: bytes) -> None: ...


class Ring(Protocol):
    """Who asks: the key of a request's headers. Raises `Problem` (401) and `StoreUnavailable`."""

    def identify(self, request: Request) -> Awaitable[Key]: ...


@dataclass(slots=True)
class Request:
    """One request, whole. `headers` have names in lower case, `parts` are the route's own parts of the path by name.

    `id` is the gateway's own; it is in the answer's `x-request-id`. `client` is the address that it came from, `secure`
    says that it came over HTTPS.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    query_string: bytes
    client: str
    id: str
    key: Key = _NOBODY
    parts: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    secure: bool = False

    @property
    def query(self) -> Mapping[str, str]:
        """The last value of each name. Raises `Problem` (400)."""
        try:
            return dict(parse_qsl(self.query_string.decode("latin-1"), max_num_fields=100))
        except ValueError:
            raise bad_request("The query of the address has too many fields.") from None

    def json(self) -> Any:
        """The body as strict JSON. Raises `Problem` (400)."""
        check_parts(self.body)
        try:
            return strict_json(self.body.decode())
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The body is not JSON: {str(error)[:200]}.", code="invalid_json") from None


class ClientGone(Exception):
    """The client went away; there is nobody to answer."""


@dataclass(slots=True)
class Reply:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = _JSON
    #: Awaited last, whatever becomes of the answer: what its reader need not wait for.
    end: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def of(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        """A value as JSON."""
        return cls(json.dumps(value, ensure_ascii=False).encode(), status, headers or {})

    async def close(self) -> None:
        """End the work behind it, once."""
        end, self.end = self.end, None
        if end is not None:
            await end()


@dataclass(slots=True)
class Streaming:
    """An answer in pieces, each of which is one write. Whatever makes the pieces says itself what goes wrong there, and
    is closed when the answer ends or its client goes."""

    chunks: AsyncIterator[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = "text/event-stream; charset=utf-8"
    #: Awaited last, also where not even the first piece was asked for: a generator that never began runs no `finally`.
    end: Callable[[], Awaitable[None]] | None = None

    async def close(self) -> None:
        """End the work behind it."""
        try:
            if isinstance(self.chunks, AsyncGenerator):
                await self.chunks.aclose()
        finally:
            if self.end is not None:
                await self.end()


Handler = Callable[[Request], Awaitable[Reply | Streaming]]


@dataclass(frozen=True, slots=True)
class Route:
    """`pattern` is a path whose parts in braces match one part each, unquoted."""

    method: str
    pattern: str
    handler: Handler
    access: Access = "key"


@dataclass(frozen=True, slots=True)
class Mount:
    """An ASGI application of its own for one path and all below it. Its scope has the caller's key as `CALLER`."""

    path: str
    app: Asgi


_NONE: Mapping[str, Route] = {}
_NO_PARTS: Mapping[str, str] = {}


class Router:
    """Routes by path and method."""

    def __init__(self, routes: Iterable[Route], mounts: Iterable[Mount] = ()) -> None:
        self.routes = tuple(routes)
        self.mounts = tuple(mounts)
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: list[tuple[Sequence[str], Route]] = []
        for route in self.routes:
            if "{" in route.pattern:
                self._open.append((route.pattern.split("/"), route))
            else:
                self._fixed.setdefault(route.pattern, {})[route.method] = route

    def match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Raises `Problem`: 404, or 405 with what is allowed."""
        route = self._fixed.get(path, _NONE).get(method)
        if route is not None:
            return route, _NO_PARTS
        if path in self._fixed:
            found: dict[str, tuple[Route, Mapping[str, str]]]
            found = {name: (route, {}) for name, route in self._fixed[path].items()}
        else:
            given = path.split("/")
            found = {}
            for pattern, route in self._open:
                parts = _parts(pattern, given)
                if parts is not None:
                    found.setdefault(route.method, (route, parts))
        if not found:
            raise not_found(_NOT_OURS if _others(path) else _NOTHING, remedy="See /docs for all that there is.")
        route_and_parts = found.get(method) or (found.get("GET") if method == "HEAD" else None)
        if route_and_parts is None:
            allowed = ", ".join(sorted(found.keys() | ({"HEAD"} if "GET" in found else set())))
            raise Problem(
                405,
                "invalid_request_error",
                f"{method} is not for this address: use {allowed}.",
                headers={"Allow": allowed},
            )
        return route_and_parts

    def mounted(self, path: str) -> Mount | None:
        for mount in self.mounts:
            if path.startswith(mount.path) and path[len(mount.path) : len(mount.path) + 1] in ("", "/"):
                return mount
        return None


_NOTHING = "There is nothing at this address."
_NOT_OURS = "This is not supported: of OpenAI's API the gateway has chat completions and models."
#: Of OpenAI's API, what is not here.
_OTHERS = frozenset(
    {
        *("assistants", "audio", "batches", "completions", "embeddings", "files", "fine_tuning", "images"),
        *("moderations", "responses", "threads", "uploads", "vector_stores"),
    }
)


def _others(path: str) -> bool:
    version, _, rest = path.removeprefix("/").partition("/")
    return version == "v1" and rest.partition("/")[0] in _OTHERS


def _parts(pattern: Sequence[str], given: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(given):
        return None
    parts: dict[str, str] = {}
    for want, have in zip(pattern, given, strict=True):
        if want.startswith("{"):
            if not have:
                return None
            parts[want[1:-1]] = unquote(have)
        elif want != have:
            return None
    return parts
