"""Headers of one agent, on a session that all share: with its own calls, and with nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from centuria.errors import ToolUnavailable
from centuria.messages import CallKey
from centuria.ports import Caller
from centuria.settings import ToolServer
from centuria.toolhost.http import http_transport
from centuria.toolhost.on_behalf import on_behalf
from tests.toolhost.kit import host_of
from tests.toolhost.servers.rawhttp import RawHttp

ROWS: dict[str, dict[str, Any]] = {f"task-{n}": {"user": f"user-{n}"} for n in range(30)}


def caller(task: str) -> Caller:
    return Caller(CallKey(task, 0, 0, 1), task)


def web(server: RawHttp) -> ToolServer:
    return ToolServer(
        "web",
        "web",
        url=server.url,
        headers={"authorization": "Bearer all"},
        agent_headers={"X-User": "{user}", "Authorization": "Bearer {user}"},
    )


def rows(task: str) -> dict[str, Any]:
    return ROWS.get(task, {})


async def test_each_agents_calls_carry_its_own_headers_over_one_session() -> None:
    async with RawHttp().serving() as server, host_of(web(server), rows=rows) as host:
        async with asyncio.TaskGroup() as group:
            for task in ROWS:
                asked = {"seconds": 0.05, "who": task}
                group.create_task(host.call("web__sleep", asked, timeout=20, caller=caller(task)))
        calls = [(m["params"]["arguments"]["who"], h) for m, h in server.requests if m["method"] == "tools/call"]
        assert len(calls) == len(ROWS)
        for task, headers in calls:
            assert headers["x-user"] == ROWS[task]["user"]
            assert headers["authorization"] == f"Bearer {ROWS[task]['user']}"
        others = [headers for message, headers in server.requests if message["method"] != "tools/call"]
        assert others and not any("x-user" in headers for headers in others)
        assert {headers["authorization"] for headers in others} == {"Bearer all"}
        assert sum(message["method"] == "initialize" for message, _ in server.requests) == 1


@pytest.mark.parametrize("row", [{}, {"user": "a\r\nX-Admin: yes"}, {"user": ""}, {"user": "M\u00fcller"}])
async def test_a_call_that_cannot_be_made_in_an_agents_name_is_not_made_at_all(row: dict[str, Any]) -> None:
    async with RawHttp().serving() as server, host_of(web(server), rows=lambda task: row) as host:
        with pytest.raises(ToolUnavailable, match="The header X-User of this agent"):
            await host.call("web__echo", {"text": "x"}, timeout=10, caller=caller("t"))
        assert server.seen == []


async def test_a_call_for_nobody_is_not_made_where_agents_have_names() -> None:
    async with RawHttp().serving() as server, host_of(web(server), rows=rows) as host:
        with pytest.raises(ToolUnavailable):
            await host.call("web__echo", {"text": "x"}, timeout=10)
        assert server.seen == []


async def test_a_cookie_that_one_agent_was_given_is_sent_for_no_other() -> None:
    async with RawHttp().serving() as server, host_of(web(server), rows=rows) as host:
        for task in ("task-1", "task-2"):
            await host.call("web__echo", {"text": "x"}, timeout=10, caller=caller(task))
        assert not any("cookie" in headers for _, headers in server.requests)


class Ours(httpx2.Auth):
    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        request.headers["authorization"] = "Bearer ours"
        yield request


async def test_an_agents_own_authorization_is_not_replaced_by_the_login_that_all_share() -> None:
    async with RawHttp().serving() as server:
        there = replace(web(server), headers={})
        async with http_transport(there, connect=5, slots=1, auth=Ours()) as dispatch:
            call = {"name": "echo", "arguments": {"text": "x"}}
            await dispatch.send_raw_request("tools/list", None)
            with on_behalf(there.agent_headers, {"user": "ann"}):
                await dispatch.send_raw_request("tools/call", call)
        assert [headers["authorization"] for _, headers in server.requests] == ["Bearer ours", "Bearer ann"]
