"""One request and its answer, as an application has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.gateway.server.heads import head_of
from centuria.gateway.web import Asgi, Receive, Scope, Send
from tests.gateway.server.kit import listening, parse, read, turns, wired

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
Pairs = Iterable[tuple[bytes, bytes]]
SAID = b"x: y\r\n"


def answering(
    status: int, headers: Pairs, *chunks: bytes, between: Callable[[], Awaitable[None]] | None = None
) -> Asgi:
    """An application that says this, each chunk for itself."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for chunk in chunks:
            if between is not None:
                await between()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    return app


def responding(status: int) -> Asgi:
    """An application that says all at once, as ours does."""

    async def app(scope: Scope, receive: Receive, send: Any) -> None:
        await send.respond(status, SAID, b"Hello")

    return app


async def test_the_head_of_an_answer_goes_with_what_comes_behind_it_in_the_same_turn() -> None:
    async with wired(answering(200, [(b"content-length", b"5")], b"Hello")) as wire:
        wire.feed(GET)
        await turns()
        assert wire.sent == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nHello"]
    let = asyncio.Event()

    async def until_let() -> None:
        await let.wait()

    async with wired(answering(200, [], b"Hello", between=until_let)) as wire:
        wire.feed(GET)
        await turns()
        assert wire.sent == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
        let.set()
        await turns()
        assert wire.sent[1:] == [b"5\r\nHello\r\n", b"0\r\n\r\n"]


async def test_a_whole_answer_is_one_write_and_framed_as_its_request_has_it() -> None:
    for asked, told in {
        b"GET / HTTP/1.1": b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 5\r\n\r\nHello",
        b"HEAD / HTTP/1.1": b"HTTP/1.1 200 OK\r\nx: y\r\ncontent-length: 5\r\n\r\n",
        b"GET / HTTP/1.0": b"HTTP/1.1 200 OK\r\nx: y\r\nconnection: close\r\ncontent-length: 5\r\n\r\nHello",
    }.items():
        async with wired(responding(200)) as wire:
            wire.feed(asked + b"\r\nHost: a\r\n\r\n")
            await turns()
            assert wire.sent == [told]


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_without_a_body_by_its_status_has_none(status: int, whole: bool) -> None:
    async with wired(responding(status) if whole else answering(status, [(b"x", b"y")], b"Hello")) as wire:
        wire.feed(GET + GET)
        await turns(10)
        assert parse(wire.said) == [(status, {"x": "y"}, b"")] * 2


async def test_a_whole_answer_is_said_once_and_to_nobody_who_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    let = asyncio.Event()

    async def twice(scope: Scope, receive: Receive, send: Any) -> None:
        await let.wait()
        await send.respond(200, SAID, b"Hello")
        await send.respond(200, SAID, b"Hello")

    async with wired(twice) as wire:
        wire.feed(GET)
        let.set()
        await turns()
        assert [body for _, _, body in parse(wire.said)] == [b"Hello"]
        assert "has begun already" in caplog.text
    caplog.clear()
    let.clear()
    async with wired(twice) as wire:
        wire.feed(GET)
        await turns()
        wire.close()
        await turns()
        let.set()
        await turns()
        assert wire.sent == []
        assert not caplog.records


