"""What both transports share: one connection's facts, and requests matched with their answers.

`Dispatch` drives the SDK's session layer. The SDK's own dispatcher (mcp 2.3.0) passes each message through streams,
tasks and models that take more time than the call itself; here a request is sent in its caller's task, or waits for
one future.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

import anyio
import mcp_types as types
from anyio.abc import TaskStatus
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, ProgressFnT
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import PydanticSerializationError, from_json, to_json

from centuria.toolhost.catalogue import without_bad_tools
from centuria.toolhost.last_words import most_telling
from centuria.toolhost.results import Facts

logger = logging.getLogger(__name__)

#: Bytes of one message from a server, however it comes.
MAX_MESSAGE = 64 << 20
#: Requests of a server's that are answered at once; it has no business with more.
_MAX_INBOUND = 16
#: Notifications that nobody here listens to.
_PROGRESS = "notifications/progress"
_UNHEARD = frozenset({_PROGRESS, "notifications/message", "notifications/cancelled"})
#: Requests that must not be cancelled, and whose failure is that of the connection.
OPENING = frozenset({"server/discover", "initialize"})

#: Characters of what is said about progress.
_MAX_SAID = 1_000

Message = Mapping[str, Any]
Number = int | str


@dataclass(slots=True)
class Wire:
    """What is known of one connection. `lost` is set the moment it is dead, `news` whenever its owner should look.

    `expired`: the server forgot the session, which calls in flight may outlive. `errands` is set when there is
    something to ask the server: `doubted`, a call had no answer; `changed`, its tools are others now. `heard` counts
    its messages, `junk` what was none or answered nobody, `oversize` those beyond the cap; `stderr` is the tail of that
    stream. `bad_tools` are those that it lists and that are none, by name, and why.
    """

    lost: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    errands: asyncio.Event = field(default_factory=asyncio.Event)
    expired: bool = False
    doubted: bool = False
    changed: bool = False
    heard: int = 0
    junk: int = 0
    oversize: int = 0
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    bad_tools: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    code: int | None = None

    def lose(self) -> None:
        self.lost.set()
        self.news.set()

    def expire(self) -> None:
        self.expired = True
        self.news.set()

    def doubt(self) -> None:
        self.doubted = True
        self.errands.set()

    def change(self) -> None:
        self.changed = True
        self.errands.set()

    @property
    def over(self) -> bool:
        """Whether no new call may use it."""
        return self.expired or self.lost.is_set()

    @property
    def last_line(self) -> str:
        """The line of its stderr that says most of why it ended."""
        return most_telling(self.stderr)


class Dispatch(ABC):
    """Requests and their answers over one connection; implements `mcp.shared.dispatcher.Dispatcher`.

    Errors are `MCPError`. Where the connection failed their `data`, which are `Facts`, say so:
        {"kind": "transport", "sent": bool}     no answer; `sent` False means that surely nothing ran
        {"kind": "http", "status": 429, "retry_after": 2.5}    seconds, or null
        {"kind": "closed"}                      the connection ended; what was sent may have happened
        {"kind": "expired"}                     the server forgot the session; nothing ran
        {"kind": "too_large"}                   the answer is beyond the cap
        {"kind": "garbled"}                     what came is no answer; what was asked for may have happened
    """

    def __init__(self) -> None:
        self.wire = Wire()
        self.closed = False
        self._last = 0
        self._inbound = 0
        #: By its token: who hears of the progress of a request.
        self._hearers: dict[str, ProgressFnT] = {}
        self._group: asyncio.TaskGroup | None = None
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None

    # -- what a transport does ----------------------------------------------------------------------------------------

    @abstractmethod
    async def room(self) -> None:
        """Return when a request can be sent without waiting. Raises `MCPError`."""

    @abstractmethod
    async def _exchange(self, number: Number, message: Message, opts: CallOptions) -> Message:
        """Send a request and return its answer, a JSON-RPC response or error."""

    @abstractmethod
    def _abandon(self, number: Number, opts: CallOptions, reason: str) -> None:
        """Tell the server that nobody waits for this answer any more; never waits."""

    @abstractmethod
    async def _post(self, message: Message, opts: CallOptions) -> None:
        """Send what has no answer. Failures are dropped."""

    @abstractmethod
    async def _receive(self) -> None:
        """Take what comes until the connection ends."""

    @abstractmethod
    def retire(self) -> None:
        """The session is over, the connection may not be: let calls in flight end by themselves where they can."""

    # -- the SDK's side -----------------------------------------------------------------------------------------------

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        if self.closed:
            raise MCPError(types.CONNECTION_CLOSED, "it is closed", Facts(kind="transport", sent=False))
        opts = opts or {}
        number = opts.get("request_id") or self._number()
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
        hearer = opts.get("on_progress")
        if hearer is not None:
            params = {**(params or {}), "_meta": {**((params or {}).get("_meta") or {}), "progressToken": number}}
            self._hearers[str(number)] = hearer
        if params:
            message["params"] = params
        try:
            seconds = opts.get("timeout")
            if seconds is None:
                answer = await self._exchange(number, message, opts)
            else:
                async with asyncio.timeout(seconds):
                    answer = await self._exchange(number, message, opts)
        except TimeoutError:
            self._gave_up(method, number, opts, "timed out")
            raise MCPError(types.REQUEST_TIMEOUT, f"{method} timed out.") from None
        except asyncio.CancelledError:
            self._gave_up(method, number, opts, "cancelled")
            raise
        finally:
            self._hearers.pop(str(number), None)
        result = _result_of(answer)
        if method == "tools/list":
            version = opts.get("headers", {}).get(MCP_PROTOCOL_VERSION_HEADER)
            result = without_bad_tools(result, version, self.wire.bad_tools)
        return result

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _gave_up(self, method: str, number: Number, opts: CallOptions, reason: str) -> None:
        if method not in OPENING and opts.get("cancel_on_abandon", True) and not self.closed:
            self._abandon(number, opts, reason)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        if self.closed:
            return
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params:
            message["params"] = params
        await self._post(message, opts or {})

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until it ends or the caller is cancelled."""
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, on_notify_intercept
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                task_status.started()
                await self._receive()
                self._end()
                _leave()
        except* _Over:
            pass
        finally:
            self._group = None
            self._end()

    def _end(self) -> None:
        self.closed = True

    # -- what comes by itself -----------------------------------------------------------------------------------------

    async def _take(self, message: Message) -> None:
        """A request or a notification of the server's. Never raises, never waits for the server."""
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str) or not isinstance(params, dict | None):
            self.wire.junk += 1
        elif "id" in message:
            self._asked(message["id"], method, params)
        elif method == _PROGRESS:
            await self._progressed(params or {})
        elif self._on_notify is not None:
            if self._intercept is not None and self._intercept(method, params):
                return
            if method not in _UNHEARD:
                await self._on_notify(_Context(None), method, params)

    async def _progressed(self, params: Mapping[str, Any]) -> None:
        hearer = self._hearers.get(str(params.get("progressToken")))
        done, total, what = params.get("progress"), params.get("total"), params.get("message")
        if hearer is not None and _is_number(done):
            said = what[:_MAX_SAID] if isinstance(what, str) else None
            await hearer(done, total if _is_number(total) else None, said)

    def _asked(self, number: Any, method: str, params: Mapping[str, Any] | None) -> None:
        if not isinstance(number, int | str) or isinstance(number, bool) or self._inbound >= _MAX_INBOUND:
            self.wire.junk += 1
        elif self._group is not None:
            self._inbound += 1
            self._group.create_task(self._reply(number, method, params))

    async def _reply(self, number: Number, method: str, params: Mapping[str, Any] | None) -> None:
        assert self._on_request is not None
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        try:
            try:
                answer["result"] = await self._on_request(_Context(number), method, params)
            except MCPError as error:
                answer["error"] = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            except Exception:  # the edge: what a server asks for costs it an error, and us nothing
                logger.debug("A request of a server could not be answered", exc_info=True)
                answer["error"] = {"code": types.INVALID_PARAMS, "message": "Invalid request parameters"}
            await self._post(answer, {})
        finally:
            self._inbound -= 1


