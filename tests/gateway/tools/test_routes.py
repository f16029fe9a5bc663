"""The registry and calls over HTTP, as programs use them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from centuria.gateway.problems import Problem, StoreUnavailable
from centuria.gateway.tools.answered import Answered
from centuria.gateway.web import Reply
from centuria.messages import ToolEnd, ToolResult
from centuria.testing.gateway import MemoryStore
from tests.gateway.kit import Caller
from tests.gateway.tools.kit import QUERY, gateway_of, host_of, tool, web
from tests.waiting import until


def body(**arguments: Any) -> dict[str, Any]:
    return arguments


class Door:
    """A tool that waits until it is let go, and counts how often it ran."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = asyncio.Event()
        self.ran = 0
        self.cancelled = 0

    async def __call__(self, query: str = "") -> str:
        self.ran += 1
        self.inside.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"opened for {query}"


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call_says_what_came_of_it_and_where_it_ran() -> None:
    async with gateway_of(host_of(web_search=web())) as call:
        answer = await call(
            "POST", "/v1/mcp/tools/web_search/invoke", {"query": "peace", "count": 2}, X_Agent_Id="agent-007"
        )
        assert answer.status == 200
        timed = {name: answer.body.pop(name) for name in ("queued_ms", "ran_ms")}
        assert all(0 <= value < 5_000 for value in timed.values())
        assert answer.body == {
            "content": [{"type": "text", "text": "2 about peace"}],
            "structured_content": None,
            "is_error": False,
            "replica": 0,
            "slot": 7,
        }


async def test_an_empty_body_is_no_arguments_and_data_comes_as_data() -> None:
    data = {"found": [1, 2, {"a": "ü"}]}
    async with gateway_of(host_of(all=tool(lambda: data))) as call:
        answer = await call("POST", "/v1/mcp/tools/all/invoke")
        assert answer.body["structured_content"] == data
        assert json.loads(answer.body["content"][0]["text"]) == data


