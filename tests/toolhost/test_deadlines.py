"""Servers over stdio that freeze, die and talk too much: deadlines hold and silence is short."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.settings import ToolServer
from centuria.toolhost import McpToolHost
from tests.toolhost.kit import HERE, host_of, raw

ODD = HERE / "servers" / "odd.py"


def odd(*modes: str, **fields: Any) -> ToolServer:
    return ToolServer("odd", "odd", command=sys.executable, args=(str(ODD), *modes), **fields)


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[McpToolHost]:
    modes = ("modern",) if request.param == "2026-07-28" else ()
    async with host_of(odd(*modes)) as opened:
        assert opened.servers()[0].detail["protocol"] == request.param
        yield opened


async def text_of(host: McpToolHost, tool: str, **arguments: Any) -> str:
    return (await host.call(f"odd__{tool}", arguments, timeout=30)).text


def pid_of(host: McpToolHost) -> int:
    return int(host.servers()[0].detail["pid"])


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5_000])
async def test_a_frozen_server_holds_up_no_deadline_though_its_pipe_is_full(size: int) -> None:
    """100 calls of `size` bytes: the large ones fill the pipe and what may wait beyond it."""
    async with host_of(odd()) as host:
        os.kill(pid_of(host), signal.SIGSTOP)
        try:
            calls = [host.call("odd__echo", {"text": "x" * size}, timeout=2.0) for _ in range(100)]
            async with asyncio.timeout(2.0 + 0.3 + 5.0):  # 5 s for a machine that does other things
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, TimeoutError | ToolUnavailable) for result in results)
            # Those that found no room were never sent, and are told apart.
            assert any(isinstance(result, ToolUnavailable) for result in results) == (size > 1)
        finally:
            os.kill(pid_of(host), signal.SIGCONT)
        assert await text_of(host, "echo", text="awake") == "awake"


async def test_a_server_that_stopped_answering_is_restarted() -> None:
    host = host_of(odd(), start=1.0)
    async with host:
        pid = pid_of(host)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await host.call("odd__echo", {"text": "?"}, timeout=0.2)
        async with asyncio.timeout(20):
            while pid_of(host) == pid or not host.servers()[0].up:  # noqa: ASYNC110 - a process tells nobody
                await asyncio.sleep(0.02)
        assert await text_of(host, "echo", text="again") == "again"


async def test_a_server_frozen_at_its_start_fails_within_the_time_for_starting() -> None:
    frozen = ToolServer("odd", "odd", command="/bin/sh", args=("-c", "kill -STOP $$"))
    async with asyncio.timeout(15):
        async with host_of(frozen, start=0.5) as host:
            assert "did not answer within 0.5 s" in host.servers()[0].reason


async def test_a_cancelled_call_is_cancelled_at_the_server(host: McpToolHost) -> None:
    call = asyncio.create_task(host.call("odd__hang", {}, timeout=60))
    assert await text_of(host, "echo", text="the other was sent before this") != ""
    call.cancel()
    await asyncio.wait([call], timeout=5)
    with pytest.raises(TimeoutError):
        await host.call("odd__hang", {}, timeout=0.05)
    heard = json.loads(await text_of(host, "heard"))
    assert len(heard["cancelled"]) == 2


# -- death ------------------------------------------------------------------------------------------------------------


async def test_a_hundred_callers_of_a_server_killed_twice_are_never_silent_for_long() -> None:
    """Each caller goes on until it has 20 answers; the server dies after 500 and after 1,000 answers of all."""
    loop = asyncio.get_running_loop()
    answers = 0
    unknown: list[str] = []

    async with host_of(odd(limit=100)) as host:

        async def caller(index: int) -> None:
            nonlocal answers
            number = 0
            while number < 20:
                text = f"{index} {number}"
                try:
                    assert await text_of(host, "echo", text=text) == text
                except (OutcomeUnknown, ToolUnavailable) as error:
                    unknown.append(type(error).__name__)
                    await asyncio.sleep(0.05)
                    continue
                number += 1
                answers += 1
                silence.reschedule(loop.time() + 3.0 + 5.0)  # 3 s; 5 more for a machine that does other things
                if answers in (500, 1000):
                    os.kill(pid_of(host), signal.SIGKILL)

        async with asyncio.timeout(8) as silence, asyncio.TaskGroup() as group:
            for index in range(100):
                group.create_task(caller(index))
        assert host.servers()[0].detail["opened"] == 3
    assert answers == 2000
    assert "OutcomeUnknown" in unknown


async def test_what_waits_for_room_when_a_server_dies_was_not_sent() -> None:
    async with host_of(odd()) as host:
        os.kill(pid_of(host), signal.SIGSTOP)
        calls = [asyncio.create_task(host.call("odd__echo", {"text": "x" * 9_000}, timeout=30)) for _ in range(60)]
        for _ in range(10):  # each has written, or waits for room
            await asyncio.sleep(0)
        os.kill(pid_of(host), signal.SIGKILL)
        await asyncio.wait(calls, timeout=20)
        errors = [call.exception() for call in calls]
        assert {type(error) for error in errors} == {OutcomeUnknown, ToolUnavailable}


# -- what comes in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
async def test_a_result_beyond_the_cap_ends_its_call_wherever_its_id_stands(last: bool) -> None:
    async with host_of(odd()) as host:
        result = await host.call("odd__huge", {"size": 65 << 20, "last": last}, timeout=30)
        assert result.end is ToolEnd.ERROR
        assert "larger than" in result.text
        assert host.servers()[0].detail["oversize"] == 1
        assert await text_of(host, "echo", text="hi") == "hi"


async def test_a_result_of_fifty_megabytes_arrives_whole() -> None:
    async with host_of(odd()) as host:
        assert len(await text_of(host, "huge", size=50 << 20)) == 50 << 20


async def test_an_answer_to_another_request_is_given_to_nobody(host: McpToolHost) -> None:
    assert await text_of(host, "wrong") == "for you"


async def test_a_request_of_the_servers_is_answered(host: McpToolHost) -> None:
    asked = json.loads(await text_of(host, "ask"))
    assert asked["id"] == "q"
    assert "result" in asked or "error" in asked


async def test_a_flood_of_messages_nobody_wants_is_dropped_and_counted(host: McpToolHost) -> None:
    assert await text_of(host, "flood", times=2_000) == "flooded"
    assert host.servers()[0].detail["junk"] > 1_000
    assert await text_of(host, "echo", text="hi") == "hi"


async def test_five_hundred_changes_of_the_catalogue_are_at_most_two_fetches(host: McpToolHost) -> None:
    await text_of(host, "change", times=500, name="new")
    async with asyncio.timeout(10):
        while not any(tool.tool == "new" for tool in host.catalogue()):  # noqa: ASYNC110 - told to nobody here
            await asyncio.sleep(0.01)
    assert json.loads(await text_of(host, "heard"))["listings"] <= 3  # one of them at the start


async def test_tools_that_are_none_are_dropped_alone() -> None:
    for modes in (("bad",), ("bad", "modern")):
        async with host_of(odd(*modes)) as host:
            names = [tool.tool for tool in host.catalogue()]
            assert "good" in names
            assert "none" not in names


async def test_a_thousand_parallel_calls_of_a_server_that_answers_out_of_order_keep_their_answers() -> None:
    async with host_of(raw(limit=100)) as host:
        calls = [host.call("raw__echo", {"text": f"nonce {n}"}, timeout=30) for n in range(1000)]
        assert [result.text for result in await asyncio.gather(*calls)] == [f"nonce {n}" for n in range(1000)]
