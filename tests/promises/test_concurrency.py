"""Promise 3: no storm, no stall. Slots are for requests alone, and one agent's trouble is its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from centuria.messages import Status
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Reset, Seen, Silence, Text
from tests.promises.kit import (
    Body,
    bodies,
    calls,
    census,
    fold,
    prompt,
    raw_server,
    swarm,
    tool_texts,
    turn,
    write_job,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Crowded(FakeUpstream):
    """An upstream that answers nobody before `crowd` requests are there at once (or, so as to end, 20 s have gone)."""

    def __init__(self, script: Any, *, crowd: int, latency: float) -> None:
        super().__init__(script, latency=latency)
        self._crowd = crowd

    async def _answer(self, seen: Seen, connection: Any) -> None:
        try:
            await self.until(lambda: self.peak >= self._crowd, within=20)
        except TimeoutError:
            pass
        await super()._answer(seen, connection)


async def test_a_hundred_agents_have_a_hundred_calls_in_flight(tmp_path: Path) -> None:
    async with Crowded(lambda body: Text("Here."), crowd=100, latency=0.42) as upstream:
        job = write_job(tmp_path, upstream, rows=130, limits={"budget": 50.0, "concurrency": 100})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert upstream.peak == 100 and len(upstream.requests) == 130
    assert census(report) == {"ok": 130}
    resources = fold(report.folder).progress.resources
    assert {name: (row.peak, row.in_use, row.waiting) for name, row in resources.items()} == {
        "agents": (100, 0, 0),
        "model:kimi-k2.5": (100, 0, 0),
    }


async def test_the_concurrency_is_reached_and_never_exceeded(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Here."), latency=0.03) as upstream:
        job = write_job(tmp_path, upstream, rows=40, limits={"concurrency": 7})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert upstream.peak == 7 and census(report) == {"ok": 40}


@pytest.mark.parametrize("trouble", ["refused", "hanging", "rubbish"])
async def test_one_agents_trouble_changes_nothing_for_the_ninety_nine_others(tmp_path: Path, trouble: str) -> None:
    bad: Reply = {"refused": HttpError(400), "hanging": Silence(), "rubbish": Text("Seven, I think.")}[trouble]

    def script(body: Body) -> Reply:
        return bad if "n42." in prompt(body) else Text('{"n": 7}')

    async with FakeUpstream(script, latency=0.02) as upstream:
        job = write_job(
            tmp_path,
            upstream,
            rows=100,
            merge={"kind": "table", "schema": SCHEMA},
            timeouts={"first_token": 3.0},
            limits={"budget": 50.0, "seconds": 8.0},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 99, {"hanging": "timeout"}.get(trouble, "failed"): 1}
    ill = report.outcomes["n42"]
    assert ill.cause and (report.status, report.exit_code) == ("partial", 1)
    others = Counter(prompt(body) for body in bodies(upstream) if "n42." not in prompt(body))
    assert len(others) == 99 and set(others.values()) == {1}
    tries = {"refused": 1, "rubbish": 3}
    assert ill.attempts == tries.get(trouble, ill.attempts)
    assert all(report.outcomes[f"n{n}"].structured == {"n": 7} for n in range(100) if n != 42)


async def test_what_can_succeed_is_tried_again_until_it_does(tmp_path: Path) -> None:
    tries: Counter[str] = Counter()
    answer = Text("At last.", piece=2)
    first: dict[str, Reply] = {
        "n0.": HttpError(429, "rate_limit_reached_error", headers={"Retry-After": "1"}),
        "n1.": HttpError(500),
        "n2.": HttpError(503),
        "n3.": Cut(answer),
        "n4.": Reset(),
    }

    def script(body: Body) -> Reply:
        who = prompt(body).split()[-1]
        tries[who] += 1
        return first[who] if tries[who] == 1 else answer

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=5)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 5} and set(tries.values()) == {2}
    assert {end.text for end in report.outcomes.values()} == {"At last."}
    assert report.outcomes["n0"].held == 0, "a request that was turned away was not served"
    assert all(report.outcomes[f"n{n}"].held > 0 for n in (1, 2, 3, 4)), "what may have been served is held"
    assert len(set(upstream.attempts)) == 5


async def test_a_retry_that_waits_holds_no_slot(tmp_path: Path) -> None:
    order: list[str] = []

    def script(body: Body) -> Reply:
        order.append(prompt(body).split()[-1])
        return HttpError(500) if order == ["n0."] else Text("Here.")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=4, limits={"concurrency": 1})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert order == ["n0.", "n1.", "n2.", "n3.", "n0."] and upstream.peak == 1
    assert census(report) == {"ok": 4}


async def test_a_refused_key_stops_the_run_at_once_and_says_so(tmp_path: Path) -> None:
    async with FakeUpstream(key="the right one", latency=0.02) as upstream:
        job = write_job(tmp_path, upstream, rows=50, limits={"agents": 5})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"blocked": 50} and len(upstream.requests) <= 5
    assert (report.status, report.exit_code) == ("failed", 1)
    assert all("key" in end.cause for end in report.outcomes.values())


async def test_a_servers_limit_holds_for_all_agents_together(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        return Text(max(tool_texts(body))) if turn(body) else Calls((("raw__overlap", "{}"),) * 3)

    async with FakeUpstream(script) as upstream:
        tools = {"raw": raw_server(limit=2)}
        job = write_job(tmp_path, upstream, rows=6, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 6}
    assert max(int(end.text) for end in report.outcomes.values()) == 2
    assert sum(call.call == "tool" and call.state == "done" for call in calls(report.folder)) == 18


async def test_the_tools_of_a_server_that_comes_up_late_can_be_called(tmp_path: Path) -> None:
    flaky = tmp_path / "flaky.py"
    flag = tmp_path / "second-start"
    raw = Path(raw_server()["args"][0])
    flaky.write_text(
        f"import pathlib, runpy, sys\nflag = pathlib.Path({str(flag)!r})\n"
        f"if not flag.exists():\n    flag.touch()\n    sys.exit(3)\n"
        f"sys.argv = ['raw.py']\nrunpy.run_path({str(raw)!r}, run_name='__main__')\n"
    )

    def script(body: Body) -> Reply:
        if tool_texts(body)[-1:] == ["hello"]:
            return Text("It came up.")
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        if "raw__echo" in names:
            return Calls((("raw__echo", '{"text": "hello"}'),))
        return Calls((("wait", "{}"),))

    async with FakeUpstream(script, latency=0.1) as upstream:
        job = write_job(
            tmp_path,
            upstream,
            tasks=[{"id": "one", "prompt": "Wait for it."}],
            tools={"raw": raw_server(script=flaky)},
            limits={"steps": 2_000, "seconds": 30.0},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert report.outcomes["one"].status is Status.OK, report.outcomes["one"]
    assert report.answer.strip() == "It came up."


async def test_leaving_a_swarm_cancels_what_still_runs_and_keeps_what_there_is(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Silence() if "n1" in prompt(body) else Text("Here.")) as upstream:
        job = write_job(tmp_path, upstream, rows=3)
        async with swarm(tmp_path) as hundred:
            work = asyncio.create_task(hundred.run(job))
            await upstream.until(lambda: len(upstream.requests) == 3 and upstream.in_flight == 1)
        report = await asyncio.wait_for(work, 10)
    assert report.status == "cancelled" and report.exit_code == 130
    assert report.outcomes["n1"].status is Status.CANCELLED and "closed" in report.outcomes["n1"].cause
