"""HTTP/1.1 to an upstream on our own connections: what a request costs is a tenth of a general client's.

What is rare stays with `HttpTransport`: proxies, addresses and headers that need more than to be written down.
Redirects are not followed, cookies not kept, `.netrc` is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from aiohappyeyeballs import start_connection

from centuria.errors import ModelError, ModelUnavailable
from centuria.model.connection import Answer, Connection, broken_off
from centuria.model.http import (
    KEEP_ALIVE,
    HttpTransport,
    illegal_header,
    no_address,
    parts_of,
    proxy_for,
    transport_closed,
    untrusted,
)
from centuria.model.pool import Pool
from centuria.ports import HttpRequest, HttpResponse

#: An address that is sent as it is written. What has to be encoded, normalised or refused is not here.
_ADDRESS = re.compile(
    r"(https?)://([a-z0-9][a-z0-9._-]*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"
    r"((?:/(?:[a-z0-9_~!$&'()*+,;=:@.-]|%[0-9a-f]{2})*)*)(\?(?:[a-z0-9_~!$&'()*+,;=:@/?.-]|%[0-9a-f]{2})*)?",
    re.ASCII | re.IGNORECASE,
)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: These may be sent a second time where a kept connection turned out to be closed.
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
#: With one of these the request is framed, or its answer packed, in another way than ours.
_SPECIAL = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
#: Seconds until the next address of a name is tried beside the one before.
_NEXT_ADDRESS = 0.25
#: Seconds for connections that were told to end.
_LAST = 1.0
#: Addresses, and heads of one address, that are kept.
_MOST = 256


class _Route:
    """How an address is asked: whom, and with which heads."""

    __slots__ = ("heads", "host_line", "pool", "target")

    def __init__(self, pool: Pool, target: str, host_line: str) -> None:
        self.pool = pool
        self.target = target
        self.host_line = host_line
        #: By method and headers: all of a head but the length of its body. None: not ours.
        self.heads: dict[tuple[object, ...], bytes | None] = {}


class DirectTransport:
    """`ports.Transport` on connections of our own, without a limit: how many are in flight is decided above.

    It is of the event loop that first sends with it.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routes: dict[str, _Route | None] = {}
        self._pools: dict[tuple[str, int, bool], Pool] = {}
        self._connections: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._other: HttpTransport | None = None
        self._closed = False
        self._emptied: asyncio.Event | None = None

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Send, and give the response once its headers are there; leaving early aborts the connection.

        Raises `ModelUnavailable` (kind "connect", `served=False`: surely not sent; "cut": may have been
        served; "rubbish": the answer is not HTTP), `ModelDenied` (kind "tls": the certificate is not trusted),
        `ModelRefused` (kinds "url", "headers", "closed").
        """
        return _Exchange(self, request)

    async def aclose(self) -> None:
        """Close every connection. Requests in flight end as cut."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for pool in self._pools.values():
            pool.idle.clear()
        for connection in list(self._connections):
            connection.cut()
        other, self._other = self._other, None
        if other is not None:
            await other.aclose()
        if self._connections:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST):  # the loop needs a turn or two, and nobody can put it off
                    await self._emptied.wait()

    # -- for an exchange ---------------------------------------------------------------------------------------------

    def _begin(self, request: HttpRequest) -> tuple[asyncio.AbstractEventLoop, Pool, bytes] | HttpTransport:
        """Whom to ask and the bytes to write; or the transport that knows how. Raises `ModelRefused`."""
        if self._closed:
            raise transport_closed()
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        url = request.url
        route = self._routes[url] if url in self._routes else self._find(url)
        if route is None:
            return self._rare()
        key = (request.method, *request.headers.items())
        heads = route.heads
        head = heads[key] if key in heads else _head(route, request, key)
        if head is None:
            return self._rare()
        body = request.body
        if body or request.method in ("POST", "PUT", "PATCH"):
            return loop, route.pool, b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        return loop, route.pool, head + b"\r\n"

    def _rare(self) -> HttpTransport:
        if self._other is None:
            self._other = HttpTransport()
        return self._other

    def _find(self, url: str) -> _Route | None:
        """How an address is asked; None where that is not ours. Found out once."""
        if len(self._routes) >= _MOST:
            self._routes.clear()
        self._routes[url] = route = self._route(url)
        return route

    def _route(self, url: str) -> _Route | None:
        found = _ADDRESS.fullmatch(url)
        if found is None or "/." in url:
            return None
        try:
            host, scheme = parts_of(url)
        except ModelError:
            return None
        if proxy_for(host, scheme) is not None:
            return None
        tls = scheme == "https"
        port = int(found[3] or (443 if tls else 80))
        pool = self._pools.get((host, port, tls))
        if pool is None:
            pool = self._pools[host, port, tls] = Pool(host, port, tls=tls)
        line = found[2].lower() + (f":{port}" if port != (443 if tls else 80) else "")
        return _Route(pool, (found[4] or "/") + (found[5] or ""), line)

    async def _connect(self, loop: asyncio.AbstractEventLoop, pool: Pool, timeout: float) -> Connection:
        """A connection that is ready to be asked. Raises `ModelUnavailable` (kind "connect"), `ModelDenied`."""
        connection = Connection(loop, lambda freed: self._free(pool, freed), self._connections.add, self._gone)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                addresses = await pool.resolve(loop)
                sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS, loop=loop)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._context() if pool.tls else None,
                    server_hostname=pool.host.rstrip(".") if pool.tls else None,
                )
        except (OSError, RuntimeError, UnicodeError) as error:
            connection.drop()
            raise _unconnected(error, pool.host, timeout if limit.expired() else None) from None
        except BaseException:
            connection.drop()
            raise
        if self._closed:
            connection.drop()
            raise broken_off(pool.host, "closed")
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _free(self, pool: Pool, connection: Connection) -> None:
        loop = self._loop
        if self._closed or loop is None:
            connection.drop()
            return
        connection.since = loop.time()
        pool.idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEP_ALIVE, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        oldest = []
        for pool in self._pools.values():
            pool.sweep(loop.time())
            oldest += [connection.since for connection in pool.idle[:1]]
        if oldest:
            self._sweeper = loop.call_at(min(oldest) + KEEP_ALIVE, self._sweep, loop)

    def _gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()


