"""Streamable HTTP in both eras: streams, resumption, cancellation, sessions that expire, catalogues that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.ports import ServerState
from centuria.settings import ToolServer
from centuria.toolhost import McpToolHost
from centuria.toolhost.http import http_transport
from centuria.toolhost.session import Session
from tests.toolhost.kit import host_of
from tests.toolhost.servers.web import Web


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Web]:
    async with Web(modern=request.param == "2026-07-28").serving() as web:
        yield web


def of(web: Web, **fields: Any) -> ToolServer:
    return ToolServer("web", "web", url=web.url, **fields)


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for happens in a server, which tells nobody
            await asyncio.sleep(0.01)


async def text_of(host: McpToolHost, tool: str, **arguments: Any) -> str:
    return (await host.call(f"web__{tool}", arguments, timeout=60)).text


async def test_an_answer_may_be_json_or_a_stream_of_events_or_compressed(server: Web) -> None:
    async with host_of(of(server)) as host:
        assert await text_of(host, "echo", text="Grüße") == "Grüße"
        assert await text_of(host, "stream", text="line\nline") == "line\nline"
        assert await text_of(host, "zipped", size=100_000) == "y" * 100_000


async def test_a_thousand_parallel_calls_each_get_their_own_answer(server: Web) -> None:
    async with host_of(of(server)) as host:
        tools = ("echo", "stream")
        calls = [text_of(host, tools[n % 2], text=f"nonce {n}") for n in range(1000)]
        assert await asyncio.gather(*calls) == [f"nonce {n}" for n in range(1000)]


async def test_an_answer_to_another_request_is_given_to_nobody(server: Web) -> None:
    async with host_of(of(server)) as host:
        with pytest.raises(OutcomeUnknown) as caught:
            await host.call("web__stray", {}, timeout=10)
        assert "not for you" not in str(caught.value)
        assert await text_of(host, "echo", text="hi") == "hi"


async def test_cancelling_a_call_tells_the_server(server: Web) -> None:
    async with host_of(of(server)) as host:
        call = asyncio.create_task(host.call("web__hang", {}, timeout=60))
        await asyncio.wait_for(server.arrived.wait(), 5)
        call.cancel()
        await asyncio.wait([call], timeout=5)
        assert call.cancelled()
        await until(lambda: server.aborted == 1)
        if server.modern:
            assert not server.cancelled  # closing the request is the word for it in that era
        else:
            await until(lambda: len(server.cancelled) == 1)
        assert await text_of(host, "echo", text="hi") == "hi"


async def test_a_call_that_ran_out_of_time_is_cancelled_at_the_server(server: Web) -> None:
    async with host_of(of(server)) as host:
        with pytest.raises(TimeoutError):
            await host.call("web__hang", {}, timeout=0.1)
        await until(lambda: server.aborted == 1)


async def test_a_result_of_fifty_megabytes_arrives_whole_by_either_way() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        for events in (False, True):
            result = await host.call("web__big", {"size": 50 << 20, "events": events}, timeout=30)
            assert len(result.text) == 50 << 20


async def test_a_result_beyond_the_cap_is_an_error_of_that_call_alone() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        for events in (False, True):
            result = await host.call("web__big", {"size": 65 << 20, "events": events}, timeout=30)
            assert result.end is ToolEnd.ERROR
            assert "larger than" in result.text
        assert await text_of(host, "echo", text="hi") == "hi"


# -- sessions, until 2025-11-25 --------------------------------------------------------------------------------------


async def test_an_answer_whose_stream_breaks_off_is_resumed() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        assert await text_of(host, "resume") == "the rest"


async def test_an_answer_that_is_never_resumed_is_an_unknown_outcome() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        with pytest.raises(OutcomeUnknown):
            await host.call("web__torn", {}, timeout=10)


async def test_a_request_of_the_servers_in_mid_call_is_answered() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        assert await text_of(host, "ask", text="thanks") == "thanks"
        assert [(reply["id"], reply["result"]) for reply in server.replies] == [("q1", {})]


async def test_the_session_is_ended_at_the_server() -> None:
    async with Web().serving() as server:
        async with host_of(of(server)):
            pass
        assert server.deleted == ["1"]


FORGOTTEN = [
    {"status": 404, "text": ""},
    {"status": 404, "text": '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'},
    {"status": 400, "text": '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}'},
]


@pytest.mark.parametrize("answer", FORGOTTEN)
async def test_an_expired_session_is_opened_again_once_for_a_hundred_callers(answer: dict[str, Any]) -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        server.forgotten = {**answer, "content_type": "application/json"}
        server.forget()
        calls = [host.call("web__echo", {"text": str(n)}, timeout=10) for n in range(100)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        # What met the old session surely did not run; the rest waited for the next.
        assert all(isinstance(result, ToolUnavailable) or result.text == str(n) for n, result in enumerate(results))
        assert sum(isinstance(result, ToolUnavailable) for result in results) > 0
        assert await text_of(host, "echo", text="again") == "again"
        assert server.methods["initialize"] == 2
        assert host.servers()[0].detail["opened"] == 2


async def test_a_call_in_flight_outlives_its_session() -> None:
    async with Web().serving() as server, host_of(of(server)) as host:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(host.call("web__wait", {"text": "still mine"}, timeout=20))
            await asyncio.wait_for(server.arrived.wait(), 5)
            server.forget()
            with pytest.raises(ToolUnavailable, match="expired"):
                await host.call("web__echo", {"text": "?"}, timeout=10)
            assert await text_of(host, "echo", text="on the next session") == "on the next session"
            server.gate.set()
        assert slow.result().text == "still mine"
        assert host.servers()[0].detail["opened"] == 2


# -- the catalogue ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(server: Web) -> AsyncIterator[tuple[McpToolHost, list[ServerState]]]:
    states: list[ServerState] = []
    async with host_of(of(server), on_change=states.append) as host:
        await until(lambda: len(server.streams) == 1)
        states.clear()
        server.methods.clear()
        yield host, states


async def test_five_hundred_changes_are_at_most_two_fetches_and_one_of_news(server: Web) -> None:
    async with watched(server) as (host, states):
        server.extra.append({"name": "new", "inputSchema": {"type": "object"}})
        server.changed(500)
        await until(lambda: len(states) == 1)
        assert await text_of(host, "echo", text="after all of them") == "after all of them"
        await until(lambda: any(tool.tool == "new" for tool in host.catalogue()))
        assert server.methods["tools/list"] <= 2
        assert [state.up for state in states] == [True]


async def test_a_change_during_the_fetch_is_fetched_too(server: Web) -> None:
    async with watched(server) as (host, states):
        server.changed()
        await until(lambda: server.methods["tools/list"] == 1)
        server.extra.append({"name": "late", "inputSchema": {"type": "object"}})
        server.changed()
        await until(lambda: len(states) == 1)
        assert any(tool.tool == "late" for tool in host.catalogue())


async def test_a_tool_that_comes_between_the_first_look_and_the_subscription_is_found() -> None:
    async with Web(modern=True).serving() as server:
        server.meanwhile = [{"name": "late", "inputSchema": {"type": "object"}}]
        async with host_of(of(server)) as host:
            await until(lambda: any(tool.tool == "late" for tool in host.catalogue()))


async def test_a_subscription_that_broke_off_is_made_again_and_what_came_between_is_looked_up(server: Web) -> None:
    async with watched(server) as (host, states):
        server.extra.append({"name": "meanwhile", "inputSchema": {"type": "object"}})
        for queue in list(server.streams):
            queue.put_nowait({})  # the stream ends
        if not server.modern:
            await until(lambda: len(server.streams) == 1 and server.methods["GET"] > 0)
            server.changed()
        await until(lambda: len(states) == 1)
        assert any(tool.tool == "meanwhile" for tool in host.catalogue())


BAD_TOOLS = [
    {"name": "no schema"},
    {"name": 5, "inputSchema": {"type": "object"}},
    {"name": "list", "inputSchema": []},
    {"inputSchema": {"type": "object"}},
    "text",
    None,
]


async def test_a_bad_tool_is_dropped_alone(server: Web) -> None:
    server.extra = [*BAD_TOOLS, {"name": "good", "inputSchema": {"type": "object"}}]
    async with host_of(of(server)) as host:
        names = {tool.tool for tool in host.catalogue()}
    assert {"echo", "good"} <= names
    assert not names & {"no schema", "list"}


# -- the endpoint -----------------------------------------------------------------------------------------------------


async def test_a_redirect_within_the_origin_is_followed_and_no_other(server: Web) -> None:
    server.redirects["/old"] = "/mcp"
    old = server.url.replace("/mcp", "/old")
    away = server.url.replace("/mcp", "/away").replace("127.0.0.1", "localhost")
    server.redirects["/away"] = server.url
    servers = [ToolServer("web", "web", url=old), ToolServer("away", "away", url=away)]
    async with host_of(*servers) as host:
        assert await text_of(host, "echo", text="hi") == "hi"
        states = {state.slug: state for state in host.servers()}
        assert not states["away"].up
        assert f"redirects to {server.url}" in states["away"].reason


class Signing(httpx2.Auth):
    """Asks for a token of its own when it is refused, over the same connections."""

    def __init__(self, token_url: str) -> None:
        self.token_url = token_url
        self.seen: list[int] = []

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        request.headers["authorization"] = "Bearer old"
        response = yield request
        self.seen.append(response.status_code)
        if response.status_code == 200:
            return
        await response.aread()
        told = yield httpx2.Request("GET", self.token_url)
        self.seen.append(told.status_code)
        request.headers["authorization"] = "Bearer " + (await told.aread()).decode()
        yield request


async def test_any_httpx2_auth_signs_the_requests(server: Web) -> None:
    from aiohttp import web

    seen: list[str | None] = []

    async def door(request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            return web.Response(text="new")
        seen.append(request.headers.get("authorization"))
        if request.headers.get("authorization") != "Bearer new":
            return web.Response(status=401, text="who are you?")
        return await server._any(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", door)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    origin = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    auth = Signing(f"{origin}/token")
    settings = ToolServer("web", "web", url=f"{origin}/mcp")
    session = Session(
        "web",
        lambda wire: http_transport(settings, connect=5, slots=1, auth=auth),
        start_timeout=10,
        starts=asyncio.Semaphore(1),
        dice=lambda: 0.0,
        on_change=lambda: None,
    )
    try:
        async with asyncio.TaskGroup() as group:
            session.start(group)
            await session.settled()
            assert session.up, session.reason
            assert (await session.call("echo", {"text": "hi"}, timeout=5)).text == "hi"
            assert auth.seen[:2] == [401, 200]
            assert seen[:2] == ["Bearer old", "Bearer new"]
            session.stop()
    finally:
        await runner.cleanup()
