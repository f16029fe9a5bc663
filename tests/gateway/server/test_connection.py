"""One client and the server: turns, time-outs, what is idle, and what never comes to an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from centuria.gateway.server.connection import KEEP_ALIVE
from centuria.gateway.web import CONNECTION, Receive, Scope, Send
from tests.gateway.server.kit import CAPS, echo, listening, parse, read, turns, wired
from tests.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
GARBAGE = b"garbage\r\n\r\n"
HEADERS = [(b"content-length", b"2")]


class Held:
    """An application that answers when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        await self.let.wait()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"ok"})


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are set."""

    timers = 0

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **more: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, callback, *args, **more)


def test_a_request_that_comes_whole_on_a_kept_connection_sets_no_timer() -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with wired(echo) as wire:
            wire.feed(GET)
            await turns()
            before = loop.timers
            for _ in range(10):
                wire.feed(GET)
                await turns()
            assert len(parse(wire.said)) == 11
            assert loop.timers == before == 1  # that of the new connection

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(talk())


async def test_what_has_been_idle_for_its_time_is_closed_and_what_works_is_not() -> None:
    held = Held()
    async with wired(held) as wire:
        now = wire.connection.loop.time()
        wire.feed(GET)
        await turns()
        wire.connection.sweep(now + 10 * KEEP_ALIVE)
        assert not wire.closed
        held.let.set()
        await turns()
        since = wire.connection.loop.time()
        wire.connection.sweep(now + KEEP_ALIVE - 1)
        assert not wire.closed
        wire.connection.sweep(since + KEEP_ALIVE)
        assert wire.closed
        assert not wire.aborted


async def test_who_does_not_read_the_last_that_it_is_told_is_let_go() -> None:
    async with wired(echo) as wire:
        wire.feed(GARBAGE)
        assert wire.closed
        assert not wire.aborted
        wire.connection.sweep(wire.connection.loop.time() + KEEP_ALIVE)
        assert wire.aborted


async def test_what_is_no_request_is_told_so_after_the_answers_before_it() -> None:
    held = Held()
    async with wired(held) as wire:
        wire.feed(GET + GET + GARBAGE)
        await turns()
        assert (wire.said, held.begun) == (b"", 1)
        held.let.set()
        await turns(10)
        assert [status for status, _, _ in parse(wire.said)] == [200, 200, 400]
        assert wire.closed


async def test_the_time_of_half_a_request_does_not_end_the_answer_before_it() -> None:
    held = Held()
    async with wired(held, replace(CAPS, stall=0.01)) as wire:
        wire.feed(GET + b"GET / HT")
        await until(lambda: wire.connection._last_words, 5)
        assert not wire.closed
        held.let.set()
        await turns(10)
        assert [status for status, _, _ in parse(wire.said)] == [200, 408]
        assert wire.closed


async def test_a_broken_body_is_refused_and_its_application_hears_that_its_client_is_gone() -> None:
    heard: list[str] = []

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        while not heard or heard[-1] != "http.disconnect":
            heard.append((await receive())["type"])

    async with wired(waits) as wire:
        wire.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await turns()
        wire.feed(b"xyz\r\n")
        await turns()
        assert [status for status, _, _ in parse(wire.said)] == [400]
        assert heard == ["http.request", "http.disconnect"]


async def test_requests_that_wait_are_bounded_and_the_last_that_is_answered_says_so() -> None:
    async with wired(echo) as wire:
        wire.feed(b"GET / HTTP/1.1\r\n\r\n" * 400)
        assert wire.paused
        await turns(600)
        answers = parse(wire.said)
        assert len(answers) == 102
        assert [headers.get("connection") for _, headers, _ in answers] == [None] * 101 + ["close"]
        assert wire.closed


async def test_no_more_is_read_while_requests_wait_or_nobody_takes_a_body() -> None:
    held = Held()
    async with wired(held) as wire:
        wire.feed(GET + GET)
        assert wire.paused
        held.let.set()
        await turns(10)
        assert not wire.paused
    taken = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await taken.wait()
        await echo(scope, receive, send)

    async with wired(late) as wire:
        wire.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 70_000)
        assert wire.paused
        taken.set()
        await turns()
        assert not wire.paused
        wire.feed(b"x" * 30_000)
        await turns()
        assert len(json.loads(parse(wire.said)[0][2])["body"]) == 100_000


@pytest.mark.parametrize(
    ("begin", "more"), [(b"1;x=", b"y" * 500), (b"0\r\n", b"x: y\r\n" * 100)], ids=["an extension", "trailers"]
)
async def test_what_surrounds_chunks_has_an_end(begin: bytes, more: bytes) -> None:
    async with wired(Held()) as wire:
        wire.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        for _ in range(20):
            wire.feed(more)
            await turns(1)
        assert [status for status, _, _ in parse(wire.said)] == [431]
        assert wire.closed


async def test_trailers_are_no_headers() -> None:
    async with wired(echo) as wire:
        wire.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n")
        wire.feed(b"authorization: b\r\n\r\n")
        await turns()
        said = json.loads(parse(wire.said)[0][2])
        assert (said["body"], [name for name, _ in said["headers"]]) == ("abc", ["host", "transfer-encoding"])


async def test_what_follows_a_last_request_is_for_nobody() -> None:
    for last in (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"):
        async with wired(echo) as wire:
            wire.feed(last + GET + GARBAGE)
            await turns(10)
            assert [status for status, _, _ in parse(wire.said)] == [200]
            assert wire.closed


async def test_what_is_asked_of_another_place_by_its_whole_address_has_its_path() -> None:
    async with wired(echo) as wire:
        wire.feed(b"GET http://localhost:80/a%20b?c=d#e HTTP/1.1\r\nHost: a\r\n\r\n")
        await turns()
        wire.feed(b"GET http://localhost HTTP/1.1\r\nHost: a\r\n\r\n")
        await turns()
        said = [json.loads(body) for _, _, body in parse(wire.said)]
        seen = [(each["path"], each["raw_path"], each["query"]) for each in said]
        assert seen == [("/a b", "/a%20b", "c=d"), ("/", "/", "")]


async def test_an_application_hears_at_once_that_its_client_has_gone() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        several = await asyncio.gather(receive(), receive())  # several may wait
        for each in several:
            heard.put_nowait(each["type"])

    async with listening(waits) as served:
        async with served.connected() as (_, writer):
            writer.write(GET)
            await writer.drain()
        async with asyncio.timeout(5):
            assert [await heard.get(), await heard.get()] == ["http.disconnect"] * 2


async def test_who_does_not_read_is_waited_for_and_then_cut() -> None:
    sent = 0
    heard: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        scope[CONNECTION].when_lost(lambda: heard.append("lost"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not heard:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1
            await asyncio.sleep(0)

    async with wired(endless, replace(CAPS, read=0.01)) as wire:
        wire.feed(GET)
        await turns()
        wire.connection.pause_writing()
        seen = sent
        await turns(20)
        assert sent == seen > 0
        wire.connection.resume_writing()
        await turns(20)
        assert sent > seen + 10
        assert not wire.closed
        wire.connection.pause_writing()
        await until(lambda: wire.aborted, 5)
        assert heard == ["lost"]
