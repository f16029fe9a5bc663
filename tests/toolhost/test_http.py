"""Streamable HTTP: what fails, fails alone, and is told apart: not run, may have run, said no."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from centuria.errors import ConfigurationError, OutcomeUnknown, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.settings import ToolServer
from tests.toolhost.kit import host_of
from tests.toolhost.servers.rawhttp import RawHttp


def web(server: RawHttp, **headers: str) -> ToolServer:
    return ToolServer("web", "web", url=server.url, headers=headers)


async def test_one_failed_post_ends_one_call_and_no_other() -> None:
    async with RawHttp().serving() as server, host_of(web(server)) as host:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(host.call("web__sleep", {"seconds": 0.3}, timeout=10))
            await asyncio.wait_for(server.arrived.wait(), 5)
            for tool in ("cut", "half", "broken"):
                with pytest.raises(OutcomeUnknown):
                    await host.call(f"web__{tool}", {}, timeout=10)
            assert (await host.call("web__echo", {"text": "hi"}, timeout=10)).text == "hi"
        assert slow.result().text == "awake"
        assert host.servers()[0].up


@pytest.mark.parametrize("tool", ["busy", "later"])
async def test_a_429_or_a_503_that_says_when_to_come_back_is_not_run_and_keeps_its_retry_after(tool: str) -> None:
    async with RawHttp().serving() as server, host_of(web(server)) as host:
        with pytest.raises(ToolUnavailable) as caught:
            await host.call(f"web__{tool}", {}, timeout=10)
        assert (caught.value.retry_after, caught.value.throttled) == (7.0, True)


async def test_a_key_in_the_url_is_in_no_error() -> None:
    async with RawHttp().serving() as server:
        keyed = replace(web(server), url=f"{server.url}?key=sk-very-secret")
        async with host_of(keyed) as host:
            with pytest.raises(OutcomeUnknown) as caught:
                await host.call("web__malformed", {}, timeout=10)
    assert "sk-very-secret" not in str(caught.value)
    with pytest.raises(ConfigurationError) as refused:
        async with host_of(replace(keyed, required=True)):
            raise AssertionError("it is not there")
    assert "sk-very-secret" not in f"{refused.value} {refused.value.remedy}"


async def test_a_refusal_by_the_server_is_an_answer() -> None:
    async with RawHttp().serving() as server, host_of(web(server, authorization="Bearer abc")) as host:
        result = await host.call("web__denied", {}, timeout=10)
        assert (result.end, result.text) == (ToolEnd.ERROR, "HTTP 401")


async def test_the_configured_headers_go_with_every_request() -> None:
    async with RawHttp().serving() as server, host_of(web(server, authorization="Bearer abc")) as host:
        await host.call("web__echo", {"text": "hi"}, timeout=10)
        assert {sent["authorization"] for sent in server.headers} == {"Bearer abc"}


async def test_a_forgotten_session_is_opened_again_once_for_all_callers() -> None:
    async with RawHttp(sessions=True).serving() as server, host_of(web(server)) as host:
        assert (await host.call("web__echo", {"text": "1"}, timeout=10)).text == "1"
        server.forget()
        with pytest.raises(ToolUnavailable, match="expired"):
            await host.call("web__echo", {"text": "2"}, timeout=10)
        texts = await asyncio.gather(*(host.call("web__echo", {"text": str(n)}, timeout=10) for n in range(20)))
        assert [result.text for result in texts] == [str(n) for n in range(20)]
        assert host.servers()[0].detail["opened"] == 2


async def test_a_server_that_went_away_is_seen_and_comes_back() -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    server = RawHttp()
    async with server.serving():
        host = host_of(web(server), on_change=lambda state: changes.put_nowait(state.up))
        await host.__aenter__()
        assert await changes.get()
    try:
        with pytest.raises(ToolUnavailable, match="cannot be reached"):
            await host.call("web__echo", {"text": "?"}, timeout=10)
        assert not await asyncio.wait_for(changes.get(), 10)
        async with server.serving():
            while not host.servers()[0].up:
                await asyncio.wait_for(changes.get(), 10)
            assert (await host.call("web__echo", {"text": "!"}, timeout=10)).text == "!"
    finally:
        await host.__aexit__(None, None, None)


async def test_a_server_that_is_not_there_costs_nobody_else_anything() -> None:
    gone = ToolServer("gone", "gone", url="http://127.0.0.1:9/mcp")
    async with RawHttp().serving() as server, host_of(gone, web(server)) as host:
        states = {state.slug: state for state in host.servers()}
        assert not states["gone"].up
        assert "Connect" in states["gone"].reason
        assert (await host.call("web__echo", {"text": "hi"}, timeout=10)).text == "hi"
