"""A server that is not up: what the operator reads, and what is told to whoever misses its tools."""

from __future__ import annotations

import logging
from pathlib import Path

import aiohttp
import pytest

from centuria.gateway.tools.outages import Outages, down, missed
from centuria.ports import ServerState
from centuria.settings import ToolServer
from centuria.testing import FakeUpstream
from tests.gateway.command import HEADERS, command
from tests.gateway.tools.kit import gateway_of

BROKEN = ToolServer(slug="broken", name="broken", command="/no/such/program")


def state(up: bool) -> ServerState:
    return ServerState("broken", "broken", up=up, tools=2, reason="" if up else "It has ended.")


async def test_the_list_of_tools_says_which_servers_are_down_and_why_to_an_admin_alone() -> None:
    async with gateway_of(None, BROKEN) as call:
        listed = await call("GET", "/v1/mcp/tools")
        assert listed.body["unavailable"] == [{"server": "broken"}]
        [told] = (await call("GET", "/v1/mcp/tools", token="admin")).body["unavailable"]
        assert told["server"] == "broken" and "/no/such/program" in told["reason"]


async def test_a_tool_that_is_missing_is_told_with_the_server_that_is_down() -> None:
    async with gateway_of(None, BROKEN) as call:
        for name in ("broken__look", "look"):
            answered = await call("POST", f"/v1/mcp/tools/{name}/invoke", {})
            assert answered.status == 404
            assert "Not up now, so that its tools are missing: the server broken." in answered.error["message"]


def test_a_key_is_told_of_servers_whose_tools_it_may_have_alone() -> None:
    assert down([state(False)], None) and down([state(False)], ["broken__*"]) and down([state(False)], ["look"])
    assert not down([state(False)], ["other__look"]) and not down([state(False)], []) and not down([state(True)], None)
    assert missed("look", []) == ""


def test_a_server_that_goes_down_and_comes_up_is_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages([state(True)])
    with caplog.at_level(logging.INFO, "centuria.gateway"):
        for up in (True, False, False, True, True):
            outages.see(state(up))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "broken is not up: It has ended." in said[0] and "broken is up, with 2 tools" in said[1]


async def test_that_a_gateway_ends_is_no_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ToolServer("files", "files", builtin="file_read", options={"roots": [str(tmp_path)]}, required=True)
    async with gateway_of(None, files) as call:
        listed = (await call("GET", "/v1/mcp/tools")).body
        assert listed["data"] and not listed.get("unavailable")
    assert not [record for record in caplog.records if "is not up" in record.getMessage()]


async def test_the_command_says_at_its_start_which_server_is_down_and_is_ready_all_the_same(tmp_path: Path) -> None:
    more = '\n[tools.broken]\ncommand = "/no/such/program"\n'
    async with FakeUpstream() as upstream, command(tmp_path, upstream, 1.0, more=more) as served:
        assert served.process.stderr is not None
        line = (await served.process.stderr.readline()).decode()
        assert line.startswith("centuria: the tool server broken is not up: ")
        async with aiohttp.ClientSession(headers=HEADERS) as session, session.get(f"{served.url}/readyz") as response:
            assert response.status == 200
