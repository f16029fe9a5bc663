"""What a breaker did to the gateway's HTTP server and to its calm path, each once."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from dataclasses import replace
from typing import Any, Literal, get_args

import pytest

from centuria.gateway.chat import relay as relayed
from centuria.gateway.chat.routes import ChatRoutes
from centuria.gateway.ports import Key
from centuria.gateway.server import Server, listen
from centuria.gateway.web import Receive, Scope, Send
from centuria.messages import DOLLAR, Usage
from centuria.testing.clock import virtual_clock
from centuria.testing.gateway import MemoryStore
from tests.gateway.chat.test_funnel import to
from tests.gateway.chat.test_leaving import nothing_is_left
from tests.gateway.chat.wire import Said, fine, rig
from tests.gateway.kit import FixedRing, app_of
from tests.gateway.served import ASKED
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


USAGE = Usage(prompt=20, output=5)
WHOLE = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": USAGE.prompt, "completion_tokens": USAGE.output},
    }
).encode()
#: A minute's limits that a few requests do not come near, and a budget.
KEY = Key("key", "key", budget=DOLLAR, rpm=6_000, tpm=10**7)


def _asked(*, stream: bool) -> bytes:
    body = json.dumps({**ASKED, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer it\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _says(host: str, body: dict[str, Any]) -> Said:
    return fine(USAGE.output) if body["stream"] else Said(200, [WHOLE], {"content-type": "application/json"})


#: It hangs up · the server ends · it hangs up as the server ends.
Way = Literal["lost", "ended", "both"]


async def _leaves_at(turn: int, way: Way, asked: bytes) -> bool:
    """Ask, and be gone after so many turns of the loop. Whether that was before all was answered."""
    settings, store = to("a"), MemoryStore()
    await store.add_key(KEY, b"x" * 32)
    async with rig(settings, _says, store) as it:
        routes = ChatRoutes(it.funnel, settings.caps).routes()
        app = app_of(settings, routes, ring=FixedRing({"it": KEY}))
        async with wired(app) as wire:
            traffic = wire.connection.traffic
            wire.feed(asked)
            await turns(turn)
            early = bool(traffic.running)
            answered = wire.said.count(b"[DONE]" if b'"stream": true' in asked else WHOLE)
            if way != "ended":
                wire.close()
            if way != "lost":
                traffic.end()
            if traffic.running:
                _, pending = await asyncio.wait(traffic.running.values(), timeout=60)
                assert not pending
            await nothing_is_left(it, settings, it.books)
            assert app.bodies.size == 0
            await it.books.flush()
            (_, money), *_ = await store.keys()
            assert money.spent + money.held == sum(row.cost + row.held for row in it.rows)
            assert len(it.rows) == len({row.request for row in it.rows}) == len(it.wire.asked)
            done = [row for row in it.rows if row.end == "done"]
            assert answered <= len(done)
            assert all((row.prompt, row.output, row.held) == (USAGE.prompt, USAGE.output, 0) for row in done)
            if len(done) == len(it.rows):  # what is known to be used is what the key's limits were charged with
                left = it.funnel.rates.headers(KEY).get("x-ratelimit-remaining-tokens", str(10**7 // 2))
                assert int(left) >= 10**7 // 2 - len(done) * (USAGE.prompt + USAGE.output) - 1
    return early


@pytest.mark.parametrize("way", get_args(Way))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("number", [1, 3], ids=["one", "one behind another"])
@virtual_clock
async def test_whoever_is_gone_at_any_turn_of_the_loop_leaves_nothing_behind(
    number: int, stream: bool, way: Way
) -> None:
    asked = _asked(stream=stream) * number
    for turn in range(400):
        if not await _leaves_at(turn, way, asked):
            break
    else:
        raise AssertionError("it takes more turns than were tried")
    assert turn > 3 * number


@virtual_clock
async def test_whoever_does_not_read_holds_neither_a_place_nor_money_for_its_whole_answer() -> None:
    settings, store = to("a"), MemoryStore()
    await store.add_key(KEY, b"x" * 32)
    async with rig(settings, _says, store) as it:
        app = app_of(settings, ChatRoutes(it.funnel, settings.caps).routes(), ring=FixedRing({"it": KEY}))
        async with wired(app, replace(CAPS, read=1_000)) as wire:
            wire.connection.pause_writing()
            wire.feed(_asked(stream=False))
            await turns(50)
            assert wire.said == b""
            assert [row.end for row in it.rows] == ["done"]
            assert it.books.reserved() == it.funnel.in_flight() == 0
            wire.connection.resume_writing()
            await turns(5)
            assert [body for _, _, body in parse(wire.said)] == [WHOLE]
        assert len(it.rows) == 1
        # Its tokens were given back once.
        assert it.funnel.rates.headers(KEY)["x-ratelimit-remaining-tokens"] == str(10**7 // 2 - 25)


@pytest.mark.parametrize(
    "data",
    [GET, UPGRADE, POST[:-1], b"garbage\r\n\r\n"],
    ids=["answered", "not upgraded", "half a body", "no request"],
)
async def test_a_connection_that_is_lost_leaves_nothing_to_the_garbage_collector(data: bytes) -> None:
    async with wired(_waits if data == POST[:-1] else echo) as wire:
        wire.feed(data)
        await turns(10)
        wire.close()
        await turns(10)
        left = weakref.ref(wire.connection)
        gc.disable()
        try:
            del wire.connection
            assert left() is None
        finally:
            gc.enable()


async def _waits(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
