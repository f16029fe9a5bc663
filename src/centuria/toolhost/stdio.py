"""The stdio transport: newline-delimited JSON-RPC over a server's pipes, with a bound on everything.

The SDK's own reader (mcp 2.3.0) is quadratic in the length of a line, one bad byte ends its session, and it never sees
the end of a server whose orphans keep the pipe open; this one takes linear time and learns of deaths from the warden.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from centuria.toolhost.last_words import most_telling
from centuria.toolhost.processes import Child, Warden

MAX_LINE = 16 << 20
#: Lines longer than this are parsed off the event loop.
_PARSE_APART = 1 << 20
_CHUNK = 1 << 18
#: Seconds for what a dead server had written to be read, where orphans of its hold the pipe open.
_LAST_WORDS = 0.25
#: Seconds that a server may leave its input unread before it counts as dead.
_DEAF = 30.0
_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})')

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(slots=True)
class Wire:
    """What is known of one connection. `lost` is set the moment it is dead, `news` whenever its owner should look.

    `junk` counts lines that were no message, `oversize` those beyond the cap; `stderr` is the tail of that stream.
    """

    lost: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    junk: int = 0
    oversize: int = 0
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    pid: int = 0
    code: int | None = None

    def lose(self) -> None:
        self.lost.set()
        self.news.set()

    @property
    def last_line(self) -> str:
        """The line of its stderr that says most of why it ended."""
        return most_telling(self.stderr)


@asynccontextmanager
async def stdio_transport(
    warden: Warden,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    wire: Wire,
    max_line: int = MAX_LINE,
) -> AsyncIterator[Streams]:
    """Start a server and talk to it; at the end it and its process group are gone.

    It sees the SDK's default environment and `env`, never the rest of ours: the program's keys stay here.
    Raises `ToolUnavailable` where it cannot be started.
    """
    child = await warden.launch(argv, env={**get_default_environment(), **env}, cwd=cwd)
    wire.pid = child.pid
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](4096)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_read(child, to_session, wire, max_line)),
                group.create_task(_write(child, from_session, to_session, wire)),
                group.create_task(_drain_stderr(child, wire)),
                group.create_task(_notice_death(child, to_session, wire)),
            ]
            try:
                yield from_server, to_server
            finally:
                try:
                    await child.stop()
                finally:
                    for task in tasks:
                        task.cancel()
    finally:
        child.abandon()
        wire.code = child.code
        for stream in (from_server, to_session, to_server, from_session):
            stream.close()


def _end(to_session: Incoming, wire: Wire) -> None:
    wire.lose()
    to_session.close()


async def _read(child: Child, to_session: Incoming, wire: Wire, max_line: int) -> None:
    framer = _Framer(max_line)
    try:
        while chunk := await child.stdout.read(_CHUNK):
            for line, whole in framer.feed(chunk):
                message = await _parse(line) if whole else _too_long(line, max_line)
                wire.oversize += not whole
                if message is not None:
                    await to_session.send(SessionMessage(message))
                elif line.strip() and whole:
                    wire.junk += 1
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the pipe or the session is gone
    finally:
        _end(to_session, wire)


class _Framer:
    """Bytes to lines in linear time. Of a line beyond the cap only its head is kept."""

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """The lines that this chunk ends, each with whether it is whole."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._keep(piece)
            lines.append((b"".join(self._parts), self._size <= self._max))
            self._parts, self._size = [], 0
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._max:
            self._parts.append(piece)
        else:
            self._parts = [b"".join(self._parts)[:4096] or piece[:4096]]


async def _parse(line: bytes) -> types.JSONRPCMessage | None:
    """The message, or None where the line is none (a banner, a print)."""
    if line.lstrip()[:1] != b"{":
        return None
    if len(line) > _PARSE_APART:
        return await asyncio.to_thread(_parse_now, line)
    return _parse_now(line)


def _parse_now(line: bytes) -> types.JSONRPCMessage | None:
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:  # bad bytes and lone surrogates spoil a character, not the answer
        loose: Any = json.loads(line.decode("utf-8", "replace"))
        clean = json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")
        return types.jsonrpc_message_adapter.validate_json(clean, by_name=False)
    except (ValueError, RecursionError):
        return None


def _too_long(head: bytes, max_line: int) -> types.JSONRPCMessage | None:
    """The error that answers the call whose result was too long, if the line's head says which."""
    found = _ID.search(head)
    if found is None:
        return None
    error = types.ErrorData(
        code=types.INTERNAL_ERROR, message=f"The result is larger than {max_line:,} bytes.", data={"kind": "too_large"}
    )
    return types.JSONRPCError(jsonrpc="2.0", id=json.loads(found[1]), error=error)


async def _write(
    child: Child, from_session: MemoryObjectReceiveStream[SessionMessage], to_session: Incoming, wire: Wire
) -> None:
    try:
        async for item in from_session:
            child.stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            async with asyncio.timeout(_DEAF):
                await child.stdin.drain()
    except (OSError, TimeoutError):
        _end(to_session, wire)


async def _drain_stderr(child: Child, wire: Wire) -> None:
    rest = b""
    try:
        while chunk := await child.stderr.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            wire.stderr.extend(line[:2000].decode("utf-8", "replace").rstrip() for line in lines)
            rest = rest[:2000]
    except OSError:
        pass
    finally:
        if rest:
            wire.stderr.append(rest.decode("utf-8", "replace"))


async def _notice_death(child: Child, to_session: Incoming, wire: Wire) -> None:
    await child.exited.wait()
    wire.code = child.code
    try:
        async with asyncio.timeout(_LAST_WORDS):
            await wire.lost.wait()
    except TimeoutError:
        _end(to_session, wire)
