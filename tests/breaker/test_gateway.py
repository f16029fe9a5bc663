"""What a breaker did to the gateway, each once."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from centuria.errors import ConfigurationError
from centuria.gateway.app import Presence
from centuria.gateway.settings import Caps
from centuria.gateway.store.sqlite import SqliteStore
from centuria.gateway.web import CONNECTION, ClientGone
from centuria.messages import DOLLAR
from centuria.testing import FakeUpstream
from centuria.testing.replies import Raw, Text
from tests.gateway.served import ASKED, MODEL, deployment, one, raw, serving, settings, usage
from tests.waiting import until

VIDEO = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://example.com/v.mp4"}}]}]


async def test_what_a_film_of_one_key_cost_is_not_reserved_for_the_words_of_another() -> None:
    said = [usage(100_000, 5), usage(20, 5)]
    async with (
        FakeUpstream(lambda _: replace(Text("Hi."), usage=said.pop(0))) as upstream,
        serving(one(upstream)) as it,
    ):
        rich, poor = await it.add_key("rich"), await it.add_key("poor", budget=DOLLAR // 100)
        assert (await it.ask(rich, messages=VIDEO)).status == 200
        assert (await it.ask(poor)).status == 200


async def test_a_count_that_no_prompt_can_have_is_not_reserved_for_the_next_one() -> None:
    said = [usage(900_000_000, 5), usage(20, 5)]
    async with (
        FakeUpstream(lambda _: replace(Text("Hi."), usage=said.pop(0))) as upstream,
        serving(one(upstream)) as it,
    ):
        rich, poor = await it.add_key("rich"), await it.add_key("poor", budget=DOLLAR // 100)
        assert (await it.ask(rich)).status == 200
        assert (await it.ask(poor)).status == 200


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["in one piece", "in two"])
async def test_a_body_behind_a_request_to_upgrade_is_that_requests_body_and_no_request(pause: float) -> None:
    async with FakeUpstream(lambda _: Text("Hi.")) as upstream, serving(one(upstream)) as it:
        key = (await it.add_key("a"))["Authorization"]

        async def statuses(body: bytes) -> list[bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
                "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
            )
            await asyncio.sleep(pause)
            writer.write(body)
            async with asyncio.timeout(5):
                said = await reader.read()
            writer.close()
            return [line.split(b" ")[1] for line in said.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]

        assert await statuses(json.dumps(ASKED).encode()) == [b"200"]
        hidden = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n\r\n".encode()
        assert await statuses(hidden) == [b"400"]


async def test_a_tunnel_is_refused_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as it:
        said = await raw(it.port, b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_field_that_is_no_unicode_is_the_callers_mistake() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as it:
        key = await it.add_key("a")
        async with it.session.post(f"{it.url}/v1/agents/swarm/spawn", data=b'{"\\ud800": 1}', headers=key) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "?"


@pytest.mark.parametrize("choice", [None, "x", {"message": "x"}, {"message": {"tool_calls": 5}}, {"message": [1]}])
async def test_a_choice_that_is_none_in_place_of_a_stream_is_the_upstreams_fault(choice: object) -> None:
    said = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 5}}).encode()
    reply = Raw((said,), content_type="application/json")
    async with FakeUpstream(lambda _: reply) as upstream, serving(one(upstream)) as it:
        got = await it.ask(await it.add_key("a"), stream=True)
        assert (got.status, got.code) == (502, "upstream_error")
        assert [row.end for row in it.rows] == ["failed"]
        assert it.rows[0].cost > 0


class _Closing:
    """A connection that closes when it is watched, and is lost a moment later."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def when_lost(self, call: Callable[[], None] | None) -> None:
        if call is not None:
            call()
            self.loop.call_soon(call)


async def test_a_client_that_goes_and_then_is_lost_has_gone_once() -> None:
    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is received")

    gone = False
    try:
        async with Presence({"headers": [], CONNECTION: _Closing()}, receive) as presence:
            presence.watch()
            try:
                await asyncio.sleep(5)
            finally:
                await asyncio.sleep(0)  # the end of something, in which it is lost
    except ClientGone:
        gone = True
    assert gone


