"""`/mcp` as MCP hosts use it: the SDK's client in both eras, Inspector, and many agents at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from centuria.gateway.ports import Key
from centuria.gateway.problems import bad_request
from centuria.gateway.tools.manifest import Registered
from centuria.ports import Listener
from centuria.settings import Timeouts, ToolServer
from centuria.testing.mcp import FakeMcp
from centuria.toolhost import McpToolHost
from tests.conformance.test_client import node
from tests.gateway.kit import ALICE, BOB
from tests.gateway.mcp.kit import SUITE, OpenRing, mcp_of
from tests.gateway.tools.kit import QUERY, host_of, tool, web
from tests.servers.installed import MODULES
from tests.waiting import until

ERAS = ["legacy", "2026-07-28"]


@asynccontextmanager
async def client_of(
    url: str, mode: str, *, token: str = "alice", headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    given = {"Authorization": f"Bearer {token}", **(headers or {})}
    async with (
        httpx2.AsyncClient(headers=given, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None, **options) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ERAS)
async def test_a_host_lists_the_tools_of_its_key_as_their_server_describes_them_and_calls_them(mode: str) -> None:
    async with mcp_of(None, SUITE) as (url, _), client_of(url, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        shown = tools["test_structured"]
        assert shown.title == "Structured"
        assert shown.output_schema == {
            "type": "object",
            "properties": {"twice": {"type": "integer"}},
            "required": ["twice"],
        }
        assert shown.annotations is not None and shown.annotations.read_only_hint
        assert tools["json_schema_2020_12_tool"].input_schema["$defs"]["address"]["$anchor"] == "addressDef"
        result = await client.call_tool("test_structured", {"n": 21})
        assert (result.structured_content, result.is_error) == ({"twice": 42}, False)
        image = await client.call_tool("test_image_content", {})
        assert (image.content[0].type, image.content[0].mime_type) == ("image", "image/png")
        wrong = await client.call_tool("test_structured", {"n": "x"})
        assert wrong.is_error
        assert "not of type 'integer'" in wrong.content[0].text
        with pytest.raises(MCPError, match="Did you mean test_structured") as unknown:
            await client.call_tool("test_structurd", {})
        assert unknown.value.code == -32602


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_comes_through(mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async with mcp_of(None, SUITE) as (url, _), client_of(url, mode) as client:
        result = await client.call_tool("test_tool_with_progress", {}, progress_callback=hear)
        assert result.content[0].text == "done"
        assert heard == [(done, 100, f"Completed step {done} of 100") for done in (0, 50, 100)]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_that_is_given_up_is_cancelled_at_the_tools_server(mode: str) -> None:
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    async with mcp_of(host_of(hang=tool(hang))) as (url, service), client_of(url, mode) as client:
        task = asyncio.create_task(client.call_tool("hang", {}))
        await asyncio.wait_for(inside.wait(), 10)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(cancelled.wait(), 10)
        await until(lambda: service.calls.gauges.open_tickets() == 0)


async def test_a_cancellation_reaches_a_server_behind_the_gateway() -> None:
    async with FakeMcp(tools=["slow"]) as fake:
        servers = (ToolServer("fake", "fake", url=fake.url),)
        async with mcp_of(None, *servers) as (url, _), client_of(url, "2026-07-28") as client:
            task = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
            await fake.until(lambda: fake.books.calls["slow"] == 1)
            task.cancel()
            await asyncio.wait([task])
            await fake.until(lambda: fake.books.in_flight == 0)


@pytest.mark.parametrize("mode", ERAS)
async def test_the_agent_is_the_one_that_is_named_or_else_the_session(mode: str) -> None:
    host = host_of(web_search=web())
    async with mcp_of(host) as (url, _):
        async with client_of(url, mode, headers={"X-Agent-Id": "agent-007", "X-Priority": "2"}) as client:
            await client.call_tool("web_search", {"query": "x"})
        async with client_of(url, mode) as client:
            await client.call_tool("web_search", {"query": "x"})
    first, second = host.callers
    assert first is not None and second is not None
    assert (first.key.task, first.index, first.priority) == ("key-alice/agent-007", 7, 2)
    agent = second.key.task.removeprefix("key-alice/")
    assert len(agent) == 32 if mode == "legacy" else agent == ""


async def test_a_session_is_its_openers_alone() -> None:
    async with mcp_of(host_of(web_search=web())) as (url, _), aiohttp.ClientSession() as session:
        opened = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        headers = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer alice"}
        async with session.post(url, json=opened, headers=headers) as response:
            mine = response.headers["mcp-session-id"]
        asked = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        for token, status in (("alice", 200), ("bob", 404)):
            also = {**headers, "Mcp-Session-Id": mine, "Authorization": f"Bearer {token}"}
            async with session.post(url, json=asked, headers=also) as response:
                assert response.status == status
        async with session.delete(url, headers={**headers, "Mcp-Session-Id": mine, "Authorization": "Bearer bob"}) as r:
            assert r.status == 404
        for token in ("", "mallory"):
            wrong = {**headers, "Authorization": f"Bearer {token}"}
            async with session.post(url, json=opened, headers=wrong) as response:
                assert response.status == 401


async def test_a_page_of_another_site_and_another_host_name_are_refused() -> None:
    async with mcp_of(host_of(web_search=web())) as (url, _), aiohttp.ClientSession() as session:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            async with session.post(url, json={}, headers=headers) as response:
                assert response.status == 403


@pytest.mark.parametrize("mode", ERAS)
async def test_a_key_sees_and_calls_its_own_tools_only(mode: str) -> None:
    host = host_of(web_search=web(), code=tool(lambda: "ran", slug="c"))
    ring = OpenRing({"bob": replace(BOB, tools=frozenset({"code"}))})
    async with mcp_of(host, ring=ring) as (url, _), client_of(url, mode, token="bob") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["code"]
        with pytest.raises(MCPError):
            await client.call_tool("web_search", {"query": "x"})
        assert host.calls == []


@pytest.mark.parametrize("mode", ERAS)
async def test_tools_that_an_agent_registered_are_its_own_here_too(mode: str) -> None:
    async with mcp_of(host_of(web_search=web())) as (url, service):
        hosted = service.names(ALICE).by_name["web_search"]
        entry = Registered("web_search__agent-001", hosted.name, hosted.key, "agent-001", description="One agent's.")
        await service.registry.add(ALICE.id, [entry])
        for agent, there in (("agent-001", True), ("agent-002", False)):
            async with client_of(url, mode, headers={"X-Agent-Id": agent}) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert ("web_search__agent-001" in names) is there
                if there:
                    said = await client.call_tool("web_search__agent-001", {"query": "x"})
                    assert said.content[0].text == "1 about x"


@pytest.mark.parametrize("mode", ERAS)
async def test_what_is_listed_may_be_kept_by_nobody_but_the_caller(mode: str) -> None:
    async with mcp_of(host_of(web_search=web())) as (url, _), client_of(url, mode) as client:
        listed = await client.list_tools()
        assert (getattr(listed, "cache_scope", None), getattr(listed, "ttl_ms", None)) in (("private", 0), (None, None))


@pytest.mark.parametrize("mode", ERAS)
async def test_a_swarm_is_a_tool(mode: str) -> None:
    asked: list[tuple[Key, Mapping[str, Any]]] = []

    async def run(key: Key, arguments: Mapping[str, Any]) -> str:
        asked.append((key, arguments))
        if arguments["goal"] == "fail":
            raise bad_request("There is no such model.")
        return f"Done: {arguments['goal']}"

    async with mcp_of(host_of(web_search=web()), run_swarm=run) as (url, _), client_of(url, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["web_search", "run_swarm"]
        goal = {"goal": "peace", "model": "kimi-k2.5", "budget_usd": 1.5, "max_agents": 10}
        assert (await client.call_tool("run_swarm", goal)).content[0].text == "Done: peace"
        assert asked == [(ALICE, goal)]
        for wrong in ({"goal": "x"}, {**goal, "budget_usd": 0}, {**goal, "command": "x"}, {**goal, "goal": "fail"}):
            assert (await client.call_tool("run_swarm", wrong)).is_error
        assert len(asked) == 2


async def test_a_hundred_hosts_at_once_share_the_slots() -> None:
    running = most = 0

    async def search(query: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 20:
            full.set()
        await asyncio.wait_for(full.wait(), 20)
        running -= 1
        return query

    full = asyncio.Event()
    host = host_of(web_search=tool(search, QUERY, slug="web", limit=20))
    async with mcp_of(host) as (url, _):

        async def one(client: Client, n: int) -> str:
            said = await client.call_tool("web_search", {"query": str(n)})
            text: str = said.content[0].text
            return text

        async with client_of(url, "2026-07-28") as client, client_of(url, "legacy") as other:
            texts = await asyncio.gather(*(one(client if n % 2 else other, n) for n in range(100)))
    assert texts == [str(n) for n in range(100)]
    assert most == 20


async def test_centuria_itself_is_a_client_of_it() -> None:
    """A gateway behind a run: its tools are those of any other server."""
    async with mcp_of(None, SUITE) as (url, _):
        servers = [ToolServer("gw", "gateway", url=url)]
        async with McpToolHost(servers, timeouts=Timeouts(), dice=lambda: 0.5) as host:
            assert host.servers()[0].up
            result = await host.call("gw__test_structured", {"n": 4}, timeout=10)
            assert result.structured == {"twice": 8}
            heard: list[float] = []
            listener = Listener(progress=lambda done, total, message: heard.append(done))
            await host.call("gw__test_tool_with_progress", {}, timeout=10, listener=listener)
            assert heard == [0, 50, 100]
            assert listener.answer is not None
            assert listener.answer["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.timeout(180)
async def test_inspector_lists_and_calls(tmp_path: Path) -> None:
    script = MODULES / ".bin" / "mcp-inspector"
    assert script.exists(), "Not installed: `make test` sets it up."

    async def inspect(url: str, *args: str) -> tuple[int, Any]:
        process = await asyncio.create_subprocess_exec(
            *(str(node()), str(script), "--cli", url, "--transport", "http", *args),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, json.loads(out) if out.strip() else err.decode()

    async with mcp_of(None, SUITE) as (url, _):
        key = ("--header", "Authorization: Bearer alice")
        code, listed = await inspect(url, "--method", "tools/list", *key)
        assert (code, len(listed["tools"])) == (0, 13)
        call = ("--method", "tools/call", "--tool-name", "test_structured", "--tool-arg", "n=21")
        code, said = await inspect(url, *call, *key)
        assert (code, said["structuredContent"]) == (0, {"twice": 42})
        code, why = await inspect(url, "--method", "tools/list", "--header", "Authorization: Bearer mallory")
        assert code != 0
        assert "401" in why or "auth" in why.lower()
