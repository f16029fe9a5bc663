"""The tool host on servers over HTTP with every fault of the table: one outcome for each call, and the next works."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from centuria.settings import ToolServer
from centuria.testing import FakeMcp
from centuria.testing.mcp import ERAS, FAULTS, parse_fault
from tests.toolhost.kit import host_of
from tests.toolhost.test_faults_stdio import SHORT, outcome


def web(server: FakeMcp, **fields: Any) -> ToolServer:
    return ToolServer("fake", "fake", url=server.url, **fields)


#: How the first call ends, which meets the fault, and whether it ran. The second one does not, and ends well.
FIRST = {
    "slow=0.2": ("ok", 1),
    "mute": ("timeout", 1),
    "late": ("timeout", 1),
    "twice": ("ok", 1),
    "wrong-type": ("unknown", 1),
    "missing-fields": ("error", 1),
    "bad-rpc": ("unknown", 1),
    "wrong-id": ("unknown", 1),
    "bad-json": ("unknown", 1),
    "bad-bytes": ("ok", 1),
    "storm": ("ok", 1),
    "429=0.5": ("unavailable", 0),
    "status=500": ("unknown", 1),
    "status=503": ("unknown", 1),
    "forget": ("unavailable", 0),
    "reset": ("unknown", 1),
    "half": ("unknown", 1),
    "cut-sse": ("unknown", 1),
    "html": ("unknown", 1),
}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fault", FIRST)
async def test_one_call_meets_the_fault_and_the_next_one_works(fault: str, era: str) -> None:
    end, ran = FIRST[fault]
    if fault == "forget" and era == ERAS[-1]:
        end, ran = "ok", 1  # this era has no sessions
    async with FakeMcp(f"{fault}@1", eras=[era]) as server:
        async with host_of(web(server)) as host:
            assert await outcome(host, "one", SHORT if end == "timeout" else 20) == end
            assert server.books.calls["echo"] == ran
            assert await outcome(host, "two") == "ok"
            assert host.servers()[0].up
        assert server.books.calls["echo"] == ran + 1
        assert server.books.seen["cancelled"] == (end == "timeout")
        await server.until(lambda: not server.books.open)
        assert server.books.in_flight == 0


def test_every_fault_of_a_call_over_http_is_among_them() -> None:
    tried = {parse_fault(text).kind.name for text in FIRST}
    assert tried == {kind.name for kind in FAULTS.values() if kind.at == "call" and "http" in kind.over}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fault", ["silent", "garbage", "mute-list", "wrong-list", "slow-start=0.1", "loop", "endless"])
async def test_a_server_that_starts_badly_is_up_or_its_reason_says_why(fault: str, era: str) -> None:
    good = fault in ("slow-start=0.1", "loop", "endless")
    async with FakeMcp(fault, eras=[era]) as server, host_of(web(server), start=30.0 if good else 1.0) as host:
        (state,) = host.servers()
        assert (state.up, len(host.catalogue())) == ((True, 8) if good else (False, 0)) or fault == "wrong-list"
        assert bool(state.reason) is not state.up


@pytest.mark.parametrize("era", ERAS)
async def test_many_calls_with_many_faults_each_end_once_and_run_at_most_once(era: str) -> None:
    faults = (
        "slow=0-0.05@30%",
        "mute@5%",
        "429=0.1@10%",
        "status=500@5%",
        "reset@5%",
        "half@5%",
        "cut-sse@5%",
        "html@5%",
    )
    async with FakeMcp(*faults, "forget@100", seed=3, eras=[era]) as server, host_of(web(server, limit=50)) as host:
        ends = await asyncio.gather(*(outcome(host, str(number), 5) for number in range(200)))
        ran = Counter(json.loads(arguments)["text"] for _, arguments in server.books.ran)
        assert max(ran.values()) == 1
        assert {ends[int(text)] for text in ran} <= {"ok", "timeout", "unknown", "error"}, (
            "what ran is not called not run"
        )
        assert {end for number, end in enumerate(ends) if str(number) not in ran} <= {"unavailable"}
        assert Counter(ends)["ok"] >= 40


@pytest.mark.parametrize("era", ERAS)
async def test_five_hundred_list_changes_cost_at_most_two_fetches(era: str) -> None:
    async with FakeMcp(eras=[era]) as server, host_of(web(server)) as host:
        await server.until(lambda: bool(server.service.channels), within=20)
        before = server.books.seen["list"]
        server.change_tools(["echo", "new"], tell=500)
        await server.until(lambda: server.books.seen["list"] > before, within=20)
        for number in range(20):
            assert await outcome(host, str(number)) == "ok"
        assert [tool.name for tool in host.catalogue()] == ["fake__echo", "fake__new"]
        assert server.books.seen["list"] - before <= 2


@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("era", ERAS)
async def test_fifty_megabytes_are_one_result_and_hold_nobody_up(era: str, answers: Any) -> None:
    async with (
        FakeMcp(eras=[era], answers=answers) as server,
        host_of(web(server)) as host,
        asyncio.TaskGroup() as group,
    ):
        big = group.create_task(host.call("fake__big", {"bytes": 50_000_000}, timeout=60))
        for number in range(20):
            assert await outcome(host, str(number), 60) == "ok"
        assert len((await big).text) == 50_000_000


async def test_a_session_is_opened_once_and_ended_with_the_host() -> None:
    async with FakeMcp(eras=[ERAS[0]]) as server:
        async with host_of(web(server)) as host:
            await asyncio.gather(*(outcome(host, str(number)) for number in range(50)))
            assert len(server.sessions) == 1
        assert server.books.seen["session"] == server.books.seen["deleted"] == 1
        assert not server.sessions