class _Exchange:
    """One request and its response, for the length of an `async with`."""

    __slots__ = ("_answer", "_other", "_request", "_transport")

    def __init__(self, transport: DirectTransport, request: HttpRequest) -> None:
        self._transport = transport
        self._request = request
        self._answer: Answer | None = None
        self._other: AbstractAsyncContextManager[HttpResponse] | None = None

    async def __aenter__(self) -> HttpResponse:
        transport, request = self._transport, self._request
        begun = transport._begin(request)
        if isinstance(begun, HttpTransport):
            self._other = begun.send(request)
            return await self._other.__aenter__()
        loop, pool, data = begun
        connection = pool.take(loop.time())
        kept = connection is not None
        while True:
            if connection is None:
                connection = await transport._connect(loop, pool, request.connect_timeout)
            self._answer = answer = Answer(loop, pool.host, bodiless=request.method == "HEAD")
            connection.ask(data, answer)
            if answer.error is None:
                answer.waiter = waiter = loop.create_future()
                try:
                    await waiter
                except BaseException:
                    answer.close()
                    raise
            if answer.status:
                return answer
            if not (kept and connection.untouched and request.method in _IDEMPOTENT):
                raise answer.error or broken_off(pool.host, "closed")
            connection, kept = None, False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer is not None:
            self._answer.close()
        elif self._other is not None:
            await self._other.__aexit__(kind, error, trace)


def _head(route: _Route, request: HttpRequest, key: tuple[object, ...]) -> bytes | None:
    """All of a head but the length of its body; None where it is not ours. Raises `ModelRefused` (kind "headers")."""
    names = {name.lower() for name in request.headers}
    for name, value in request.headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise illegal_header()
    head = None
    if request.method in _METHODS and not names & _SPECIAL and len(names) == len(request.headers):
        lines = [f"{request.method} {route.target} HTTP/1.1", f"Host: {route.host_line}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        also = {"Accept": "*/*", "User-Agent": "centuria"}
        if request.body:
            also["Content-Type"] = "application/octet-stream"
        lines += [f"{name}: {value}" for name, value in also.items() if name.lower() not in names]
        head = "\r\n".join([*lines, ""]).encode()
    if len(route.heads) >= _MOST:
        route.heads.clear()
    route.heads[key] = head
    return head


def _unconnected(error: Exception, host: str, waited: float | None) -> ModelError:
    """Surely nothing was sent."""
    what, remedy = f"{host} cannot be reached", "Check base_url and the network."
    match error:
        case ssl.SSLCertVerificationError():
            return untrusted(host)
        case ssl.SSLError():
            what, remedy = f"No TLS with {host}", "Check the scheme and the port of base_url."
        case socket.gaierror():
            what = f"The name {host} cannot be resolved"
        case UnicodeError():
            return no_address()
        case _ if waited is not None:
            what = f"{host} gave no connection within {waited:g} s"
        case _:
            what += f" ({getattr(error, 'strerror', None) or 'no connection'})"
    return ModelUnavailable(f"{what}.", kind="connect", served=False, remedy=remedy)
