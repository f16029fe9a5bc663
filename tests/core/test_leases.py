"""Leases: one agent a session, one session an agent, nothing of one agent is seen by the next, and all in order."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from centuria.core.leases import Lease, LeaseTable

AGENTS = st.sampled_from("abcdefg")


def table(size: int) -> LeaseTable:
    made = LeaseTable(size)
    for number in range(size):
        made.opened(number, now=0.0)
    return made


def test_an_agent_keeps_its_session_and_others_get_others() -> None:
    leases = table(2)
    assert leases.ask(1, "a", now=0) == leases.ask(2, "a", now=9) == 0
    assert leases.ask(3, "b", now=9) == 1
    assert leases.ask(4, "c", now=9) is None
    assert leases.waiting == (4,)


def test_a_session_that_was_given_back_is_nobodys_before_it_is_opened_anew() -> None:
    leases = table(1)
    leases.ask(1, "a", now=0)
    assert leases.ask(2, "b", now=0) is None
    assert leases.release("a") == 0
    assert leases.release("a") is None
    assert leases.session_of("b") is None
    assert leases.opened(0, now=1) == [Lease("b", 0)]
    assert leases.holder(0) == "b"


def test_who_waits_is_served_in_order_and_never_after_its_deadline() -> None:
    leases = table(1)
    leases.ask(1, "a", now=0)
    for ticket, agent, deadline in ((2, "late", 5.0), (3, "gone", 99.0), (4, "next", 99.0), (5, "last", 99.0)):
        assert leases.ask(ticket, agent, now=0, deadline=deadline) is None
    leases.leave(3)
    leases.release("a")
    assert leases.opened(0, now=5) == [Lease("next", 0)]
    assert leases.waiting == (5,)
    assert leases.ask(6, "hasty", now=5, deadline=5) is None
    assert leases.waiting == (5,)


def test_an_agent_whose_session_cannot_come_back_gets_another() -> None:
    leases = table(2)
    assert leases.ask(1, "a", now=0) == 0
    assert leases.opened(0, now=1) == []  # it died and came back
    assert leases.session_of("a") == 0
    assert leases.failed(0) == "a"
    assert leases.ask(2, "a", now=2) == 1
    assert leases.ask(3, "b", now=2) is None
    assert leases.opened(0, now=3) == [Lease("b", 0)]


def test_a_ticket_cannot_wait_twice() -> None:
    leases = LeaseTable(1)
    leases.ask(1, "a", now=0)
    with pytest.raises(ValueError, match="waits already"):
        leases.ask(1, "a", now=0)


@settings(max_examples=80, stateful_step_count=40, deadline=None)
class LeaseMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        self.table = LeaseTable(size)
        self.size = size
        self.now = 0.0
        self.tickets = 0
        self.deadlines: dict[int, float] = {}
        #: Who used each session since it was last opened.
        self.users: list[set[str]] = [set() for _ in range(size)]

    @rule(agent=AGENTS, patience=st.sampled_from([0.0, 3.0, math.inf]))
    def ask(self, agent: str, patience: float) -> None:
        self.tickets += 1
        self.deadlines[self.tickets] = self.now + patience
        had = self.table.session_of(agent)
        got = self.table.ask(self.tickets, agent, now=self.now, deadline=self.now + patience)
        if had is not None:
            assert got == had
        if got is not None:
            self.users[got].add(agent)

    @rule(agent=AGENTS)
    def release(self, agent: str) -> None:
        had = self.table.session_of(agent)
        assert self.table.release(agent) == had
        assert self.table.session_of(agent) is None

    @rule(number=st.integers(0, 2))
    def opened(self, number: int) -> None:
        session = number % self.size
        before, order = self.table.states[session], list(self.table.waiting)
        given = self.table.opened(session, now=self.now)
        self.users[session] = set()
        if before == "held":
            assert given == []
            holder = self.table.holder(session)
            assert holder is not None
            self.users[session] = {holder}
        for lease in given:
            self.users[lease.session].add(lease.agent)
        gone = [ticket for ticket in order if ticket not in self.table.waiting]
        served = [ticket for ticket in gone if self.deadlines[ticket] > self.now]
        if served:  # nobody in time was passed over
            assert served[0] == next(ticket for ticket in order if self.deadlines[ticket] > self.now)

    @rule(number=st.integers(0, 2))
    def failed(self, number: int) -> None:
        session = number % self.size
        holder = self.table.holder(session)
        assert self.table.failed(session) == holder

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for ticket in self.table.expire(self.now):
            assert self.deadlines[ticket] <= self.now

    @invariant()
    def one_agent_a_session(self) -> None:
        held = [self.table.session_of(agent) for agent in "abcdefg"]
        taken = [session for session in held if session is not None]
        assert len(taken) == len(set(taken)) == self.table.states.count("held")
        assert all(self.table.states[session] == "held" for session in taken)

    @invariant()
    def nobody_meets_what_another_left(self) -> None:
        assert all(len(users) <= 1 for users in self.users)

    @invariant()
    def nothing_is_free_while_anyone_waits(self) -> None:
        assert not (self.table.waiting and "fresh" in self.table.states)


TestLeases = LeaseMachine.TestCase
