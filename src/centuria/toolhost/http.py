"""The streamable HTTP transport: the SDK's client behind a firewall.

In mcp 2.3.0 one failed POST ends the transport and with it every call in flight, and the status and `Retry-After` of a
refusal are lost (python-sdk#3560). The firewall is an HTTP transport that turns a failure of one POST into a JSON-RPC
error for that one call, with what is known of it in `error.data`:
    {"kind": "transport", "sent": bool}     no answer; `sent` False means that surely nothing ran
    {"kind": "http", "status": 429, "retry_after": 2.5}    seconds, or null
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from types import TracebackType
from typing import Any

import httpx2
import mcp_types as types
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from centuria.core.retry import parse_retry_after
from centuria.settings import ToolServer
from centuria.toolhost.on_behalf import agents_headers

MAX_BODY = 64 << 20
_MAX_ERROR_BODY = 1 << 20
#: Codes by which the two protocol eras negotiate; the SDK must see these errors as they are.
_NEGOTIATION = range(-32099, -32019)


@asynccontextmanager
async def http_transport(
    server: ToolServer, *, connect: float, slots: int, auth: httpx2.Auth | None = None
) -> AsyncIterator[TransportStreams]:
    """Open a session with `server.url`. Deadlines of calls are the caller's; only connecting has one here.

    The pool has no bound and no time-out of its own: slots bound the calls, and one that a server does not let go of
    must not keep others waiting.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=slots + 8)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                transport=Firewall(httpx2.AsyncHTTPTransport(verify=_tls(), limits=limits)),
                headers=dict(server.headers),
                auth=auth,
                timeout=httpx2.Timeout(connect, read=600.0, write=60.0, pool=None),
            )
        )
        assert server.url is not None
        yield await stack.enter_async_context(streamable_http_client(server.url, http_client=client))


@cache
def _tls() -> ssl.SSLContext:
    """The certificates that are trusted, read once: each time takes tens of milliseconds of everyone's time."""
    return httpx2.create_ssl_context()


class Firewall(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def __aenter__(self) -> Firewall:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        if (own := agents_headers()) and _is_call(request):
            request.headers.update(own)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if _is_opening(request):
                raise  # an outage must not be read as "an older server"
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return _failed(request, 503, _describe(error), {"kind": "transport", "sent": sent})
        if response.status_code >= 400:
            return await _refused(request, response)
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            return await _whole(request, response)
        return response


def _is_call(request: httpx2.Request) -> bool:
    try:
        return bool(json.loads(request.content)["method"] == "tools/call")
    except (httpx2.RequestNotRead, ValueError, KeyError, TypeError):
        return False


def _is_opening(request: httpx2.Request) -> bool:
    if request.headers.get("mcp-method") == "server/discover":
        return True
    try:
        return b'"method":"initialize"' in request.content.replace(b" ", b"")[:300]
    except httpx2.RequestNotRead:
        return False


async def _refused(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """HTTP >= 400: keep the server's JSON-RPC error, add the status and `Retry-After`."""
    try:
        body = await _read(response, _MAX_ERROR_BODY)
    except (httpx2.TransportError, ValueError):
        body = b""
    finally:
        await response.aclose()
    code, message, detail = types.INTERNAL_ERROR, f"HTTP {response.status_code}", None
    try:
        error = json.loads(body)["error"]
        code, message, detail = int(error["code"]), str(error["message"]), error.get("data")
    except (ValueError, KeyError, TypeError):
        pass
    if response.status_code == 404 or code in _NEGOTIATION:
        return httpx2.Response(response.status_code, headers=_plain(response.headers), content=body, request=request)
    wait = parse_retry_after(response.headers, time.time())
    data = {"kind": "http", "status": response.status_code, "retry_after": wait}
    refusal = _failed(request, response.status_code, message, {**data, "data": detail}, code=code)
    if "www-authenticate" in response.headers:
        refusal.headers["www-authenticate"] = response.headers["www-authenticate"]
    return refusal


async def _whole(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """Read a JSON answer here, where a broken connection costs one call."""
    try:
        body = await _read(response, MAX_BODY)
    except httpx2.TransportError as error:
        return _failed(request, 502, _describe(error), {"kind": "transport", "sent": True})
    except ValueError:
        return _failed(request, 502, f"The result is larger than {MAX_BODY:,} bytes.", {"kind": "too_large"})
    finally:
        await response.aclose()
    return httpx2.Response(response.status_code, headers=_plain(response.headers), content=body, request=request)


def _failed(
    request: httpx2.Request, status: int, message: str, data: Any, *, code: int = types.INTERNAL_ERROR
) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}
    return httpx2.Response(status, json=body, request=request)


def _plain(headers: httpx2.Headers) -> httpx2.Headers:
    """The headers without those of a coding that is already undone."""
    kept = httpx2.Headers(headers)
    for name in ("content-length", "content-encoding", "transfer-encoding"):
        kept.pop(name, None)
    return kept


async def _read(response: httpx2.Response, cap: int) -> bytes:
    parts, size = [], 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > cap:
            raise ValueError(f"more than {cap} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
