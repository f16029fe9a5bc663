"""The fake MCP server over stdio: one client, a message a line, and the faults of a process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from centuria.testing.mcp.service import PARSE_ERROR, Service, for_ever
from centuria.testing.mcp.shapes import Message, encoded, failure

_JUNK = (
    b"Server is ready.",
    b'{"level":30,"msg":"a log line that is JSON"}',
    b"[1, 2, 3]",
    b'{"jsonrpc":"2.0","id":',
    b"\x00\xff\xfe",
    b"",
    b'"text"',
)


class Wire:
    """The one session of this process; implements `Way` for each of its requests."""

    peer = "stdio"

    def __init__(self, service: Service, output: int) -> None:
        self.service = service
        #: Nothing more is read once this is set.
        self.deaf = False
        self._output = output
        self._outbox: asyncio.Queue[bytes | asyncio.Future[None]] = asyncio.Queue()

    async def turned_away(self, hits: Mapping[str, float]) -> bool:
        return False

    async def before(self, hits: Mapping[str, float]) -> None:
        if "flood" in hits:
            await asyncio.to_thread(_flood, int(hits["flood"]))
        if "huge-line" in hits:
            self._put(b"x" * int(hits["huge-line"]))
        if "junk" in hits:
            self._junk(int(hits["junk"]))

    def push(self, message: Message) -> None:
        self._put(encoded(message))

    async def reply(self, messages: Sequence[bytes], hits: Mapping[str, float]) -> None:
        if "crash" in hits:
            self._outbox.put_nowait(messages[0][: len(messages[0]) // 2])
            await self.flush()
            os._exit(int(hits["crash"]))
        for message in messages:
            self._put(message)
        if "junk" in hits:
            self._junk(int(hits["junk"]))
        if "deaf" in hits:
            self.deaf = True

    def _junk(self, lines: int) -> None:
        for number in range(lines):
            self._put(_JUNK[number % len(_JUNK)])

    def _put(self, line: bytes) -> None:
        self._outbox.put_nowait(line + b"\n")

    async def flush(self) -> None:
        """Return when all that was sent is in the pipe."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait(written)
        await written

    async def write(self) -> None:
        """Write what is sent, for ever. The pipe may be full: other calls go on meanwhile."""
        while True:
            parts = [await self._outbox.get()]
            while not self._outbox.empty():
                parts.append(self._outbox.get_nowait())
            done = [part for part in parts if not isinstance(part, bytes)]
            await asyncio.to_thread(_write, self._output, b"".join(part for part in parts if isinstance(part, bytes)))
            for written in done:
                written.set_result(None)


async def serve(service: Service) -> int:
    """Serve standard input until it ends; returns the exit code of the process."""
    if "no-start" in service.begun:
        print("Traceback (most recent call last):\nModuleNotFoundError: No module named 'nonsense'", file=sys.stderr)
        return int(service.begun["no-start"])
    wire = Wire(service, sys.stdout.fileno())
    service.books.connected(1)
    tasks: set[asyncio.Task[None]] = set()
    try:
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(wire.write())
            while line := await _line(wire, sys.stdin.buffer):
                task = group.create_task(_message(line, wire))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await wire.flush()
            for task in (*tasks, writer):
                task.cancel()
    except* (BrokenPipeError, ConnectionError):
        pass  # nobody reads any more
    if "stubborn" in service.begun:
        await for_ever()
    return 0


async def _line(wire: Wire, source: BinaryIO) -> bytes:
    line = b"" if wire.deaf else await asyncio.to_thread(source.readline)
    if wire.deaf:
        await for_ever()
    return line


async def _message(line: bytes, wire: Wire) -> None:
    if not line.strip():
        return
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        wire.push(failure(None, PARSE_ERROR, "This is no JSON."))
        return
    with suppress(asyncio.CancelledError):  # cancelled by its client: no answer
        await wire.service.handle(message, wire)
    if isinstance(message, dict) and message.get("method") == "notifications/initialized":
        wire.service.channels.setdefault(wire.peer, wire.push)


def _flood(size: int) -> None:
    line = b"Warning: this is said again and again and again.\n"
    with suppress(OSError):
        _write(sys.stderr.fileno(), (line * (size // len(line) + 1))[:size])


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
