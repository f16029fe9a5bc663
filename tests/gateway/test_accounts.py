"""One key's money in one gateway: the machine against a plain model of its promises, and each rule by itself."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.core.accounts import LEAST_LEASE, Account, Ask, Decision, lease_size
from centuria.messages import DOLLAR

UNIT = LEAST_LEASE // 10
amounts = st.integers(0, 40).map(lambda units: units * UNIT)


class Accounting(RuleBasedStateMachine):
    """An account, and the store that it leases of. Nothing costs more than was reserved for it."""

    def __init__(self) -> None:
        super().__init__()
        self.account = Account(limited=True)
        self.free = 0
        self.elsewhere = 0
        self.spent = 0
        self.tickets = 0
        self.open: list[int] = []
        self.waiting: dict[int, int] = {}
        self.asked: Ask | None = None

    @initialize(budget=amounts)
    def begin(self, budget: int) -> None:
        self.free = self.budget = budget

    def follow(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            amount = self.waiting[decision.ticket]
            assert decision.amount == amount
            if decision.granted:
                assert decision.ticket == next(iter(self.waiting)), "somebody who came later has passed"
                self.open.append(amount)
            else:
                assert self.account.left is not None
                assert amount > self.account.lease + self.account.left
            del self.waiting[decision.ticket]

    @rule(amount=amounts)
    def reserve(self, amount: int) -> None:
        waited = bool(self.waiting)
        if self.account.take(amount):
            assert not (amount and waited)
            self.open.append(amount)
            return
        self.tickets += 1
        self.waiting[self.tickets] = amount
        self.follow(self.account.wait(self.tickets, amount))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        amount = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        cost = data.draw(st.integers(0, amount))
        self.spent += cost
        self.follow(self.account.settle(amount, cost))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.follow(self.account.release(self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(list(self.waiting)))
        del self.waiting[ticket]
        self.follow(self.account.leave(ticket))
        assert self.account.leave(ticket) == []

    @precondition(lambda self: self.asked is None)
    @rule()
    def ask(self) -> None:
        self.asked = self.account.ask()

    @precondition(lambda self: self.asked is not None)
    @rule()
    def answer(self) -> None:
        assert self.asked is not None
        assert 0 < self.asked.least <= self.asked.wanted
        granted = lease_size(self.free, self.asked.least, self.asked.wanted)
        self.free -= granted
        self.asked = None
        self.follow(self.account.extended(granted, self.free))

    @rule(amount=amounts)
    def another_gateway_takes(self, amount: int) -> None:
        taken = min(amount, self.free)
        self.free -= taken
        self.elsewhere += taken

    @rule()
    def forget(self) -> None:
        self.account.left = None

    @precondition(lambda self: not self.open and not self.waiting and self.asked is None)
    @rule()
    def give_back(self) -> None:
        self.free += self.account.lease
        self.account.give_back()

    @invariant()
    def what_is_reserved_is_leased(self) -> None:
        assert self.account.reserved == sum(self.open)
        assert self.account.reserved <= self.account.lease

    @invariant()
    def no_money_is_made(self) -> None:
        assert self.free + self.elsewhere + self.account.lease + self.spent == self.budget

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        assert self.account.waiting == tuple(self.waiting)
        if self.waiting:
            assert next(iter(self.waiting.values())) > self.account.lease - self.account.reserved

    @invariant()
    def nobody_is_stuck(self) -> None:
        """Who waits waits for money that is reserved here, or for the store to be asked."""
        if self.waiting and not self.account.reserved:
            assert self.asked is not None or self.account.ask() is not None

    def teardown(self) -> None:
        """All ends: nothing is reserved then, and nobody waits."""
        for _ in range(1000):
            if self.open:
                self.follow(self.account.release(self.open.pop()))
            elif self.asked is not None:
                self.answer()
            elif self.waiting:
                self.asked = self.account.ask()
        assert not self.waiting
        assert self.account.reserved == 0


Accounting.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestAccounting = Accounting.TestCase


@given(left=st.integers(0, 10**14), least=st.integers(0, 10**14), more=st.integers(0, 10**14))
def test_a_lease_is_within_what_is_left_and_enough_or_nothing(left: int, least: int, more: int) -> None:
    size = lease_size(left, least, least + more)
    assert size == 0 if left < least else least <= size <= left
    if left >= least:
        assert size == min(left, max(least + more, DOLLAR // 20, left // 100))


def test_what_can_never_fit_is_refused_at_once_and_what_is_only_reserved_is_waited_for() -> None:
    account = Account(limited=True)
    assert not account.take(5)
    assert account.wait(1, 5) == []
    assert account.extended(10, 0) == [Decision(1, 5, granted=True)]
    assert account.take(4)
    assert account.wait(2, 10) == []
    assert account.wait(3, 11) == [Decision(3, 11, granted=False)]
    assert account.ask() is None
    assert account.settle(4, 1) == [Decision(2, 10, granted=False)]


def test_a_small_one_does_not_pass_a_large_one_that_waits() -> None:
    account = Account(limited=True)
    account.extended(10, 0)
    assert account.take(8)
    assert account.wait(1, 9) == []
    assert not account.take(1)
    assert account.take(0)
    assert account.wait(2, 1) == []
    assert account.leave(1) == [Decision(2, 1, granted=True)]


def test_all_who_wait_are_asked_for_at_once() -> None:
    account = Account(limited=True)
    account.extended(10, 1000)
    assert account.take(7)
    for ticket, amount in enumerate((5, 20, 30)):
        account.wait(ticket, amount)
    assert account.ask() == Ask(least=2, wanted=52)


def test_an_attempt_that_costs_more_than_its_reservation_is_paid_by_the_next_lease() -> None:
    account = Account(limited=True)
    account.extended(10, 100)
    assert account.take(10)
    assert account.settle(10, 15) == []
    assert account.lease == -5
    assert account.wait(1, 10) == []
    assert account.ask() == Ask(least=15, wanted=15)
    assert account.extended(50, 50) == [Decision(1, 10, granted=True)]


def test_a_key_without_a_budget_never_waits_and_is_counted() -> None:
    account = Account(limited=False)
    assert account.take(10**15)
    assert account.reserved == 10**15
    assert account.settle(10**15, 10**16) == []
    assert (account.reserved, account.lease) == (0, 0)
    assert account.take(10**15)


def test_ten_thousand_who_wait_are_served_and_refused_in_order() -> None:
    account = Account(limited=True)
    for ticket in range(10_000):
        account.wait(ticket, 1 + ticket % 2)
    granted = account.extended(9_000, 0)
    assert [decision.ticket for decision in granted] == list(range(6_000))
    for amount in [1 + ticket % 2 for ticket in range(5_999)]:
        account.settle(amount, amount)
    assert account.lease - account.reserved == 0
    last = account.settle(2, 2)
    assert sorted(decision.ticket for decision in last) == list(range(6_000, 10_000))
    assert not any(decision.granted for decision in last)
