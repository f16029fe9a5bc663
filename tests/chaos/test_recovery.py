"""Ten thousand calls through a provider that refuses, resets and stalls: nothing is lost that could be had."""

from __future__ import annotations

import asyncio

import pytest

from centuria.core.retry import RetryPolicy
from centuria.errors import ModelError
from centuria.events import CallClosed
from centuria.messages import DOLLAR
from centuria.testing import clock
from centuria.testing.transport import Faults, Provider
from tests.chaos.kit import (
    KIMI,
    Crowd,
    Stand,
    assert_recovered_or_failed_as_foretold,
    assert_the_books_agree,
    calls,
    echo,
    runs,
    seeds,
)

AGENTS = 100
STORM = {"limited": 0.30, "reset": 0.05, "stall": 0.02}
#: Half of what is not refused fails: many calls meet a fourth failure.
FOUL = {"limited": 0.10, "failed": 0.15, "reset": 0.15, "cut": 0.14, "stall": 0.01}


def weather(storm: dict[str, float], seed: int, count: int, *, agents: int = AGENTS) -> tuple[Stand, Provider, Crowd]:
    """Agents make their calls, one after another and all at once, with all that the product has by default."""

    async def main() -> tuple[Stand, Provider, Crowd]:
        provider = Provider(echo, faults=Faults(**storm, seed=seed), tariff=KIMI)
        desk = Stand(provider, cap=100 * DOLLAR, limit=agents, retry=RetryPolicy())
        crowd = Crowd(desk, agents=agents, calls=count // agents)
        await crowd.run()
        print(f"seed {seed}: {count} calls took {asyncio.get_running_loop().time():,.0f} s", end=", ")
        return desk, provider, crowd

    return clock.run(main())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "count"), runs(small=2))
def test_every_call_with_at_most_three_failures_other_than_429_is_recovered_and_the_books_agree(
    seed: int, count: int
) -> None:
    desk, provider, crowd = weather(STORM, seed, count)
    crowd.assert_every_call_has_an_outcome()
    crowd.assert_every_answer_is_its_own()
    counts = assert_recovered_or_failed_as_foretold(crowd, provider)
    assert_the_books_agree(desk, provider)
    desk.assert_nothing_is_left_open()
    assert provider.in_flight == provider.open == 0
    print(f"{dict(counts)}, spent {desk.ledger.spent('run') / DOLLAR:.4f}, held {desk.ledger.held('run') / DOLLAR:.4f}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(2))
def test_the_calls_that_fail_are_exactly_those_that_met_a_fourth_failure_and_their_money_is_held(seed: int) -> None:
    desk, provider, crowd = weather(FOUL, seed, max(100, calls() // 20))
    crowd.assert_every_call_has_an_outcome()
    crowd.assert_every_answer_is_its_own()
    counts = assert_recovered_or_failed_as_foretold(crowd, provider)
    print(dict(counts))
    assert counts["lost"] > len(crowd.ends) // 50
    assert_the_books_agree(desk, provider)
    desk.assert_nothing_is_left_open()
    # Refusals cost nothing; what may have been served and is not known stays held, attempt by attempt.
    lost = {(row.key, row.attempt) for row in desk.facts(CallClosed) if row.end == "lost"}
    assert len(lost) == sum(entry.fault not in ("limited", None) for entry in provider.books)
    held = sum(row.reserved for row in desk.opened if (row.key, row.attempt) in lost)
    assert desk.ledger.held("run") == held


def test_a_burst_of_hundreds_of_refusals_loses_nobody_while_others_are_answered() -> None:
    desk, provider, crowd = weather({"limited": 0.3}, 1, 1000, agents=1000)
    crowd.assert_every_answer_is_its_own()
    assert sum(entry.at == 0.0 and entry.fault == "limited" for entry in provider.books) > 200
    assert assert_recovered_or_failed_as_foretold(crowd, provider)["recovered"] == 1000
    desk.assert_nothing_is_left_open()


def test_a_429_costs_nothing_and_its_reservation_is_given_back() -> None:
    desk, provider, crowd = weather({"limited": 0.5}, 1, 200)
    assert {entry.fault for entry in provider.books} == {"limited", None}
    crowd.assert_every_answer_is_its_own()
    assert assert_recovered_or_failed_as_foretold(crowd, provider)["recovered"] == 200
    assert desk.ledger.held("run") == 0
    assert desk.ledger.spent("run") == provider.charged


@clock.virtual_clock
async def test_requests_in_flight_end_as_cut_when_their_transport_is_closed() -> None:
    provider = Provider(echo, latency=(60.0, 60.0))
    desk = Stand(provider, retry=RetryPolicy(delays=()))
    crowd = Crowd(desk, agents=10)
    running = asyncio.create_task(crowd.run())
    await asyncio.sleep(30)
    assert provider.in_flight == provider.open == 10
    await provider.aclose()
    await running
    assert {end.kind if isinstance(end, ModelError) else "" for end in crowd.ends.values()} == {"cut"}
    assert provider.aborted == 10 and provider.open == 0
    desk.assert_nothing_is_left_open()
