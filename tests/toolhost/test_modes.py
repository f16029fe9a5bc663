"""Servers with several sessions: pools, leases, and what the census says of their replicas. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp_types import Tool

from centuria.errors import ConfigurationError, OutcomeUnknown, ToolUnavailable
from centuria.messages import CallKey
from centuria.ports import Caller, ServerState
from centuria.settings import ToolServer
from centuria.toolhost import McpToolHost
from centuria.toolhost.replicas import ServerSessions
from centuria.toolhost.session import Phase, Session
from centuria.toolhost.wire import Dispatch, Wire
from tests.toolhost.kit import host_of, left_after, raw
from tests.toolhost.servers.rawhttp import RawHttp


def agent(number: int) -> Caller:
    return Caller(CallKey(f"agent-{number}", 0, 0, 1), "run", number)


async def pid(host: McpToolHost, caller: Caller, slug: str = "raw") -> int:
    return int((await host.call(f"{slug}__pid", {}, timeout=20, caller=caller)).text)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(*servers: ToolServer) -> AsyncIterator[tuple[McpToolHost, list[ServerState]]]:
    """A host, and the changes that it tells of from now on."""
    changes: list[ServerState] = []
    async with host_of(*servers) as host:
        host.on_change = changes.append
        yield host, changes


# -- pool ------------------------------------------------------------------------------------------------------------


async def test_a_pool_is_so_many_processes_and_agents_are_dealt_among_them() -> None:
    async with host_of(raw("raw", mode="pool", replicas=3, limit=2)) as host:
        (state,) = host.servers()
        assert (state.mode, state.replicas, state.limit, state.in_service) == ("pool", ("", "", ""), 6, 3)
        assert {tool.limit for tool in host.catalogue()} == {6}
        first = [await pid(host, agent(n)) for n in range(6)]
        assert Counter(first) == dict.fromkeys(state.detail["pids"], 2)
        assert [await pid(host, agent(n)) for n in range(6)] == first, "an agent stays at home"


async def test_a_busy_home_is_helped_out_by_the_least_busy_replica() -> None:
    async with host_of(raw("raw", mode="pool", replicas=2)) as host:
        async with asyncio.TaskGroup() as group:
            busy = group.create_task(host.call("raw__sleep", {"seconds": 60}, timeout=60, caller=agent(0)))
            loads = host._sessions["raw"]._pool.loads
            await until(lambda: 1 in loads)
            pids = host.servers()[0].detail["pids"]
            free = pids[loads.index(0)]
            assert {await pid(host, agent(n)) for n in range(2)} == {free}
            busy.cancel()
        assert {await pid(host, agent(n)) for n in range(2)} == set(pids)


async def test_a_dead_replica_is_passed_over_told_of_and_comes_back() -> None:
    async with watched(raw("raw", mode="pool", replicas=2)) as (host, changes):
        first, other = host.servers()[0].detail["pids"]
        with pytest.raises(OutcomeUnknown):
            await host.call("raw__die", {}, timeout=20, caller=at_home(host, "die", 0))
        assert first not in [await pid(host, agent(n)) for n in range(4)]
        assert other in [await pid(host, agent(n)) for n in range(4)]
        await until(lambda: bool(changes) and changes[-1].in_service == 2)
        down = next(change for change in changes if change.in_service == 1)
        assert down.up
        assert down.limit == 1
        assert "1 of 2 replicas" in down.detail["limit_reason"]
        assert "signal 9" in " ".join(down.replicas)


def at_home(host: McpToolHost, name: str, number: int) -> Caller:
    """An agent that has its home for this tool in this replica."""
    key = next(tool.key for tool in host.catalogue() if tool.tool == name)
    return next(agent(n) for n in range(9) if host._sessions["raw"]._pool.home(key, n) == number)


async def test_one_replica_that_cannot_start_costs_its_share_and_its_reason_is_told(tmp_path: Path) -> None:
    server = raw("raw", f"one={tmp_path / 'mark'}", mode="pool", replicas=3, required=True)
    async with host_of(server) as host:
        (state,) = host.servers()
        assert (state.up, state.in_service, state.limit) == (True, 1, 1)
        assert sum("only one of me" in reason for reason in state.replicas) == 2
        assert len({await pid(host, agent(n)) for n in range(6)}) == 1


async def test_a_replica_with_other_tools_is_not_used_and_its_reason_is_told(tmp_path: Path) -> None:
    async with host_of(raw("raw", f"first={tmp_path / 'mark'}", mode="pool", replicas=2)) as host:
        (state,) = host.servers()
        assert state.in_service == 1
        (reason,) = [reason for reason in state.replicas if reason]
        assert "tools are not those of replica" in reason
        assert len({await pid(host, agent(n)) for n in range(4)}) == 1


@pytest.mark.parametrize("mode", ["shared", "pool", "leased"])
async def test_a_required_server_none_of_whose_replicas_starts_stops_everything(mode: str) -> None:
    replicas = 1 if mode == "shared" else 2
    with pytest.raises(ConfigurationError, match="no module named nonsense"):
        async with host_of(raw("db", "crash", required=True, mode=mode, replicas=replicas)):
            pass


# -- leases ----------------------------------------------------------------------------------------------------------


async def keep(host: McpToolHost, number: int, text: str) -> str:
    return (await host.call("raw__keep", {"text": text}, timeout=20, caller=agent(number))).text


@pytest.mark.alone
async def test_an_agent_has_a_session_to_itself_and_the_next_finds_nothing_of_it() -> None:
    async with watched(raw("raw", "keeps", mode="leased", replicas=2)) as (host, changes):
        assert host.catalogue()[0].lease is not None
        assert await keep(host, 1, "secret-1") == "secret-1"
        assert await keep(host, 2, "secret-2") == "secret-2"
        assert await keep(host, 1, "more") == "secret-1 more"
        process = await pid(host, agent(1))
        began = time.monotonic()
        host.release("agent-1")
        assert time.monotonic() - began < 0.1, "a release waits for nothing"
        assert await keep(host, 3, "mine") == "mine"
        assert left_after([process], 2.0) == []
        assert await keep(host, 2, "more") == "secret-2 more"
        assert changes == [], "a session that is opened for the next agent is no news"


async def test_who_finds_no_session_waits_in_order_and_gives_up_at_its_deadline() -> None:
    async with host_of(raw("raw", "keeps", mode="leased", replicas=1)) as host:
        session = await host.lease("raw__keep", caller=agent(1), timeout=5)
        assert await host.lease("raw__keep", caller=agent(1), timeout=5) == session
        with pytest.raises(ToolUnavailable, match=r"within 0\.05 s"):
            await host.lease("raw__keep", caller=agent(9), timeout=0.05)
        order: list[int] = []

        async def turn(number: int) -> None:
            await host.lease("raw__keep", caller=agent(number), timeout=30)
            order.append(number)
            host.release(f"agent-{number}")

        async with asyncio.TaskGroup() as group:
            for number in (2, 3, 4):
                group.create_task(turn(number))
                await asyncio.sleep(0)
            host.release("agent-1")
        assert order == [2, 3, 4]


async def test_no_two_agents_are_ever_in_one_session() -> None:
    async with host_of(raw("raw", "keeps", mode="leased", replicas=2)) as host:

        async def work(number: int) -> list[str]:
            try:
                return [await keep(host, number, f"{number}") for _ in range(2)]
            finally:
                host.release(f"agent-{number}")

        texts = await asyncio.gather(*(work(number) for number in range(6)))
        assert texts == [[f"{n}", f"{n} {n}"] for n in range(6)]


async def test_a_leased_session_that_dies_in_mid_call_leaves_the_outcome_unknown_and_another_takes_its_place() -> None:
    async with host_of(raw("raw", "keeps", mode="leased", replicas=1)) as host:
        before = await host.lease("raw__keep", caller=agent(1), timeout=5)
        await keep(host, 1, "gone")
        with pytest.raises(OutcomeUnknown):
            await host.call("raw__die", {}, timeout=20, caller=agent(1))
        after = await host.lease("raw__keep", caller=agent(1), timeout=20)
        assert after != before
        assert await keep(host, 1, "new") == "new"


async def test_a_leased_tool_needs_to_know_its_agent() -> None:
    async with host_of(raw("raw", "keeps", mode="leased", replicas=1)) as host:
        with pytest.raises(ToolUnavailable, match="for which agent"):
            await host.call("raw__pid", {}, timeout=5)


async def test_leased_sessions_that_all_fail_to_start_refuse_at_once_with_the_reason() -> None:
    async with host_of(raw(), raw("bad", "crash", mode="leased", replicas=2, limit=1)) as host:
        state = next(state for state in host.servers() if state.slug == "bad")
        assert not state.up
        with pytest.raises(ToolUnavailable, match="no module named nonsense"):
            await host._sessions["bad"].lease("agent-1", 20)


@pytest.mark.alone
async def test_nothing_is_left_of_a_server_with_replicas() -> None:
    async with host_of(raw("raw", "stubborn", "keeps", mode="leased", replicas=3)) as host:
        pids = host.servers()[0].detail["pids"]
        await keep(host, 1, "x")
        host.release("agent-1")
    assert left_after(pids, 2.0) == []


async def test_a_session_over_http_is_closed_and_opened_anew_at_release() -> None:
    async with RawHttp(sessions=True).serving() as server:
        web = ToolServer("web", "web", url=server.url, mode="leased", replicas=2)
        async with host_of(web) as host:
            first = await host.lease("web__echo", caller=agent(1), timeout=10)
            assert (await host.call("web__echo", {"text": "1"}, timeout=10, caller=agent(1))).text == "1"
            host.release("agent-1")
            second = await host.lease("web__echo", caller=agent(2), timeout=10)
            third = await host.lease("web__echo", caller=agent(3), timeout=10)
            assert len({first, second, third}) == 3
            assert (await host.call("web__echo", {"text": "2"}, timeout=10, caller=agent(2))).text == "2"


async def test_a_crash_of_a_session_that_nobody_uses_is_mended_by_itself() -> None:
    async with host_of(raw("raw", "keeps", mode="leased", replicas=1)) as host:
        os.kill(host.servers()[0].detail["pid"], signal.SIGKILL)
        await until(lambda: host.servers()[0].detail["opened"] == 2)
        assert await keep(host, 1, "x") == "x"


async def test_a_session_that_an_agent_has_stays_its_own_while_the_others_already_list_other_tools() -> None:
    made: list[Session] = []
    told: list[Callable[[], None]] = []

    @asynccontextmanager
    async def never(wire: Wire) -> AsyncIterator[Dispatch]:
        raise OSError("it is not opened here")
        yield

    def make(name: str, on_change: Callable[[], None]) -> Session:
        told.append(on_change)
        starts = asyncio.Semaphore(1)
        made.append(Session(name, never, start_timeout=1, starts=starts, dice=lambda: 0.0, on_change=on_change))
        return made[-1]

    def lists(number: int, *names: str) -> None:
        made[number].tools = [Tool(name=name, input_schema={"type": "object"}) for name in names]
        made[number].phase = Phase.UP
        told[number]()

    server = ToolServer("s", "s", command="x", mode="leased", replicas=3)
    sessions = ServerSessions(server, make, limit=1, on_change=lambda: None)
    for number in range(3):
        lists(number, "a")
    had = [await sessions.lease(agent, 1) for agent in ("agent-1", "agent-2")]
    lists(0, "a", "b")
    assert [await sessions.lease(agent, 1) for agent in ("agent-1", "agent-2")] == had
    with pytest.raises(ToolUnavailable):
        await sessions.lease("agent-3", 0.01)
    lists(2, "a", "b")
    assert (await sessions.lease("agent-3", 1)).startswith("3.")
