"""The door to a model: who is admitted, who waits and for how long, who is sent away; whatever ends a request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from centuria.core.rates import RateLimits
from centuria.errors import ModelDenied, ModelError, ModelUnavailable, SlotRefused
from centuria.events import (
    BreakerOpened,
    GateClosed,
    GateOpened,
    LimitSet,
    PrefixSet,
    RateLimitsSeen,
    SlotGranted,
    SlotLeft,
)
from centuria.messages import CallKey, Usage
from centuria.ports import Caller
from centuria.testing.clock import virtual_clock
from centuria.throttle import Patience
from tests.model.limited import RESOURCE, Crowd, FixedWindow, Upstream, too_many


def caller(task: str, *, priority: int = 5, turn: int = 0) -> Caller:
    return Caller(CallKey(task, 0, turn, 0), "run", 0, priority)


def now() -> float:
    return asyncio.get_running_loop().time()


def quota_spent(retry_after: float | None = None) -> ModelError:
    said = "HTTP 429. The upstream said: the quota is spent."
    return ModelDenied(said, status=429, retry_after=retry_after, served=False, remedy="Top it up.")


def once(error: ModelError, *, at: int = 1) -> Callable[[int], ModelError | None]:
    return lambda number: error if number == at else None


def left_of_the_minute(crowd: Crowd) -> float:
    """Tokens of 60,000 a minute, of which half may go at once."""
    delay = crowd.governor.delay(30_000, now())
    return 30_000 - (0.0 if delay is None else delay.seconds * 1000)


# -- the plain course ----------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_request_is_admitted_charged_and_refunded() -> None:
    crowd = Crowd(Upstream(), known=RateLimits(10, 60, 60_000))
    await crowd.run(agents=1)
    kinds = [type(event).__name__ for event in crowd.events()]
    assert kinds == ["LimitSet", "SlotGranted", "SlotLeft"]
    assert left_of_the_minute(crowd) == 30_000 - 1500 + 1000 * now()
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_the_limit_and_its_reason_are_those_of_the_slot_table() -> None:
    crowd = Crowd(Upstream((FixedWindow(20),)))
    await crowd.run(agents=60)
    changes = crowd.events(LimitSet)
    assert all(isinstance(change, LimitSet) and change.resource == RESOURCE and change.reason for change in changes)
    assert len(changes) > 3 and crowd.table.limit(RESOURCE) == crowd.governor.concurrency
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_an_error_that_leaves_the_block_is_told_and_the_slot_is_free_in_that_tick() -> None:
    crowd = Crowd(Upstream())
    crowd.throttle.begin()
    with pytest.raises(ModelUnavailable):
        async with crowd.throttle.admit(caller("a"), tokens=10, patience=Patience()):
            raise too_many(retry_after=3.0)
    assert crowd.governor.closed_until() is not None
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_the_headers_of_a_refusal_teach_too() -> None:
    crowd = Crowd(Upstream())
    crowd.throttle.begin()
    async with crowd.throttle.admit(caller("a"), tokens=10, patience=Patience()) as admission:
        admission.failed(too_many(), {"x-ratelimit-limit-requests": "30", "x-ratelimit-remaining-requests": "0"})
        admission.failed(too_many())  # the first end counts
        admission.succeeded(Usage(prompt=1))
    assert [type(event) for event in crowd.events(RateLimitsSeen, GateClosed)] == [RateLimitsSeen, GateClosed]
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_what_ends_in_no_known_way_is_given_up_and_keeps_its_charge() -> None:
    crowd = Crowd(Upstream(), known=RateLimits(10, None, 60_000))
    crowd.throttle.begin()
    with pytest.raises(ZeroDivisionError):
        async with crowd.throttle.admit(caller("a"), tokens=500, patience=Patience()):
            raise ZeroDivisionError
    assert left_of_the_minute(crowd) == 30_000 - 500
    crowd.assert_nothing_is_left()


# -- refusals ------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_429_closes_the_gate_for_those_who_wait_and_spends_no_retry() -> None:
    upstream = Upstream(fail=once(too_many(retry_after=7.0)))
    crowd = Crowd(upstream)
    await crowd.run(agents=30)
    assert crowd.results == {"ok": 30} and crowd.retries == 0
    assert len(upstream.arrivals) == 31
    assert not [at for at in upstream.arrivals if 0.06 < at < 7.05]
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_a_refused_call_goes_before_those_that_were_never_admitted() -> None:
    crowd = Crowd(Upstream(fail=once(too_many())), known=RateLimits(1), most=1)
    crowd.throttle.begin()
    order: list[str] = []

    async def one(name: str, priority: int) -> None:
        await crowd.call(caller(name, priority=priority))
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(one("refused", 9))
        await asyncio.sleep(0.01)
        for name in ("b", "c"):
            group.create_task(one(name, 0))
    assert order == ["b", "refused", "c"], "b stood at the door already"
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_a_call_waits_at_the_gate_for_max_wait_in_all_and_then_ends_for_good() -> None:
    crowd = Crowd(Upstream(fail=lambda number: too_many(retry_after=40.0)), max_wait=300.0)
    await crowd.run(agents=1)
    assert crowd.results == {"ModelUnavailable": 1} and crowd.retries == 0
    [error] = crowd.errors
    assert isinstance(error, ModelError) and error.kind == "gate" and not error.retryable
    assert "300 s" in str(error)
    assert now() <= 301
    assert 5 <= len(crowd.upstream.arrivals) <= 8
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_a_call_that_the_gate_would_keep_beyond_its_patience_ends_at_once() -> None:
    crowd = Crowd(Upstream(fail=lambda number: too_many(retry_after=200.0)))
    await crowd.run(agents=1)
    assert 200 <= now() < 240  # not 300
    assert len(crowd.upstream.arrivals) == 2


@virtual_clock
async def test_a_retry_after_above_the_cap_parks_all_work_at_once() -> None:
    crowd = Crowd(Upstream(latency=lambda: 500.0, fail=once(too_many(retry_after=7200.0))), most=5)
    await crowd.run(agents=50)
    assert max(crowd.failed_at) < 1
    assert crowd.results["ok"] == 4 and crowd.results["ModelDenied"] == 46  # four were in flight already
    assert all(isinstance(error, ModelDenied) and error.kind == "parked" for error in crowd.errors)
    assert "it asks for 7200 s" in str(crowd.errors[0]) and "Resume" in str(crowd.errors[0])
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_one_whose_patience_ends_before_the_gate_opens_is_sent_away_when_that_is_known() -> None:
    trips = iter([0.05, 20.0, 0.05])
    refusals = {1: too_many(retry_after=1.0), 2: too_many(retry_after=290.0)}
    # While the second is on its way, the limit of one keeps the first waiting.
    upstream = Upstream(trip=lambda: next(trips), fail=refusals.get)
    crowd = Crowd(upstream, known=RateLimits(2), most=2)
    await crowd.run(agents=2)
    assert crowd.results == {"ok": 1, "ModelUnavailable": 1}
    assert crowd.failed_at == [20.0]
    assert 310 <= now() < 320
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_an_overload_spends_a_retry_and_lowers_the_limit() -> None:
    error = ModelUnavailable("x", status=503, kind="server_unavailable", served=False)
    crowd = Crowd(Upstream(fail=once(error)), known=RateLimits(20), most=20)
    await crowd.run(agents=20)
    assert crowd.results == {"ok": 20} and crowd.retries == 1
    assert crowd.limits()[:2] == [20, 10]
    crowd.assert_nothing_is_left()


# -- the breaker ---------------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_spent_quota_stops_everything_and_all_who_wait_fail_with_that_cause() -> None:
    upstream = Upstream(fail=lambda number: quota_spent() if number == 3 else None)
    crowd = Crowd(upstream)
    await crowd.run(agents=200)
    assert now() < 1
    assert len(upstream.arrivals) == 5
    assert crowd.results == {"ok": 4, "ModelDenied": 196}
    assert {str(error) for error in crowd.errors} == {str(quota_spent())}
    assert len(crowd.events(BreakerOpened)) == 1
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_after_the_stated_time_one_probe_goes_and_its_answer_opens_the_way() -> None:
    upstream = Upstream(fail=once(quota_spent(60.0)))
    crowd = Crowd(upstream)
    await crowd.run(agents=3)
    assert len(upstream.arrivals) == 3
    await asyncio.sleep(30)
    await crowd.call(caller("too early"))
    assert len(upstream.arrivals) == 3
    await asyncio.sleep(31)
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(crowd.call(caller(f"later-{number}")))
    assert len(upstream.arrivals) == 4
    await crowd.call(caller("at last"))
    assert crowd.results["ok"] == 2 + 1 + 1
    crowd.assert_nothing_is_left()


# -- order ---------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_they_are_admitted_in_the_order_in_which_the_slot_table_grants() -> None:
    crowd = Crowd(Upstream(), known=RateLimits(50, 60), most=50)
    await crowd.run(agents=200)
    granted = [event.ticket for event in crowd.events(SlotGranted) if isinstance(event, SlotGranted)]
    admitted = [ticket for ticket, _ in crowd.admitted]
    assert admitted == granted and len(admitted) == 200
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_a_queue_time_out_ends_the_wait_for_a_slot() -> None:
    crowd = Crowd(Upstream(latency=lambda: 500.0), known=RateLimits(1), most=1)
    crowd.throttle._queue = 10.0
    crowd.throttle.begin()
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.call(caller("a")))
        await asyncio.sleep(1)
        with pytest.raises(SlotRefused):
            await crowd.call(caller("b"))
        assert now() == 11
    crowd.assert_nothing_is_left()


# -- warm first ----------------------------------------------------------------------------------------------------


@virtual_clock
async def test_one_call_goes_ahead_and_the_others_follow_its_first_token() -> None:
    crowd = Crowd(Upstream(trip=lambda: 2.0, latency=lambda: 30.0), known=RateLimits(50), most=50, prefix="shared")
    await crowd.run(agents=50)
    assert crowd.upstream.arrivals == [0.0] + [2.0] * 49
    assert [event.state for event in crowd.events(PrefixSet) if isinstance(event, PrefixSet)] == ["warming", "warm"]
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_if_the_one_that_went_ahead_fails_the_next_goes() -> None:
    error = ModelUnavailable("x", status=500)
    upstream = Upstream(trip=lambda: 1.0, fail=lambda number: error if number <= 2 else None)
    crowd = Crowd(upstream, known=RateLimits(50), most=50, prefix="shared")
    await crowd.run(agents=10)
    assert upstream.arrivals[:3] == [0.0, 1.0, 2.0]
    assert upstream.arrivals.count(3.0) >= 7
    assert crowd.results == {"ok": 10}
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_nobody_waits_for_it_longer_than_the_bound() -> None:
    crowd = Crowd(Upstream(trip=lambda: 300.0), known=RateLimits(50), most=50, prefix="shared")
    await crowd.run(agents=10)
    assert crowd.upstream.arrivals == [0.0] + [20.0] * 9
    crowd.assert_nothing_is_left()


@virtual_clock
async def test_if_the_one_that_went_ahead_is_cancelled_the_next_goes() -> None:
    crowd = Crowd(Upstream(trip=lambda: 1.0), known=RateLimits(50), most=50, prefix="shared")
    crowd.throttle.begin()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(crowd.call(caller("a")))
        await asyncio.sleep(0.5)
        for name in ("b", "c", "d"):
            group.create_task(crowd.call(caller(name)))
        await asyncio.sleep(0.1)
        crowd.upstream.in_flight -= 1
        first.cancel()
    assert crowd.upstream.arrivals == [0.0, 0.6, 1.6, 1.6]
    crowd.assert_nothing_is_left()


# -- cancellation --------------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_cancelled_call_releases_all_in_that_tick_wherever_it_is() -> None:
    crowd = Crowd(Upstream(), known=RateLimits(2, 6), most=2)
    crowd.throttle.begin()
    tasks = [asyncio.ensure_future(hold(crowd, f"a{number}")) for number in range(8)]
    await asyncio.sleep(0.1)
    assert crowd.governor.in_flight() == 2 and crowd.table.waiting(RESOURCE) == 6
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert now() == 0.1
    assert len(crowd.events(SlotLeft)) == 8
    crowd.assert_nothing_is_left()


async def hold(crowd: Crowd, name: str) -> None:
    async with crowd.throttle.admit(caller(name), tokens=10, patience=Patience()):
        await asyncio.sleep(1000)


@virtual_clock
async def test_the_next_one_goes_when_the_first_at_the_door_is_cancelled() -> None:
    crowd = Crowd(Upstream(), known=RateLimits(10, 6), most=10)
    crowd.throttle.begin()
    tasks = [asyncio.ensure_future(hold(crowd, f"a{number}")) for number in range(6)]
    await asyncio.sleep(1)
    assert crowd.governor.in_flight() == 3  # half a minute's worth
    tasks[3].cancel()
    await asyncio.sleep(9.1)
    assert crowd.governor.in_flight() == 4
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    crowd.assert_nothing_is_left()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_cancelled_and_refused_nothing_is_left_and_all_others_end(seed: int) -> None:
    virtual_clock(chaos)(seed)


async def chaos(seed: int) -> None:
    dice = random.Random(seed)
    upstream = Upstream(
        (FixedWindow(dice.choice([5, 20, 80])),),
        trip=lambda: dice.random() / 5,
        latency=lambda: dice.choice([0.1, 1.0, 5.0]),
        retry_after=lambda now: dice.choice([None, 0.0, 1.0, 3.0]),
        fail=lambda number: dice.choice(
            [None] * 15 + [ModelUnavailable("x", status=503, retry_after=2.0), ModelUnavailable("x", kind="connect")]
        ),
    )
    crowd = Crowd(upstream, seed=seed, prefix=dice.choice([None, "shared"]), max_wait=3000.0)
    crowd.throttle.begin()
    tasks = [asyncio.ensure_future(crowd.call(caller(f"a{number}"))) for number in range(300)]
    for _ in range(25):
        await asyncio.sleep(dice.choice([0.0, 0.1, 0.5]))
        for task in dice.sample(tasks, 5):
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(task.cancelled() for task in tasks)
    assert cancelled + sum(crowd.results.values()) == 300
    assert crowd.results["ok"] > 100
    upstream.in_flight = 0  # those that were cancelled on the way to it
    crowd.assert_nothing_is_left()
    assert_gate_held(crowd)


def assert_gate_held(crowd: Crowd) -> None:
    """Nothing is admitted between a closing and the opening, and no opening is too early."""
    until: float | None = None
    admitted = Counter(seq for _, seq in crowd.admitted)
    for seq, event in enumerate(crowd.events(), 1):
        if isinstance(event, GateClosed):
            until = max(until or event.until, event.until)
        elif isinstance(event, GateOpened):
            assert until is not None and event.at >= until
            until = None
        if admitted[seq]:
            assert until is None
