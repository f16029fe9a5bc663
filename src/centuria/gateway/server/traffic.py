"""What all connections of a server have in common, and those that are open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from centuria.gateway.settings import Caps
from centuria.gateway.web import Asgi

if TYPE_CHECKING:
    from centuria.gateway.server.connection import Connection
    from centuria.gateway.server.exchange import Exchange

#: Seconds between two looks at what is idle.
_SWEEP = 5.0


class Traffic:
    """Its one timer looks at all connections: none has one of its own for being idle."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: Asgi, caps: Caps) -> None:
        self.loop = loop
        self.app = app
        self.caps = caps
        self.connections: set[Connection] = set()
        #: Applications at work.
        self.running: dict[Exchange, asyncio.Task[None]] = {}
        #: Nothing new is taken.
        self.ending = False
        #: All connections have closed, with all that was written to them.
        self.empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look at what is idle from now on, until `end`."""
        self._timer = self.loop.call_later(_SWEEP, self._look)

    def _look(self) -> None:
        self.sweep(self.loop.time())
        self.watch()

    def sweep(self, now: float) -> None:
        """End what has been idle for too long."""
        for connection in list(self.connections):
            connection.sweep(now)

    def wind_down(self) -> None:
        """Idle connections close at once, others with their answer."""
        self.ending = True
        for connection in list(self.connections):
            connection.shut()
        if not self.connections:
            self.empty.set()

    def lost(self, connection: Connection) -> None:
        """It has closed."""
        self.connections.discard(connection)
        if self.ending and not self.connections:
            self.empty.set()

    def end(self) -> None:
        """Every connection closes, and every application is told to end."""
        self.ending = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self.running.values():
            task.cancel()
        for connection in list(self.connections):
            connection.close()
