"""One cap over several runs at once: together they never pass it, and what one gives back another may have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.admission import Money, Purse
from centuria.core.money import Ledger
from centuria.core.progress import Progress
from centuria.errors import BudgetExceeded
from centuria.events import fold
from centuria.stream import Stream
from centuria.testing import clock
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal

RUN = "run"


class OneRun:
    """The money of one run, with a journal of its own."""

    def __init__(self, purse: Purse, cap: int | None) -> None:
        self.journal = MemoryJournal()
        stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress())
        self.money = Money(Ledger(), stream, purse)
        self.money.set_cap(RUN, cap)

    def taken(self) -> int:
        ledger = self.money.ledger
        return ledger.spent(RUN) + ledger.held(RUN)

    def replays(self) -> bool:
        replayed = Ledger()
        fold(replayed, [record.event for record in self.journal.read()])
        return replayed == self.money.ledger


def runs(number: int, cap: int | None) -> tuple[Purse, list[OneRun]]:
    purse = Purse(cap, runs=number)
    return purse, [OneRun(purse, cap) for _ in range(number)]


@virtual_clock
async def test_a_call_of_one_run_waits_for_what_another_has_only_reserved() -> None:
    _, [one, other] = runs(2, 100)
    first = await one.money.reserve(RUN, 80)
    waiting = asyncio.ensure_future(other.money.reserve(RUN, 60))
    await asyncio.sleep(1)
    assert not waiting.done()
    one.money.settle(first, 30)
    other.money.settle(await waiting, 60)
    assert (one.taken(), other.taken()) == (30, 60)


@virtual_clock
async def test_a_call_that_the_others_left_no_money_for_is_refused_and_leaves_nothing_behind() -> None:
    _, [one, other] = runs(2, 100)
    one.money.settle(await one.money.reserve(RUN, 70), 70)
    with pytest.raises(BudgetExceeded, match="all runs together") as refused:
        await other.money.reserve(RUN, 40)
    assert refused.value.affordable == 30
    assert other.money.ledger.open_holds() == () and other.replays()
    other.money.forfeit(await other.money.reserve(RUN, 30))
    assert one.taken() + other.taken() == 100


@virtual_clock
async def test_who_is_cancelled_while_it_waits_for_the_others_holds_nothing() -> None:
    purse, [one, other] = runs(2, 100)
    hold = await one.money.reserve(RUN, 100)
    waiting = asyncio.ensure_future(other.money.reserve(RUN, 60))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    one.money.release(hold)
    assert other.money.ledger.open_holds() == purse.money.ledger.open_holds() == ()
    assert purse.money.ledger.waiting() == () and other.replays()


@virtual_clock
async def test_agents_hear_of_the_common_cap_and_a_run_counts_on_its_share_of_what_is_left() -> None:
    purse, [one, other] = runs(2, 100)
    one.money.settle(await one.money.reserve(RUN, 80), 80)
    assert one.money.used(RUN) == other.money.used(RUN) == 0.8
    assert one.money.unspent(RUN) == other.money.unspent(RUN) == 10
    purse.runs = 1
    assert other.money.unspent(RUN) == 20


@virtual_clock
async def test_without_a_common_cap_each_run_has_its_own() -> None:
    purse = Purse(None, runs=1)
    alone = OneRun(purse, 50)
    assert alone.money.unspent(RUN) == 50 and alone.money.used(RUN) == 0.0
    assert OneRun(purse, None).money.unspent(RUN) is None
    with pytest.raises(BudgetExceeded, match="cap of run"):
        await alone.money.reserve(RUN, 51)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(50, 400))
@settings(max_examples=60, deadline=None)
def test_whatever_ends_their_calls_the_runs_together_never_pass_the_cap(seed: int, number: int, cap: int) -> None:
    dice = random.Random(seed)
    purse, parts = runs(number, cap)
    most: list[int] = []

    def look() -> None:
        ledgers = [one.money.ledger for one in parts]
        assert sum(one.taken() for one in parts) <= cap
        most.append(purse.money.ledger.spent("all runs together") + purse.money.ledger.held("all runs together"))
        assert most[-1] == sum(ledger.spent(RUN) + ledger.held(RUN) for ledger in ledgers)

    async def call(one: OneRun) -> None:
        amount = dice.randint(0, 60)
        await asyncio.sleep(dice.random())
        try:
            hold = await one.money.reserve(RUN, amount)
        except BudgetExceeded:
            return
        try:
            await asyncio.sleep(dice.random())
        except asyncio.CancelledError:
            one.money.forfeit(hold)
            raise
        end = dice.choice(["settle", "settle", "forfeit", "release"])
        if end == "settle":
            one.money.settle(hold, dice.randint(0, amount))
        elif end == "forfeit":
            one.money.forfeit(hold)
        else:
            one.money.release(hold)
        look()

    async def all_of_them() -> None:
        calls = [asyncio.ensure_future(call(dice.choice(parts))) for _ in range(40)]
        for one in _some(calls, dice):
            await asyncio.sleep(dice.random() / 4)
            one.cancel()
        async with asyncio.timeout(1_000):
            await asyncio.gather(*calls, return_exceptions=True)
        for one in calls:
            assert one.cancelled() or one.exception() is None

    clock.run(all_of_them())
    look()
    assert purse.money.ledger.open_holds() == purse.money.ledger.waiting() == ()
    assert not purse.money._waiters and not any(one.money._shared for one in parts)
    assert all(one.money.ledger.open_holds() == () and one.replays() for one in parts)


def _some(calls: list[asyncio.Future[None]], dice: random.Random) -> Iterable[asyncio.Future[None]]:
    return dice.sample(calls, 8)
