"""The way back from a person's browser: a listener on this machine that takes one answer, the one with our state.

RFC 8252: the redirect goes to 127.0.0.1 and any free port. Whoever else calls there, another program or a page in the
browser, does not know the state: it gets a 404, and the login goes on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from centuria.errors import ConfigurationError

_PATH = "/callback"
_MOST_BYTES, _MOST_SECONDS, _MOST_CONNECTIONS = 1 << 16, 10.0, 32
_PAGE = """<!doctype html><meta charset="utf-8"><title>Centuria</title>
<body style="font: 1rem system-ui; margin: 4rem auto; max-width: 30rem"><p>{text}</p>"""


class Loopback:
    """Implements `flows.Consent`. `show` gets the URL that a person must open; `seconds` is how long it waits for them.

    `port` 0 takes any. Raises `ConfigurationError` where the port is taken, and `TimeoutError` from `ask`.
    """

    def __init__(self, show: Callable[[str], None], *, seconds: float, port: int = 0) -> None:
        self._show = show
        self._seconds = seconds
        self._port = port
        self._server: asyncio.Server | None = None
        self._group = asyncio.TaskGroup()
        self._connections: set[asyncio.Task[None]] = set()
        self._state = ""
        self._answer: asyncio.Future[Mapping[str, str]] | None = None

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{_PATH}"

    async def __aenter__(self) -> Loopback:
        await self._group.__aenter__()
        try:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=_MOST_BYTES)
        except OSError as error:
            await self._group.__aexit__(None, None, None)
            raise ConfigurationError(
                f"Port {self._port} of this machine is taken.", remedy="Free it, or choose another `redirect_port`."
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await self._group.__aexit__(None, None, None)

    async def ask(self, url: str) -> Mapping[str, str]:
        """Show the URL, and wait for the browser to come back with its state."""
        (self._state,) = parse_qs(urlsplit(url).query)["state"]
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.to_thread(self._show, url)
                return await self._answer
        finally:
            self._answer = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        task = self._group.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(_MOST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, text = self._take(head)
                    writer.write(_reply(status, text))
                    await writer.drain()
            finally:
                writer.close()

    def _take(self, head: bytes) -> tuple[str, str]:
        """What the browser is told; an answer with our state is taken, once."""
        words = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
        target = urlsplit(words[1]) if len(words) == 3 and words[0] == "GET" else None
        if target is None or target.path != _PATH:
            return "404 Not Found", "There is nothing here."
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        if self._answer is None or not secrets.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return "404 Not Found", "This is not an answer to a login that is under way."
        if not self._answer.done():
            self._answer.set_result(query)
        if "error" in query:
            return "200 OK", "You were not logged in. You can close this page; the terminal says why."
        return (
            "200 OK",
            "Centuria has the answer. You can close this page; the terminal says whether you are logged in.",
        )


def _reply(status: str, text: str) -> bytes:
    body = _PAGE.format(text=text).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
