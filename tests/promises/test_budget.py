"""Promise 1: never over budget. Money is reserved before a request leaves, and a paid answer is never thrown away."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from centuria.messages import DOLLAR, Status, Usage
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Reset, Text
from tests.promises.kit import (
    KIMI,
    MODEL,
    Body,
    billed,
    bodies,
    calls,
    census,
    centuria,
    fold,
    prompt,
    results,
    run_folders,
    swarm,
    the_run,
    turn,
    write_job,
)

#: 16,000 output tokens cost exactly ten cents; a prompt costs nothing.
TEN_CENTS = {"input": 0.0, "output": 6.25}


async def test_the_worked_example_spends_exactly_its_cap_on_ten_agents(tmp_path: Path) -> None:
    answer = Text("A whole report.", usage=Usage(10, output=16_000))
    async with FakeUpstream(lambda body: answer, latency=0.2) as upstream:
        job = write_job(
            tmp_path, upstream, rows=100, job={"max_tokens": 16_000}, price=TEN_CENTS, limits={"budget": 1.0}
        )
        async with swarm(tmp_path, concurrency=100) as hundred:
            report = await hundred.run(job)
    assert len(upstream.requests) == 10 and upstream.peak == 10
    assert (report.cost, report.held) == (10**12, 0)
    assert census(report) == {"ok": 10, "budget": 90}
    assert (report.status, report.exit_code) == ("budget", 3)
    assert billed(upstream, TEN_CENTS) == report.cost
    assert all(
        "no room" in end.cause and end.cost == 0 for end in report.outcomes.values() if end.status is not Status.OK
    )
    paid = [end for end in report.outcomes.values() if end.status is Status.OK]
    assert [end.text for end in paid] == ["A whole report."] * 10 and {end.cost for end in paid} == {10**11}
    for end in paid:
        assert (report.folder / "reports" / f"{end.task}.md").read_text() == "A whole report.\n"


async def test_a_hundred_agents_of_four_calls_are_ok_far_below_what_they_reserve(tmp_path: Path) -> None:
    used = Usage(750, output=1_500)  # half a cent less a little: 400 calls cost $1.98

    def script(body: Body) -> Reply:
        if turn(body) < 3:
            return Calls((("no_such_tool", "{}"),), usage=used)
        return Text("Done.", usage=used)

    async with FakeUpstream(script, latency=0.02) as upstream:
        job = write_job(tmp_path, upstream, rows=100, job={"max_tokens": 32_768}, limits={"budget": 5.0})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 100} and report.exit_code == 0
    assert report.cost == billed(upstream, KIMI) == 1_980_000_000_000 and report.held == 0
    assert Counter(body["max_tokens"] for body in bodies(upstream)) == {32_768: 400}
    assert upstream.peak > 1, "it waits for money, but not one call at a time"


@pytest.mark.parametrize("kind", ["digits", "hex", "korean", "emoji"])
async def test_no_call_costs_more_than_its_reservation_whatever_its_prompt_is_made_of(
    tmp_path: Path, kind: str
) -> None:
    dice = random.Random(kind)
    makers = {
        "digits": lambda: dice.choice("0123456789"),
        "hex": lambda: dice.choice("0123456789abcdef"),
        "korean": lambda: chr(dice.randint(0xAC00, 0xD7A3)),
        "emoji": lambda: chr(dice.randint(0x1F300, 0x1F5FF)),
    }
    rows = [
        {"Name": f"n{number}", "Text": "".join(makers[kind]() for _ in range(200 + 40 * number))}
        for number in range(40)
    ]
    price = {"input": 10.0, "output": 10.0}
    async with FakeUpstream(tokenise=len) as upstream:
        job = write_job(tmp_path, upstream, rows=rows, job={"prompt": "Read {Text}", "max_tokens": 1_100}, price=price)
        async with swarm(tmp_path, concurrency=8) as hundred:
            report = await hundred.run(job)
    made = calls(report.folder)
    assert census(report) == {"ok": 40} and len(made) == 40
    assert all(0 < call.cost <= call.reserved for call in made)
    assert report.cost == billed(upstream, price)


def _tokens(body: bytes) -> int:
    """As real tokenizers count: words by the handful of letters, digits one by one."""
    digits = sum(48 <= byte < 58 for byte in body)
    return digits + (len(body) - digits) // 4


async def test_prompts_of_another_kind_than_those_before_cannot_pass_the_cap_together(tmp_path: Path) -> None:
    price = {"input": 10.0, "output": 1.0}
    rows = [{"Name": f"e{number}", "Text": "plain english words " * 20} for number in range(25)]
    rows += [{"Name": f"d{number}", "Text": "1234567890" * 3_000} for number in range(60)]
    async with FakeUpstream(latency=0.05, tokenise=_tokens) as upstream:
        job = write_job(
            tmp_path,
            upstream,
            rows=rows,
            job={"prompt": "Read {Text}", "max_tokens": 1_100},
            price=price,
            limits={"budget": 6.0, "agents": 25},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert billed(upstream, price) <= report.cost + report.held <= 6 * DOLLAR


@pytest.mark.parametrize("seed", range(3))
async def test_the_upstreams_own_books_stay_within_the_cap_whatever_goes_wrong(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    tries: Counter[str] = Counter()

    def script(body: Body) -> Reply:
        who = prompt(body)
        tries[who] += 1
        answer = Text("word " * dice.randint(1, 900))
        if tries[who] > 1 or dice.random() < 0.4:
            return answer
        return dice.choice(
            [HttpError(500), Cut(answer), Cut(answer, after=0.95), Reset(), Text(answer.text, usage=None)]
        )

    async with FakeUpstream(script, latency=0.01, tokenise=len) as upstream:
        job = write_job(tmp_path, upstream, rows=40, job={"max_tokens": 1_100}, limits={"budget": 0.12})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    cap = round(0.12 * DOLLAR)
    assert billed(upstream, KIMI) <= report.cost + report.held <= cap
    assert {"ok", "budget"} <= set(census(report)), "the cap was meant to be felt"
    ledger = fold(report.folder).ledger
    assert ledger.reserved("run") == 0 and ledger.overrun("run") == 0
    assert sum(end.cost for end in report.outcomes.values()) == report.cost
    assert sum(end.held for end in report.outcomes.values()) == report.held
    paid = {call.task for call in calls(report.folder) if call.state == "done"}
    assert paid <= {task for task, end in report.outcomes.items() if end.status is Status.OK}, "paid and thrown away"


async def test_an_answer_is_shortened_to_what_is_left_before_an_agent_is_refused(tmp_path: Path) -> None:
    answer = Text("Short.", usage=Usage(10, output=10))
    async with FakeUpstream(lambda body: answer) as upstream:
        # 10,000 tokens at $6.25 a million: 16,000 were asked for.
        job = write_job(
            tmp_path, upstream, rows=1, job={"max_tokens": 16_000}, price=TEN_CENTS, limits={"budget": 0.0625}
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 1}
    assert [body["max_tokens"] for body in bodies(upstream)] == [10_000]


async def test_an_agents_own_cap_ends_that_agent_and_no_other(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if "n0" in prompt(body) and turn(body) < 8:
            return Calls((("no_such_tool", "{}"),), text="So far.", usage=Usage(10, output=15_000))
        return Text("Done.", usage=Usage(10, output=1_000))

    async with FakeUpstream(script) as upstream:
        limits = {"budget": 50.0, "agent_budget": 0.2}
        job = write_job(tmp_path, upstream, rows=5, job={"max_tokens": 16_000}, price=TEN_CENTS, limits=limits)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    greedy = report.outcomes["n0"]
    assert greedy.cost <= 0.2 * DOLLAR
    assert greedy.status in (Status.BUDGET, Status.FAILED) and greedy.text == "So far."
    assert all(report.outcomes[f"n{number}"].status is Status.OK for number in range(1, 5))


async def test_a_model_without_a_price_is_refused_under_a_cap_and_unpriced_without_one(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Hello.")) as upstream:
        job = write_job(tmp_path, upstream, rows=2, model={"name": "brand-new"})
        refused = await centuria(tmp_path, "run", job, "--budget", "2")
        assert refused.code == 2 and upstream.requests == [] and run_folders(tmp_path) == []
        assert '[prices."brand-new"]' in refused.err and "Traceback" not in refused.err
        ended = await centuria(tmp_path, "run", job, "--budget", "none")
    assert ended.code == 0 and len(upstream.requests) == 2
    assert "unpriced" in ended.err
    lines: dict[str, Any] = results(the_run(tmp_path))
    assert [line["cost"] for line in lines.values()] == [None, None], "unknown is not nothing"
    assert MODEL not in ended.out