async def test_a_number_that_is_too_large_is_refused_and_the_word_for_it_is_passed_on() -> None:
    async with FakeUpstream(lambda _: Text("Hi.")) as upstream, serving(one(upstream)) as it:
        key = await it.add_key("a")
        url, large = f"{it.url}/v1/chat/completions", json.dumps({**ASKED, "top_k": 7}).replace("7", "1e999")
        async with it.session.post(url, data=large, headers=key) as response:
            assert response.status == 400
        assert (await it.ask(key, user="-Infinity")).status == 200
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/agents/swarm/spawn", "/v1/mcp/tools", "/session"])
async def test_a_body_of_a_million_lists_is_refused_before_it_is_read(path: str) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as it:
        headers = {**await it.add_key("a"), "Content-Type": "application/json"}
        body = b'{"x": [' + b"[]," * 1_000_000 + b"0]}"
        async with it.session.post(it.url + path, data=io.BytesIO(body), headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "too_many_parts"


@pytest.mark.parametrize("kind", ["video_url", "input_audio", "file", "image", None])
async def test_a_part_that_may_fill_the_window_costs_no_more_than_the_budget(kind: str | None) -> None:
    part = {"type": kind, "video_url": {"url": "https://example.com/v.mp4"}}
    reply = replace(Text("Hi."), usage=usage(131_000, 5))
    async with FakeUpstream(lambda _: reply) as upstream, serving(one(upstream)) as it:
        poor = await it.add_key("poor", budget=DOLLAR // 10)
        assert (await it.ask(poor, messages=[{"role": "user", "content": [part]}])).code == "insufficient_quota"
        assert not upstream.requests
        rich = await it.add_key("rich", budget=DOLLAR // 7)
        assert (await it.ask(rich, messages=[{"role": "user", "content": [part] * 20}])).status == 200
        assert it.spent("rich") <= DOLLAR // 7


async def test_one_keys_mcp_sessions_keep_no_other_key_out_and_make_room_when_they_end() -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}
    caps = Caps(queue=3.0, request=20.0, grace=1.0, mcp_sessions=3)
    async with FakeUpstream() as upstream, serving(one(upstream, caps=caps)) as it:
        mallory, bob = {**accept, **await it.add_key("mallory")}, {**accept, **await it.add_key("bob")}

        async def opened(key: dict[str, str]) -> tuple[int, str, str]:
            async with it.session.post(f"{it.url}/mcp", json=asked, headers=key) as response:
                said = await response.text()
                return response.status, response.headers.get("mcp-session-id", ""), said

        got = await asyncio.gather(*(opened(mallory) for _ in range(10)))
        assert sorted(status for status, _, _ in got) == [200] * 3 + [429] * 7
        assert all("3 MCP sessions" in said for status, _, said in got if status == 429)
        assert (await opened(bob))[0] == 200
        session = next(id for status, id, _ in got if status == 200)
        async with it.session.delete(f"{it.url}/mcp", headers={**mallory, "mcp-session-id": session}) as response:
            assert response.status == 200
        assert (await opened(mallory))[0] == 200


async def test_bodies_on_their_way_have_room_together_and_half_of_it_for_one_key() -> None:
    caps = Caps(queue=3.0, request=20.0, grace=1.0, body=40_000, bodies=100_000)
    async with FakeUpstream(lambda _: Text("Hi.")) as upstream, serving(one(upstream, caps=caps)) as it:
        names = [await it.add_key(name) for name in ("mallory", "bob")]
        held = it.app.bodies

        async def half_sent(key: dict[str, str], path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key['Authorization']}\r\n"
            accept = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}{accept}Content-Length: 35000\r\n\r\n".encode() + b" " * 30_000)
            return reader, writer

        for path in ("/v1/chat/completions", "/mcp"):
            mallory, bob = names
            first = await half_sent(mallory, path)
            await asyncio.wait_for(until(lambda: held.size == 30_000), 5)
            second = await half_sent(mallory, path)
            async with asyncio.timeout(5):
                said = await second[0].readuntil(b"}}")
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: " in said
            assert b"this key" in said
            assert held.size <= 50_000
            assert (await it.ask(bob)).status == 200
            for _, writer in (first, second):
                writer.close()
            await asyncio.wait_for(until(lambda: held.size == 0), 5)
            assert (await it.ask(mallory)).status == 200
        assert held.size == 0
        assert not held._each


async def test_a_client_of_http_1_0_has_a_stream_without_chunks_that_ends_with_its_connection() -> None:
    async with FakeUpstream(lambda _: Text("One two three.", gap=0.01)) as upstream, serving(one(upstream)) as it:
        key = (await it.add_key("a"))["Authorization"]

        async def answer(**fields: Any) -> tuple[bytes, bytes]:
            body = json.dumps({**ASKED, **fields}).encode()
            head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nAuthorization: {key}\r\n"
            said = await raw(it.port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            head_of, _, rest = said.partition(b"\r\n\r\n")
            assert b" 200 " in head_of
            assert b"connection: close" in head_of
            assert b"transfer-encoding" not in head_of
            return head_of, rest

        _, stream = await answer(stream=True)
        events = stream.split(b"\n\n")
        assert all(event.startswith(b"data: ") for event in events[:-1])
        assert events[-2:] == [b"data: [DONE]", b""]
        head, whole = await answer()
        assert b"content-length: %d" % len(whole) in head
        assert json.loads(whole)["choices"]
        bare = await raw(
            it.port, f"HEAD /v1/models HTTP/1.0\r\nHost: localhost\r\nAuthorization: {key}\r\n\r\n".encode()
        )
        assert bare.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("status", [201, 205, 206, 299])
async def test_an_answer_is_a_200_whatever_success_its_upstream_calls_it(status: int) -> None:
    told = {"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 5, "completion_tokens": 5}}
    reply = Raw((json.dumps(told).encode(),), status=status, content_type="application/json")
    async with FakeUpstream(lambda _: reply) as upstream, serving(one(upstream)) as it:
        key = await it.add_key("a")
        assert [(await it.ask(key, stream=stream)).status for stream in (False, True)] == [200, 200]
        assert [row.status for row in it.rows] == [status, status]


async def test_no_tool_of_a_callers_own_is_taken_for_the_gateways_swarm() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as it:
        manifest = {"name": "run_swarm", "tool": "web__fetch"}
        url, key = f"{it.url}/v1/mcp/tools", await it.add_key("a")
        async with it.session.post(url, json=manifest, headers=key) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (400, "name_taken", "tools[0].name")


async def test_a_store_by_the_name_of_a_link_is_no_other_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to("gateway.db")
    first = SqliteStore(tmp_path / "gateway.db")
    second = SqliteStore(tmp_path / "link.db")
    try:
        await first.start("a")
        with pytest.raises(ConfigurationError, match="Another gateway"):
            await second.start("b")
    finally:
        await first.aclose()
        await second.aclose()


@pytest.mark.parametrize("known", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("said", [{"max_tokens": 7}, {"max_completion_tokens": 7}, {}], ids=str)
async def test_an_answer_is_bounded_under_the_name_that_its_upstream_obeys(
    known: Literal["max_tokens", "max_completion_tokens"], said: dict[str, int]
) -> None:
    """Many servers know one of the names and pass over the other, and write as much as they like."""
    async with FakeUpstream(lambda _: Text("Hi.")) as upstream:
        there = deployment(upstream)
        there = replace(there, endpoint=replace(there.endpoint, limit_field=known))
        async with serving(settings({MODEL: [there]})) as it:
            asked = {name: value for name, value in ASKED.items() if name != "max_tokens"} | said
            url = f"{it.url}/v1/chat/completions"
            async with it.session.post(url, json=asked, headers=await it.add_key("a")) as response:
                assert response.status == 200
        sent = json.loads(upstream.requests[0].body)
        assert {name: sent.get(name) for name in ("max_tokens", "max_completion_tokens") if name in sent} == {
            known: 7 if said else there.max_tokens
        }
