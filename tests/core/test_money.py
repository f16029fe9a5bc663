"""The ledger: never over a cap, nothing waits that fits, and what the journal says is what is."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.money import Ledger, PromptBound
from centuria.events import (
    CapSet,
    Fact,
    MoneyHeld,
    MoneyQueued,
    MoneyRefused,
    MoneyReleased,
    MoneyReserved,
    MoneySettled,
    fold,
)
from centuria.messages import DOLLAR


def ledger_with(**caps: int | None) -> Ledger:
    """Nodes in order: `run` first, the others under it."""
    ledger = Ledger()
    for name, cap in caps.items():
        ledger.set_cap(name, cap, parent=None if name == "run" else "run")
    return ledger


# -- promises by example ---------------------------------------------------------------------------------------------


def drive(budget: int, *, agents: int, calls: int, worst: int, true: int) -> tuple[Counter[str], Ledger]:
    """Agents with `calls` calls each against one cap, all ready at once; the oldest in flight ends first."""
    ledger = ledger_with(run=budget)
    left = dict.fromkeys(range(agents), calls)
    owner: dict[int, int] = {}
    flying: deque[int] = deque()
    ends: Counter[str] = Counter()
    number = 0

    def act(facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, MoneyReserved):
                flying.append(fact.hold)
            elif isinstance(fact, MoneyRefused):
                ends["budget"] += 1

    def ask(agent: int) -> None:
        nonlocal number
        number += 1
        owner[number] = agent
        act(ledger.reserve(number, "run", worst))

    for agent in range(agents):
        ask(agent)
    while flying:
        hold = flying.popleft()
        agent = owner[hold]
        act(ledger.settle(hold, true))
        left[agent] -= 1
        if left[agent]:
            ask(agent)
        else:
            ends["ok"] += 1
    assert not ledger.waiting()
    assert not ledger.open_holds()
    return ends, ledger


def test_of_a_hundred_agents_ten_leave_and_ninety_end_as_budget() -> None:
    """The worked example: input price 0, $0.10 an answer, cap $1.00."""
    ends, ledger = drive(DOLLAR, agents=100, calls=1, worst=DOLLAR // 10, true=DOLLAR // 10)
    assert ends == {"ok": 10, "budget": 90}
    assert ledger.spent("run") == DOLLAR
    assert ledger.overrun("run") == 0


def test_nobody_dies_of_money_that_is_only_reserved() -> None:
    """100 agents x 4 calls, max_tokens 32,768 at $3 a million, true cost $1.98 in all, cap $5: all end ok."""
    worst, true = 32_768 * 3_000_000 + 2_000 * 600_000, 198 * DOLLAR // 40_000
    assert 400 * worst > 7 * 5 * DOLLAR
    ends, ledger = drive(5 * DOLLAR, agents=100, calls=4, worst=worst, true=true)
    assert ends == {"ok": 100}
    assert ledger.spent("run") == 198 * DOLLAR // 100


def test_what_would_fit_without_the_open_reservations_waits_for_room() -> None:
    ledger = ledger_with(run=100)
    assert ledger.reserve(1, "run", 60) == [MoneyReserved(1, "run", 60)]
    assert ledger.reserve(2, "run", 60) == [MoneyQueued(2, "run", 60)]
    assert ledger.settle(1, 40) == [MoneySettled(1, 40), MoneyReserved(2, "run", 60)]
    assert (ledger.spent("run"), ledger.reserved("run"), ledger.left("run")) == (40, 60, 0)


def test_what_would_never_fit_is_refused_with_what_is_affordable() -> None:
    ledger = ledger_with(run=100, agent=30)
    ledger.reserve(1, "run", 50)
    assert ledger.reserve(2, "agent", 31) == [MoneyRefused(2, "agent", 31, affordable=30, limited_by="agent")]
    ledger.settle(1, 50)
    ledger.forfeit(ledger.reserve(3, "run", 30)[0].hold)  # type: ignore[union-attr]
    assert ledger.reserve(4, "agent", 30) == [MoneyRefused(4, "agent", 30, affordable=20, limited_by="run")]
    assert ledger.reserve(5, "agent", 20) == [MoneyReserved(5, "agent", 20)]


def test_a_waiter_is_refused_the_moment_that_it_can_no_longer_fit() -> None:
    ledger = ledger_with(run=100)
    ledger.reserve(1, "run", 60)
    ledger.reserve(2, "run", 60)
    ledger.reserve(3, "run", 30)  # behind 2, though it would fit
    assert ledger.forfeit(1) == [
        MoneyHeld(1),
        MoneyRefused(2, "run", 60, affordable=40, limited_by="run"),
        MoneyReserved(3, "run", 30),
    ]
    assert ledger.held("run") == 60


def test_who_stood_behind_one_that_is_refused_at_a_cap_further_up_goes_at_once() -> None:
    ledger = ledger_with(run=100, team=50, other=None)
    ledger.reserve(1, "team", 30)
    ledger.reserve(2, "team", 40)
    ledger.reserve(3, "team", 5)
    ledger.reserve(4, "other", 62)
    assert ledger.settle(4, 62) == [
        MoneySettled(4, 62),
        MoneyRefused(2, "team", 40, affordable=38, limited_by="run"),
        MoneyReserved(3, "team", 5),
    ]


def test_a_small_request_does_not_overtake_a_big_one_at_the_same_cap() -> None:
    ledger = ledger_with(run=100)
    ledger.reserve(1, "run", 50)
    ledger.reserve(2, "run", 40)
    assert isinstance(ledger.reserve(3, "run", 90)[0], MoneyQueued)
    for small in range(4, 10):
        assert isinstance(ledger.reserve(small, "run", 5)[0], MoneyQueued)
    assert ledger.release(1) == [MoneyReleased(1)]
    assert ledger.release(2)[:3] == [
        MoneyReleased(2),
        MoneyReserved(3, "run", 90),
        MoneyReserved(4, "run", 5),
    ]


def test_a_waiter_that_only_its_own_subtree_holds_up_stands_in_nobody_elses_way() -> None:
    ledger = ledger_with(run=100, small=10, other=None)
    ledger.reserve(1, "small", 10)
    assert isinstance(ledger.reserve(2, "small", 10)[0], MoneyQueued)
    assert isinstance(ledger.reserve(3, "small", 1)[0], MoneyQueued)
    assert isinstance(ledger.reserve(4, "other", 80)[0], MoneyReserved)
    # Its own cap is free now, the run's is not: from here on it is first in the run's line.
    assert isinstance(ledger.reserve(5, "other", 5)[0], MoneyReserved)
    ledger.reserve(6, "run", 5)
    assert ledger.left("run") == 0
    assert ledger.release(1) == [MoneyReleased(1), MoneyReserved(2, "small", 10)]


def test_a_limit_is_inherited_and_only_tightens() -> None:
    ledger = ledger_with(run=100, agent=1000)
    assert ledger.left("agent") == 100
    assert isinstance(ledger.reserve(1, "agent", 101)[0], MoneyRefused)
    assert isinstance(ledger.reserve(2, "agent", 100)[0], MoneyReserved)
    assert ledger.reserved("run") == ledger.reserved("agent") == 100


def test_ending_a_hold_twice_or_one_that_never_was_is_harmless() -> None:
    ledger = ledger_with(run=100)
    ledger.reserve(1, "run", 10)
    ledger.settle(1, 4)
    before = ledger.snapshot()
    assert ledger.settle(1, 4) == ledger.forfeit(1) == ledger.release(1) == ledger.release(77) == []
    assert ledger.snapshot() == before


def test_a_cost_above_its_reservation_is_written_down_and_the_overrun_shows() -> None:
    ledger = ledger_with(run=100)
    ledger.reserve(1, "run", 100)
    ledger.settle(1, 130)
    assert (ledger.spent("run"), ledger.overrun("run"), ledger.left("run")) == (130, 30, 0)
    assert ledger.reserve(2, "run", 1) == [MoneyRefused(2, "run", 1, affordable=0, limited_by="run")]


def test_what_costs_nothing_is_never_held_up() -> None:
    ledger = ledger_with(run=0)
    assert ledger.reserve(1, "run", 0) == [MoneyReserved(1, "run", 0)]
    assert isinstance(ledger.reserve(2, "run", 1)[0], MoneyRefused)


def test_without_a_cap_everything_is_reserved_and_counted() -> None:
    ledger = ledger_with(run=None)
    ledger.reserve(1, "run", 10**15)
    ledger.settle(1, 10**15)
    assert (ledger.left("run"), ledger.spent("run"), ledger.overrun("run")) == (None, 10**15, 0)


def test_a_new_budget_keeps_what_was_spent_and_grants_or_refuses_who_waits() -> None:
    ledger = ledger_with(run=100)
    ledger.reserve(1, "run", 70)
    ledger.reserve(2, "run", 60)
    ledger.settle(1, 30)
    ledger.reserve(3, "run", 60)
    assert ledger.set_cap("run", 200) == [CapSet("run", None, 200), MoneyReserved(3, "run", 60)]
    ledger.reserve(4, "run", 100)
    assert ledger.set_cap("run", 100) == [
        CapSet("run", None, 100),
        MoneyRefused(4, "run", 100, affordable=70, limited_by="run"),
    ]
    assert (ledger.spent("run"), ledger.reserved("run"), ledger.overrun("run")) == (30, 120, 50)
    assert ledger.set_cap("run", 100) == []


def test_the_totals_of_a_run_survive_a_crash_and_nothing_waits_after_it() -> None:
    ledger = ledger_with(run=100, agent=50)
    journal: list[Fact] = [CapSet("run", None, 100), CapSet("agent", "run", 50)]
    for hold, amount in ((1, 20), (2, 30), (3, 40), (4, 10)):
        journal += ledger.reserve(hold, "agent", amount)
    journal += ledger.settle(1, 7)
    second = Ledger()
    fold(second, journal)
    assert second == ledger
    second.apply(MoneyHeld(2))  # a call in doubt
    assert second.recover() == [MoneyReleased(3), MoneyReleased(4)]
    assert (second.spent("run"), second.held("agent"), second.reserved("run")) == (7, 30, 0)
    assert second.last_hold == 4
    second.set_cap("run", 37)
    assert second.left("agent") == 0
    assert isinstance(second.reserve(5, "agent", 1)[0], MoneyRefused)
    second.set_cap("run", 40)
    assert second.reserve(6, "agent", 3) == [MoneyReserved(6, "agent", 3)]


def test_the_program_errs_loudly_where_money_would_go_astray() -> None:
    ledger = ledger_with(run=100, agent=50)
    ledger.reserve(1, "run", 80)
    ledger.reserve(2, "run", 80)
    for wrong in (
        lambda: ledger.reserve(3, "nobody", 1),
        lambda: ledger.reserve(3, "run", -1),
        lambda: ledger.reserve(2, "run", 1),
        lambda: ledger.settle(1, -1),
        lambda: ledger.settle(2, 5),
        lambda: ledger.forfeit(2),
        lambda: ledger.set_cap("agent", 1, parent="agent"),
        lambda: ledger.set_cap("new", 1, parent="nobody"),
        lambda: ledger.set_cap("run", -1),
    ):
        with pytest.raises(ValueError, match=r".+"):
            wrong()


def test_ten_thousand_waiters_are_served_in_order_under_caps_of_their_own() -> None:
    """Each agent has a node and a capped team above it, so every line in the tree is in use."""
    ledger = ledger_with(run=10_000)
    for team in range(3):
        ledger.set_cap(f"team{team}", 50, parent="run")
    for agent in range(10_000):
        ledger.set_cap(f"agent{agent}", 10, parent=f"team{agent % 3}")
    flying: deque[int] = deque()
    for agent in range(10_000):
        (fact,) = ledger.reserve(agent + 1, f"agent{agent}", 10)
        if isinstance(fact, MoneyReserved):
            flying.append(fact.hold)
    served = []
    while flying:
        served.append(flying.popleft())
        flying += [fact.hold for fact in ledger.settle(served[-1], 0) if isinstance(fact, MoneyReserved)]
    assert served == list(range(1, 10_001))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), max_size=60),
    st.integers(0, 100),
    st.randoms(use_true_random=False),
)
def test_spend_never_passes_the_cap_whatever_calls_cost_within_their_reservations(
    calls: list[tuple[int, int]], cap: int, chance: object
) -> None:
    ledger = ledger_with(run=cap)
    cost = {}
    for number, (amount, percent) in enumerate(calls, 1):
        cost[number] = amount * percent // 100
        ledger.reserve(number, "run", amount)
    while ledger.open_holds():
        hold = chance.choice(ledger.open_holds())  # type: ignore[attr-defined]
        ledger.settle(hold, cost[hold])
        assert ledger.overrun("run") == 0
    assert not ledger.waiting()


# -- the bound of a prompt -------------------------------------------------------------------------------------------


def test_a_prompt_is_bounded_by_its_bytes_whatever_others_took() -> None:
    bound = PromptBound(overhead=10)
    for _ in range(100):
        bound.observe(1000, 200)
    assert bound.bound(1000) == 1010


def test_a_provider_that_adds_more_than_the_overhead_raises_it() -> None:
    bound = PromptBound(overhead=100)
    bound.observe(50, 400)
    assert bound.bound(50) == 400


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.05, 2)), min_size=1, max_size=60))
def test_what_was_seen_is_within_the_bound(seen: list[tuple[int, float]]) -> None:
    bound = PromptBound(overhead=64)
    for size, ratio in seen:
        bound.observe(size, int(size * ratio))
    for size, ratio in seen:
        assert int(size * ratio) <= bound.bound(size)