async def test_a_tools_own_error_is_an_answer() -> None:
    async with gateway_of(host_of(no=tool(lambda: ToolResult("No such page.", ToolEnd.ERROR)))) as call:
        answer = await call("POST", "/v1/mcp/tools/no/invoke", {})
        assert (answer.status, answer.body["is_error"]) == (200, True)


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (b'{"query": 3}', "not of type 'string'"),
        (b"{}", "'query' is a required property"),
        (b'{"query": "a", "nope": 1}', "nope"),
        (b"[1]", "must be a JSON object"),
        (b'{"query": NaN}', "not valid JSON"),
        (b"\xff", "UTF-8"),
        (b'{"query":' * 2_000, "too deeply"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_400_that_says_what_is_wrong(sent: bytes, what: str) -> None:
    host = host_of(web_search=web())
    async with gateway_of(host) as call:
        answer = await call("POST", "/v1/mcp/tools/web_search/invoke", raw=sent)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
        assert what in answer.error["message"]
        assert host.calls == []


async def test_an_unknown_tool_is_a_404_with_the_name_that_was_likely_meant() -> None:
    async with gateway_of(host_of(web_search=web())) as call:
        answer = await call("POST", "/v1/mcp/tools/web-serch/invoke", {"query": "x"})
        assert (answer.status, answer.error["code"]) == (404, "tool_not_found")
        assert "Did you mean web_search?" in answer.error["message"]


async def test_a_hundred_callers_at_once_are_all_served_and_never_more_than_the_limit_run() -> None:
    running = most = 0

    async def search(query: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return query

    async with gateway_of(host_of(web_search=tool(search, QUERY, slug="web", limit=20))) as call:
        sent = [
            call("POST", "/v1/mcp/tools/web_search/invoke", {"query": str(n)}, X_Agent_Id=f"agent-{n:03}")
            for n in range(100)
        ]
        answers = await asyncio.gather(*sent)
    assert [answer.status for answer in answers] == [200] * 100
    assert [answer.body["content"][0]["text"] for answer in answers] == [str(n) for n in range(100)]
    assert most == 20


async def test_a_caller_that_goes_away_cancels_its_call() -> None:
    door = Door()
    async with gateway_of(host_of(door=tool(door))) as call:
        task = asyncio.create_task(call("POST", "/v1/mcp/tools/door/invoke", {}))
        await asyncio.wait_for(door.inside.wait(), 5)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: door.cancelled)
        assert door.cancelled == 1


@pytest.mark.parametrize("name", ["X-Agent-Id", "Idempotency-Key", "X-Priority"])
@pytest.mark.parametrize("value", ["a" * 201, "a\x01b", "a\x7fb", "a\tb"])
async def test_a_header_that_is_too_long_or_no_plain_line_is_a_400(name: str, value: str) -> None:
    host = host_of(web_search=web())
    async with gateway_of(host) as call:
        status = await _raw(call, name, value)
        assert status == 400
        assert host.calls == []


async def _raw(call: Caller, name: str, value: str) -> int:
    """The status of a call with a header that HTTP clients would refuse to send."""
    port = int(call.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = (
        f"POST /v1/mcp/tools/web_search/invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer alice\r\n"
        f"{name}: {value}\r\nContent-Length: 13\r\nConnection: close\r\n\r\n" + '{"query":"x"}'
    )
    writer.write(sent.encode("latin-1"))
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize("value", ["10", "-1", "x", "5 "])
async def test_a_priority_is_a_digit(value: str) -> None:
    async with gateway_of(host_of(web_search=web())) as call:
        answer = await call("POST", "/v1/mcp/tools/web_search/invoke", {"query": "x"}, X_Priority=value)
        assert answer.status == (200 if value.strip() == "5" else 400)


async def test_an_answer_is_bounded_and_keeps_its_head_and_its_tail() -> None:
    text = "A" + "x" * 2_000_000 + "Z"
    async with gateway_of(host_of(big=tool(lambda: text))) as call:
        answer = await call("POST", "/v1/mcp/tools/big/invoke", {})
        [content] = answer.body["content"]
        assert len(content["text"]) < 501_000
        assert (content["text"][0], content["text"][-1]) == ("A", "Z")
        assert "of 2,000,002 characters are left out" in content["text"]


# -- the registry -----------------------------------------------------------------------------------------------------


async def test_a_manifest_registers_tools_and_says_of_each_what_it_is() -> None:
    async with gateway_of(host_of(web_search=web(), code=tool(lambda: "ran", limit=5))) as call:
        answer = await call("POST", "/v1/mcp/tools", {"tools": [{"name": "web_search", "limit": 3}, {"name": "code"}]})
        assert answer.status == 201
        first, second = answer.body["tools"]
        assert len(first.pop("key")) == 64
        assert first == {"name": "web_search", "replicas": 1, "limit": 3, "scope": "run"}
        assert second["limit"] == 5
        listed = (await call("GET", "/v1/mcp/tools")).body["data"]
        assert {tool["name"]: tool["limit"] for tool in listed} == {"web_search": 3, "code": 5}


async def test_tools_scoped_to_agents_go_by_names_of_their_own_for_these_agents_alone() -> None:
    """The remedy of a conflict of names: each agent registers `web_search__AGENT`."""
    async with gateway_of(host_of(web_search=web())) as call:
        for agent in ("agent-001", "agent-002"):
            entry = {
                "name": f"web_search__{agent}",
                "description": "Searches for one agent.",
                "parameters": QUERY,
                "scope": agent,
            }
            answer = await call("POST", "/v1/mcp/tools", [entry])
            assert answer.body["tools"][0]["name"] == f"web_search__{agent}"
        own = "/v1/mcp/tools/web_search__agent-001/invoke"
        for headers in ({}, {"X_Agent_Id": "agent-001"}):
            assert (await call("POST", own, {"query": "x"}, **headers)).body["content"][0]["text"] == "1 about x"
        other = await call("POST", own, {"query": "x"}, X_Agent_Id="agent-002")
        assert other.status == 404
        listed = (await call("GET", "/v1/mcp/tools", X_Agent_Id="agent-002")).body["data"]
        assert [tool["name"] for tool in listed] == ["web_search", "web_search__agent-002"]
        assert listed[1]["description"] == "Searches for one agent."
        stranger = await call("POST", own, {"query": "x"}, token="bob")
        assert stranger.status == 404


async def test_a_registration_outlives_the_process_and_ends_when_it_is_deleted() -> None:
    store, host = MemoryStore(), host_of(web_search=web())
    async with gateway_of(host, store=store) as call:
        await call("POST", "/v1/mcp/tools", {"name": "mine", "tool": "web_search", "priority": 2})
    async with gateway_of(host, store=store) as call:
        assert (await call("POST", "/v1/mcp/tools/mine/invoke", {"query": "x"})).status == 200
        assert host.callers[-1] is not None and host.callers[-1].priority == 2
        assert (await call("DELETE", "/v1/mcp/tools/mine", token="bob")).status == 404
        assert (await call("DELETE", "/v1/mcp/tools/mine")).status == 204
        assert (await call("DELETE", "/v1/mcp/tools/mine")).status == 404
        assert (await call("POST", "/v1/mcp/tools/mine/invoke", {"query": "x"})).status == 404


async def test_a_registered_limit_holds_below_that_of_the_operator() -> None:
    running = most = 0

    async def search(query: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return query

    async with gateway_of(host_of(web_search=tool(search, QUERY, limit=20))) as call:
        assert (await call("POST", "/v1/mcp/tools", {"name": "few", "tool": "web_search", "limit": 2})).status == 201
        more = await call("POST", "/v1/mcp/tools", {"name": "many", "tool": "web_search", "limit": 21})
        assert (more.status, more.error["param"]) == (400, "tools[0].limit")
        await asyncio.gather(*(call("POST", "/v1/mcp/tools/few/invoke", {"query": "x"}) for _ in range(12)))
        assert most == 2


async def test_a_tool_that_is_another_than_was_registered_is_not_called() -> None:
    store = MemoryStore()
    async with gateway_of(host_of(web_search=web()), store=store) as call:
        await call("POST", "/v1/mcp/tools", {"name": "mine", "tool": "web_search"})
    changed = host_of(web_search=tool(lambda **given: "other", {**QUERY, "title": "Another"}, slug="web"))
    async with gateway_of(changed, store=store) as call:
        answer = await call("POST", "/v1/mcp/tools/mine/invoke", {"query": "x"})
        assert (answer.status, answer.error["code"], changed.calls) == (409, "tool_changed", [])
    async with gateway_of(host_of(other=tool(lambda: "")), store=store) as call:
        assert (await call("POST", "/v1/mcp/tools/mine/invoke", {"query": "x"})).status == 404
        listed = (await call("GET", "/v1/mcp/tools")).body["data"]
        assert [entry["name"] for entry in listed if "unavailable" in entry] == ["mine"]


async def test_the_limit_that_is_told_is_the_one_that_holds() -> None:
    host = host_of(web_search=web(limit=20), other=tool(lambda: "", slug="web", limit=3))
    async with gateway_of(host) as call:
        said = (await call("POST", "/v1/mcp/tools", {"name": "mine", "tool": "other"})).body
        assert said["limit"] == 3


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        ({"name": "x y"}, "tools[0].name"),
        ({"name": "no"}, "tools[0].name"),
        ({"name": 3}, "tools[0].name"),
        ({}, "tools[0].name"),
        ({"name": "mine", "tool": "web_serch"}, "tools[0].tool"),
        ({"name": "unknown"}, "tools[0].name"),
        ({"name": "code", "tool": "web_search"}, "tools[0].name"),
        ({"name": "mine", "tool": "web_search", "limit": 0}, "tools[0].limit"),
        ({"name": "mine", "tool": "web_search", "limit": True}, "tools[0].limit"),
        ({"name": "mine", "tool": "web_search", "priority": 10}, "tools[0].priority"),
        ({"name": "mine", "tool": "web_search", "scope": "a\nb"}, "tools[0].scope"),
        ({"name": "mine", "tool": "web_search", "scope": "a" * 201}, "tools[0].scope"),
        ({"name": "mine", "tool": "web_search", "parameters": []}, "tools[0].parameters"),
        ("web_search", "tools[0]"),
    ],
)
async def test_a_manifest_that_is_wrong_is_a_400_that_names_the_place(entry: Any, param: str) -> None:
    store = MemoryStore()
    async with gateway_of(host_of(web_search=web(), code=tool(lambda: "")), store=store) as call:
        answer = await call("POST", "/v1/mcp/tools", {"tools": [entry]})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert store.documents == {}


async def test_registered_tools_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centuria.gateway.tools.registry.MOST", 3)
    async with gateway_of(host_of(web_search=web())) as call:
        entries = [{"name": f"mine{n}", "tool": "web_search"} for n in range(4)]
        assert (await call("POST", "/v1/mcp/tools", entries)).status == 400
        assert (await call("POST", "/v1/mcp/tools", entries[:3])).status == 201
        assert (await call("POST", "/v1/mcp/tools", entries[:2])).status == 201  # anew
        assert (await call("POST", "/v1/mcp/tools", entries[3:])).error["code"] == "too_many_tools"
        assert (await call("POST", "/v1/mcp/tools", [{"name": "n" * 9}] * 501)).status == 400


async def test_a_store_that_is_gone_is_a_503() -> None:
    store = MemoryStore()
    async with gateway_of(host_of(web_search=web()), store=store) as call:
        store.fault = StoreUnavailable("The store is gone.")
        assert (await call("POST", "/v1/mcp/tools", {"name": "web_search"})).status == 503


# -- calls that run once ----------------------------------------------------------------------------------------------


async def test_two_calls_under_one_idempotency_key_run_once_and_have_one_answer() -> None:
    door = Door()
    async with gateway_of(host_of(door=tool(door))) as call:
        path = "/v1/mcp/tools/door/invoke"
        first, second = (
            asyncio.create_task(call("POST", path, {"query": "us"}, Idempotency_Key="k1")) for _ in range(2)
        )
        await asyncio.wait_for(door.inside.wait(), 5)
        door.open.set()
        answers = [await first, await second, await call("POST", path, {"query": "us"}, Idempotency_Key="k1")]
        assert door.ran == 1
        assert [answer.status for answer in answers] == [200] * 3
        assert answers[0].body == answers[1].body == answers[2].body
        assert answers[2].headers["idempotency-replayed"] == "true"
        assert (await call("POST", path, {"query": "me"}, Idempotency_Key="k1")).status == 422
        assert (await call("POST", path, {"query": "us"}, Idempotency_Key="k1", token="bob")).status == 200
        assert door.ran == 2  # another key's calls are its own


async def test_a_call_whose_process_died_is_a_409_unless_it_is_safe_to_run_again() -> None:
    for safe, status in ((False, 409), (True, 200)):
        store, door = MemoryStore(), Door()
        async with gateway_of(host_of(door=tool(door, rerun=safe)), store=store) as call:
            task = asyncio.create_task(call("POST", "/v1/mcp/tools/door/invoke", {}, Idempotency_Key="k"))
            await asyncio.wait_for(door.inside.wait(), 5)
            left = dict(store.documents)
            task.cancel()
        store.documents = left  # as a `kill -9` at that moment leaves it
        door.open.set()
        async with gateway_of(host_of(door=tool(door, rerun=safe)), store=store) as call:
            answer = await call("POST", "/v1/mcp/tools/door/invoke", {}, Idempotency_Key="k")
            assert (answer.status, door.ran) == (status, 2 if safe else 1)
            if not safe:
                assert answer.error["code"] == "outcome_unknown"


async def test_a_call_that_surely_did_not_run_may_be_made_again_under_its_key() -> None:
    host = host_of(web_search=web())
    async with gateway_of(host) as call:
        host.down["web"] = "It crashed."
        path = "/v1/mcp/tools/web_search/invoke"
        task = asyncio.create_task(call("POST", path, {"query": "x"}, Idempotency_Key="k"))
        await asyncio.sleep(0.05)
        assert not task.done()
        host.down.clear()
        assert (await task).status == 200
    runs: list[int] = []

    async def run() -> Reply:
        runs.append(1)
        if len(runs) == 1:
            raise Problem(503, "server_error", "Down.")
        return Reply.of("ran")

    answered = Answered(MemoryStore())
    with pytest.raises(Problem):
        await answered.once("o", "k", {}, run, rerun=False)
    assert (await answered.once("o", "k", {}, run, rerun=False)).body == b'"ran"'
    assert len(runs) == 2


async def test_an_answer_too_large_to_keep_is_given_once_and_never_made_again() -> None:
    async with gateway_of(host_of(big=tool(lambda: "x" * 300_000))) as call:
        assert (await call("POST", "/v1/mcp/tools/big/invoke", {}, Idempotency_Key="k")).status == 200
        again = await call("POST", "/v1/mcp/tools/big/invoke", {}, Idempotency_Key="k")
        assert (again.status, again.error["code"]) == (409, "answer_not_kept")


async def test_what_is_kept_of_answers_is_bounded_by_number_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centuria.gateway.tools.answered.KEPT", 20)
    monkeypatch.setattr("centuria.gateway.tools.answered.EVERY", 5)
    store, clock = MemoryStore(), [0.0]
    answered = Answered(store, wall=lambda: clock[0])

    async def run() -> Reply:
        return Reply.of("ran")

    for n in range(60):
        clock[0] += 1
        await answered.once("o", str(n), n, run, rerun=False)
    assert len(store.documents) <= 2 * 25
    clock[0] += 100_000
    for n in range(60, 65):
        await answered.once("o", str(n), n, run, rerun=False)
    assert len(store.documents) == 2 * 5
