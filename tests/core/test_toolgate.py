"""The gate of a tool server: no storm, no stall, whatever it refuses and however long it says to wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.core.toolgate import ANSWER, START, ToolGate
from centuria.events import Fact, GateClosed, GateOpened, LimitSet

SERVER = "server:news"
BUSY = "HTTP 429"


def gate(most: int = 8, *, careful: bool = False) -> ToolGate:
    return ToolGate(SERVER, most, "set by the job", careful)


def limits(facts: list[Fact]) -> list[int]:
    return [fact.limit for fact in facts if isinstance(fact, LimitSet)]


def send(made: ToolGate, *tickets: int, now: float = 0.0) -> None:
    for ticket in tickets:
        made.sent(ticket, now=now)


def test_a_refusal_closes_the_gate_for_all_until_the_server_says_and_halves_the_limit_once_a_burst() -> None:
    made = gate(8)
    assert limits(made.begin()) == [8]
    send(made, 1, 2, 3)
    closed, limit = made.refused(1, 7.0, BUSY, now=1.0, dice=0.0)
    assert closed == GateClosed(SERVER, 1.0, 8.0, BUSY, True)
    assert isinstance(limit, LimitSet)
    assert (limit.limit, made.limit) == (0, 4)
    assert "then 4 at once" in limit.reason
    assert made.refused(2, 7.0, BUSY, now=1.05, dice=0.0) == []
    assert made.answered(3, now=1.2) == []
    assert (made.limit, made.until) == (4, 8.05)
    assert made.tick(now=8.0) == []
    opened, first = made.tick(now=8.05)
    assert opened == GateOpened(SERVER, 8.05)
    assert limits([first]) == [1]


def test_after_it_opened_the_number_doubles_by_answers_or_by_time_and_then_rises_by_one_a_window() -> None:
    made = gate(8)
    send(made, 1)
    made.refused(1, 1.0, BUSY, now=0.0, dice=0.0)
    made.tick(now=1.0)
    send(made, 2, now=1.0)
    assert limits(made.answered(2, now=1.1)) == [2]
    send(made, 3, 4, now=1.1)
    assert made.due == 1.1 + ANSWER
    assert limits(made.tick(now=1.1 + ANSWER)) == [4]
    send(made, 5, 6, now=2.0)
    grown: list[int] = []
    for ticket in range(3, 7):
        grown += limits(made.answered(ticket, now=2.5))
    assert grown == [], "a window is as long as the pause was, at least"
    send(made, 7, 8, 9, 10, now=2.5)
    for ticket in range(7, 11):
        grown += limits(made.answered(ticket, now=3.0))
    assert grown == [5]
    assert made.due is None


def test_a_limit_that_is_not_used_up_is_not_raised() -> None:
    made = gate(4)
    send(made, 1)
    made.refused(1, 0.0, BUSY, now=0.0, dice=0.0)
    made.tick(now=99.0)
    send(made, 2, now=99.0)
    assert limits(made.answered(2, now=99.0)) == [2]
    for number in range(100):
        send(made, 10 + number, now=200.0 + number)
        assert made.answered(10 + number, now=200.5 + number) == []


def test_jitter_only_adds_and_a_pause_that_did_not_help_grows() -> None:
    made = gate(1)
    waits = []
    now = 0.0
    for ticket in range(8):
        send(made, ticket, now=now)
        made.refused(ticket, None, BUSY, now=now, dice=0.99)
        assert made.until is not None
        waits.append(round(made.until - now, 6))
        now = made.until
        made.tick(now=now)
    assert waits == sorted(waits)
    assert waits[0] >= 1.0
    assert waits[-1] > 30
    assert made.slots == 1, "never none at all for ever"


def test_a_remote_server_with_a_high_limit_is_not_sent_all_at_once() -> None:
    made = gate(100, careful=True)
    assert limits(made.begin()) == [START]
    seen = [made.slots]
    now, ticket = 0.0, 0
    while made.slots < 100:
        while made.in_flight < made.slots:
            ticket += 1
            made.sent(ticket, now=now)
        assert made.due is not None
        now = made.due
        seen += limits(made.tick(now=now))
    assert seen == [10, 15, 22, 33, 49, 73, 100]
    assert limits(gate(START, careful=True).begin()) == [START]


def test_who_asks_for_longer_than_anyone_waits_is_told_so() -> None:
    made = gate()
    send(made, 1)
    assert made.denial(0.0, 300.0) == ""
    made.refused(1, 3600.0, BUSY, now=0.0, dice=0.0)
    assert "3,600 s: HTTP 429" in made.denial(0.0, 300.0)
    assert made.denial(3301.0, 300.0) == ""


@pytest.mark.parametrize("closed", [False, True])
def test_a_limit_set_by_hand_holds_at_once_or_when_the_gate_opens(closed: bool) -> None:
    made = gate(8)
    if closed:
        send(made, 1)
        made.refused(1, 5.0, BUSY, now=0.0, dice=0.0)
    facts = made.set_most(3, "set by the user", by_hand=True)
    assert limits(facts) == ([] if closed else [3])
    if closed:
        assert limits(made.tick(now=5.0)) == [1]
    assert made.limit == 3
    assert limits(made.set_most(0, "set by the user", by_hand=True)) == [0]
    assert limits(made.set_most(5, "set by the user", by_hand=True)) == [5]


def test_replicas_that_come_and_go_change_the_limit_that_was_not_lowered() -> None:
    made = gate(8)
    assert limits(made.set_most(4, "1 of 2 replicas")) == [4]
    assert limits(made.set_most(8, "2 replicas")) == [8]
    send(made, 1)
    made.refused(1, 1.0, BUSY, now=0.0, dice=0.0)
    made.set_most(6, "less")
    assert made.limit == 4
    made.set_most(2, "less")
    made.set_most(8, "more")
    assert made.limit == 8


@settings(max_examples=100, stateful_step_count=60, deadline=None)
class GateMachine(RuleBasedStateMachine):
    """Whatever happens, in whatever order: bounds hold, and after the last refusal the gate opens by time alone."""

    @initialize(most=st.sampled_from([1, 2, 10, 100]), careful=st.booleans())
    def begin(self, most: int, careful: bool) -> None:
        self.gate = gate(most, careful=careful)
        self.now = 0.0
        self.tickets = 0
        self.open: list[int] = []
        [first] = self.gate.begin()
        assert isinstance(first, LimitSet)
        self.told = first.limit

    def note(self, facts: list[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, LimitSet):
                assert fact.resource == SERVER
                assert fact.reason
                self.told = fact.limit

    @precondition(lambda self: len(self.open) < self.gate.slots)
    @rule()
    def send(self) -> None:
        self.tickets += 1
        self.open.append(self.tickets)
        self.gate.sent(self.tickets, now=self.now)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def answer(self, which: int) -> None:
        ticket = self.open.pop(which % len(self.open))
        before = self.gate.limit
        self.note(self.gate.answered(ticket, now=self.now))
        assert before <= self.gate.limit <= before + 1
        assert self.gate.answered(ticket, now=self.now) == []

    @precondition(lambda self: self.open)
    @rule(
        which=st.integers(0, 99),
        asked=st.sampled_from([None, 0.0, 0.3, 2.0, 60.0, 1e12, -1.0]),
        dice=st.floats(0, 0.999),
    )
    def refuse(self, which: int, asked: float | None, dice: float) -> None:
        ticket = self.open.pop(which % len(self.open))
        before = self.gate.limit
        self.note(self.gate.refused(ticket, asked, BUSY, now=self.now, dice=dice))
        assert 1 <= self.gate.limit <= before
        assert self.gate.until is not None
        assert self.gate.until >= self.now + min(max(asked or 0.0, 0.0), 86_400.0)

    @precondition(lambda self: self.open)
    @rule()
    def drop(self) -> None:
        self.gate.dropped(self.open.pop())

    @rule(seconds=st.sampled_from([0.0, 0.2, ANSWER, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        until = self.gate.until
        self.now += seconds
        self.note(self.gate.tick(now=self.now))
        if until is not None:
            assert (self.gate.until is None) == (self.now >= until)

    @rule(most=st.sampled_from([1, 3, 100]), by_hand=st.booleans())
    def set_most(self, most: int, by_hand: bool) -> None:
        self.note(self.gate.set_most(most, "why", by_hand=by_hand))
        if by_hand:
            assert self.gate.limit == most

    @invariant()
    def what_was_told_is_what_holds(self) -> None:
        assert self.told == self.gate.slots
        assert 0 <= self.gate.slots <= self.gate.limit <= self.gate.most
        assert (self.gate.slots == 0) == (self.gate.until is not None)
        assert self.gate.in_flight == len(self.open)

    @invariant()
    def it_opens_by_time_alone(self) -> None:
        if self.gate.until is not None:
            assert self.gate.due == self.gate.until
            assert self.gate.until < math.inf


TestGate = GateMachine.TestCase
