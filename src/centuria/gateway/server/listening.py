"""The listening socket, and the end: on SIGTERM nothing new is accepted, what is under way has its grace, and then it
is told that this is the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from centuria.errors import ConfigurationError
from centuria.gateway.server.connection import Connection
from centuria.gateway.server.traffic import Traffic
from centuria.gateway.settings import Caps
from centuria.gateway.web import Asgi

#: Seconds that the last events may take after the grace.
_LAST = 5.0
_BACKLOG = 4096


class Server:
    """Serves an application at a socket until it is told to end.

    `serving` is called once it takes connections and misses no signal any more, `stopping` at the first sign of the
    end, `aborting` when the grace is over or at a second signal.
    """

    def __init__(
        self,
        app: Asgi,
        caps: Caps,
        *,
        serving: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
        aborting: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._caps = caps
        self._serving = serving
        self._stopping = stopping
        self._aborting = aborting
        self._end = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Begin to end: nothing new, and the grace for what is under way. The second time: no grace."""
        if self._end.is_set():
            self._hurry.set()
            return
        self._end.set()
        self._stopping()

    async def serve(self, listener: socket.socket, *, signals: bool = True) -> None:
        """Until `stop`, or (with `signals`) SIGTERM or SIGINT. Returns when nothing is under way any more."""
        loop = asyncio.get_running_loop()
        traffic = Traffic(loop, self._app, self._caps)
        server = await loop.create_server(lambda: Connection(traffic), sock=listener, backlog=_BACKLOG)
        traffic.watch()
        try:
            with _signals(self.stop) if signals else contextlib.nullcontext():
                self._serving()
                await self._end.wait()
                server.close()
                traffic.wind_down()
                await self._wind_down(traffic)
        finally:
            server.close()
            traffic.end()
            if traffic.running:
                await asyncio.wait(traffic.running.values(), timeout=_LAST)

    async def _wind_down(self, traffic: Traffic) -> None:
        """Until all have ended and their answers are sent; after the grace they are told to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._caps.grace):
                await _first_of(self._hurry.wait(), _quiet(traffic))
        if traffic.running:
            self._aborting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST):
                await _quiet(traffic)


async def _quiet(traffic: Traffic) -> None:
    """Until no application is at work, and whoever reads has all of its answer."""
    while traffic.running:
        await asyncio.wait(traffic.running.values())
    await traffic.empty.wait()


async def _first_of(*several: Coroutine[Any, Any, object]) -> None:
    """Until one of them has ended; the others are cancelled, and over when this returns."""
    tasks = [asyncio.ensure_future(each) for each in several]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@contextlib.contextmanager
def _signals(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    there = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in there:
            loop.add_signal_handler(number, call)
    except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread: who runs us ends us
        yield
        return
    try:
        yield
    finally:
        for number in there:
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `ConfigurationError`."""
    if not 0 <= port <= 65_535:
        raise ConfigurationError(
            f"There is no port {port}.", remedy="Choose one from 1 to 65535, or 0: any that is free."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, or asyncio's own loop leaves Nagle's algorithm on, which costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"The gateway cannot listen at {host}:{port}: {error.strerror}.",
            remedy="Choose another with --host and --port, or end the program that has it.",
        ) from None
    listener.listen(_BACKLOG)
    listener.set_inheritable(False)
    return listener
