"""HTTP to tool servers: the only file beside `model/http.py` that imports the HTTP client, and only once something is
sent.

The SDK's own HTTP client (httpx2 over httpcore2) takes most of two milliseconds of CPU for a call, this one a quarter
of one. Signing in is an `httpx2.Auth`, as everywhere in the SDK: its flow sees each request and answer, and what it
sends goes the same way.

Proxies of the environment are used, but never for the own machine, and `.netrc` is not read. Cookies are kept for as
long as the session lasts, for the sake of load balancers that know their clients by one.
"""

from __future__ import annotations

import asyncio
import errno
import io
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.request import getproxies, proxy_bypass

import httpx2

from centuria.errors import ToolUnavailable
from centuria.toolhost.addresses import Guard
from centuria.toolhost.on_behalf import agents_headers

if TYPE_CHECKING:
    import aiohttp

#: Idle connections are dropped before servers drop them (5 s is common): on a connection that is just closing, nobody
#: could say whether the call ran.
_KEEP_ALIVE = 4.0
#: Seconds without a byte after which a stream that may be silent is taken for dead.
_SILENCE = 600.0
#: Seconds that closing all connections may take.
_CLOSING = 0.5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 20
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
#: A body beyond this is sent in pieces.
_LARGE = 1 << 20
#: Headers of a coding that is already undone.
_CODING = frozenset({"content-length", "content-encoding", "transfer-encoding"})


class Broken(Exception):
    """A request that failed below HTTP. `sent` False: surely nothing of it was sent."""

    def __init__(self, what: str, *, sent: bool) -> None:
        super().__init__(what)
        self.sent = sent


class Answer(Protocol):
    """A server's answer from its headers on. Whoever asked for it must `close` it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in any case."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body, decompressed; b"" at its end. Raises `Broken`."""
        ...

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else abort it."""
        ...


class Sender:
    """Requests to one endpoint over connections that are kept, as many as are needed at once.

    A redirect is followed where it keeps the method and stays within the endpoint's origin, as the SDK does it: all
    that a request carries was configured for that origin. Any other redirect is the answer.

    With a `guard` the address of every connection is looked at before it is made, no proxy is used, which would choose
    addresses by itself, and no redirect is followed.
    """

    def __init__(
        self, url: str, *, connect: float, auth: httpx2.Auth | None = None, guard: Guard | None = None
    ) -> None:
        self.url = httpx2.URL(url)
        self._connect = connect
        self._timeouts: tuple[aiohttp.ClientTimeout, aiohttp.ClientTimeout] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._closed = False
        self._auth = auth
        self._guard = guard

    async def send(
        self, method: str, headers: Mapping[str, str], body: bytes = b"", *, patient: bool = False
    ) -> Answer:
        """Send a request and give its answer once its headers are there. `patient`: long silence is nothing special.

        Raises `Broken`; `ToolUnavailable` where signing in failed.
        """
        url = self.url
        for _ in range(_MAX_REDIRECTS):
            answer = await self._once(method, url, headers, body, patient=patient)
            if answer.status not in _REDIRECTS or self._guard is not None:
                return answer
            there = _followed(method, url, answer)
            if there is None:
                return answer
            answer.close()
            url = there
        return answer

    async def _once(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], body: bytes, *, patient: bool
    ) -> Answer:
        if self._auth is None or "authorization" in headers:  # an agent's own: it must not go under our name
            return await self._plain(method, url, headers, body, patient=patient)
        from mcp.client.auth import OAuthFlowError

        request = httpx2.Request(method, url, headers=dict(headers), stream=httpx2.ByteStream(body))
        request.read()  # a flow may look at it; the headers that `content=` would add are the sender's to make
        flow = self._auth.async_auth_flow(request)
        answer: Answer | None = None
        try:
            outgoing = await anext(flow)
            while True:
                sent = body if outgoing is request else await outgoing.aread()
                given = {name: value for name, value in outgoing.headers.items() if name not in ("host", *_CODING)}
                answer = await self._plain(outgoing.method, outgoing.url, given, sent, patient=patient)
                response = _response(answer, outgoing)
                try:
                    outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    signed = _SignedAnswer(answer, response) if response.is_stream_consumed else answer
                    answer = None
                    return signed
                answer.close()
        except (OAuthFlowError, httpx2.HTTPError) as error:
            raise ToolUnavailable(f"Signing in failed: {str(error)[:300]}") from error
        finally:
            if answer is not None:
                answer.close()
            await flow.aclose()

    async def _plain(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], body: bytes, *, patient: bool = False
    ) -> Answer:
        """One request without signing in. Raises `Broken`."""
        import aiohttp

        if self._closed:
            raise Broken("The session was closed.", sent=False)
        session = self._session or self._open()
        assert self._timeouts is not None
        try:
            response = await session.request(
                method,
                str(url),
                data=(body if len(body) <= _LARGE else io.BytesIO(body)) or None,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy if url.host == self.url.host or self._guard is not None else _proxy_for(url),
                timeout=self._timeouts[patient],
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _broken(error) from None
        return _PlainAnswer(response)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        self._proxy = _proxy_for(self.url) if self._guard is None else None
        self._timeouts = (
            aiohttp.ClientTimeout(total=None, connect=self._connect),
            aiohttp.ClientTimeout(total=None, connect=self._connect, sock_read=_SILENCE),
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEP_ALIVE,
                ssl=_tls(),
                socket_factory=None if self._guard is None else partial(_guarded, self._guard),
            ),
            cookie_jar=_cookie_jar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": "centuria"},
            max_line_size=32_768,
            max_field_size=32_768,
        )
        return self._session

    async def aclose(self) -> None:
        """Close every connection; requests in flight end as `Broken`."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            try:
                async with asyncio.timeout(_CLOSING):
                    await session.close()
            except TimeoutError:
                pass  # the sockets are closed; only their last words were waited for


