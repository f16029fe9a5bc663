"""Hedging, where an operator asks for it: a slow model is asked again elsewhere, and the quicker one counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from centuria.gateway.chat.hedging import Turn, race
from centuria.gateway.problems import Problem
from centuria.gateway.settings import GatewaySettings
from centuria.testing.clock import virtual_clock
from tests.gateway.chat.test_funnel import at, to
from tests.gateway.chat.wire import fine, now, refused, rig


def hedged(*hosts: str) -> GatewaySettings:
    return replace(to(*hosts), hedge={"kimi": 2.0})


@virtual_clock
async def test_a_slow_deployment_is_overtaken_by_another_and_its_upstream_let_go() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=30 if host == "a" else 1)) as it:
        async with it.funnel.ask(it.call()) as answer:
            assert answer.headers["x-centuria-deployment"] == "b/m"
            assert answer.headers["x-centuria-attempts"] == "2"
            assert b"word" in b"".join([chunk async for chunk in answer.chunks()])
        assert it.wire.asked == [(0, "a"), (2, "b")]
        assert now() < 4
        lost, won = sorted(it.rows, key=lambda row: row.attempt)
        assert (lost.deployment, lost.end, lost.held > 0) == ("a/m", "client_closed", True)
        assert (won.deployment, won.end, won.cost > 0) == ("b/m", "done", True)
        assert it.funnel.in_flight() == 0
        assert it.books.reserved() == 0


@virtual_clock
async def test_what_begins_in_time_is_asked_once() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=1.5)) as it:
        await it.ask()
        assert it.wire.asked == [(0, "a")]


@virtual_clock
async def test_the_first_may_still_win() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=3 if host == "a" else 30)) as it:
        async with it.funnel.ask(it.call()) as answer:
            assert answer.headers["x-centuria-deployment"] == "a/m"
        assert it.wire.asked == [(0, "a"), (2, "b")]
        assert {row.attempt for row in it.rows} == {1, 2}


@virtual_clock
async def test_a_rival_that_fails_harms_nobody_and_is_not_asked_again() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=5) if host == "a" else refused(400)) as it:
        async with it.funnel.ask(it.call()) as answer:
            assert answer.headers["x-centuria-deployment"] == "a/m"
        assert it.wire.asked == [(0, "a"), (2, "b")]


@virtual_clock
async def test_attempts_of_both_count_against_the_cap() -> None:
    async with rig(hedged("a", "b"), lambda host, body: replace(refused(500), late=3)) as it:
        with pytest.raises(Problem):
            await it.ask()
        assert len(it.wire.asked) <= 4
        assert sorted(row.attempt for row in it.rows) == list(range(1, len(it.wire.asked) + 1))


@virtual_clock
async def test_one_deployment_has_no_rival() -> None:
    async with rig(hedged("a"), lambda host, body: fine(late=30)) as it:
        await it.ask()
        assert it.wire.asked == [(0, "a")]


@virtual_clock
async def test_a_caller_that_goes_ends_both() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=50)) as it:
        task = asyncio.create_task(it.ask())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.wire.asked == [(0, "a"), (2, "b")]
        assert [row.end for row in it.rows] == ["client_closed"] * 2
        assert it.funnel.in_flight() == 0
        assert it.books.reserved() == 0


@virtual_clock
async def test_a_rival_may_be_of_the_next_model() -> None:
    models = {"kimi": [at("a")], "other": [at("c")]}
    settings = replace(to(**models), hedge={"kimi": 2.0})
    async with rig(settings, lambda host, body: fine(late=30 if host == "a" else 1)) as it:
        assert b"word" in await it.ask(models=("kimi", "other"))
        assert it.rows[-1].model == "other"


@virtual_clock
async def test_where_both_begin_at_once_one_counts_and_the_other_is_let_go() -> None:
    async with rig(hedged("a", "b"), lambda host, body: fine(late=3 if host == "a" else 1)) as it:
        async with it.funnel.ask(it.call()) as answer:
            assert answer.headers["x-centuria-deployment"] in ("a/m", "b/m")
            assert it.funnel.in_flight() == 1
        assert {row.attempt for row in it.rows} == {1, 2}
        assert it.funnel.in_flight() == 0
        assert it.books.reserved() == 0


@virtual_clock
async def test_the_last_attempt_that_a_request_may_have_has_no_rival() -> None:
    few = replace(hedged("a", "b"), caps=replace(hedged("a").caps, attempts=1))
    async with rig(few, lambda host, body: fine(late=5)) as it:
        assert b"word" in await it.ask()
        assert it.wire.asked == [(0, "a")]


class Racers:
    """Two that race: each ends well after so many seconds, and takes so many to leave."""

    def __init__(self, *seconds: tuple[float, float]) -> None:
        self.seconds = seconds
        self.over: list[int] = []
        self.spared: list[int] = []

    async def one(self, turn: int) -> None:
        lasts, leaves = self.seconds[turn]
        try:
            await asyncio.sleep(lasts)
        except asyncio.CancelledError:
            await asyncio.sleep(leaves)
            raise
        finally:
            self.over.append(turn)

    async def spare(self, turn: Turn) -> None:
        self.spared.append(turn)
        await asyncio.sleep(1)

    async def run(self) -> Turn:
        return await race(self.one(0), after=1.0, second=lambda: self.one(1), spare=self.spare)


@virtual_clock
async def test_whoever_goes_while_the_loser_leaves_takes_the_winner_along() -> None:
    racers = Racers((60, 5), (1, 0))
    racing = asyncio.create_task(racers.run())
    await asyncio.sleep(4)  # the second one has won, and the first one leaves
    assert racers.over == [1]
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert sorted(racers.over) == [0, 1]
    assert racers.spared == [1]


@virtual_clock
async def test_whoever_is_cancelled_again_and_again_returns_when_both_are_over() -> None:
    for second in (60.0, 3.0):
        racers = Racers((60, 5), (second, 0))
        racing = asyncio.create_task(racers.run())
        for _ in range(4):
            await asyncio.sleep(1.5)
            racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert sorted(racers.over) == [0, 1]


@virtual_clock
async def test_where_both_end_well_and_nobody_waits_any_more_both_are_let_go() -> None:
    for times in range(1, 4):
        racers = Racers((3, 0), (2, 0))
        racing = asyncio.create_task(racers.run())
        await asyncio.sleep(3)  # in the tick in which both end
        for _ in range(times):
            racing.cancel()
            await asyncio.sleep(0.5)
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert set(racers.spared) == {0, 1}
