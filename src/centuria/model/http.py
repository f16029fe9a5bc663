"""HTTP to an upstream: the only file of the house that imports the HTTP client, and only when something is
sent.

Proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`) are used, but never for the own machine, and `.netrc`
is not read: the only credentials that leave are those of the request. Redirects are not followed and cookies
not kept.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from centuria.errors import ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.ports import HttpRequest, HttpResponse

if TYPE_CHECKING:
    import aiohttp

#: Idle connections are dropped before servers drop them (5 s is common), or a request would meet a closing
#: one: whether it was served is then unknown, and its money would stay held.
KEEP_ALIVE = 4.0
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def load() -> None:
    """Import the HTTP client now, and not within the time of the first request: for those who measure that."""
    import aiohttp  # noqa: F401


class HttpTransport:
    """One pool of connections without a limit: how many requests are in flight is decided above."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._routes: dict[str, _Route] = {}
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._closed = False

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Send, and give the response once its headers are there; leaving early aborts the connection.

        Raises `ModelUnavailable` (kind "connect", `served=False`: surely not sent; "cut": may have been
        served), `ModelDenied` (kind "tls": the certificate is not trusted), `ModelRefused` (kind "url").
        """
        return _Exchange(self, request)

    async def _begin(self, request: HttpRequest) -> _Response:
        import aiohttp

        session = self._open()
        route = self._route(request.url)
        timeout = self._timeouts.get(request.connect_timeout)
        if timeout is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=request.connect_timeout)
            self._timeouts[request.connect_timeout] = timeout
        try:
            response = await session.request(
                request.method,
                route.url,
                data=request.body or None,
                headers=request.headers,
                allow_redirects=False,
                proxy=route.proxy,
                timeout=timeout,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translate(error, route.host, request.connect_timeout) from None
        return _Response(response, route.host)

    async def aclose(self) -> None:
        """Close every connection. Requests in flight end as cut."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._closed:
            raise transport_closed()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"User-Agent": "centuria"},
                max_line_size=32_768,
                max_field_size=32_768,
            )
        return self._session

    def _route(self, url: str) -> _Route:
        """How an address is reached; found out once. Raises `ModelRefused` (kind "url")."""
        route = self._routes.get(url)
        if route is None:
            host, scheme = parts_of(url)
            route = _Route(url, host, proxy_for(host, scheme))
            self._routes[url] = route
        return route


@dataclass(frozen=True, slots=True)
class _Route:
    url: str
    host: str
    proxy: str | None


class _Exchange:
    """One request and its response, for the length of an `async with`."""

    def __init__(self, transport: HttpTransport, request: HttpRequest) -> None:
        self._transport = transport
        self._request = request
        self._response: _Response | None = None

    async def __aenter__(self) -> HttpResponse:
        self._response = response = await self._transport._begin(self._request)
        return response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()


class _Response:
    def __init__(self, response: aiohttp.ClientResponse, host: str) -> None:
        self._response = response
        self._host = host
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            headers.setdefault(name.lower(), value)
        self._headers = headers

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    def close(self) -> None:
        """A body that was read to its end has already given its connection back; else this closes it."""
        self._response.close()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `ModelUnavailable` (kind "cut") where it breaks off."""
        return _Chunks(self._response.content, self._host)


class _Chunks:
    """An iterator and no generator, so that leaving it half-way leaves nothing behind to be closed."""

    def __init__(self, content: aiohttp.StreamReader, host: str) -> None:
        self._content = content
        self._host = host

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        import aiohttp

        try:
            chunk = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _translate(error, self._host) from None
        if not chunk:
            raise StopAsyncIteration
        return chunk


def parts_of(url: str) -> tuple[str, str]:
    """Host and scheme. Raises `ModelRefused` (kind "url")."""
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        raise no_address() from None
    if not legal or not parts.hostname:
        raise no_address()
    return parts.hostname, parts.scheme


def proxy_for(host: str, scheme: str) -> str | None:
    """The proxy of the environment on the way to a host."""
    own = host in _LOCAL or host.startswith("127.")
    return None if own or proxy_bypass(host) else getproxies().get(scheme)


def _translate(error: Exception, host: str, connect_timeout: float | None = None) -> ModelError:
    """The HTTP client's error as ours. Its message names the host and never the request, which holds the
    key."""
    import aiohttp

    match error:
        case aiohttp.ClientConnectorError() | aiohttp.ClientHttpProxyError() | aiohttp.ConnectionTimeoutError():
            return _unconnected(error, host, connect_timeout)
        case aiohttp.InvalidURL():
            return no_address()
        case aiohttp.ClientResponseError():
            return ModelUnavailable(f"{host} answered with something that is not HTTP.", kind="rubbish")
        case ValueError():  # a header that HTTP cannot carry; the error's own text could show the key
            return illegal_header()
        case _:
            what = f"The connection to {host} broke off ({type(error).__name__})."
            return ModelUnavailable(what, kind="cut")


def _unconnected(error: Exception, host: str, connect_timeout: float | None) -> ModelError:
    """Surely nothing was sent."""
    import aiohttp

    what, remedy = f"{host} cannot be reached", "Check base_url and the network."
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return untrusted(host)
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLCertVerificationError()):
            return untrusted(host)
        case aiohttp.ClientConnectorSSLError():
            what, remedy = f"No TLS with {host}", "Check the scheme and the port of base_url."
        case aiohttp.ClientConnectorDNSError():
            what = f"The name {host} cannot be resolved"
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            what, remedy = f"The proxy on the way to {host} fails", "Check HTTPS_PROXY and NO_PROXY."
        case aiohttp.ClientConnectorError():
            what += f" ({error.os_error.strerror or 'no connection'})"
        case _ if connect_timeout is not None:
            what = f"{host} gave no connection within {connect_timeout:g} s"
    return ModelUnavailable(f"{what}.", kind="connect", served=False, remedy=remedy)


def transport_closed() -> ModelError:
    return ModelRefused("The transport is closed.", kind="closed", served=False)


def illegal_header() -> ModelError:
    return ModelRefused(
        "A header of the request is not legal.",
        kind="headers",
        served=False,
        remedy="Look for line breaks or other stray characters in the key and the headers.",
    )


def no_address() -> ModelError:
    return ModelRefused(
        "The base URL is not an HTTP address.",
        kind="url",
        served=False,
        remedy="Set base_url to something like https://api.example.com/v1.",
    )


def untrusted(host: str) -> ModelError:
    return ModelDenied(
        f"The certificate of {host} is not trusted.",
        kind="tls",
        served=False,
        remedy="Check base_url; behind an inspecting proxy, set SSL_CERT_FILE to its certificate.",
    )
