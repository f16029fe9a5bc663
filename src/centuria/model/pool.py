"""The idle connections to one host and port, and its addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from aiohappyeyeballs import AddrInfoType

from centuria.model.connection import Connection
from centuria.model.http import KEEP_ALIVE

#: Seconds for which a name's addresses are known.
_NAME_LIFE = 10.0


class Pool:
    """Whom connections lead to, and those that are idle: the last to come is the first to go, so that the rest age."""

    __slots__ = ("addresses", "fresh_until", "host", "idle", "port", "resolving", "tls")

    def __init__(self, host: str, port: int, *, tls: bool) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.idle: list[Connection] = []
        self.addresses: Sequence[AddrInfoType] = ()
        self.fresh_until = 0.0
        self.resolving = asyncio.Lock()

    def take(self, now: float) -> Connection | None:
        idle = self.idle
        while idle:
            connection = idle.pop()
            if connection.open and connection.since > now - KEEP_ALIVE:
                return connection
            connection.drop()
        return None

    def sweep(self, now: float) -> None:
        """Drop what has been idle for too long."""
        old = 0
        for connection in self.idle:
            if connection.open and connection.since > now - KEEP_ALIVE:
                break
            connection.drop()
            old += 1
        del self.idle[:old]

    async def resolve(self, loop: asyncio.AbstractEventLoop) -> Sequence[AddrInfoType]:
        """The host's addresses. Those who ask at once wait for one answer. Raises `OSError`, `UnicodeError`."""
        asked = self.host, self.port, 0, socket.SOCK_STREAM, socket.IPPROTO_TCP
        async with self.resolving:
            if not self.addresses or loop.time() >= self.fresh_until:
                try:  # one that is written as a number needs nobody's answer
                    self.addresses = socket.getaddrinfo(*asked, flags=socket.AI_NUMERICHOST)
                except socket.gaierror:
                    self.addresses = await loop.getaddrinfo(
                        self.host, self.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
                    )
                self.fresh_until = loop.time() + _NAME_LIFE
            return self.addresses