async def test_a_head_is_answered_as_its_get_is_without_the_body() -> None:
    async with wired(answering(200, [(b"content-length", b"5")], b"Hello")) as wire:
        wire.feed(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        await turns()
        assert wire.said == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
        assert not wire.closed


async def test_how_an_answer_ends_is_not_for_its_application_to_say() -> None:
    said = [(b"Transfer-Encoding", b"gzip"), (b"Connection", b"keep-alive"), (b"X-Name", b"a")]
    async with wired(answering(200, said, b"Hello")) as wire:
        wire.feed(GET)
        await turns()
        assert parse(wire.said) == [(200, {"x-name": "a", "transfer-encoding": "chunked"}, b"Hello")]
    async with wired(answering(200, [(b"connection", b"close")], b"Hello")) as wire:
        wire.feed(GET + GET)
        await turns()
        assert parse(wire.said) == [(200, {"transfer-encoding": "chunked", "connection": "close"}, b"Hello")]
        assert wire.closed


@pytest.mark.parametrize("said", [b"4", b"6"])
async def test_a_body_that_is_not_as_long_as_was_said_is_cut(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with wired(answering(200, [(b"content-length", said)], b"Hello")) as wire:
        wire.feed(GET)
        await turns()
        assert wire.closed
        assert "not as long" in caplog.text
        assert len(wire.said.partition(b"\r\n\r\n")[2]) != int(said)


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("an inner secret")


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await read(receive)


async def says_a_body_first(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


async def splits_its_head(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]})


async def begins_and_fails(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    raise ValueError("an inner secret")


@pytest.mark.parametrize("app", [fails, says_nothing, says_a_body_first, splits_its_head, begins_and_fails])
async def test_an_application_that_says_nothing_is_a_500_that_tells_nothing(
    app: Asgi, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(app) as wire:
        wire.feed(POST)
        await turns()
        (answer,) = parse(wire.said)
        assert answer[0] == 500
        assert b"secret" not in wire.said
        assert wire.closed
        assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("length", [True, False])
async def test_what_breaks_off_can_be_taken_for_whole_by_nobody(version: bytes, length: bool) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"9")] if length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"Hello", "more_body": True})
        await asyncio.sleep(0)
        raise ValueError("it broke")

    async with listening(breaks) as served:
        asked = b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version
        try:
            said = await served.raw(asked)
        except ConnectionError:
            assert (version, length) == (b"1.0", False)  # which would end so if all were well
        else:
            assert (version, length) != (b"1.0", False)
            assert b"\r\n0\r\n" not in said
            assert len(said.partition(b"\r\n\r\n")[2]) != 9


async def test_the_body_is_asked_for_once_and_who_was_not_asked_is_not_kept() -> None:
    waits = POST.replace(b"\r\n\r\nabc", b"\r\nExpect: 100-continue\r\n\r\n")

    async def asks(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        await answering(200, [], body)(scope, receive, send)

    async with wired(asks) as wire:
        wire.feed(waits)
        await turns()
        assert wire.said == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.feed(b"abc")
        await turns()
        assert parse(b"".join(wire.sent[1:]))[0][2] == b"abc"
        assert not wire.closed
    for app in (answering(401, []), responding(401)):
        async with wired(app) as wire:
            wire.feed(waits)
            await turns()
            assert parse(wire.said)[0][1]["connection"] == "close"
            assert wire.closed


async def test_the_rest_of_a_body_that_was_refused_is_read_over() -> None:
    async with wired(answering(401, [])) as wire:
        wire.feed(POST[:-2])
        await turns()
        wire.feed(POST[-2:] + GET)
        await turns()
        assert [status for status, _, _ in parse(wire.said)] == [401, 401]


async def test_idle_connections_end_with_the_server_and_others_with_their_answer() -> None:
    let = asyncio.Event()

    async def until_let() -> None:
        await let.wait()

    async with (
        listening(answering(200, [], b"Hello", between=until_let)) as served,
        served.connected() as (idle, _),
        served.connected() as (busy, writer),
        asyncio.timeout(5),
    ):
        writer.write(GET)
        await busy.readuntil(b"\r\n\r\n")
        served.server.stop()
        assert await idle.read() == b""
        let.set()
        assert await busy.read() == b"5\r\nHello\r\n0\r\n\r\n"


async def test_no_task_is_left_when_the_server_ends() -> None:
    begun = asyncio.Event()

    async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with listening(stuck) as served, served.connected() as (_, writer):
        writer.write(GET)
        await asyncio.wait_for(begun.wait(), 5)
        served.server.stop()
        served.server.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@given(st.integers(100, 999), st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=12)), max_size=5))
def test_no_header_of_an_application_becomes_two(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    try:
        head, _, _ = head_of(status, headers)
    except ValueError:
        return
    lines = head.split(b"\r\n")
    assert lines.pop() == b""
    framing = (b"connection", b"content-length", b"transfer-encoding")
    assert lines[1:] == [n.lower() + b": " + v for n, v in headers if n.lower() not in framing]
    assert b"\n" not in b"".join(lines)
