"""Whatever way a client's bytes are cut, they are the same requests; whatever they are, nothing breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.server.kit import echo, parse, turns, wired

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
VALUE = st.text("abc DEF:;,=/\xe4", max_size=20).map(lambda text: text.strip())
HEADERS = st.lists(st.tuples(TOKEN.map(lambda name: "x-" + name), VALUE), max_size=6)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    """A request that is well formed, as bytes, and what of it an application sees."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]))
    path = "/" + draw(st.text("abc/-._~", max_size=20))
    query = draw(st.text("abc=&1%", max_size=10))
    headers = [("host", "localhost"), *draw(HEADERS)]
    chunks: list[bytes] = [] if method == "GET" else draw(st.lists(st.binary(min_size=1, max_size=300), max_size=4))
    body = b"".join(chunks)
    if chunks and draw(st.booleans()):
        headers.append(("transfer-encoding", "chunked"))
        tail = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        tail += b"0\r\n" + draw(st.sampled_from([b"", b"x-trailer: 1\r\n"])) + b"\r\n"
    elif method != "GET":
        headers.append(("Content-Length", str(len(body))))
        tail = body
    else:
        tail = b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{method} {path}{'?' * bool(query)}{query} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
    blank = draw(st.sampled_from([b"", b"\r\n"]))
    seen = {
        "method": method,
        "raw_path": path,
        "query": query,
        "headers": [[name.lower(), value] for name, value in headers],
        "body": body.decode("latin-1"),
    }
    return blank + head + tail, seen


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]


@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
@settings(max_examples=300, deadline=None)
def test_requests_are_answered_in_their_order_wherever_they_are_cut(
    asked: list[tuple[bytes, dict[str, Any]]], cuts: list[int], patient: bool
) -> None:
    async def talk() -> bytes:
        async with wired(echo) as wire:
            for piece in pieces(b"".join(data for data, _ in asked), cuts):
                while wire.paused:
                    await turns(1)
                wire.feed(piece)
                if patient:
                    await turns()
            await turns(30)
            assert not wire.closed
            return wire.said

    answers = parse(asyncio.run(talk()))
    assert [status for status, _, _ in answers] == [200] * len(asked)
    for (_, _, body), (_, seen) in zip(answers, asked, strict=True):
        assert {name: value for name, value in json.loads(body).items() if name != "path"} == seen


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Requests of which some bytes are others, or there twice, or not at all."""
    data = bytearray(b"".join(data for data, _ in draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        new = draw(st.one_of(st.binary(max_size=5), st.sampled_from([b"\r\n", b"\0", b" ", b"\n", b"HTTP/1.0", b":"])))
        data[at : at + draw(st.integers(0, 3))] = new
    return bytes(data)


#: Headers and lines that a server may stumble over.
LINES = [
    *(b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Content-Length: 3"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Host: a", b"a: b", b" folded", b"GET / HTTP/1.1"),
    *(b"POST /x HTTP/1.1", b"HEAD / HTTP/1.0", b"CONNECT a:1 HTTP/1.1", b"PRI * HTTP/2.0", b"OPTIONS * HTTP/1.1"),
    *(b"GET http://a/b HTTP/1.1", b"GET http:// HTTP/1.1", b"0", b"3", b"abc", b"", b"", b"", b"SM"),
]


@given(
    st.one_of(
        st.binary(max_size=400), damaged(), st.lists(st.sampled_from(LINES), max_size=12).map(lambda s: b"\r\n".join(s))
    ),
    st.lists(st.integers(0, 10_000), max_size=6),
)
@settings(max_examples=600, deadline=None)
def test_rubbish_has_an_answer_or_a_closed_connection_and_never_an_error_in_the_loop(
    data: bytes, cuts: list[int]
) -> None:
    wrong: list[Any] = []

    async def talk() -> tuple[bytes, bool]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        async with wired(echo) as wire:
            for piece in pieces(data, cuts):
                while wire.paused and not wire.closed:
                    await turns(1)
                wire.feed(piece)
                await turns(1)
            await turns(60)
            # Whoever is not answered has not sent the end of a request yet: he is waited for, for a time.
            assert wire.said or wire.closed or wire.connection._timer is not None or not data.strip(b"\r\n")
            return wire.said, wire.closed

    said, closed = asyncio.run(talk())
    assert not wrong
    assert said == b"" or said.startswith(b"HTTP/1.1 ")
    refused = any(b"HTTP/1.1 %d " % status in said for status in (400, 408, 431))
    assert closed or not refused


@given(damaged(), st.lists(st.integers(0, 10_000), max_size=6))
@settings(max_examples=300, deadline=None)
def test_damaged_requests_are_the_same_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    """What two readers understand in two ways is how requests are smuggled; one reader must not depend on the cuts."""

    async def talk(parts: list[bytes]) -> bytes:
        async with wired(echo) as wire:
            for piece in parts:
                while wire.paused and not wire.closed:
                    await turns(1)
                wire.feed(piece)
                await turns(1)
            await turns(60)
            return wire.said

    whole, cut = asyncio.run(talk([data])), asyncio.run(talk(pieces(data, cuts)))
    assert whole == cut
