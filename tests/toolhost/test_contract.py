"""The contract of `ports.ToolHost`, held by every host: MCP servers over stdio and HTTP, and plain functions."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from centuria.errors import ToolUnavailable
from centuria.messages import CallKey, ToolEnd
from centuria.ports import Caller, LeaseTerms, ToolHost
from centuria.settings import ToolServer
from centuria.testing.tools import LocalTool, LocalToolHost
from tests.toolhost.kit import SDK, host_of, raw

OBJECT = {"type": "object"}
OWN = {"add", "echo", "fail", "sleep"}


def fail(why: str) -> str:
    raise ValueError(why)


async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "awake"


def local() -> LocalToolHost:
    options = {"slug": "t", "limit": 10}
    tools = {
        "echo": LocalTool(lambda text: text, OBJECT, options),
        "add": LocalTool(lambda a, b: {"sum": a + b}, OBJECT, options),
        "fail": LocalTool(fail, OBJECT, options),
        "sleep": LocalTool(sleep, OBJECT, options),
    }
    return LocalToolHost(tools)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An SDK server over streamable HTTP, one for all tests of this file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, str(SDK), "--http", str(port)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stderr is not None
        while "Uvicorn running" not in (line := server.stderr.readline()):
            assert line, "the server did not start"
        yield f"http://127.0.0.1:{port}/mcp"
        server.kill()


@pytest.fixture(params=["local", "stdio", "http"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[ToolHost]:
    async with AsyncExitStack() as stack:
        if request.param == "local":
            yield local()
        elif request.param == "stdio":
            yield await stack.enter_async_context(host_of(raw("t", limit=10, allow=frozenset(OWN))))
        else:
            server = ToolServer("t", "t", url=request.getfixturevalue("url"), allow=frozenset(OWN))
            yield await stack.enter_async_context(host_of(server))


async def test_the_catalogue_names_all_tools_in_a_fixed_order(host: ToolHost) -> None:
    assert [tool.name for tool in host.catalogue()] == ["t__add", "t__echo", "t__fail", "t__sleep"]
    assert list(host.catalogue()) == list(host.catalogue())
    assert len({tool.key for tool in host.catalogue()}) == 4
    assert {(tool.slug, tool.limit) for tool in host.catalogue()} == {("t", 10)}


async def test_the_census_says_who_is_up(host: ToolHost) -> None:
    (state,) = host.servers()
    assert (state.slug, state.up, state.tools, state.limit, state.reason) == ("t", True, 4, 10, "")


async def test_a_call_answers_with_text_and_data(host: ToolHost) -> None:
    assert (await host.call("t__echo", {"text": "Grüße"}, timeout=10)).text == "Grüße"
    result = await host.call("t__add", {"a": 1, "b": 2}, timeout=10)
    assert (result.end, result.structured) == (ToolEnd.OK, {"sum": 3})


async def test_a_tools_own_error_is_a_value(host: ToolHost) -> None:
    result = await host.call("t__fail", {"why": "not today"}, timeout=10)
    assert result.end is ToolEnd.ERROR
    assert "not today" in result.text


async def test_a_call_ends_at_its_time_out_and_others_go_on(host: ToolHost) -> None:
    with pytest.raises(TimeoutError):
        await host.call("t__sleep", {"seconds": 60}, timeout=0.05)
    assert (await host.call("t__echo", {"text": "still there"}, timeout=10)).text == "still there"


async def test_a_name_that_nobody_has_is_unavailable(host: ToolHost) -> None:
    with pytest.raises(ToolUnavailable):
        await host.call("t__nothing", {}, timeout=10)


async def test_parallel_calls_each_get_their_own_answer(host: ToolHost) -> None:
    results = await asyncio.gather(*(host.call("t__echo", {"text": str(n)}, timeout=30) for n in range(100)))
    assert [result.text for result in results] == [str(n) for n in range(100)]


async def test_a_cancelled_call_is_cancelled_at_once(host: ToolHost) -> None:
    call = asyncio.create_task(host.call("t__sleep", {"seconds": 60}, timeout=60))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call], timeout=5)
    assert call.cancelled()


def of(agent: str) -> Caller:
    return Caller(CallKey(agent, 0, 0, 1), "run")


async def test_where_sessions_are_shared_there_is_nothing_to_lease(host: ToolHost) -> None:
    assert await host.lease("t__echo", caller=of("a"), timeout=1) == ""
    host.release("a")
    assert (await host.call("t__echo", {"text": "hi"}, timeout=10, caller=of("a"))).text == "hi"


@pytest.fixture(params=["local", "stdio"])
async def leasing(request: pytest.FixtureRequest) -> AsyncIterator[ToolHost]:
    """A host whose one server has two sessions to lease."""
    if request.param == "local":
        options = {"slug": "t", "lease": LeaseTerms()}
        yield LocalToolHost({"echo": LocalTool(lambda text: text, OBJECT, options)}, sessions={"t": 2})
        return
    async with host_of(raw("t", mode="leased", replicas=2, allow=frozenset(OWN))) as host:
        yield host


async def test_each_agent_has_a_session_of_its_own_until_it_is_released(leasing: ToolHost) -> None:
    assert {tool.lease for tool in leasing.catalogue()} == {LeaseTerms()}
    (state,) = leasing.servers()
    assert (state.mode, state.replicas) == ("leased", ("", ""))
    a, b = [await leasing.lease("t__echo", caller=of(name), timeout=10) for name in "ab"]
    assert a != b
    assert await leasing.lease("t__echo", caller=of("a"), timeout=10) == a
    with pytest.raises(ToolUnavailable):
        await leasing.lease("t__echo", caller=of("c"), timeout=0.01)
    leasing.release("a", "another")
    assert await leasing.lease("t__echo", caller=of("a"), timeout=10) == a
    leasing.release("a", "t")
    c = await leasing.lease("t__echo", caller=of("c"), timeout=10)
    assert c not in (a, b)
    with pytest.raises(ToolUnavailable, match="for which agent"):
        await leasing.call("t__echo", {"text": "hi"}, timeout=10)
