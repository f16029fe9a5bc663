"""The ASGI application: one request from its headers to the last byte of its answer.

In order: Host and Origin, the route, the key, the body within its caps, the handler, the answer. The handler is
cancelled the moment its client goes away.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from itertools import count
from typing import Any, cast
from urllib.parse import quote, urlsplit

from centuria.errors import CenturiaError
from centuria.gateway.bodies import Bodies, Body
from centuria.gateway.problems import (
    Problem,
    StoreUnavailable,
    forbidden,
    store_unavailable,
    too_large,
    unavailable,
)
from centuria.gateway.settings import Caps, GatewaySettings
from centuria.gateway.web import (
    BODILESS,
    CALLER,
    CONNECTION,
    ClientGone,
    Mount,
    Receive,
    Reply,
    Request,
    Ring,
    Route,
    Router,
    Scope,
    Send,
    Streaming,
    WholeSend,
)

_log = logging.getLogger("centuria.gateway")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: Nobody is to guess types, and nothing here is to be kept by caches between.
_ALWAYS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
#: Requests are numbered within a process, which no other one is named like.
_PROCESS, _REQUESTS = secrets.token_hex(8), count(1)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: What is left as it is where a header's value has to be encoded.
_SAFE = " !#$%&'()*+,/:;=?@[]"
#: Headers that say how an answer ends.
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})


class App:
    """`ring` tells who asks, `router` what for."""

    def __init__(self, settings: GatewaySettings, router: Router, ring: Ring) -> None:
        self._caps = settings.caps
        self._hosts = _LOOPBACK | settings.hosts
        self._origins = settings.origins
        self._router = router
        self._ring = ring
        self.bodies = Bodies(settings.caps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"the gateway speaks HTTP alone, not {scope['type']}")
        request = _request(scope)
        body = self.bodies.begin()
        try:
            self._check_where_from(request)
            mount = self._router.mounted(request.path)
            if mount is not None:
                await self._pass_on(mount, request, body, scope, receive, send)
                return
            async with Presence(scope, receive, awaited="expect" in request.headers) as presence:
                await self._serve(request, body, presence, send)
        except ClientGone:
            return
        except Problem as problem:
            await _send(told(problem), request, send)
        finally:
            body.end()

    async def _pass_on(
        self, mount: Mount, request: Request, body: Body, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """To the application below this path, for the key that asks."""
        begun = False

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        async def received() -> MutableMapping[str, Any]:
            message = await receive()
            body.add(len(message.get("body", b"")))
            return message

        try:
            request.key = await self._ring.identify(request)
            body.key = request.key.id
            await mount.app({**scope, CALLER: request.key}, received, sent)
        except Exception as error:  # the edge of a request
            answer = _answer_to(error, request)
            if not begun:  # else it is cut, so that nobody takes it for whole
                await _send(answer, request, send)

    async def _serve(self, request: Request, body: Body, presence: Presence, send: Send) -> None:
        try:
            route, request.parts = self._router.match(request.method, request.path)
            await self._authorise(route, request)
            if request.method not in ("GET", "HEAD"):
                body.key = request.key.id
                request.body = await _read(request, body, presence, self._caps)
                presence.awaited = False
            presence.watch()
            answer = await route.handler(request)
        except ClientGone:
            raise
        except Exception as error:  # the edge of a request
            answer = _answer_to(error, request)
        if presence.awaited:
            # Its body was not asked for, so what comes next on this connection may be that or another request.
            answer.headers = {**answer.headers, "Connection": "close"}
        await _send(answer, request, send)

    def _check_where_from(self, request: Request) -> None:
        """A page of another site must reach no gateway of this machine, be it by its address (DNS rebinding) or with
        its user's cookie."""
        host = request.headers.get("host", "")
        if host not in self._hosts and _name(host) not in self._hosts:
            raise forbidden("The gateway does not go by this host name.", remedy="Add it to `hosts` in gateway.toml.")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and not _same(origin, host):
            raise forbidden("Requests from this origin are refused.", remedy="Add it to `origins` in gateway.toml.")

    async def _authorise(self, route: Route, request: Request) -> None:
        if route.access == "public":
            return
        request.key = await self._ring.identify(request)
        if route.access == "admin" and not request.key.admin:
            raise forbidden("This is for admin keys.", remedy="Make one: centuria keys add NAME --admin")


