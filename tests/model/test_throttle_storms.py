"""A hundred to a thousand agents against upstreams with limits of every kind: all succeed, with little excess."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from centuria.core.rates import RateLimits
from centuria.messages import Usage
from centuria.testing import clock
from tests.model.limited import (
    Concurrency,
    Crowd,
    FixedWindow,
    Limit,
    SlidingWindow,
    TokenBucket,
    TokensPerMinute,
    Upstream,
)

KINDS: dict[str, Callable[[float], tuple[Limit, ...]]] = {
    "fixed": lambda phase: (FixedWindow(20, 1.0, phase),),
    "sliding": lambda phase: (SlidingWindow(20),),
    "sliding-strict": lambda phase: (SlidingWindow(20, strict=True),),
    "bucket": lambda phase: (TokenBucket(20, 20),),
    "concurrency": lambda phase: (Concurrency(10),),
    "both": lambda phase: (Concurrency(15), FixedWindow(20, 1.0, phase)),
}
LATENCIES = (0.02, 0.1, 0.42, 2.0, 10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_calls_against_an_unknown_limit_all_succeed_with_less_than_130_requests(kind: str) -> None:
    worst = 0
    for latency in LATENCIES:
        for seed in range(3):
            dice = random.Random(f"{kind}/{latency}/{seed}")
            upstream = Upstream(
                KINDS[kind](dice.random()),
                trip=lambda dice=dice: 0.02 + 0.06 * dice.random(),  # type: ignore[misc]
                latency=lambda dice=dice, latency=latency: latency * (0.5 + dice.random()),  # type: ignore[misc]
            )
            crowd = Crowd(upstream, seed=seed)
            clock.run(crowd.run(100))
            assert crowd.results == {"ok": 100} and crowd.retries == 0
            crowd.assert_nothing_is_left()
            worst = max(worst, len(upstream.arrivals))
    print(f"{kind}: at most {worst} requests for 100 calls")
    assert worst < 130


@pytest.mark.parametrize("kind", ["fixed", "sliding", "bucket"])
def test_in_the_long_run_excess_is_small_and_the_rate_is_used(kind: str) -> None:
    dice = random.Random(kind)
    upstream = Upstream(KINDS[kind](0.3), latency=lambda: 0.42 * (0.5 + dice.random()))
    crowd = Crowd(upstream)
    clock.run(crowd.run(100, calls=10))
    print(f"{kind}: {len(upstream.arrivals)} requests for 1,000 calls in {crowd.ended_at:.1f} s; ideal: 50 s")
    assert crowd.results == {"ok": 1000}
    assert len(upstream.arrivals) <= 1050
    assert crowd.ended_at < 50 / 0.7
    crowd.assert_nothing_is_left()


@pytest.mark.parametrize("retry_after", [None, 0.0, 5.0])
def test_without_a_useful_retry_after_all_succeed_all_the_same(retry_after: float | None) -> None:
    upstream = Upstream((FixedWindow(20),), retry_after=lambda now: retry_after)
    crowd = Crowd(upstream)
    clock.run(crowd.run(100))
    assert crowd.results == {"ok": 100}
    assert len(upstream.arrivals) < 140
    crowd.assert_nothing_is_left()


def test_a_thousand_agents_never_storm_a_limited_upstream() -> None:
    upstream = Upstream((FixedWindow(50),))
    crowd = Crowd(upstream, most=1000)
    clock.run(crowd.run(1000))
    most = upstream.in_any(1.0)
    print(
        f"1,000 agents, 50/s: {len(upstream.arrivals)} requests, {most} in the busiest second, {crowd.ended_at:.1f} s"
    )
    assert crowd.results == {"ok": 1000}
    assert most <= 50 + 20 + 5  # the limit, one step of growth, and what was on its way
    assert len(upstream.arrivals) <= 1050
    crowd.assert_nothing_is_left()


def test_a_thousand_agents_are_soon_all_at_work_where_there_is_no_limit() -> None:
    upstream = Upstream(latency=lambda: 60.0)
    crowd = Crowd(upstream, most=1000)
    clock.run(crowd.run(1000))
    assert upstream.peak == 1000
    assert upstream.arrivals[-1] < 10
    assert upstream.in_any(0.04) <= 20


def test_a_hundred_agents_of_tier_2_that_ask_for_33000_tokens_keep_to_its_tokens_per_minute() -> None:
    dice = random.Random(2)
    upstream = Upstream(
        (TokensPerMinute(3_000_000), FixedWindow(500, 60.0)),
        latency=lambda: 20 * (0.5 + dice.random()),
        retry_after=lambda now: 60 - now % 60,
        usage=Usage(prompt=2000, output=3000),
    )
    crowd = Crowd(upstream, known=RateLimits(100, 500, 3_000_000), tokens=33_000)
    clock.run(crowd.run(100))
    assert crowd.results == {"ok": 100}
    assert len(upstream.arrivals) <= 103
    crowd.assert_nothing_is_left()


def test_tokens_per_minute_that_only_the_refusal_names_are_learned() -> None:
    dice = random.Random(3)
    upstream = Upstream(
        (TokensPerMinute(3_000_000, says=True),),
        latency=lambda: 20 * (0.5 + dice.random()),
        retry_after=lambda now: 60 - now % 60,
        usage=Usage(prompt=2000, output=3000),
    )
    crowd = Crowd(upstream, tokens=33_000)
    clock.run(crowd.run(100, calls=3))
    assert crowd.results == {"ok": 300}
    assert len(upstream.arrivals) < 330
    crowd.assert_nothing_is_left()


def test_tier_0_does_one_request_after_another_at_three_a_minute() -> None:
    """Moonshot says "max RPM: 3, please try again after 1 seconds": whoever believes the second is refused again."""
    upstream = Upstream((Concurrency(1, says=True), SlidingWindow(3, 60.0)), retry_after=lambda now: 1.0)
    crowd = Crowd(upstream, known=RateLimits(1, 3, 500_000, 1_500_000), max_wait=3000.0)
    clock.run(crowd.run(12))
    assert crowd.results == {"ok": 12}
    assert len(upstream.arrivals) <= 15
    assert crowd.ended_at < 260
    crowd.assert_nothing_is_left()
