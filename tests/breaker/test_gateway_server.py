"""What a breaker did to the gateway's HTTP server and to its calm path, each once."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from centuria.gateway.chat import relay as relayed
from centuria.gateway.server import Server, listen
from centuria.gateway.web import Receive, Scope, Send
from tests.gateway.server.kit import CAPS, echo, parse, turns, wired

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
UPGRADE = b"GET / HTTP/1.1\r\nConnection:upgrade\r\nUpgrade:a\r\n\r\n"


async def test_as_many_requests_to_upgrade_as_fit_into_one_read_are_requests_like_others() -> None:
    async with wired(echo, replace(CAPS, header=262_144)) as wire:
        wire.feed(UPGRADE * 4_000)
        await turns(600)
        assert [status for status, _, _ in parse(wire.said)] == [200] * 102
        assert wire.closed


@pytest.mark.parametrize("before", [GET, POST], ids=["another's headers", "another's body"])
@pytest.mark.parametrize(
    "cut", [-50, -1, 0, 9], ids=["in one read", "within the first", "between", "within the second"]
)
async def test_headers_above_the_cap_are_refused_behind_another_request_too(before: bytes, cut: int) -> None:
    async with wired(echo) as wire:
        for size, status in ((CAPS.header - 100, 200), (CAPS.header + 100, 431)):
            data = before + b"GET / HTTP/1.1\r\nx: " + b"y" * size + b"\r\n\r\n"
            at = max(0, len(before) + cut)
            for piece in (data[:at], data[at:]):
                while wire.paused:
                    await turns(1)
                if piece:
                    wire.feed(piece)
            await turns(20)
            assert [status for status, _, _ in parse(wire.said)] == [200, status]
            wire.sent.clear()
        assert wire.closed


class _Counting:
    """The words that matter, and how many bytes were looked through for them."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self.seen = 0

    def search(self, data: bytes, start: int = 0) -> re.Match[bytes] | None:
        found = self.pattern.search(data, start)
        self.seen += (len(data) if found is None else found.end()) - start
        return found


def test_a_stream_that_says_done_again_and_again_in_its_words_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"[DONE]"}}]}\n\n'
    counting = _Counting(relayed._MATTERS)
    monkeypatch.setattr(relayed, "_MATTERS", counting)
    relay = relayed.StreamRelay(keep_usage=True)
    data = event * 3_000
    assert relay.feed(data) == data
    assert (relay.events, relay.done) == (3_000, False)
    assert counting.seen <= 2 * len(data)


async def test_the_end_waits_for_whoever_still_reads_its_answer() -> None:
    answered = asyncio.Event()
    body = b"x" * 16_000_000

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})
        answered.set()

    listener = listen("127.0.0.1", 0)
    server = Server(large, replace(CAPS, grace=20))
    serving = asyncio.create_task(server.serve(listener, signals=False))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        async with asyncio.timeout(20):
            writer.write(GET)
            await answered.wait()
            server.stop()
            await turns(50)
            assert not serving.done()
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            assert len(await reader.read()) == len(body)
            await serving
    finally:
        writer.close()
        serving.cancel()
        listener.close()