class Presence:
    """Whether the client is still there: from `watch` on, the task of this block is cancelled when it goes.

    The house's own server says so by itself (`CONNECTION` in the scope); of any other one a task of ours asks.
    """

    def __init__(self, scope: Scope, receive: Receive, *, awaited: bool = False) -> None:
        self.receive = receive
        #: The client waits for us to ask for the body.
        self.awaited = awaited
        self._connection = scope.get(CONNECTION)
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._gone = False

    def watch(self) -> None:
        # Without its loop, finding the task costs a system call on Python 3.11.
        self._task = asyncio.current_task(getattr(self._connection, "loop", None))
        if self._connection is not None:
            self._connection.when_lost(self._left)
        else:
            self._watcher = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        """Once, also where a connection says so when it is watched and again when it is lost."""
        if not self._gone and self._task is not None:
            self._gone = True
            self._task.cancel()

    async def __aenter__(self) -> Presence:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._connection is not None:
            self._connection.when_lost(None)
        late: asyncio.CancelledError | None = None
        if self._watcher is not None:
            self._watcher.cancel()
            try:
                await asyncio.gather(self._watcher, return_exceptions=True)
            except asyncio.CancelledError as cancelled:  # ours perhaps, of this very moment
                late = cancelled
        if self._gone and self._task is not None and self._task.uncancel() == 0:
            raise ClientGone
        if late is not None:
            raise late


async def _read(request: Request, body: Body, presence: Presence, caps: Caps) -> bytes:
    """The body, within its cap and the room that there is for all; one that comes too slowly is the server's affair.
    Raises `Problem` (413, 503)."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > caps.body:
        raise too_large(caps.body)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await presence.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        parts.append(part)
        size, more = size + len(part), message.get("more_body", False)
        if size > caps.body:
            raise too_large(caps.body)
        body.add(len(part))
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send(answer: Reply | Streaming, request: Request, send: Send) -> None:
    try:
        headers = _headers(answer, request)
        if isinstance(answer, Streaming):
            await _stream(answer, request, headers, send)
        elif hasattr(send, "respond") and _FRAMING.isdisjoint(headers):  # and nobody stands between us and the server
            whole = cast(WholeSend, send)
            if whole.blocked:  # by what it does not read its client holds neither money nor a place
                await answer.close()
            await whole.respond(answer.status, _lines(headers), answer.body)
        else:
            if answer.status not in BODILESS:
                headers["content-length"] = str(len(answer.body))
            await send(_start(answer.status, headers))
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body})
    finally:
        await answer.close()


async def _stream(answer: Streaming, request: Request, headers: Mapping[str, str], send: Send) -> None:
    await send(_start(answer.status, headers))
    if request.method != "HEAD":
        async for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _headers(answer: Reply | Streaming, request: Request) -> dict[str, str]:
    headers = {"x-request-id": request.id, **_ALWAYS, "content-type": answer.type}
    for name, value in answer.headers.items():
        headers[_lower(name)] = value
    if not _sendable("".join(headers.values())):  # a name from a configuration may hold what no header can carry
        headers = {name: value if _sendable(value) else quote(value, safe=_SAFE) for name, value in headers.items()}
    return headers


def _start(status: int, headers: Mapping[str, str]) -> MutableMapping[str, Any]:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


def _sendable(value: str) -> bool:
    return value.isascii() and value.isprintable()


@lru_cache(1_000)
def _lower(name: str) -> str:
    """The name of a header. Raises `ValueError`."""
    if not _TOKEN.fullmatch(name):
        raise ValueError("a header of an answer has a name that is none")
    return name.lower()


def _answer_to(error: Exception, request: Request) -> Reply:
    """What is said of an error that ended a request; whatever is unforeseen is ours, and no other request's."""
    match error:
        case Problem():
            return told(error)
        case StoreUnavailable():
            return told(store_unavailable(error))
        case CenturiaError():
            _log.warning("%s: %s", request.id, error.message)
            return told(unavailable(str(error)))
        case _:
            _log.error("%s failed", request.id, exc_info=error)
            return told(Problem(500, "server_error", "The gateway failed.", code="internal_error"))


def told(problem: Problem) -> Reply:
    """A problem as an answer."""
    return Reply(problem.body(), problem.status, problem.headers)


def _request(scope: Scope) -> Request:
    pairs = scope["headers"]
    headers = {_known(name): value.decode("latin-1") for name, value in pairs}
    if len(headers) != len(pairs):
        # Twice the same: as one list, which no header that we read can be; so nobody chooses which of them counts.
        headers = {}
        for given, value in pairs:
            name, text = _known(given), value.decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    client = scope.get("client")
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else scope["path"]
    return Request(
        scope["method"],
        path,
        headers,
        scope.get("query_string", b""),
        client[0] if client else "",
        f"req-{_PROCESS}{next(_REQUESTS):010x}",
        secure=scope.get("scheme") == "https",
    )


#: Names of headers as text: nearly always the same few.
_NAMES: dict[bytes, str] = {}


def _known(name: bytes) -> str:
    known = _NAMES.get(name)
    if known is None:
        known = name.decode("latin-1")
        if len(_NAMES) < 1_000 and len(name) < 100:
            _NAMES[name] = known
    return known


def _name(host: str) -> str:
    """The name of a Host header, without its port."""
    if host.startswith("["):
        name, bracket, port = host.partition("]")
        return (name + bracket).lower() if bracket and (not port or port.startswith(":")) else ""
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc == host
