"""A key's requests and tokens a minute, on the virtual clock."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.gateway.chat.rates import KeyRates
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem
from centuria.gateway.settings import Caps
from centuria.testing.clock import run, virtual_clock
from tests.gateway.chat.wire import now


async def admitted(rates: KeyRates, key: Key, *, tokens: int = 10, within: float = 60.0, agent: str = "") -> float:
    deadline = asyncio.get_running_loop().time() + within
    await rates.admit(key, agent, priority=5, tokens=tokens, deadline=deadline)
    return now()


@virtual_clock
async def test_requests_beyond_the_minutes_limit_wait_and_are_not_refused() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=60)
    times = await asyncio.gather(*(admitted(rates, key) for _ in range(50)))
    assert times[:30] == [0] * 30  # half a minute's worth at once
    assert times[30:] == pytest.approx(list(range(1, 21)), abs=0.01)
    rates.close()


@virtual_clock
async def test_a_429_comes_only_when_the_turn_would_not_come_in_time_and_its_retry_after_is_true() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=60)
    waiting = [asyncio.create_task(admitted(rates, key)) for _ in range(40)]
    await asyncio.sleep(0)
    with pytest.raises(Problem) as caught:
        await admitted(rates, key, within=5)
    assert now() == 0
    assert (caught.value.status, caught.value.type) == (429, "rate_limit_reached_error")
    told = int(caught.value.headers["Retry-After"])
    assert told == 11
    await asyncio.gather(*waiting)
    await asyncio.sleep(told - asyncio.get_running_loop().time())
    assert await admitted(rates, key, within=0.1) == pytest.approx(told, abs=0.01)
    rates.close()


@virtual_clock
async def test_tokens_are_limited_too_and_what_was_not_used_comes_back() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", tpm=6_000)
    assert await admitted(rates, key, tokens=3_000) == 0
    with pytest.raises(Problem) as caught:
        await admitted(rates, key, tokens=1_000, within=5)
    assert caught.value.headers["Retry-After"] == "10"
    waiting = asyncio.create_task(admitted(rates, key, tokens=1_000))
    await asyncio.sleep(1)
    rates.give_back(key, 3_000, 100)
    assert await waiting == 1
    rates.close()


@virtual_clock
async def test_a_request_larger_than_the_limit_waits_for_all_of_it_and_is_served() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", tpm=1_000)
    assert await admitted(rates, key, tokens=50_000) == 0
    assert await admitted(rates, key, tokens=50_000, within=100) == pytest.approx(60, abs=1)
    rates.close()


@virtual_clock
async def test_agents_of_a_key_take_turns() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=2)
    order: list[str] = []

    async def go(agent: str) -> None:
        await admitted(rates, key, within=1_000, agent=agent)
        order.append(agent)

    await asyncio.gather(*(go(agent) for agent in ("first", "a", "a", "a", "b")))
    assert order == ["first", "a", "b", "a", "a"]
    rates.close()


@virtual_clock
async def test_who_is_cancelled_while_it_waits_takes_nothing() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=2)
    await admitted(rates, key)
    tasks = [asyncio.create_task(admitted(rates, key, within=1_000)) for _ in range(3)]
    await asyncio.sleep(1)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].result() == pytest.approx(30, abs=0.01)
    rates.close()


@virtual_clock
async def test_who_goes_in_the_tick_in_which_its_turn_came_gives_it_on() -> None:
    rates, key, loop = KeyRates(Caps()), Key("k", "k", tpm=2_000), asyncio.get_running_loop()
    await admitted(rates, key, tokens=1_000)
    gone = asyncio.create_task(admitted(rates, key, tokens=1_000))
    await asyncio.sleep(1)
    timer = rates._meters["k"].timer
    assert timer is not None
    loop.call_at(timer.when() + 1e-10, gone.cancel)
    await asyncio.gather(gone, return_exceptions=True)
    assert now() == 30
    assert await admitted(rates, key, tokens=1_000) == 30
    rates.close()


@virtual_clock
async def test_what_keys_used_is_forgotten_once_it_is_full_again_and_not_before() -> None:
    rates = KeyRates(Caps())
    busy, times = Key("busy", "busy", rpm=2), []
    for number in range(2_000):
        await admitted(rates, Key(f"k{number}", "k", rpm=60, tpm=6_000))
        await asyncio.sleep(1)
        if number % 7 == 0:
            times.append(await admitted(rates, busy))
    assert rates.known() < 600
    assert min(later - sooner for sooner, later in pairwise(times)) == pytest.approx(30, abs=0.01)
    rates.close()


@virtual_clock
async def test_a_key_whose_limits_change_has_those_that_wait_measured_by_the_new_ones() -> None:
    rates = KeyRates(Caps())
    await admitted(rates, Key("k", "k", rpm=1))
    waiting = [asyncio.create_task(admitted(rates, Key("k", "k", rpm=1), within=1_000)) for _ in range(3)]
    await asyncio.sleep(1)
    assert await admitted(rates, Key("k", "k", rpm=60)) == 1
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    rates.close()


@virtual_clock
async def test_no_timer_runs_once_nobody_waits() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=1)
    await admitted(rates, key)
    waiting = asyncio.create_task(admitted(rates, key, within=1_000))
    await asyncio.sleep(1)
    assert rates._meters["k"].timer is not None
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert rates._meters["k"].timer is None
    rates.close()


@virtual_clock
async def test_headers_say_what_is_left_and_a_key_without_limits_has_none() -> None:
    rates, key = KeyRates(Caps()), Key("k", "k", rpm=60, tpm=6_000)
    await admitted(rates, key, tokens=600)
    told = rates.headers(key)
    assert told["x-ratelimit-limit-requests"] == "60"
    assert told["x-ratelimit-remaining-requests"] == "29"
    assert told["x-ratelimit-remaining-tokens"] == "2400"
    assert told["x-ratelimit-reset-tokens"] == "6.000s"
    assert rates.headers(Key("other", "other")) == {}
    assert await admitted(rates, Key("other", "other"), tokens=10**9) == 0
    rates.close()


@given(st.lists(st.tuples(st.integers(1, 3_000), st.floats(0, 20)), max_size=30))
@settings(max_examples=40)
def test_no_more_than_the_limit_passes_in_any_minute_but_for_the_first_burst(asks: list[tuple[int, float]]) -> None:
    async def main() -> None:
        rates, key = KeyRates(Caps()), Key("k", "k", rpm=12, tpm=5_000)
        passed: list[tuple[float, int]] = []

        async def go(tokens: int, after: float) -> None:
            await asyncio.sleep(after)
            passed.append((await admitted(rates, key, tokens=tokens, within=10_000), tokens))

        await asyncio.gather(*(go(tokens, after) for tokens, after in asks))
        assert len(passed) == len(asks)
        for start, _ in passed:
            minute = [tokens for at, tokens in passed if start <= at < start + 60]
            assert len(minute) <= 12 + 6 + 1
            assert sum(minute) <= 5_000 + 2_500 + 3_000
        rates.close()

    run(main())
