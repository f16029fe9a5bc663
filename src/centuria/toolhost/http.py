"""The streamable HTTP transport, for both eras of the protocol.

2026-07-28: each request is a POST of its own, closing it cancels the call, changes are heard by subscription. Before:
a session with an id, a stream of the server's own (GET), answers that are resumed where their stream breaks off, and
DELETE at the end.

In the SDK's client (mcp 2.3.0) one failed POST ends the transport and with it every call in flight, and the status and
`Retry-After` of a refusal are lost (python-sdk#3560). Here a failure is that of one call: see `Dispatch` for its data.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from centuria.core.retry import parse_retry_after
from centuria.errors import ToolUnavailable
from centuria.settings import ToolServer
from centuria.toolhost.addresses import Guard
from centuria.toolhost.on_behalf import agents_headers
from centuria.toolhost.results import Facts
from centuria.toolhost.sse import EventReader, TooLong
from centuria.toolhost.wire import (
    MAX_MESSAGE,
    OPENING,
    Dispatch,
    Message,
    Number,
    answers,
    decode,
    encode,
    garbled,
    is_answer,
    is_modern,
    lost,
    too_large,
)
from centuria.toolhost.wire_http import Answer, Broken, Sender, redirect_of, shown

logger = logging.getLogger(__name__)

_MAX_ERROR_BODY = 1 << 20
#: Codes by which the two protocol eras negotiate; the SDK must see these errors as they are.
_NEGOTIATION = range(-32099, -32019)
_SESSION = "mcp-session-id"
#: How servers that do not answer 404 say that they do not know a session.
_FORGOTTEN = re.compile(r"no valid session|session not found|invalid session|server not initialized", re.IGNORECASE)
#: Seconds before a stream that broke off is asked for again, unless the server says; it doubles up to the cap.
_AGAIN, _AGAIN_CAP = 1.0, 30.0
#: Attempts in a row to resume the answer to a call.
_RESUMPTIONS = 3
#: Seconds that a message without an answer may take: a cancellation, a reply, the end of the session.
_ASIDE, _GOODBYE = 5.0, 0.5


@asynccontextmanager
async def http_transport(
    server: ToolServer,
    *,
    connect: float,
    slots: int,
    auth: httpx2.Auth | None = None,
    guard: Guard | None = None,
) -> AsyncIterator[HttpDispatch]:
    """A connection to `server.url`. Deadlines of calls are the caller's; only connecting has one here.

    Connections have no bound and no time-out of their own: slots bound the calls, and one that a server does not let
    go of must not keep others waiting. `auth` signs the requests and may send some of its own. `guard` looks at every
    address before a connection is made.
    """
    assert server.url is not None
    dispatch = HttpDispatch(Sender(server.url, connect=connect, auth=auth, guard=guard), server.headers)
    try:
        yield dispatch
    finally:
        await dispatch.leave()


class HttpDispatch(Dispatch):
    def __init__(self, sender: Sender, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._sender = sender
        self._own = {name.lower(): value for name, value in headers.items()}
        self._session: str | None = None
        self._version: str | None = None
        self._retired = False
        self._in_flight = 0
        self._over = asyncio.Event()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def room(self) -> None:
        if self.closed:
            raise lost("the session was closed", sent=False)

    async def _exchange(self, number: Number, message: Message, opts: CallOptions) -> Message:
        method, stamped = message["method"], opts.get("headers") or {}
        if method == "initialize":
            self._version = None  # what it is, is being found out
        else:
            self._version = stamped.get(MCP_PROTOCOL_VERSION_HEADER) or self._version
        patient = method == "subscriptions/listen"
        if method == "tools/call":
            stamped = {**stamped, **agents_headers()}
        self._in_flight += 1
        try:
            answer = await self._sender.send("POST", self._headers(stamped), encode(message), patient=patient)
            try:
                self.wire.heard += 1
                return await self._understand(answer, number, method)
            finally:
                answer.close()
        except Broken as error:
            if method in OPENING:  # an outage must not be read as "an older server"
                raise ToolUnavailable(f"It cannot be reached: {error}.") from None
            raise lost(str(error), sent=error.sent) from None
        except TooLong:
            raise too_large() from None
        finally:
            self._in_flight -= 1
            if self._retired and not self._in_flight:
                await self._sender.aclose()

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {**self._own, "accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self._session is not None:
            headers[_SESSION] = self._session
        if self._version is not None:
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        headers.update(more)
        return headers

    async def _understand(self, answer: Answer, number: Number, method: str) -> Message:
        status = answer.status
        if status == 202:
            raise garbled(types.INVALID_REQUEST, "It answered a request with 202 Accepted.")
        if status >= 400:
            raise await self._refused(answer)
        there = redirect_of(self._sender.url, answer)
        if there is not None:
            raise MCPError(types.INVALID_REQUEST, _not_followed(self._sender.url, there))
        if method == "initialize":
            self._session = answer.headers.get(_SESSION) or self._session
        kind = answer.headers.get("content-type", "").lower()
        if kind.startswith("text/event-stream"):
            return await self._answer_in(answer, number)
        if not kind.startswith("application/json"):
            raise garbled(types.INVALID_REQUEST, f"Unexpected content type: {kind[:100]!r}.")
        found = decode(await _body(answer, MAX_MESSAGE))
        if found is None or not is_answer(found) or not answers(found, number):
            self.wire.junk += 1
            raise garbled(types.PARSE_ERROR, "What it answered is no answer to this request.")
        return found

    async def _refused(self, answer: Answer) -> MCPError:
        """HTTP >= 400: keep the server's JSON-RPC error, add the status and `Retry-After`."""
        try:
            body = await _body(answer, _MAX_ERROR_BODY)
        except (Broken, TooLong):
            body = b""
        code, message, detail, status = types.INTERNAL_ERROR, f"HTTP {answer.status}", None, answer.status
        try:
            error = json.loads(body)["error"]
            code, message, detail = int(error["code"]), str(error["message"]), error.get("data")
            said = True
        except (ValueError, KeyError, TypeError, RecursionError):
            said = False
        if self._session is not None and code != types.METHOD_NOT_FOUND:
            if status == 404 or (status == 400 and said and _FORGOTTEN.search(message)):
                return MCPError(types.INVALID_REQUEST, "Session terminated", Facts(kind="expired"))
        elif status == 404 and not said:
            return MCPError(types.METHOD_NOT_FOUND, "Not Found")
        if said and (status == 404 or code in _NEGOTIATION):
            return MCPError(code, message, detail)
        wait = parse_retry_after(answer.headers, time.time())
        return MCPError(code, message, Facts(kind="http", status=status, retry_after=wait, data=detail))

    # -- streams ------------------------------------------------------------------------------------------------------

    async def _answer_in(self, answer: Answer, number: Number) -> Message:
        """The answer out of a stream of events; where that breaks off, it is resumed if the server can do that."""
        stream = _Stream()
        found = await self._listen(answer, stream, number)
        failures = 0
        while found is None:
            if not stream.last_id or failures >= _RESUMPTIONS:
                raise lost("its stream ended without an answer", sent=True)
            await asyncio.sleep(stream.pause)
            before = stream.events
            try:
                found = await self._reopen(stream, number)
            except Broken:
                pass
            except _NoStream:
                failures = _RESUMPTIONS
            failures = 0 if stream.events > before else failures + 1
        return found

    async def _reopen(self, stream: _Stream, number: Number | None) -> Message | None:
        """One GET of a stream, from where it broke off. Raises `Broken`, `_NoStream`, `TooLong`."""
        headers = {**self._headers({}), "accept": "text/event-stream", "cache-control": "no-store"}
        if stream.last_id:
            headers["last-event-id"] = stream.last_id
        answer = await self._sender.send("GET", headers, patient=True)
        try:
            kind = answer.headers.get("content-type", "").lower()
            if answer.status == 200 and kind.startswith("text/event-stream"):
                return await self._listen(answer, stream, number)
            if answer.status < 500 and answer.status != 429:
                raise _NoStream
            raise Broken(f"HTTP {answer.status}", sent=True)
        finally:
            answer.close()

    async def _listen(self, answer: Answer, stream: _Stream, number: Number | None) -> Message | None:
        """Take what a stream brings, until it brings the answer to `number` or ends. Raises `TooLong`."""
        reader = EventReader(MAX_MESSAGE)
        try:
            while chunk := await answer.read():
                for event in reader.feed(chunk):
                    stream.events += 1
                    stream.last_id = event.id or stream.last_id
                    stream.pause = stream.pause if event.retry is None else min(event.retry, _AGAIN_CAP)
                    message = decode(event.data) if event.data else None
                    if message is None:
                        self.wire.junk += bool(event.data)
                        continue
                    self.wire.heard += 1
                    if not is_answer(message):
                        await self._take(message)
                    elif number is not None and answers(message, number):
                        return message
                    else:
                        self.wire.junk += 1
        except Broken:
            pass  # it ended, one way or the other
        return None

    async def _hear_server(self) -> None:
        """The stream of the server's own, for what belongs to no call, for as long as the session lasts."""
        stream = _Stream()
        failures = 0
        while not self.closed:
            before = stream.events
            try:
                await self._reopen(stream, None)
            except (Broken, TooLong, ToolUnavailable):
                pass
            except _NoStream:
                return
            failures = 0 if stream.events > before else failures + 1
            await asyncio.sleep(min(_AGAIN_CAP, stream.pause * 2 ** min(failures, 6)))

    # -- asides -------------------------------------------------------------------------------------------------------

    def _abandon(self, number: Number, opts: CallOptions, reason: str) -> None:
        version = (opts.get("headers") or {}).get(MCP_PROTOCOL_VERSION_HEADER)
        if is_modern(version) or self._group is None:
            return  # its POST is closed by now, which says it
        params = {"requestId": number, "reason": reason}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self._group.create_task(self._post(message, {}))

    async def _post(self, message: Message, opts: CallOptions) -> None:
        method = message.get("method")
        if is_modern(self._version) and method is not None:
            return  # this era has no notifications of the client's
        try:
            async with asyncio.timeout(_ASIDE):
                answer = await self._sender.send("POST", self._headers(opts.get("headers") or {}), encode(message))
                try:
                    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                        await _body(answer, _MAX_ERROR_BODY)  # to its end, so that the connection serves again
                finally:
                    answer.close()
        except (Broken, TooLong, ToolUnavailable, TimeoutError) as error:
            logger.debug("A message to a tool server was lost: %s", error)
        if method == "notifications/initialized" and self._session is not None and self._group is not None:
            self._group.create_task(self._hear_server())

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        await self._over.wait()

    def retire(self) -> None:
        self._retired = True

    async def leave(self) -> None:
        """Say goodbye and close the connections; a retired session's are closed by the last call that uses them."""
        self.closed = True
        self._over.set()
        if self._retired:
            if not self._in_flight:
                await self._sender.aclose()
            return
        try:
            if self._session is not None:
                async with asyncio.timeout(_GOODBYE):
                    (await self._sender.send("DELETE", self._headers({}))).close()
        except (Broken, ToolUnavailable, TimeoutError):
            pass
        finally:
            await self._sender.aclose()


class _NoStream(Exception):
    """The server has no such stream."""


class _Stream:
    """How far a stream of events was read. `pause` is in seconds."""

    def __init__(self) -> None:
        self.last_id = ""
        self.pause = _AGAIN
        self.events = 0


async def _body(answer: Answer, cap: int) -> bytes:
    """Raises `Broken`, `TooLong`."""
    parts, size = [], 0
    while chunk := await answer.read():
        size += len(chunk)
        if size > cap:
            raise TooLong(f"more than {cap} bytes")
        parts.append(chunk)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _not_followed(url: httpx2.URL, there: httpx2.URL) -> str:
    if url.scheme == "https" and there.scheme == "http":
        return (
            f"It redirects to {shown(there)}, which would give up encryption. The server is likely behind a proxy "
            f"whose headers it does not trust; try {shown(there.copy_with(scheme='https'))} as its url."
        )
    return f"It redirects to {shown(there)}; write that as its url if it is the one that is meant."
