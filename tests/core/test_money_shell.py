"""Money, the shell on the ledger: a wait ends with money, with a refusal, or with nothing left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from centuria.admission import Money
from centuria.core.money import Ledger
from centuria.core.progress import Progress
from centuria.errors import BudgetExceeded
from centuria.events import MoneyReleased, MoneySettled, Notice, fold
from centuria.messages import DOLLAR
from centuria.stream import Stream
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal


class Purse:
    """Money on a stream of its own."""

    def __init__(self, cap: int | None, ledger: Ledger | None = None) -> None:
        self.journal = MemoryJournal()
        self.ledger = ledger or Ledger()
        self.money = Money(self.ledger, Stream(self.journal, clock=lambda: 0.0, progress=Progress()))
        self.money.set_cap("run", cap)

    def nothing_is_left_behind(self) -> None:
        """No hold, no waiter, no future; and the journal says what is."""
        assert not self.ledger.open_holds()
        assert not self.ledger.waiting()
        assert not self.money._waiters
        replayed = Ledger()
        fold(replayed, [record.event for record in self.journal.read()])
        assert replayed == self.ledger


@virtual_clock
async def test_a_call_waits_for_money_that_is_only_reserved() -> None:
    purse = Purse(100)
    first = await purse.money.reserve("run", 80)
    waiting = asyncio.ensure_future(purse.money.reserve("run", 60))
    await asyncio.sleep(1)
    assert not waiting.done()
    purse.money.settle(first, 30)
    second = await waiting
    assert purse.ledger.reserved("run") == 60
    purse.money.release(second)
    purse.nothing_is_left_behind()


@virtual_clock
async def test_a_refusal_says_what_is_affordable_and_which_cap_it_was() -> None:
    purse = Purse(100)
    purse.money.set_cap("agent", 40, parent="run")
    with pytest.raises(BudgetExceeded) as now:
        await purse.money.reserve("agent", 41)
    assert (now.value.affordable, now.value.node) == (40, "agent")
    hold = await purse.money.reserve("run", 90)
    waiting = asyncio.ensure_future(purse.money.reserve("agent", 20))
    await asyncio.sleep(1)
    purse.money.forfeit(hold)
    with pytest.raises(BudgetExceeded) as later:
        await waiting
    assert (later.value.affordable, later.value.node) == (10, "run")
    purse.nothing_is_left_behind()


@virtual_clock
async def test_who_gives_up_waiting_leaves_the_line_and_lets_the_next_one_go() -> None:
    purse = Purse(100)
    hold = await purse.money.reserve("run", 50)
    big = asyncio.ensure_future(purse.money.reserve("run", 90))
    small = asyncio.ensure_future(purse.money.reserve("run", 50))
    await asyncio.sleep(1)
    assert not small.done()
    big.cancel()
    assert await small == 3
    purse.money.release(3)
    purse.money.release(hold)
    purse.nothing_is_left_behind()


@virtual_clock
async def test_who_is_cancelled_in_the_very_tick_of_the_grant_gives_the_money_back() -> None:
    purse = Purse(100)
    hold = await purse.money.reserve("run", 100)
    waiting = asyncio.ensure_future(purse.money.reserve("run", 100))
    await asyncio.sleep(1)
    purse.money.release(hold)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert purse.ledger.left("run") == 100
    purse.nothing_is_left_behind()


@virtual_clock
async def test_what_belongs_to_a_settlement_is_published_with_it_even_if_the_hold_is_gone() -> None:
    purse = Purse(100)
    hold = await purse.money.reserve("run", 10)
    purse.money.settle(hold, 4, Notice("the row"))
    purse.money.settle(hold, 4, Notice("again"))
    events = [record.event for record in purse.journal.read()]
    assert events[-3:] == [Notice("the row"), MoneySettled(hold, 4), Notice("again")]
    assert purse.ledger.spent("run") == 4


@virtual_clock
async def test_a_resumed_run_goes_on_with_new_numbers_and_what_was_spent() -> None:
    first = Purse(100)
    hold = await first.money.reserve("run", 60)
    first.money.settle(hold, 60)
    lost = await first.money.reserve("run", 30)
    ledger = Ledger()
    fold(ledger, [record.event for record in first.journal.read()])
    assert ledger.recover() == [MoneyReleased(lost)]
    second = Purse(150, ledger)
    assert await second.money.reserve("run", 90) == lost + 1
    with pytest.raises(BudgetExceeded):
        await second.money.reserve("run", 91)


@virtual_clock
async def test_a_hundred_agents_with_a_dollar_buy_ten_answers_and_ninety_end_as_budget() -> None:
    """The worked example, through the shell: $0.10 an answer, all of its reservation used."""
    purse = Purse(DOLLAR)
    ends = []

    async def agent() -> None:
        try:
            hold = await purse.money.reserve("run", DOLLAR // 10)
        except BudgetExceeded:
            ends.append("budget")
            return
        await asyncio.sleep(0.42)
        purse.money.settle(hold, DOLLAR // 10)
        ends.append("ok")

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(agent())
    assert (ends.count("ok"), ends.count("budget")) == (10, 90)
    assert purse.ledger.spent("run") == DOLLAR
    purse.nothing_is_left_behind()


@pytest.mark.parametrize("seed", range(8))
@virtual_clock
async def test_whatever_is_cancelled_whenever_the_cap_holds_and_nothing_leaks(seed: int) -> None:
    chance, purse = random.Random(seed), Purse(1000)
    for team in range(4):
        purse.money.set_cap(f"team{team}", chance.choice([None, 150, 400]), parent="run")

    async def agent(number: int) -> None:
        for _ in range(4):
            amount = chance.randint(1, 120)
            try:
                hold = await purse.money.reserve(f"team{number % 4}", amount)
            except BudgetExceeded:
                return
            try:
                await asyncio.sleep(chance.random())
            except asyncio.CancelledError:
                purse.money.forfeit(hold)
                raise
            purse.money.settle(hold, chance.randint(0, amount // 4))
            assert purse.ledger.overrun("run") == 0

    tasks = [asyncio.ensure_future(agent(number)) for number in range(60)]
    for task in chance.sample(tasks, 15):
        asyncio.get_running_loop().call_later(chance.random() * 3, task.cancel)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(purse.ledger.overrun(node) == 0 for node in ("run", "team0", "team1", "team2", "team3"))
    purse.nothing_is_left_behind()
