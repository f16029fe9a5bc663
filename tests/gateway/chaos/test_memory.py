"""A gateway's memory does not grow with the number of its requests, whoever sends them and however they end."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from centuria.core.retry import RetryPolicy
from centuria.gateway.keys import digest_of
from centuria.gateway.ports import Key
from centuria.gateway.service import Gateway
from centuria.gateway.settings import Caps
from centuria.gateway.store.sqlite import SqliteStore
from centuria.messages import DOLLAR
from centuria.testing import FakeUpstream
from centuria.testing.replies import Text
from tests.gateway.chat.wire import Said, Wire, fine, refused
from tests.gateway.served import ASKED, MODEL, deployment, one, serving, settings, usage

REQUESTS = 5_000
#: Blocks of memory that a request may leave behind.
SLOPE = 0.5


def script(host: str, body: dict[str, Any]) -> Said:
    match body["user"]:
        case "fails":
            return refused(500)
        case "breaks":
            return Said(200, fine(3).pieces[:2], cut=True)
        case "is refused":
            return refused(400)
        case _:
            return fine(3)


async def ask(gateway: Gateway, number: int) -> int:
    """One request past the server, every one with names of its own; its status."""
    user = ("works", "fails", "breaks", "is refused", "works", "works", "works", "works")[number % 8]
    token = f"ck-nobody-{number}" if number % 10 == 9 else "ck-known"
    body = json.dumps({**ASKED, "user": user, "stream": True}).encode()
    headers = {"host": "localhost", "authorization": f"Bearer {token}", "x-agent-id": f"agent-{number}"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions" if number % 50 else f"/v1/{number}",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    said: list[int] = []
    asked = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if asked.is_set():
            await asyncio.Event().wait()
        asked.set()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    await gateway.app(scope, receive, send)
    return said[0]


async def test_thousands_of_requests_leave_nothing_behind(tmp_path: Path, record_property: Any) -> None:
    store = SqliteStore(tmp_path / "gateway.db")
    await store.add_key(Key("key-a", "a", budget=10_000 * DOLLAR, rpm=10**8, tpm=10**11), digest_of("ck-known"))
    wire = Wire(script)
    models = {MODEL: [deployment("http://a/v1", name="a/m"), deployment("http://b/v1", name="b/m")]}
    made = settings(models, caps=Caps(attempts=2))
    at_once = RetryPolicy(delays=(0.0, 0.0, 0.0))
    async with Gateway(made, transport=wire, store=store, dice=lambda: 0.0, retry=at_once) as gateway:
        number = 0

        async def some(count: int) -> int:
            nonlocal number
            statuses = set()
            for _ in range(count // 50):
                statuses |= set(await asyncio.gather(*(ask(gateway, number + n) for n in range(50))))
                number += 50
                wire.asked.clear()
                wire.bodies.clear()
            assert statuses == {200, 400, 401, 404, 502}
            await gateway.books.flush()
            for upstream in gateway.funnel.upstreams():
                upstream.lane.governor._gate.recent.clear()  # those of the last minute, 10,000 at most
            gc.collect()
            return sys.getallocatedblocks()

        strangers = [digest_of(f"ck-warm-{number}") for number in range(1_100)]  # as many as are remembered
        await asyncio.gather(*map(gateway.ring.of_digest, strangers))
        await some(1_000)
        before = await some(500)
        after = await some(REQUESTS)
        slope = (after - before) / REQUESTS
        record_property("blocks a request", slope)
        assert slope < SLOPE, f"{slope:.3f} blocks a request"
        assert wire.open == gateway.funnel.in_flight() == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_request_leaves_nothing_to_the_garbage_collector(stream: bool) -> None:
    """What refers to itself in a circle costs a busy gateway a seventh of its time, which goes to finding it."""
    body = json.dumps({**ASKED, "stream": stream}).encode()
    answer = Text("Hello there.", usage=usage())
    async with FakeUpstream(lambda *asked: answer) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key['Authorization']}\r\n"

        async def some(count: int) -> None:
            for _ in range(count):
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                said = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert said.startswith(b"http/1.1 200")
                if stream:
                    await reader.readuntil(b"0\r\n\r\n")
                else:
                    await reader.readexactly(int(said.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            await served.gateway.books.flush()

        await some(10)
        gc.collect()
        gc.disable()
        try:
            await some(50)
            assert gc.collect() < 50  # not one each
        finally:
            gc.enable()
            writer.close()
