"""Promise 3 at its edge: what a provider refuses is asked for again in its own time, or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from centuria import Status
from centuria.ending import Report
from centuria.messages import Usage
from centuria.testing.upstream import FakeUpstream, HttpError, RateLimits, Reply, Text
from tests.promises.kit import Body, census, fold, prompt, swarm, write_job

MODEL = "model:kimi-k2.5"


def after(calls: int, then: Reply) -> Callable[[Body], Reply]:
    """Answers so many requests, and says `then` to all that come later."""
    seen = 0

    def script(body: Body) -> Reply:
        nonlocal seen
        seen += 1
        return Text("Here.") if seen <= calls else then

    return script


async def run(folder: Path, upstream: FakeUpstream, rows: int, **more: object) -> Report:
    job = write_job(folder, upstream, rows=rows, limits={"budget": False, **more})
    async with swarm(folder) as hundred:
        return await hundred.run(job)


async def test_a_hundred_calls_against_twenty_a_second_all_succeed_with_few_in_excess(tmp_path: Path) -> None:
    limits = RateLimits(requests=20, window=1.0, told="seconds")
    async with FakeUpstream(latency=0.05, limits=limits) as upstream:
        report = await run(tmp_path, upstream, 100)
    assert census(report) == {"ok": 100} and report.exit_code == 0
    assert len(upstream.requests) < 130, f"{upstream.meter.refused} were refused"


async def test_a_hundred_at_once_against_twenty_a_second_all_succeed_with_few_in_excess(tmp_path: Path) -> None:
    """The user says a hundred at once: the first wave is refused once, not again and again."""
    limits = RateLimits(requests=20, window=1.0, told="seconds")
    async with FakeUpstream(latency=0.05, limits=limits) as upstream:
        report = await run(tmp_path, upstream, 100, concurrency=100)
    assert census(report) == {"ok": 100}
    assert len(upstream.requests) < 100 + 80 + 30, f"{upstream.meter.refused} were refused"
    row = fold(report.folder).progress.upstreams["kimi-k2.5"]
    assert row.refused == upstream.meter.refused and row.closings
    page = (report.folder / "report.html").read_text()
    assert f"{row.refused} requests refused as too many" in page


async def test_a_spent_quota_ends_the_sending_and_what_waits_is_blocked_with_that_cause(tmp_path: Path) -> None:
    spent = HttpError(429, "exceeded_current_quota_error", "You exceeded your current token quota, please check")
    async with FakeUpstream(after(10, spent), latency=0.05) as upstream:
        report = await run(tmp_path, upstream, 200, concurrency=20, agents=100)
        late = len(upstream.requests)
    assert late <= 10 + 20, "no more than were in flight"
    assert census(report) == {"ok": 10, "blocked": 190} and report.exit_code == 1
    causes = {end.cause for end in report.outcomes.values() if end.status is Status.BLOCKED}
    assert all("quota" in cause and "top it up" in cause for cause in causes), causes
    assert fold(report.folder).progress.upstreams["kimi-k2.5"].breaker


async def test_a_key_that_is_revoked_in_the_middle_ends_the_sending(tmp_path: Path) -> None:
    revoked = HttpError(401, "invalid_authentication_error", "Invalid Authentication")
    async with FakeUpstream(after(30, revoked), latency=0.02) as upstream:
        report = await run(tmp_path, upstream, 100, concurrency=10, agents=100)
    assert len(upstream.requests) <= 30 + 10
    assert census(report) == {"ok": 30, "blocked": 70} and report.exit_code == 1
    assert all("key" in end.cause for end in report.outcomes.values() if end.status is Status.BLOCKED)


async def test_a_call_that_is_refused_for_its_content_blocks_no_other(tmp_path: Path) -> None:
    flagged = HttpError(403, "moderation", "Your input was flagged")

    def script(body: Body) -> Reply:
        return flagged if "n3." in prompt(body) else Text("Here.")

    async with FakeUpstream(script) as upstream:
        report = await run(tmp_path, upstream, 20, concurrency=2, agents=2)
    assert census(report) == {"ok": 19, "failed": 1}


async def test_an_overloaded_engine_is_asked_by_fewer_at_once_and_fails_no_call(tmp_path: Path) -> None:
    tries: Counter[str] = Counter()
    busy = HttpError(429, "engine_overloaded_error", "The engine is currently overloaded", {"Retry-After": "0.2"})

    def script(body: Body) -> Reply:
        who = prompt(body)
        tries[who] += 1
        # Six times: more than any call has retries.
        return busy if "n0." in who and tries[who] <= 6 else Text("Here.")

    async with FakeUpstream(script, latency=0.02) as upstream:
        report = await run(tmp_path, upstream, 40, concurrency=16)
    assert census(report) == {"ok": 40}
    limits = [limit for limit, _ in fold(report.folder).progress.resources[MODEL].reasons]
    assert limits[0] == 16 and min(limits) < 16, limits


async def test_a_limit_that_nobody_stated_is_found_out_and_its_reason_told(tmp_path: Path) -> None:
    async with FakeUpstream(latency=0.05) as upstream:
        report = await run(tmp_path, upstream, 60)
    assert census(report) == {"ok": 60} and upstream.peak > 5
    (first, why), *_ = fold(report.folder).progress.resources[MODEL].reasons
    assert first == 5 and "not known" in why


async def test_the_limits_of_the_account_are_kept_from_the_first_call_on(tmp_path: Path) -> None:
    """At thirty a minute half of them may go at once, and one each two seconds from then on."""
    async with FakeUpstream() as upstream:
        report = await run(tmp_path, upstream, 17, rpm=30)
    assert census(report) == {"ok": 17}
    at = [seen.at - upstream.requests[0].at for seen in upstream.requests]
    assert at[15] > 1.5 and at[16] > 3.5


@pytest.mark.parametrize("warm", [True, False])
async def test_one_call_fills_the_prompt_cache_before_the_others_go(tmp_path: Path, warm: bool) -> None:
    crowds: list[int] = []

    def script(body: Body) -> Reply:
        crowds.append(upstream.in_flight)
        return Text("Here.", usage=Usage(2_000, 5))

    price = {"input": 0.6, "cached": 0.1, "output": 3.0}
    async with FakeUpstream(script, latency=0.2) as upstream:
        job = write_job(
            tmp_path,
            upstream,
            rows=20,
            job={"system": "A rule. " * 1_000},
            price=price,
            limits={"concurrency": 20, "warm_first": warm},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 20}
    assert (crowds[0] == 1) is warm, "who is answered first was alone"
    assert upstream.peak == (19 if warm else 20)


async def test_a_run_that_is_refused_for_longer_than_it_waits_is_blocked_and_says_when(tmp_path: Path) -> None:
    later = HttpError(429, "rate_limit_reached_error", "Later.", {"Retry-After": "3600"})
    async with FakeUpstream(after(3, later)) as upstream:
        report = await run(tmp_path, upstream, 30, concurrency=2, agents=4)
    assert len(upstream.requests) <= 3 + 2 and census(report) == {"ok": 3, "blocked": 27}
    assert any("takes nothing for 3,6" in end.cause for end in report.outcomes.values())


async def test_what_holds_a_run_back_is_in_its_json(tmp_path: Path) -> None:
    from centuria.views.digest import as_json

    limits = RateLimits(requests=5, window=0.5, told="ms")
    async with FakeUpstream(limits=limits) as upstream:
        report = await run(tmp_path, upstream, 12, concurrency=12)
    (row,) = json.loads(json.dumps(as_json(fold(report.folder).progress)))["upstreams"]
    assert row["refused"] == {"limited": upstream.meter.refused} and upstream.meter.refused > 0
    assert row["closed"] > 0 and row["closed_until"] is None
