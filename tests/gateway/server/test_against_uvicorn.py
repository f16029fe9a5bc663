"""The house's server and uvicorn give the same answers to the same bytes."""

from __future__ import annotations

import asyncio

import pytest

from centuria.gateway.web import Receive, Scope, Send
from tests.gateway.kit import serve
from tests.gateway.server.kit import echo, listening, parse, read

HOST = b"Host: localhost\r\n"
ASKED = {
    "a get": b"GET /a/b?c=d&e HTTP/1.1\r\n" + HOST + b"\r\n",
    "escapes": b"GET /a%20b/%C3%BC?q=%20 HTTP/1.1\r\n" + HOST + b"\r\n",
    "two slashes": b"GET //a/../b HTTP/1.1\r\n" + HOST + b"\r\n",
    "a post": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Type: text/plain\r\n\r\nHello",
    "chunks": b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3;x\r\nHel\r\n2\r\nlo\r\n0\r\n\r\n",
    "no body": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
    "twice a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\nX: b\r\nX-Empty:\r\nX-Bytes: \xc3\xbc\r\n\r\n",
    "the last one": b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    "blank lines": b"\r\n\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n",
    "expect": b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nHello",
    "another method": b"PATCH / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab",
    "an address": b"GET http://localhost/a?b HTTP/1.1\r\n" + HOST + b"\r\n",
    "a stream": b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n",
    "nothing": b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n",
    "old": b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n",
    "old, to be kept": b"GET /a HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
    "a failure": b"GET /fails HTTP/1.1\r\n" + HOST + b"\r\n",
    "not HTTP": b"NONSENSE\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n c\r\n\r\n",
    "several": (b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n") * 3,
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    match scope["path"]:
        case "/stream":
            await send({"type": "http.response.start", "status": 201, "headers": [(b"X-A", b"b")]})
            for piece in (b"one", b"", b"two"):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"three"})
        case "/nothing":
            await read(receive)
            await send({"type": "http.response.start", "status": 204})
            await send({"type": "http.response.body"})
        case "/fails":
            raise ValueError("it fails")
        case _:
            await echo(scope, receive, send)


async def said(port: int, data: bytes) -> bytes:
    """What is said until nothing more comes: the last request of all asks for the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if b"HTTP/1.0" not in data:
            writer.write(b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


#: Headers that each writes as it likes.
OWN = ("date", "server", "connection", "content-type", "content-length")


@pytest.mark.parametrize("name", ASKED)
async def test_both_say_the_same(name: str) -> None:
    async with listening(app) as ours, serve(app) as url:
        mine, theirs = await said(ours.port, ASKED[name]), await said(int(url.rpartition(":")[2]), ASKED[name])
    assert mine.count(b"100 Continue") == theirs.count(b"100 Continue")
    seen = []
    for each in (mine, theirs):
        answers = parse(each.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
        seen.append(
            [
                (
                    status,
                    {key: value for key, value in headers.items() if key not in OWN},
                    body if status < 400 else b"",
                )
                for status, headers, body in answers
            ]
        )
    assert seen[0] == seen[1]
    assert seen[0]
