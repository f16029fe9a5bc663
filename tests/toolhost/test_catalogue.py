"""Catalogues and protocols, against servers that are functions, on a virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp.client.session import ClientSession

from centuria.messages import ToolEnd
from centuria.testing.clock import virtual_clock
from centuria.toolhost.catalogue import MAX_PAGES
from centuria.toolhost.negotiation import negotiate
from centuria.toolhost.session import CALM
from tests.toolhost.servers.local import Local, handshake, session_with

ECHO = {"name": "echo", "inputSchema": {"type": "object"}}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@virtual_clock
async def test_a_catalogue_that_changes_at_every_look_is_looked_at_once_in_a_while() -> None:
    async def restless(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/list":
            await server.tell("notifications/tools/list_changed")
        return handshake(method, tools=[ECHO])

    server = Local(restless)
    async with session_with(server) as session:
        assert session.up
        await asyncio.sleep(10 * CALM)
    looks = server.times("tools/list")
    assert 8 <= len(looks) <= 12


@virtual_clock
async def test_a_catalogue_of_endless_pages_ends_at_the_cap() -> None:
    async def endless(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        page = int(params.get("cursor") or 0)
        tool = {**ECHO, "name": f"tool{page:04}"}
        return handshake(method, tools=[tool], nextCursor=str(page + 1))

    server = Local(endless)
    async with session_with(server) as session:
        assert len(session.tools) == MAX_PAGES == 100
    assert len(server.times("tools/list")) == MAX_PAGES


@virtual_clock
async def test_a_server_that_works_on_a_call_with_time_left_is_not_taken_for_dead() -> None:
    """It does one thing at a time: while it computes, it answers nothing else."""
    busy = asyncio.Lock()

    async def serial(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        async with busy:
            await asyncio.sleep(params.get("arguments", {}).get("seconds", 0))
            return handshake(method, tools=[ECHO], content=[])

    server = Local(serial)
    async with session_with(server, start=5) as session:
        long = asyncio.create_task(session.call("echo", {"seconds": 60}, timeout=100))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await session.call("echo", {"seconds": 0}, timeout=10)
        assert (await long).text == ""
        assert session.up
        assert session.opened == 1
    assert len(server.abandoned) >= 1


async def _negotiated(answers: dict[str, Any]) -> tuple[str | None, list[str]]:
    async def answering(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        answer = answers.get(method)
        return answer.pop(0) if isinstance(answer, list) else answer or handshake(method)

    server = Local(answering)
    failed: MCPError | None = None
    async with ClientSession(dispatcher=server) as session:
        try:
            await negotiate(session)
        except MCPError as error:  # or its task group would wrap it
            failed = error
    if failed is not None:
        raise failed
    return session.protocol_version, [method for method, _ in server.asked]


def _discovered(*versions: str) -> dict[str, Any]:
    return {"result": {"supportedVersions": list(versions), "capabilities": {}, **MODERN}}


def _unsupported(*versions: str) -> dict[str, Any]:
    data = {"supported": list(versions), "requested": "2026-07-28"}
    return {"error": {"code": -32022, "message": "Unsupported protocol version", "data": data}}


@pytest.mark.parametrize(
    ("answers", "version", "asked"),
    [
        ({"server/discover": _discovered("2026-07-28", "2025-11-25")}, "2026-07-28", ["server/discover"]),
        ({}, "2025-11-25", ["server/discover", "initialize"]),
        ({"server/discover": _discovered("2025-11-25")}, "2025-11-25", ["server/discover", "initialize"]),
        ({"server/discover": {"result": {"what": 1}}}, "2025-11-25", ["server/discover", "initialize"]),
        ({"server/discover": _unsupported("2025-06-18")}, "2025-11-25", ["server/discover", "initialize"]),
        (
            {"server/discover": [_unsupported("2026-07-28"), _discovered("2026-07-28")]},
            "2026-07-28",
            ["server/discover"] * 2,
        ),
        (
            {
                "server/discover": [{"error": {"code": 1, "message": "busy"}}, _discovered("2026-07-28")],
                "initialize": _unsupported("2026-07-28"),
            },
            "2026-07-28",
            ["server/discover", "initialize", "server/discover"],
        ),
    ],
)
async def test_the_newest_protocol_that_both_speak_is_spoken(
    answers: dict[str, Any], version: str, asked: list[str]
) -> None:
    assert await _negotiated(answers) == (version, asked)


async def test_a_server_of_another_future_is_told_apart_from_an_older_one() -> None:
    with pytest.raises(MCPError, match="Unsupported"):
        await _negotiated({"server/discover": _unsupported("2031-01-01")})


async def test_questions_in_mid_call_that_nobody_can_answer_end_the_call() -> None:
    asked = {
        "resultType": "inputRequired",
        "inputRequests": {"q": {"method": "elicitation/create", "params": {"mode": "form", "message": "?"}}},
    }

    async def asking(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/call":
            return {"result": asked}
        return _discovered("2026-07-28") if method == "server/discover" else {"result": {"tools": [ECHO], **MODERN}}

    async with session_with(Local(asking)) as session:
        result = await session.call("echo", {}, timeout=5)
    assert result.end.value == "error"


@virtual_clock
@pytest.mark.parametrize("kind", ["http", "transport", "expired", "closed", "garbled"])
async def test_what_a_server_says_of_its_error_is_not_taken_for_what_we_know_of_the_connection(kind: str) -> None:
    """Many servers have the code -32000, that of a lost connection, for every error."""

    async def sly(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/call":
            data = {"kind": kind, "status": "x", "retry_after": 1e308, "sent": False}
            return {"error": {"code": -32000, "message": "No such page.", "data": data}}
        return handshake(method, tools=[ECHO])

    async with session_with(Local(sly)) as session:
        result = await session.call("echo", {}, timeout=5)
        assert (result.end, result.text) == (ToolEnd.ERROR, "No such page.")
        assert (session.up, session.opened) == (True, 1)


@virtual_clock
async def test_a_notification_that_is_not_valid_is_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    async def plain(server: Local, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return handshake(method, tools=[ECHO])

    server = Local(plain)
    async with session_with(server):
        await server._take({"method": "notifications/tools/list_changed", "params": {"_meta": "said in confidence"}})
    assert not caplog.records
