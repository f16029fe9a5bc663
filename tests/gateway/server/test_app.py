"""The application around its handlers: what they raise, what they stream, and what no header can carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from centuria.gateway.web import Reply, Request, Route, Router, Streaming
from centuria.testing import FakeUpstream
from tests.gateway.served import Served, one, serving


def routed(served: Served, *routes: Route) -> None:
    served.gateway.app._router = Router(routes)


async def test_a_handler_that_fails_is_a_500_that_says_nothing_and_a_log_that_says_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: Request) -> Reply:
        raise ValueError("an inner secret")

    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        routed(served, Route("GET", "/fail", fail))
        got = await served.get("/fail", key)
        assert (got.status, got.error["type"], got.code) == (500, "server_error", "internal_error")
        assert b"secret" not in got.body
        assert got.headers["x-request-id"] in caplog.text
        assert "an inner secret" in caplog.text


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

    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        routed(served, Route("GET", "/stream", stream), Route("GET", "/breaks", breaks))
        async with served.session.get(f"{served.url}/stream", headers=key) as response:
            await begun.wait()
            response.close()
        await asyncio.wait_for(ended.wait(), 5)
        ended.clear()
        with pytest.raises(aiohttp.ClientError):  # cut, so that nobody takes it for whole
            await served.get("/breaks", key)
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

    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        routed(served, Route("GET", "/", tell, access="public"))
        got = await served.get("/", {})
        assert got.status == 200
        assert got.headers["x-name"].isascii()
        assert "set-cookie" not in got.headers
        assert (got.headers["x-name"] == value) == value.startswith("plain")