def _guarded(guard: Guard, info: tuple[Any, ...]) -> socket.socket:
    """A socket for the address that a connection is about to be made to. Raises `OSError`."""
    family, kind, protocol, _, address = info
    why = guard(str(address[0]))
    if why:
        raise PermissionError(errno.EACCES, f"connections there are refused: {why}")
    return socket.socket(family, kind, protocol)


class _PlainAnswer:
    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        import aiohttp

        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(error) from None

    def close(self) -> None:
        self._response.close()


class _SignedAnswer:
    """An answer whose body was read while signing in."""

    def __init__(self, answer: Answer, response: httpx2.Response) -> None:
        self._answer = answer
        self._rest = response.content
        self.status = answer.status
        self.headers = answer.headers

    async def read(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        self._answer.close()


def _response(answer: Answer, request: httpx2.Request) -> httpx2.Response:
    kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _CODING]
    return httpx2.Response(answer.status, headers=kept, stream=_Body(answer, request), request=request)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: Answer, request: httpx2.Request) -> None:
        self._answer = answer
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._answer.read():
                yield chunk
        except Broken as error:
            raise httpx2.ReadError(str(error), request=self._request) from None

    async def aclose(self) -> None:
        self._answer.close()


def _cookie_jar() -> aiohttp.CookieJar:
    import aiohttp

    class Jar(aiohttp.CookieJar):
        """What is set in answer to one agent's own headers may stand for that agent, and is for no other to send."""

        def update_cookies(self, *cookies: Any) -> None:
            if not agents_headers():
                super().update_cookies(*cookies)

        def update_cookies_from_headers(self, *headers: Any) -> None:
            if not agents_headers():
                super().update_cookies_from_headers(*headers)

    return Jar(unsafe=True)


@cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted, read once: each time takes tens of milliseconds of everyone's time."""
    return httpx2.create_ssl_context()


def _proxy_for(url: httpx2.URL) -> str | None:
    host = url.host or ""
    if host in _LOCAL or host.startswith("127.") or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _followed(method: str, url: httpx2.URL, answer: Answer) -> httpx2.URL | None:
    """Where a redirect leads, if it is one to follow."""
    there = redirect_of(url, answer)
    if there is None or (method != "GET" and answer.status not in (307, 308)):
        return None
    if there.userinfo and there.userinfo != url.userinfo:
        return None
    same = (there.scheme, there.host, there.port) == (url.scheme, url.host, url.port)
    safer = there.host == url.host and (url.scheme, url.port, there.scheme, there.port) == ("http", None, "https", None)
    return there if same or safer else None


def redirect_of(url: httpx2.URL, answer: Answer) -> httpx2.URL | None:
    """Where an answer redirects to, None if it does not."""
    location = answer.headers.get("location")
    if answer.status not in _REDIRECTS or not location:
        return None
    try:
        return url.join(location)
    except httpx2.InvalidURL:
        return None


def shown(url: httpx2.URL) -> str:
    """A URL without what may be secret in it: no user, no password, no query."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def _broken(error: Exception) -> Broken:
    import aiohttp

    unsent = (
        aiohttp.ClientConnectorError,
        aiohttp.ClientHttpProxyError,
    )
    match error:
        case aiohttp.InvalidURL():
            return Broken("Its URL is not valid", sent=False)
        case aiohttp.ConnectionTimeoutError():
            return Broken("ConnectionTimeoutError: it took too long", sent=False)
        case aiohttp.ClientResponseError():  # its own text has the URL, and so what is secret in that
            what = f"{type(error).__name__}: {error.status} {error.message}"
            return Broken(what[:300], sent=not isinstance(error, unsent))
        case ValueError() if not isinstance(error, aiohttp.ClientError):
            # A header that HTTP cannot carry: the error's own text could show a key.
            return Broken("A header of the request is not legal; look for line breaks in it", sent=False)
    text = str(error)
    what = f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
    return Broken(what, sent=not isinstance(error, unsent))
