"""Tools at their edges: a result of fifty megabytes, and a server that changes its mind five hundred times."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from centuria.testing import Calls, FakeMcp, FakeUpstream, Reply, Text
from centuria.testing.mcp import ERAS
from tests.promises.kit import KIMI, Body, bodies, census, swarm, tool_texts, turn, write_job
from tests.promises.test_tools import table
from tests.toolhost.kit import fake, host_of

SIZE = 50_000_000


def ask_for_much(body: Body) -> Reply:
    return Text("Done.") if turn(body) else Calls([("fake__big", json.dumps({"bytes": SIZE}))])


async def test_a_result_of_fifty_megabytes_never_enters_a_context_and_is_whole_in_a_file(tmp_path: Path) -> None:
    async with FakeUpstream(ask_for_much) as upstream:
        job = write_job(tmp_path, upstream, rows=1, price=KIMI, tools={"fake": table()})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
        assert census(report) == {"ok": 1}
        (said,) = tool_texts(bodies(upstream)[-1])
        assert len(said) < 21_000 and f"of {SIZE:,} characters are left out" in said
        assert all(len(seen.body) < 60_000 for seen in upstream.requests)
    whole = [file for file in report.folder.rglob("*") if file.is_file() and file.stat().st_size >= SIZE]
    assert any(file.stat().st_size == SIZE for file in whole)
    assert (report.folder / "journal.sqlite").stat().st_size < 5_000_000


async def test_a_result_of_fifty_megabytes_costs_less_than_a_second_and_a_half() -> None:
    """Of our processor time, which a busy machine does not stretch."""
    async with host_of(fake()) as host:
        await host.call("fake__echo", {"text": "warm"}, timeout=60)
        began = time.process_time()
        result = await host.call("fake__big", {"bytes": SIZE}, timeout=60)
        assert time.process_time() - began < 1.5
    assert len(result.text) == SIZE


@pytest.mark.parametrize("era", ERAS)
async def test_five_hundred_list_changes_in_a_run_cost_at_most_two_fetches(era: str, tmp_path: Path) -> None:
    async with FakeMcp("storm=500:nonce@1", "slow=2:nonce@1", eras=[era]) as server:
        calls = [{"tool": "nonce", "arguments": {"nonce": "{Name}"}}]
        job = write_job(
            tmp_path,
            "http://127.0.0.1:9/v1",
            rows=5,
            rehearsal={"latency_ms": 0, "turn": [{"calls": calls}, {"text": "Done."}]},
            tools={"fake": {"url": server.url}},
        )
        async with swarm(tmp_path, rehearse=True) as hundred:
            report = await hundred.run(job)
        assert census(report) == {"ok": 5}
        assert server.books.seen["fault:storm"] == 1
        assert server.books.seen["list"] <= 3, "one at the start, two for five hundred changes"
