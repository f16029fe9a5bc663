"""The stdio transport: newline-delimited JSON-RPC over a server's pipes, with a bound on everything.

The SDK's own reader (mcp 2.3.0) is quadratic in the length of a line, one bad byte ends its session, and it never sees
the end of a server whose orphans keep the pipe open; this one takes linear time and learns of deaths from the warden.
Writing never holds up a call's deadline: what a server does not read waits in a bounded buffer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import MCPError
from mcp.client.stdio import get_default_environment
from mcp.shared.dispatcher import CallOptions

from centuria.toolhost.processes import Child, Warden
from centuria.toolhost.wire import (
    MAX_MESSAGE,
    Dispatch,
    Message,
    Number,
    Wire,
    closed,
    decode,
    encode,
    is_answer,
    lost,
    too_large,
)

_CHUNK = 1 << 18
#: Seconds for what a dead server had written to be read, where orphans of its hold the pipe open.
_LAST_WORDS = 0.25
#: Seconds that a server may leave its input unread before it counts as dead.
_DEAF = 30.0
#: Bytes that may wait for a server beyond its pipe; more than that, and only calls are let in, one by one.
_MAX_UNREAD = 1 << 20
#: Bytes of both ends of a line that is too long.
_END = 2048
#: Where a message says whose answer it is: first, as Python's servers do, or last, as those of TypeScript do.
_NUMBER = rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,18})\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _NUMBER)
_FINAL = re.compile(rb",\s*" + _NUMBER + rb"(?:,\s*" + _VERSION + rb")?\}\s*$")


@asynccontextmanager
async def stdio_transport(
    warden: Warden,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    wire: Wire,
    max_line: int = MAX_MESSAGE,
) -> AsyncIterator[StdioDispatch]:
    """Start a server and talk to it; at the end it and its process group are gone.

    It sees the SDK's default environment and `env`, never the rest of ours: the program's keys stay here.
    Raises `ToolUnavailable` where it cannot be started.
    """
    child = await warden.launch(argv, env={**get_default_environment(), **env}, cwd=cwd)
    wire.pid = child.pid
    dispatch = StdioDispatch(child, wire, max_line)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_drain_stderr(child, wire)),
                group.create_task(dispatch.notice_death()),
                group.create_task(dispatch.notice_deafness()),
            ]
            try:
                yield dispatch
            finally:
                try:
                    await child.stop()
                finally:
                    for task in tasks:
                        task.cancel()
    finally:
        child.abandon()
        wire.code = child.code


class StdioDispatch(Dispatch):
    def __init__(self, child: Child, wire: Wire, max_line: int) -> None:
        super().__init__()
        self.wire = wire
        self._child = child
        self._max_line = max_line
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._unsent: set[Number] = set()
        self._unread = asyncio.Event()
        self._lines: list[bytes] = []
        self._size = 0

    # -- out ----------------------------------------------------------------------------------------------------------

    async def room(self) -> None:
        transport = self._child.stdin.transport
        if not (self.closed or transport.is_closing() or transport.get_write_buffer_size()):
            return
        try:
            await self._child.stdin.drain()
        except OSError:
            raise lost("its input is closed", sent=False) from None
        if self.closed:
            raise lost("it closed the connection", sent=False)

    async def _exchange(self, number: Number, message: Message, opts: CallOptions) -> Message:
        line = encode(message)
        try:
            await self.room()
        except asyncio.CancelledError:
            self._unsent.add(number)
            raise
        answer: asyncio.Future[Message]
        answer = self._pending[str(number)] = asyncio.get_running_loop().create_future()
        try:
            self._write(line)
            return await answer
        finally:
            self._pending.pop(str(number), None)

    def _abandon(self, number: Number, opts: CallOptions, reason: str) -> None:
        if number in self._unsent:
            self._unsent.remove(number)
            return
        params = {"requestId": number, "reason": reason}
        self._say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _post(self, message: Message, opts: CallOptions) -> None:
        self._say(message)

    def _say(self, message: Message) -> None:
        """Write what nobody waits for, unless too much is waiting already."""
        if self._child.stdin.transport.get_write_buffer_size() < _MAX_UNREAD:
            self._write(encode(message))

    def _write(self, line: bytes) -> None:
        """What is written in one turn of the loop goes out at once: often many agents call in the same one."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        self._lines.append(line)
        self._size += len(line)
        if self._size > _CHUNK:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines, self._size = self._lines, [], 0
        stdin = self._child.stdin
        if not lines:
            return
        if stdin.transport.is_closing():
            self._end()  # it has closed its input
            return
        stdin.write(b"\n".join([*lines, b""]))
        if stdin.transport.get_write_buffer_size():
            self._unread.set()

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        framer = _Framer(self._max_line)
        try:
            while not self.closed and (chunk := await self._child.stdout.read(_CHUNK)):
                for line, whole in framer.feed(chunk):
                    await self._hear(line) if whole else self._oversize(line)
        except OSError:
            pass  # the pipe is gone

    async def _hear(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        message = decode(line) if line.startswith(b"{") else None
        if message is None:  # a banner, a print
            self.wire.junk += 1
            return
        self.wire.heard += 1
        if is_answer(message):
            self._settle(message)
        else:
            await self._take(message)

    def _settle(self, message: Message) -> None:
        waiting = self._pending.get(str(message.get("id")))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _oversize(self, ends: bytes) -> None:
        """Answer the call whose result was too long, if either end of the line says which."""
        self.wire.oversize += 1
        found = _FIRST.match(ends) or _FINAL.search(ends)
        if found is not None:
            self._settle({"id": json.loads(found[1]), "error": _said(too_large())})

    def retire(self) -> None:
        """Nothing outlives a server's pipes."""

    def _end(self) -> None:
        """The connection is dead: nobody waits for it any longer."""
        if self.closed:
            return
        super()._end()
        self.wire.lose()
        error = _said(closed())
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_result({"error": error})

    # -- its end ------------------------------------------------------------------------------------------------------

    async def notice_death(self) -> None:
        await self._child.exited.wait()
        self.wire.code = self._child.code
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self.wire.lost.wait()
        except TimeoutError:
            self._end()

    async def notice_deafness(self) -> None:
        """A server that reads nothing for long is as good as dead."""
        try:
            while True:
                await self._unread.wait()
                self._unread.clear()
                async with asyncio.timeout(_DEAF):
                    await self._child.stdin.drain()
        except (OSError, TimeoutError):
            self._end()


def _said(error: MCPError) -> Message:
    """An error of ours in the place of an answer."""
    return {"code": error.code, "message": error.message, "data": error.data}


class _Framer:
    """Bytes to lines in linear time. Of a line beyond the cap only its two ends are kept."""

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """The lines that this chunk ends, each with whether it is whole."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._keep(piece)
            lines.append((b"".join(self._parts) + self._tail, self._size <= self._max))
            self._parts, self._size, self._tail = [], 0, b""
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._max:
            self._parts.append(piece)
            return
        kept = b"".join(self._parts)
        self._tail = (kept[_END:] + self._tail + piece)[-_END:]
        self._parts = [kept[:_END]]


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
