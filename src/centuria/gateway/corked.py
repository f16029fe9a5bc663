"""A connection's transport that sends the head of an answer with the body that follows it: one system call, and one
wake-up of whoever reads, in place of two."""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "


class CorkedTransport:
    """What is written as a head waits for what is written next, until the loop's next turn at most.

    All else is the transport's own.
    """

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._send)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
