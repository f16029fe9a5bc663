"""What tests of the HTTP server share: it listens for real, or is fed by hand over a wire that remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from centuria.gateway.server import Server, listen
from centuria.gateway.server.connection import Connection
from centuria.gateway.server.traffic import Traffic
from centuria.gateway.settings import Caps
from centuria.gateway.web import Asgi, Receive, Scope, Send

#: None of these is met where no test is about them.
CAPS = Caps(header=8_192, stall=20.0, send=20.0, read=20.0, request=20.0, grace=1.0)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked."""
    body = await read(receive)
    said = {
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": scope["raw_path"].decode(),
        "query": scope["query_string"].decode(),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    data = json.dumps(said).encode()
    length = (b"content-length", b"%d" % len(data))
    kind = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": 200, "headers": [length, kind]})
    await send({"type": "http.response.body", "body": data})


async def read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body, more = body + message["body"], message["more_body"]
    return body


class Listening:
    """A server at a port, and what went wrong in its loop."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.wrong: list[dict[str, Any]] = []

    async def raw(self, data: bytes, *, within: float = 10.0) -> bytes:
        """What comes back for exactly these bytes, until the other side closes."""
        async with asyncio.timeout(within), self.connected() as (reader, writer):
            writer.write(data)
            return await reader.read()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


@asynccontextmanager
async def listening(app: Asgi, caps: Caps = CAPS) -> AsyncIterator[Listening]:
    """The server on a free port; nothing may go wrong in its loop."""
    server = Server(app, caps)
    listener = listen("127.0.0.1", 0)
    served = Listening(server, listener.getsockname()[1])
    asyncio.get_running_loop().set_exception_handler(lambda _, context: served.wrong.append(context))
    task = asyncio.create_task(server.serve(listener, signals=False))
    try:
        yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
    assert served.wrong == []


class Wire(asyncio.Transport):
    """The server's end of a connection whose client reads all at once. Remembers what was sent, write by write."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = self.aborted = self.paused = False
        self.connection = connection
        connection.connection_made(self)

    @property
    def said(self) -> bytes:
        return b"".join(self.sent)

    def feed(self, data: bytes) -> None:
        """The client sends this."""
        assert not self.paused
        if not self.closed:
            self.connection.data_received(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.loop.call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


@asynccontextmanager
async def wired(app: Asgi, caps: Caps = CAPS) -> AsyncIterator[Wire]:
    """A connection over such a wire."""
    traffic = Traffic(asyncio.get_running_loop(), app, caps)
    try:
        yield Wire(Connection(traffic))
    finally:
        traffic.end()
        if traffic.running:
            await asyncio.wait(traffic.running.values(), timeout=10)


async def turns(number: int = 5) -> None:
    """So many turns of the loop."""
    for _ in range(number):
        await asyncio.sleep(0)


def parse(data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The answers (to other requests than HEAD) in what a server said: each status, headers and body. All are whole."""
    answers = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end
        line, *lines = head.decode("latin-1").split("\r\n")
        assert line.startswith("HTTP/1.1 ")
        headers = dict(each.split(": ", 1) for each in lines)
        body = b""
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, data = data[:length], data[length:]
            assert len(body) == length
        elif headers.get("transfer-encoding") == "chunked":
            size = -1
            while size:
                said, _, data = data.partition(b"\r\n")
                size = int(said, 16)
                body, data = body + data[:size], data[size:]
                assert data.startswith(b"\r\n")
                data = data[2:]
        answers.append((int(line.split(" ")[1]), headers, body))
    return answers