class _Over(Exception):
    """The connection has ended; what still runs for it is to end too."""


def _leave() -> NoReturn:
    raise _Over


class _Context:
    """What the SDK is told of a message that came by itself; implements `mcp.shared.dispatcher.DispatchContext`."""

    transport = TransportContext(kind="centuria", can_send_request=False)
    can_send_request = False
    message_metadata = None

    def __init__(self, request_id: Number | None) -> None:
        self.request_id = request_id
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise closed()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Nothing of ours is said in the middle of a server's request."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """See `notify`."""


# -- messages ---------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """One line of JSON. Raises `ValueError` for what JSON cannot hold; halves of surrogate pairs become "?"."""
    try:
        return to_json(message, inf_nan_mode="null")
    except PydanticSerializationError:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")


def decode(data: bytes) -> Message | None:
    """The message in some JSON, None where there is none. Bad bytes and lone surrogates spoil a character only."""
    found: Any = None
    with suppress(ValueError):
        found = from_json(data)
    if found is None:
        with suppress(ValueError, RecursionError):
            loose = json.loads(data.decode("utf-8", "replace"))
            found = json.loads(json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace"))
    return found if isinstance(found, dict) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_answer(message: Message) -> bool:
    return "method" not in message and ("result" in message or "error" in message)


def answers(message: Message, number: Number) -> bool:
    """Whether this answer is that of request `number`. One without an id is an error of the request that got it."""
    given = message.get("id")
    return str(given) == str(number) or (given is None and "error" in message)


def _result_of(answer: Message) -> dict[str, Any]:
    result, error = answer.get("result"), answer.get("error")
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        if isinstance(code, int) and not isinstance(code, bool) and isinstance(message, str):
            raise MCPError(code, message, error.get("data"))
        raise _no_answer()
    if not isinstance(result, dict):
        raise _no_answer()
    return result


def _no_answer() -> MCPError:
    return garbled(types.PARSE_ERROR, "What it answered is no JSON-RPC message.")


def garbled(code: int, what: str) -> MCPError:
    return MCPError(code, what, Facts(kind="garbled"))


def closed() -> MCPError:
    return MCPError(types.CONNECTION_CLOSED, "Connection closed", Facts(kind="closed"))


def lost(what: str, *, sent: bool) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, what, Facts(kind="transport", sent=sent))


def too_large() -> MCPError:
    return MCPError(types.INTERNAL_ERROR, f"The result is larger than {MAX_MESSAGE:,} bytes.", Facts(kind="too_large"))


def is_modern(version: str | None) -> bool:
    """Whether this is the protocol without sessions, in which closing a request's stream cancels it."""
    return version in MODERN_PROTOCOL_VERSIONS
