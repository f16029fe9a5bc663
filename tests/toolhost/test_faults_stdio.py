"""The tool host on servers over stdio with every fault of the table: one outcome for each call, and the next works."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.testing.mcp import ERAS, FAULTS, Books, parse_fault
from centuria.toolhost import McpToolHost
from tests.promises.kit import until
from tests.toolhost.kit import fake, host_of

#: Seconds of a call to a server that will not answer it.
SHORT = 0.5


async def outcome(host: McpToolHost, text: str, timeout: float = 20) -> str:
    """How a call ended, in a word: ok, error, timeout, unknown, unavailable."""
    try:
        result = await host.call("fake__echo", {"text": text}, timeout=timeout)
    except TimeoutError:
        return "timeout"
    except OutcomeUnknown:
        return "unknown"
    except ToolUnavailable:
        return "unavailable"
    if result.end is ToolEnd.OK:
        assert result.text.endswith(text)
    return result.end.value


#: How the first call ends, which meets the fault. The second one does not, and ends well.
FIRST = {
    "slow=0.2": "ok",
    "mute": "timeout",
    "late": "timeout",
    "twice": "ok",
    "wrong-type": "unknown",
    "missing-fields": "error",
    "bad-rpc": "timeout",
    "wrong-id": "timeout",
    "bad-json": "timeout",
    "bad-bytes": "ok",
    "storm": "ok",
    "crash": "unknown",
    "junk": "ok",
    "flood": "ok",
    "huge-line": "ok",
}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fault", FIRST)
async def test_one_call_meets_the_fault_and_the_next_one_works(fault: str, era: str, tmp_path: Path) -> None:
    books = tmp_path / "books"
    async with host_of(fake(f"{fault}@1", era=era, books=books)) as host:
        ends = [await outcome(host, "one", SHORT if FIRST[fault] == "timeout" else 20), await outcome(host, "two")]
    assert ends == [FIRST[fault], "ok"]
    seen = Books.read(books)
    assert seen.calls["echo"] == 2
    assert max(Counter(seen.ran).values()) == 1
    assert seen.seen["cancelled"] == (fault in ("mute", "late"))


def test_every_fault_of_a_call_over_stdio_is_among_them() -> None:
    tried = {parse_fault(text).kind.name for text in FIRST} | {"deaf"}
    assert tried == {kind.name for kind in FAULTS.values() if kind.at == "call" and "stdio" in kind.over}


async def test_a_server_that_reads_nothing_any_more_costs_each_caller_its_own_time_out_and_no_more() -> None:
    async with host_of(fake("deaf@1")) as host:
        assert await outcome(host, "one") == "ok"
        big = "x" * 300_000  # more than a pipe holds
        ends = await asyncio.gather(*(outcome(host, big, 0.5) for _ in range(20)))
        assert set(ends) <= {"timeout", "unavailable"}


#: What is said of a server that does not come up; None: it does.
STARTS = {
    "no-start": "It ended with code 3. Its last words: ModuleNotFoundError: No module named 'nonsense'",
    "silent": "It did not answer within 2 s.",
    "garbage": "It did not answer within 2 s. Of what it sent, 4 lines or messages are not of the protocol.",
    "mute-list": "It did not answer within 2 s.",
    "slow-start=0.2": None,
    "busy-start=0.1": None,
    "stubborn": None,
    "loop": None,
    "endless": None,
}


@pytest.mark.parametrize("fault", STARTS)
async def test_a_server_that_starts_badly_is_up_or_its_reason_says_why(fault: str) -> None:
    reason = STARTS[fault]
    async with host_of(fake(fault), start=2.0 if reason else 30.0) as host:
        (state,) = host.servers()
        assert (state.up, state.reason) == (reason is None, reason or "")
        assert len(host.catalogue()) == (0 if reason else 8)


def test_every_fault_of_a_start_over_stdio_is_among_them() -> None:
    tried = {parse_fault(text).kind.name for text in STARTS} | {"wrong-list"}
    assert tried == {kind.name for kind in FAULTS.values() if kind.at != "call" and "stdio" in kind.over}


async def test_a_server_whose_list_is_of_another_shape_is_not_up() -> None:
    async with host_of(fake("wrong-list", seed=1)) as host:
        (state,) = host.servers()
        assert not state.up or state.tools == 0


async def test_many_calls_with_many_faults_each_end_once_and_run_at_most_once(tmp_path: Path) -> None:
    books = tmp_path / "books"
    faults = (
        "slow=0-0.05@30%",
        "mute@5%",
        "late@5%",
        "wrong-type@5%",
        "bad-json@5%",
        "twice@10%",
        "junk@20%",
        "crash@90",
    )
    async with host_of(fake(*faults, seed=7, books=books, limit=50)) as host:
        ends = await asyncio.gather(*(outcome(host, str(number), 5) for number in range(200)))
        assert await outcome(host, "after", 5) in ("ok", "timeout", "error")
    assert len(ends) == 200
    assert Counter(ends)["ok"] >= 20
    assert set(ends) <= {"ok", "timeout", "error", "unknown", "unavailable"}
    ran = Counter(Books.read(books).ran)
    assert max(ran.values()) == 1
    never = [end for number, end in enumerate(ends) if ("echo", f'{{"text": "{number}"}}') not in ran]
    assert set(never) <= {"unknown", "timeout", "unavailable"}, "none that did not run is said to have ended well"


@pytest.mark.parametrize("era", ERAS)
async def test_five_hundred_list_changes_cost_at_most_two_fetches(era: str, tmp_path: Path) -> None:
    books = tmp_path / "books"
    listening = "listen" if era == ERAS[-1] else "notifications/initialized"
    async with host_of(fake("storm=500:echo", era=era, books=books)) as host:
        await until(lambda: Books.read(books).seen[listening])
        before = Books.read(books).seen["list"]
        assert await outcome(host, "one") == "ok"
        await until(lambda: Books.read(books).seen["list"] > before)
        for _ in range(20):
            await host.call("fake__nonce", {"nonce": "x"}, timeout=20)
    assert 1 <= Books.read(books).seen["list"] - before <= 2


@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_list_is_seen_without_a_call(era: str, tmp_path: Path) -> None:
    books = tmp_path / "books"
    seen: asyncio.Queue[int] = asyncio.Queue()
    async with host_of(fake(era=era, books=books), on_change=lambda state: seen.put_nowait(state.tools)) as host:
        assert await asyncio.wait_for(seen.get(), 30) == 8
        await until(lambda: Books.read(books).seen["listen" if era == ERAS[-1] else "notifications/initialized"])
        await host.call("fake__set_tools", {"names": ["echo", "new"]}, timeout=20)
        assert await asyncio.wait_for(seen.get(), 30) == 2
        assert [tool.name for tool in host.catalogue()] == ["fake__echo", "fake__new"]


async def test_fifty_megabytes_are_one_result_and_hold_nobody_up() -> None:
    async with host_of(fake()) as host, asyncio.TaskGroup() as group:
        big = group.create_task(host.call("fake__big", {"bytes": 50_000_000}, timeout=60))
        for number in range(20):
            assert (await host.call("fake__echo", {"text": str(number)}, timeout=60)).text == str(number)
        assert len((await big).text) == 50_000_000


async def test_a_stopped_server_is_ended_in_time_with_the_host(tmp_path: Path) -> None:
    async with host_of(fake(books=tmp_path / "books")) as host:
        os.kill(pid := host.servers()[0].detail["pid"], signal.SIGSTOP)
        assert await outcome(host, "one", 0.2) == "timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
