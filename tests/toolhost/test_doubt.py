"""A call that may have happened, in every mode and by every way to lose one: run again only where that is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from centuria.core.retry import RetryPolicy
from centuria.events import CallClosed, RunResumed
from centuria.messages import ToolEnd
from centuria.settings import Timeouts, ToolServer
from centuria.testing.journal import MemoryJournal
from tests.toolhost.kit import host_of, raw
from tests.toolhost.servers.rawhttp import RawHttp
from tests.toolhost.test_scheduler import Bench

MODES = pytest.mark.parametrize("mode", ["shared", "pool", "leased"])
MAY_HAVE = "may or may not have happened"


@asynccontextmanager
async def bench(
    server: ToolServer, *, journal: MemoryJournal | None = None, seconds: float = 30
) -> AsyncIterator[Bench]:
    """A scheduler over a real server, that tries again at once."""
    async with host_of(server) as host:
        retry, timeouts = RetryPolicy(delays=(0.0, 0.0, 0.0), jitter=0.0), Timeouts(tool=seconds)
        made = Bench({}, servers=host, retry=retry, timeouts=timeouts, journal=journal or MemoryJournal())
        host.on_change = made.scheduler.server_changed
        yield made
        host.on_change = None
        made.scheduler.release("a")
        assert made.idle()
        made.scheduler.close()


def server(mode: str, **more: Any) -> ToolServer:
    return raw("raw", mode=mode, replicas=1 if mode == "shared" else 2, **more)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@MODES
async def test_a_server_that_dies_in_mid_call_has_run_it_once_and_the_model_is_told(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with bench(server(mode)) as made:
        result = await made.call("raw__write", {"path": str(file), "text": "x", "die": True})
        assert (result.end, lines(file)) == (ToolEnd.UNKNOWN, 1)
        assert MAY_HAVE in result.text
        assert made.rows() == ["open", "unknown"]
        assert await made.call("raw__write", {"path": str(file), "text": "x", "die": True}) == result, "kept as it was"
        assert lines(file) == 1
        assert (await made.call("raw__echo", {"text": "on"}, position=2)).text.endswith("on")


@MODES
async def test_a_trusted_tool_is_run_again_on_the_next_session(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with bench(server(mode, trusted=frozenset({"write"}))) as made:
        result = await made.call("raw__write", {"path": str(file), "text": "x", "die": True, "once": True})
        assert (result.end, lines(file)) == (ToolEnd.OK, 2)
        assert made.rows() == ["open", "lost", "open", "done"]
        assert result.text.startswith("[The session") == (mode == "leased")
        assert result.text.endswith("written")


@MODES
async def test_what_took_too_long_may_have_happened(mode: str) -> None:
    async with bench(server(mode), seconds=0.2) as made:
        result = await made.call("raw__sleep", {"seconds": 30})
        assert result.end is ToolEnd.TIMEOUT
        assert "did not answer within 0.2 s" in result.text
        assert MAY_HAVE in result.text


@MODES
async def test_what_was_cancelled_in_mid_call_may_have_happened(mode: str) -> None:
    async with bench(server(mode)) as made:
        call = asyncio.create_task(made.call("raw__sleep", {"seconds": 30}))
        async with asyncio.timeout(10):
            while made.rows() != ["open"]:  # noqa: ASYNC110 - the journal tells nobody
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        assert made.rows() == ["open", "unknown"]


@MODES
async def test_a_resume_does_not_send_what_may_have_happened(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    write = {"path": str(file), "text": "x"}
    async with bench(server(mode)) as made:
        await made.call("raw__write", write)
        # Killed before the row of its end was written.
        before = takewhile(lambda record: not isinstance(record.event, CallClosed), made.journal.read())
        broken_off = MemoryJournal(list(before))
    async with bench(server(mode), journal=broken_off) as later:
        later.stream.publish(RunResumed(0, 1, 1, None), *later.calls.resolve_in_doubt())
        result = await later.call("raw__write", write)
        assert (result.end, lines(file)) == (ToolEnd.UNKNOWN, 1)
        assert MAY_HAVE in result.text


@MODES
@pytest.mark.parametrize("tool", ["broken", "cut", "half", "gone", "late", "page", "accepted", "stray"])
async def test_over_http_what_was_sent_may_have_happened_whatever_came_back(mode: str, tool: str) -> None:
    async with RawHttp().serving() as there:
        web = ToolServer("web", "web", url=there.url, mode=mode, replicas=1 if mode == "shared" else 2)  # type: ignore[arg-type]
        async with bench(web) as made:
            result = await made.call(f"web__{tool}")
            assert result.end is ToolEnd.UNKNOWN
            assert MAY_HAVE in result.text
            assert "not for you" not in result.text
            assert there.seen.count(tool) == 1
