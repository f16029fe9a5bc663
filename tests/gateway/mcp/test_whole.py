"""The tools in a whole gateway: the built-in servers, the real funnel, and `/mcp` beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from centuria.settings import ToolServer
from centuria.testing import FakeUpstream
from centuria.testing.replies import Calls, Document, Text
from tests.gateway.mcp.test_clients import client_of
from tests.gateway.served import Served, one, serving, usage


def built_in(folder: Path) -> tuple[ToolServer, ...]:
    (folder / "notes.txt").write_text("The capital of Peace is Olive.")
    return (
        ToolServer("web", "web", builtin="web_search", options={"folder": folder}),
        ToolServer("code", "code", builtin="code_exec"),
        ToolServer("file", "file", builtin="file_read", options={"roots": [folder]}),
    )


CALLS = Calls(
    (
        ("web_search", '{"query": "capital"}'),
        ("code_exec", '{"code": "print(6 * 7)"}'),
        ("file_read", '{"path": "notes.txt"}'),
    ),
    usage=usage(),
)


def researcher(body: Mapping[str, Any]) -> Any:
    """Calls three tools, then says what they said."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    reply = Text(" | ".join(results), usage=usage()) if results else CALLS
    return reply if body.get("stream") else Document(reply)


@asynccontextmanager
async def whole(folder: Path) -> AsyncIterator[tuple[Served, FakeUpstream]]:
    async with FakeUpstream(researcher) as upstream:
        settings = one(upstream, servers=built_in(folder), bare_names=True)
        async with serving(settings) as at:
            yield at, upstream


async def test_a_chat_has_the_three_built_in_tools_by_their_bare_names(tmp_path: Path) -> None:
    async with whole(tmp_path) as (at, _):
        alice = await at.add_key("alice", budget=10**12)
        names = ["web_search", "code_exec", "file_read"]
        for stream in (False, True):
            answer = await at.ask(alice, mcp_tools=names, stream=stream)
            assert answer.status == 200, answer.body
            text = answer.text if stream else answer.json["choices"][0]["message"]["content"]
            assert "notes.txt" in text
            assert "42" in text
            assert "Olive" in text
        await at.until_quiet()
        rows = [(row.attempt, row.end, row.key) for row in at.rows]
        assert rows == [(1, "done", "key-alice"), (2, "done", "key-alice")] * 2
        assert len({row.request for row in at.rows}) == 2
        kept = await at.store.attempts(at.rows[0].request, key="key-alice")
        assert [row.attempt for row in kept] == [1, 2]


async def test_limits_of_the_built_in_tools_are_the_usual_ones(tmp_path: Path) -> None:
    async with whole(tmp_path) as (at, _):
        alice = await at.add_key("alice")
        listed = (await at.get("/v1/mcp/tools", alice)).json["data"]
        limits = {tool["name"]: tool["limit"] for tool in listed}
        assert limits == {"web_search": 20, "code_exec": 5, "file_read": 30, "file_list": 30}


async def test_mcp_is_served_beside_the_rest_with_a_swarm_as_a_tool(tmp_path: Path) -> None:
    async with whole(tmp_path) as (at, _):
        alice = await at.add_key("alice")
        token = alice["Authorization"].removeprefix("Bearer ")
        for mode in ("legacy", "2026-07-28"):
            async with client_of(f"{at.url}/mcp", mode, token=token) as client:
                names = sorted(tool.name for tool in (await client.list_tools()).tools)
                assert names == ["code_exec", "file_list", "file_read", "run_swarm", "web_search"]
                said = await client.call_tool("code_exec", {"code": "print(6 * 7)"})
                assert "42" in said.content[0].text
                wrong = await client.call_tool("run_swarm", {"goal": "peace", "model": "nothing"})
                assert wrong.is_error
                assert "nothing" in wrong.content[0].text
        assert (await at.get("/mcp", {}, "POST")).status == 401
        assert (await at.get("/mcp/elsewhere", alice, "POST")).status == 404


async def test_a_stream_that_waits_for_news_does_not_hold_up_the_end_of_the_gateway(tmp_path: Path) -> None:
    async with whole(tmp_path) as (at, _):
        alice = await at.add_key("alice")
        opening = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        headers = {**alice, "Accept": "application/json, text/event-stream"}
        async with at.session.post(f"{at.url}/mcp", json=opening, headers=headers) as response:
            headers |= {"Mcp-Session-Id": response.headers["mcp-session-id"]}
            assert b'"tools"' in await response.read()
        async with at.session.get(f"{at.url}/mcp", headers=headers) as stream:
            assert stream.status == 200
            at.gateway._stop()
            async with asyncio.timeout(5):
                await stream.read()
