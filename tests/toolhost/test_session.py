"""Sessions over stdio: real processes, well-behaved and not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from centuria.errors import ConfigurationError, OutcomeUnknown, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.settings import Timeouts, ToolServer
from centuria.testing.clock import virtual_clock
from centuria.toolhost import McpToolHost, limit_of
from centuria.toolhost.catalogue import MAX_PAGES
from centuria.toolhost.session import Phase, Session
from centuria.toolhost.stdio import _Framer
from centuria.toolhost.wire import Dispatch, Wire
from tests.toolhost.kit import RAW, SDK, host_of, left_after, raw, shell


async def test_the_census_names_dead_servers_and_the_run_goes_on() -> None:
    missing = ToolServer("none", "none", command="/no/such/server")
    async with host_of(raw(), raw("crash", "crash"), raw("mute", "mute"), missing, start=1.0) as host:
        states = {state.slug: state for state in host.servers()}
        assert {slug: state.up for slug, state in states.items()} == {
            "raw": True,
            "crash": False,
            "mute": False,
            "none": False,
        }
        assert "code 3" in states["crash"].reason
        assert "no module named nonsense" in states["crash"].reason
        assert "did not answer within 1 s" in states["mute"].reason
        assert "was not found" in states["none"].reason
        assert (await host.call("raw__echo", {"text": "hi"}, timeout=5)).text == "hi"
        with pytest.raises(ToolUnavailable):
            await host.call("crash__echo", {"text": "hi"}, timeout=5)


async def test_a_required_server_that_is_not_up_stops_everything_with_its_last_words() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with host_of(raw(), raw("db", "crash", required=True)):
            pass
    assert "db" in str(caught.value)
    assert "no module named nonsense" in str(caught.value)
    assert "required = false" in caught.value.remedy


async def test_a_thousand_parallel_calls_each_get_their_own_answer() -> None:
    async with host_of(raw()) as host:
        calls = [host.call("raw__echo", {"text": f"nonce {n}"}, timeout=30) for n in range(1000)]
        assert [result.text for result in await asyncio.gather(*calls)] == [f"nonce {n}" for n in range(1000)]


async def test_one_caller_that_hangs_or_gives_up_changes_nothing_for_others() -> None:
    async with host_of(raw()) as host:
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(host.call("raw__sleep", {"seconds": 60}, timeout=60))
            with pytest.raises(TimeoutError):
                await host.call("raw__sleep", {"seconds": 60}, timeout=0.05)
            for n in range(20):
                assert (await host.call("raw__echo", {"text": str(n)}, timeout=5)).text == str(n)
            hanging.cancel()
        assert (await host.call("raw__echo", {"text": "after"}, timeout=5)).text == "after"
        assert host.servers()[0].detail["opened"] == 1


async def test_a_server_killed_in_mid_call_leaves_the_outcome_unknown_and_the_next_call_works() -> None:
    changes: list[tuple[bool, str]] = []
    async with host_of(raw(), on_change=lambda state: changes.append((state.up, state.reason))) as host:
        pid = int((await host.call("raw__pid", {}, timeout=5)).text)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_outcome(host, "raw__sleep", {"seconds": 60}))
            await host.call("raw__echo", {"text": "the sleep was sent before this"}, timeout=5)
            os.kill(pid, signal.SIGKILL)
        assert isinstance(call.result(), OutcomeUnknown)
        again = int((await host.call("raw__pid", {}, timeout=10)).text)
        assert again != pid
    assert changes[0] == (True, "")
    assert changes[1][0] is False
    assert changes[2] == (True, "")


async def _outcome(host: McpToolHost, name: str, arguments: dict[str, object]) -> object:
    try:
        return await host.call(name, arguments, timeout=60)
    except Exception as error:
        return error


async def test_what_a_server_says_last_is_heard_and_its_death_too_though_an_orphan_holds_the_pipe() -> None:
    async with host_of(shell("sh", f"setsid sleep 300 & exec {sys.executable} {RAW}")) as host:
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(host.call("sh__die", {}, timeout=60), 10)


async def test_a_call_while_a_server_comes_back_waits_for_it() -> None:
    async with host_of(raw()) as host:
        with pytest.raises(OutcomeUnknown):
            await host.call("raw__die", {}, timeout=5)
        results = await asyncio.gather(*(host.call("raw__echo", {"text": str(n)}, timeout=10) for n in range(10)))
        assert [result.text for result in results] == [str(n) for n in range(10)]


async def test_garbage_and_bad_bytes_on_stdout_are_dropped_and_counted() -> None:
    async with host_of(raw("noisy", "garbage")) as host:
        result = await host.call("noisy__bad_bytes", {}, timeout=5)
        assert result.text.startswith("caf\N{REPLACEMENT CHARACTER}")
        assert host.servers()[0].detail["junk"] >= 4


async def test_a_result_beyond_the_line_cap_is_an_error_of_that_call_alone() -> None:
    async with host_of(raw()) as host:
        huge, echo = await asyncio.gather(
            host.call("raw__huge", {"size": 65 << 20}, timeout=30), host.call("raw__echo", {"text": "hi"}, timeout=30)
        )
        assert huge.end is ToolEnd.ERROR
        assert "larger than" in huge.text
        assert echo.text == "hi"


def test_lines_are_framed_in_linear_time_whatever_the_chunks() -> None:
    framer = _Framer(1 << 24)
    began = time.process_time()
    lines = [line for _ in range(4096) for line in framer.feed(b"x" * 4096)] + framer.feed(b"\nrest")
    assert lines == [(b"x" * (1 << 24), True)]
    assert framer.feed(b"!\n\n") == [(b"rest!", True), (b"", True)]
    assert time.process_time() - began < 2
    assert _Framer(3).feed(b"abc\nabcd\nab\n") == [(b"abc", True), (b"abcd", False), (b"ab", True)]


async def test_every_page_of_a_catalogue_is_read_and_a_cursor_that_loops_ends_it() -> None:
    assert MAX_PAGES == 100
    async with host_of(raw("a"), raw("b", "pages"), raw("c", "loop")) as host:
        names = [(tool.slug, tool.tool) for tool in host.catalogue()]
    own = [tool for slug, tool in names if slug == "a"]
    assert own == sorted(own)
    assert names == [(slug, tool) for slug in "abc" for tool in own]


async def test_a_server_sees_its_own_environment_and_none_of_the_programs_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOONSHOT_API_KEY", "secret")
    async with host_of(raw("env", env={"MY_TOKEN": "given"})) as host:
        seen = json.loads((await host.call("env__environment", {}, timeout=5)).text)
    assert seen["MY_TOKEN"] == "given"
    assert "secret" not in str(seen)


async def test_only_allowed_tools_are_listed_and_marks_come_from_the_operator() -> None:
    server = raw(
        "db",
        allow=frozenset({"echo", "write"}),
        trusted=frozenset({"echo"}),
        ask=frozenset({"write"}),
        tool_limits={"write": 2},
        limit=4,
    )
    async with host_of(server) as host:
        echo, write = host.catalogue()
    assert (echo.name, echo.rerun, echo.ask, echo.limit) == ("db__echo", True, False, 4)
    assert (write.name, write.rerun, write.ask, write.limit) == ("db__write", False, True, 2)


def test_limits_follow_what_is_known_of_a_server() -> None:
    assert limit_of(raw()) == 1
    assert limit_of(raw(limit=7)) == 7
    assert limit_of(ToolServer("w", "w", url="https://example.com/mcp")) == 10
    builtins = [limit_of(ToolServer("b", "b", builtin=name)) for name in ("file_read", "code_exec", "web_search")]
    assert builtins == [30, 5, 20]


async def test_two_servers_under_one_slug_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one name"):
        host_of(raw("a"), raw("a"))


@pytest.mark.alone
async def test_leaving_while_servers_still_start_leaves_nothing() -> None:
    host = McpToolHost([raw("mute", "mute")], timeouts=Timeouts(), dice=lambda: 0.0)
    entering = asyncio.create_task(host.__aenter__())
    async with asyncio.timeout(10):
        while not host.servers()[0].detail.get("pid"):  # noqa: ASYNC110 - nothing tells of a start but the process
            await asyncio.sleep(0.01)
    pid = host.servers()[0].detail["pid"]
    entering.cancel()
    await asyncio.wait([entering], timeout=5)
    assert entering.cancelled()
    assert left_after([pid], 2.0) == []


@virtual_clock
async def test_so_many_start_at_once_and_the_time_out_counts_from_the_launch() -> None:
    opening, most, ends = 0, 0, []

    @asynccontextmanager
    async def deaf(wire: Wire) -> AsyncIterator[Dispatch]:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        try:
            await asyncio.Event().wait()
            raise AssertionError
            yield
        finally:
            opening -= 1
            ends.append(asyncio.get_running_loop().time())

    starts = asyncio.Semaphore(2)
    sessions = [
        Session(str(n), deaf, start_timeout=5, starts=starts, dice=lambda: 1.0, on_change=lambda: None)
        for n in range(6)
    ]
    async with asyncio.TaskGroup() as group:
        for session in sessions:
            session.start(group)
        for session in sessions:
            await session.settled()
            assert session.reason == "It did not answer within 5 s."
        for session in sessions:
            session.stop()
    assert most == 2
    assert ends[:6] == [5, 5, 10, 10, 15, 15]


@virtual_clock
async def test_a_server_that_fails_is_tried_again_with_growing_full_jitter_delays() -> None:
    tries: list[float] = []

    @asynccontextmanager
    async def broken(wire: Wire) -> AsyncIterator[Dispatch]:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 11:
            session.stop()
        raise OSError("no")
        yield

    changes: list[Phase] = []
    session = Session(
        "broken",
        broken,
        start_timeout=5,
        starts=asyncio.Semaphore(1),
        dice=lambda: 0.5,
        on_change=lambda: changes.append(session.phase),
    )
    async with asyncio.TaskGroup() as group:
        session.start(group)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 15, 15, 15, 15]
    assert changes == [Phase.DOWN]  # said once, not at each attempt


async def test_servers_of_both_protocol_eras_are_served() -> None:
    sdk = ToolServer("sdk", "sdk", command=sys.executable, args=(str(SDK),))
    async with host_of(raw(), sdk) as host:
        eras = {state.slug: state.detail["protocol"] for state in host.servers()}
        assert eras == {"raw": "2025-11-25", "sdk": "2026-07-28"}
        assert (await host.call("sdk__picture", {}, timeout=10)).text == "look:\n[image image/png, 12 kB]"
        assert (await host.call("sdk__echo", {"text": "hi"}, timeout=10)).text == "hi"


async def test_the_builtin_tools_are_started_with_their_options(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the answer is 42")
    file = ToolServer("file", "file", builtin="file_read", options={"roots": [str(tmp_path)]})
    code = ToolServer(
        "code", "code", builtin="code_exec", options={"seconds": 5, "memory_mb": 64, "output_chars": 1000}
    )
    web = ToolServer("web", "web", builtin="web_search", options={"folder": str(tmp_path)})
    async with host_of(file, code, web) as host:
        assert [(state.slug, state.up, state.reason) for state in host.servers()] == [
            ("file", True, ""),
            ("code", True, ""),
            ("web", True, ""),
        ]
        assert all(tool.rerun for tool in host.catalogue())
        name = next(tool.name for tool in host.catalogue() if tool.slug == "file" and "read" in tool.tool)
        assert "42" in (await host.call(name, {"path": "notes.txt"}, timeout=20)).text


_BAD_LIST = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "server/discover":
        said = {"error": {"code": -32601, "message": "Method not found"}}
    elif asked["method"] == "initialize":
        info = {"name": "bad", "version": "1"}
        said = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
    else:
        said = {"result": {"tools": "none"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


async def test_a_server_whose_list_is_not_valid_is_down_for_that_and_not_for_how_it_was_ended() -> None:
    async with host_of(ToolServer("bad", "bad", command=sys.executable, args=("-c", _BAD_LIST))) as host:
        reason = host.servers()[0].reason
    assert "not valid" in reason and "tools" in reason
    assert "ended with" not in reason and "signal" not in reason


async def test_a_server_that_only_prints_is_down_and_its_lines_are_counted() -> None:
    async with host_of(shell("sh", "echo hello; echo world; exit 3")) as host:
        reason = host.servers()[0].reason
    assert "ended with code 3" in reason
    assert "2 lines" in reason
