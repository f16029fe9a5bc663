"""What a server was given and must not tell of us stands in no reason and in no error, whatever it says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from centuria.core.blotting import Blotter
from centuria.errors import ConfigurationError
from centuria.messages import ToolEnd
from centuria.settings import Authorization, Secret, ToolServer
from centuria.toolhost.launch import secrets_of
from tests.toolhost.kit import host_of, raw, shell
from tests.toolhost.servers.rawhttp import RawHttp, _write

KEY = "sk-0123456789abcdef/+"


async def test_the_last_words_of_a_server_do_not_hold_its_key() -> None:
    words = 'echo "Error: the key $KEY is not valid for this region" >&2; exit 3'
    server = replace(shell("web", words), env={"KEY": KEY})
    async with host_of(server) as host:
        reason = host.servers()[0].reason
    assert "Error: the key ****" in reason and "for this region" in reason
    assert KEY not in reason and KEY[:9] not in reason
    with pytest.raises(ConfigurationError) as error:
        async with host_of(replace(server, required=True)):
            pass
    assert "is not valid for this region" in str(error.value) and KEY[:9] not in str(error.value)


async def test_a_key_at_the_end_of_what_is_kept_leaves_no_piece_of_itself() -> None:
    words = f'echo "Error: {"x" * 285} $KEY" >&2; exit 3'
    async with host_of(replace(shell("web", words), env={"KEY": KEY})) as host:
        assert "sk-" not in host.servers()[0].reason


async def test_an_error_of_a_tool_does_not_hold_the_key_and_its_answer_is_its_own() -> None:
    async with host_of(raw("web", env={"KEY": KEY})) as host:
        failed = await host.call("web__fail", {"why": f"no access with {KEY}"}, timeout=10)
        answered = await host.call("web__echo", {"text": "no secret"}, timeout=10)
    assert failed.end is ToolEnd.ERROR
    assert failed.text == f"ValueError: no access with {'*' * len(KEY)}"
    assert (answered.text, answered.end) == ("no secret", ToolEnd.OK)


class Leaking(RawHttp):
    """Tells in every error what it was sent as its key."""

    async def _call(self, message: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        error = {"code": -32001, "message": f"{headers['authorization']} has no access"}
        if message["params"]["name"] == "echo":
            body: dict[str, Any] = {"error": error}
        else:
            content = [{"type": "text", "text": error["message"]}]
            body = {"result": {"content": content, "isError": True, "structuredContent": {"why": headers["x-key"]}}}
        data = json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}).encode()
        _write(writer, 200, data)
        await writer.drain()


async def test_an_error_over_http_does_not_hold_the_headers_values() -> None:
    async with Leaking().serving() as server:
        web = ToolServer("web", "web", url=server.url, headers={"Authorization": f"Bearer {KEY}", "X-Key": KEY[::-1]})
        async with host_of(web) as host:
            for name in ("echo", "sleep"):
                result = await host.call(f"web__{name}", {"text": "hi", "seconds": 0}, timeout=10)
                assert result.end is ToolEnd.ERROR
                assert "has no access" in result.text and KEY not in result.text
                assert KEY[::-1] not in json.dumps(result.structured)
            assert result.structured == {"why": "*" * len(KEY)}


def test_secrets_are_variables_headers_with_and_without_a_scheme_and_what_a_url_holds_beside_its_address() -> None:
    remote = ToolServer(
        "web",
        "web",
        url="https://ann:pass%2Fword@example.com/mcp?key=abcdefgh12",
        headers={"Authorization": f"Bearer {KEY}"},
        auth=Authorization(client_id="known", client_secret=Secret("a client's secret")),
    )
    values = secrets_of(remote)
    assert {KEY, f"Bearer {KEY}", "pass/word", "abcdefgh12", "a client's secret"} <= values
    assert not any("example.com" in value for value in values)
    assert secrets_of(ToolServer("web", "web", command="x", env={"KEY": KEY})) == {KEY}


def test_data_loses_its_secrets_and_stays_data_or_is_dropped() -> None:
    blotter = Blotter(["12345678"])
    assert blotter.data({"a": ["x 12345678", 1]}) == {"a": ["x ********", 1]}
    assert blotter.data({"a": 12345678}) is None
    assert blotter.data({"a": 1}) == {"a": 1}
