"""The application around its handlers: what they raise, what they stream, and what no header can carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from centuria.gateway.server import Server, listen
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.web import Mount, Receive, Reply, Request, Route, Scope, Send, Streaming
from tests.gateway.kit import Caller, app_of


@asynccontextmanager
async def answering(*routes: Route, mounts: Sequence[Mount] = ()) -> AsyncIterator[Caller]:
    """A caller of these rooms behind the gateway's own server."""
    settings = GatewaySettings({})
    server = Server(app_of(settings, routes, mounts), settings.caps)
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(listener, signals=False))
    try:
        async with aiohttp.ClientSession() as session:
            yield Caller(session, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


async def test_a_handler_that_fails_is_a_500_that_says_nothing_and_a_log_that_says_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: Request) -> Reply:
        raise ValueError("an inner secret")

    async with answering(Route("GET", "/fail", fail)) as call:
        got = await call("GET", "/fail")
        assert (got.status, got.error["type"], got.error["code"]) == (500, "server_error", "internal_error")
        assert "secret" not in str(got.body)
        assert got.headers["x-request-id"] in caplog.text
        assert "an inner secret" in caplog.text


async def test_an_application_below_a_path_that_fails_is_the_same_500_and_one_that_had_begun_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/begun"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise ExceptionGroup("several", [ValueError("an inner secret")])

    async with answering(mounts=[Mount("/below", fails)]) as call:
        got = await call("POST", "/below", {})
        assert (got.status, got.error["code"]) == (500, "internal_error")
        assert "secret" not in str(got.body)
        assert got.headers["x-request-id"] in caplog.text
        assert "an inner secret" in caplog.text
        with pytest.raises(aiohttp.ClientError):
            await call("GET", "/below/begun")
        assert (await call("GET", "/below", token="nobody")).status == 401


async def test_what_watches_for_the_client_at_a_server_of_others_has_ended_with_the_request() -> None:
    async def ok(request: Request) -> Reply:
        await asyncio.sleep(0)  # the watcher has begun
        return Reply()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    await app_of(GatewaySettings({}), [Route("GET", "/", ok, access="public")])(scope, receive, send)
    assert sent[0]["status"] == 200
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_work_behind_a_stream_ends_however_its_reader_goes() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        ended.set()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            begun.set()
            yield b"x" * 100
            await asyncio.sleep(0.01)

    async def stream(request: Request) -> Streaming:
        return Streaming(endless(), end=end)

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("It broke.")

    async def breaks(request: Request) -> Streaming:
        return Streaming(broken(), end=end)

    async with answering(Route("GET", "/stream", stream), Route("GET", "/breaks", breaks)) as call:
        going = asyncio.create_task(call("GET", "/stream"))
        await begun.wait()
        going.cancel()
        await asyncio.wait_for(ended.wait(), 5)
        ended.clear()
        with pytest.raises(aiohttp.ClientError):  # cut, so that nobody takes it for whole
            await call("GET", "/breaks")
        await asyncio.wait_for(ended.wait(), 5)


async def test_the_end_behind_a_stream_is_reached_where_not_even_its_first_piece_was_asked_for() -> None:
    ended: list[str] = []

    async def never() -> AsyncIterator[bytes]:
        yield b""

    async def end() -> None:
        ended.append("end")

    await Streaming(never(), end=end).close()
    assert ended == ["end"]


@pytest.mark.parametrize("value", ["模型", "a\r\nset-cookie: x", "ü", "plain/1.2: yes"])
async def test_a_name_that_no_header_can_carry_is_written_another_way(value: str) -> None:
    async def tell(request: Request) -> Reply:
        return Reply(headers={"X-Name": value})

    async with answering(Route("GET", "/", tell, access="public")) as call:
        got = await call("GET", "/")
        assert got.status == 200
        assert got.headers["x-name"].isascii()
        assert "set-cookie" not in got.headers
        assert (got.headers["x-name"] == value) == value.startswith("plain")
