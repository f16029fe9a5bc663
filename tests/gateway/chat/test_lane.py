"""One deployment on the virtual clock: who may be there and when, and what refusals mean for those that wait."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from centuria.core.rates import RateLimits
from centuria.errors import ModelDenied, ModelError, ModelUnavailable
from centuria.gateway.chat.lane import Lane
from centuria.gateway.problems import Problem
from centuria.gateway.settings import Caps
from centuria.messages import Usage
from centuria.testing.clock import virtual_clock
from tests.gateway.chat.wire import now
from tests.gateway.served import deployment


@asynccontextmanager
async def lane(*, concurrency: int = 1, known: RateLimits | None = None, **caps: float) -> AsyncIterator[Lane]:
    limits = {"queue": 120.0, "waiting": 100, "waiting_all": 100, **caps}
    made = deployment("http://a/v1", concurrency=concurrency, known=known)
    it = Lane(made, Caps(**limits), dice=lambda: 0.0, wall=asyncio.get_running_loop().time)  # type: ignore[arg-type]
    try:
        yield it
        assert it.governor.in_flight() == len(it.queue) == len(it.waiters) == 0
    finally:
        it.close()


async def visit(
    it: Lane,
    group: str = "key",
    member: str = "",
    *,
    seconds: float = 1.0,
    priority: int = 5,
    patience: float = 100.0,
    fails: ModelError | None = None,
    seen: list[str] | None = None,
    tokens: int = 10,
) -> float:
    """Be there for so long; the time at which it was let in."""
    deadline = asyncio.get_running_loop().time() + patience
    async with it.enter(group, member, priority=priority, tokens=tokens, deadline=deadline) as place:
        at = now()
        if seen is not None:
            seen.append(group + member)
        if fails is not None:
            raise fails
        place.accepted({})
        await asyncio.sleep(seconds)
        place.succeeded(Usage(5, output=5))
    return at


def limited(seconds: float | None) -> ModelUnavailable:
    return ModelUnavailable("Too many.", status=429, retry_after=seconds, served=False)


def denied(status: int = 401) -> ModelDenied:
    return ModelDenied("Invalid key.", status=status, served=False)


@virtual_clock
async def test_keys_take_turns_and_so_do_the_agents_of_one_key() -> None:
    async with lane() as it, asyncio.TaskGroup() as group:
        seen: list[str] = []
        for name in ("first", "a1", "a1", "a1", "a2", "b1", "c1"):
            group.create_task(visit(it, name[0], name[1:], seen=seen))
    assert seen == ["first", "a1", "b1", "c1", "a2", "a1", "a1"]


@virtual_clock
async def test_a_place_that_comes_free_is_given_on_at_once() -> None:
    async with lane(concurrency=2) as it:
        times = await asyncio.gather(*(visit(it, seconds=2.0) for _ in range(6)))
        assert times == [0, 0, 2, 2, 4, 4]


@virtual_clock
async def test_the_gate_that_a_429_closes_opens_for_those_that_wait_when_it_said() -> None:
    async with lane(concurrency=10) as it:
        with pytest.raises(ModelUnavailable):
            await visit(it, fails=limited(5))
        times = await asyncio.gather(*(visit(it) for _ in range(4)))
        assert min(times) >= 5
        assert max(times) < 12
        assert await visit(it) < 12


@virtual_clock
async def test_an_accepted_answer_lets_the_next_ones_in_before_it_has_ended() -> None:
    said = "Your account reached max organization concurrency: 10, please try again after 5 seconds"
    busy = ModelUnavailable(said, status=429, retry_after=5, served=False)  # so no pace has to be found out
    async with lane(concurrency=10) as it:
        with pytest.raises(ModelUnavailable):
            await visit(it, fails=busy)
        times = await asyncio.gather(*(visit(it, seconds=50) for _ in range(4)))
        assert 5 <= min(times) == max(times) < 6  # and not when a refusal could no more come


@virtual_clock
async def test_a_key_that_is_refused_is_tried_again_after_a_minute_then_two_and_fifteen_at_most() -> None:
    async with lane() as it:
        probes = []
        for _ in range(8):
            with pytest.raises(ModelDenied):
                await visit(it, fails=denied())
            probes.append(now())
            with pytest.raises(ModelDenied) as caught:  # nothing is sent meanwhile
                await visit(it)
            assert caught.value.kind == "breaker"
            await asyncio.sleep(it.governor._breaker.left(asyncio.get_running_loop().time()) or 0)
        waits = [round(later - before) for before, later in itertools.pairwise(probes)]
        assert waits == [60, 120, 240, 480, 900, 900, 900]
        await visit(it)  # the operator has mended it
        with pytest.raises(ModelDenied):
            await visit(it, fails=denied(402))
        assert it.governor._breaker.left(asyncio.get_running_loop().time()) == pytest.approx(60)


def _asks(status: int, said: str, seconds: float | None) -> ModelError:
    kind = ModelDenied if status == 402 else ModelUnavailable
    return kind(said, status=status, retry_after=seconds, served=False)


@virtual_clock
@pytest.mark.parametrize(
    ("status", "said", "seconds"),
    [(402, "No.", 1e9), (429, "No.", 1e9), (503, "No.", 1e9), (429, "No, try again in 24h.", None)],
)
async def test_a_deployment_that_asks_for_a_day_is_asked_again_after_a_quarter_of_an_hour(
    status: int, said: str, seconds: float | None
) -> None:
    async with lane(concurrency=100) as it:
        with pytest.raises(ModelError):
            await visit(it, fails=_asks(status, said, seconds))
        await asyncio.sleep(700)
        with pytest.raises(ModelError):
            await visit(it)
        await asyncio.sleep(205)
        assert await visit(it, patience=60.0) < 910


@virtual_clock
async def test_many_denials_of_one_burst_count_once_and_all_that_wait_are_told() -> None:
    async with lane(concurrency=5) as it:

        async def refused_later() -> None:
            async with it.enter("k", "", priority=5, tokens=1, deadline=1_000.0) as place:
                await asyncio.sleep(1)
                place.failed(denied())

        inside = [asyncio.create_task(refused_later()) for _ in range(5)]
        await asyncio.sleep(0.5)
        waiting = [asyncio.create_task(visit(it)) for _ in range(3)]
        await asyncio.gather(*inside)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, ModelDenied)
        assert it.governor._breaker.left(1.0) == pytest.approx(60)
        assert now() == 1


@virtual_clock
async def test_a_deadline_in_the_queue_is_a_503_with_retry_after_and_the_next_one_is_served() -> None:
    async with lane() as it:
        first = asyncio.create_task(visit(it, seconds=10))
        await asyncio.sleep(0)
        with pytest.raises(Problem) as caught:
            await visit(it, patience=2)
        assert now() == 2
        assert (caught.value.status, caught.value.type) == (503, "engine_overloaded_error")
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert await visit(it) == 10
        await first


@virtual_clock
async def test_retry_after_is_when_the_limit_that_holds_it_up_will_admit_one() -> None:
    async with lane(concurrency=10, known=RateLimits(requests=2)) as it:
        await visit(it, seconds=0)
        assert now() == 0
        with pytest.raises(Problem) as caught:
            await visit(it, patience=3)
        assert now() == 0  # it is known at once that it will not come in time
        told = int(caught.value.headers["Retry-After"])
        await asyncio.sleep(told)
        assert await visit(it, patience=0.5, seconds=0) == told == 30


@virtual_clock
async def test_a_full_queue_refuses_at_once_and_one_key_cannot_fill_it_for_others() -> None:
    async with lane(waiting=2, waiting_all=3) as it, asyncio.TaskGroup() as group:
        group.create_task(visit(it, "a"))
        await asyncio.sleep(0)
        for _ in range(2):
            group.create_task(visit(it, "a"))
        await asyncio.sleep(0)
        with pytest.raises(Problem) as caught:
            await visit(it, "a")
        assert caught.value.status == 503
        assert int(caught.value.headers["Retry-After"]) >= 1
        group.create_task(visit(it, "b"))
        await asyncio.sleep(0)
        with pytest.raises(Problem):
            await visit(it, "c")
        assert now() == 0


@virtual_clock
async def test_waiters_that_are_cancelled_leave_no_hole() -> None:
    async with lane() as it:
        first = asyncio.create_task(visit(it, seconds=5))
        tasks = [asyncio.create_task(visit(it, f"k{n}")) for n in range(6)]
        await asyncio.sleep(1)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(4)  # the first leaves, and one is let in in this very tick
        tasks[1].cancel()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert [type(result) for result in results].count(asyncio.CancelledError) == 4
        assert sorted(result for result in results if isinstance(result, float)) == [0, 5, 6]


@virtual_clock
async def test_tokens_that_were_not_used_are_given_back() -> None:
    async with lane(concurrency=100, known=RateLimits(tokens=60_000)) as it:
        times = [await visit(it, tokens=20_000, seconds=0.1) for _ in range(20)]
        assert times[-1] < 3  # 400,000 were reserved, 200 used
