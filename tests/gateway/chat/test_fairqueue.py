"""FairQueue against a model that is too slow and too simple to be wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.core.fairqueue import FairQueue


@dataclass
class _Ticket:
    number: int
    group: str
    member: str
    rank: int
    arrival: int


class NaiveQueue:
    """All tickets in one list, looked through each time."""

    def __init__(self, most: int, most_each: int, aging: float) -> None:
        self.most, self.most_each, self.aging = most, most_each, aging
        self.tickets: list[_Ticket] = []
        self.round: list[str] = []
        self.turns: dict[tuple[str, str], int] = {}
        self.arrivals = self.served = 0

    def add(self, number: int, group: str, member: str, priority: int, now: float) -> bool:
        if len(self.tickets) >= self.most or sum(t.group == group for t in self.tickets) >= self.most_each:
            return False
        self.arrivals += 1
        if group not in self.round:
            self.round.append(group)
        self.tickets.append(_Ticket(number, group, member, priority + int(now // self.aging), self.arrivals))
        return True

    def first(self) -> int | None:
        if not self.round:
            return None
        own = [ticket for ticket in self.tickets if ticket.group == self.round[0]]
        return min(own, key=lambda t: (t.rank, self.turns.get((t.group, t.member), 0), t.arrival)).number

    def pop(self) -> int | None:
        number = self.first()
        if number is None:
            return None
        ticket = next(ticket for ticket in self.tickets if ticket.number == number)
        self.served += 1
        self.turns[ticket.group, ticket.member] = self.served
        self.round.append(self.round.pop(0))
        self.remove(number)
        return number

    def remove(self, number: int) -> None:
        groups = {ticket.group for ticket in self.tickets if ticket.number == number}
        self.tickets = [ticket for ticket in self.tickets if ticket.number != number]
        for group in groups - {ticket.group for ticket in self.tickets}:
            self.round.remove(group)
            self.turns = {key: turn for key, turn in self.turns.items() if key[0] != group}


class Queues(RuleBasedStateMachine):
    """Whatever is done to both, both say the same."""

    @initialize(most=st.integers(1, 30), each=st.integers(1, 12))
    def begin(self, most: int, each: int) -> None:
        self.real = FairQueue(most=most, most_each=each, aging=10.0)
        self.naive = NaiveQueue(most, each, 10.0)
        self.number = 0
        self.now = 0.0
        self.added: set[int] = set()
        self.gone: list[int] = []

    @rule(group=st.sampled_from("abc"), member=st.sampled_from("uvwx"), priority=st.integers(0, 9))
    def add(self, group: str, member: str, priority: int) -> None:
        self.number += 1
        taken = self.real.add(self.number, group, member, priority=priority, now=self.now)
        assert taken == self.naive.add(self.number, group, member, priority, self.now)
        if taken:
            self.added.add(self.number)

    @rule(seconds=st.floats(0, 25))
    def later(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pop(self) -> None:
        ticket = self.real.pop()
        assert ticket == self.naive.pop()
        if ticket is not None:
            self.gone.append(ticket)

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.added)))
        waits = any(each.number == ticket for each in self.naive.tickets)
        self.real.remove(ticket)
        self.naive.remove(ticket)
        if waits:
            self.gone.append(ticket)

    @invariant()
    def both_agree(self) -> None:
        assert self.real.first() == self.naive.first()
        assert len(self.real) == len(self.naive.tickets)
        for group in "abc":
            assert self.real.waiting(group) == sum(ticket.group == group for ticket in self.naive.tickets)

    def teardown(self) -> None:
        if not hasattr(self, "real"):
            return
        while (ticket := self.real.pop()) is not None:
            assert ticket == self.naive.pop()
            self.gone.append(ticket)
        # None was lost, and none came twice.
        assert sorted(self.gone) == sorted(self.added)
        assert len(self.real) == 0


TestTheQueueEqualsANaiveOne = Queues.TestCase
TestTheQueueEqualsANaiveOne.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def drained(queue: FairQueue) -> list[int]:
    found = []
    while (ticket := queue.pop()) is not None:
        found.append(ticket)
    return found


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_groups_take_turns_whoever_has_how_many_waiting(sizes: list[int]) -> None:
    queue = FairQueue(most=1_000, most_each=1_000)
    group_of: dict[int, int] = {}
    for group, size in enumerate(sizes):
        for _ in range(size):
            ticket = len(group_of)
            group_of[ticket] = group
            assert queue.add(ticket, str(group), "", priority=5, now=0.0)
    order = [group_of[ticket] for ticket in drained(queue)]
    for place in range(min(sizes)):  # as long as all have some, each round has one of each
        assert order[place * len(sizes) : (place + 1) * len(sizes)] == list(range(len(sizes)))


def test_members_of_a_group_take_turns_too() -> None:
    queue = FairQueue(most=100, most_each=100)
    for ticket in range(4):
        queue.add(ticket, "key", "greedy", priority=5, now=0.0)
    queue.add(4, "key", "modest", priority=5, now=0.0)
    assert drained(queue) == [0, 4, 1, 2, 3]


def test_a_lower_priority_number_is_served_first_but_only_within_its_group() -> None:
    queue = FairQueue(most=100, most_each=100)
    queue.add(1, "a", "", priority=9, now=0.0)
    queue.add(2, "b", "", priority=5, now=0.0)
    queue.add(3, "b", "", priority=0, now=0.0)
    assert drained(queue) == [1, 3, 2]


def test_whoever_waits_long_is_not_overtaken_for_ever() -> None:
    queue = FairQueue(most=1_000, most_each=1_000, aging=30.0)
    queue.add(0, "key", "", priority=9, now=0.0)
    served = []
    for second in range(1, 400):
        queue.add(second, "key", "", priority=0, now=float(second))
        served.append(queue.pop())
    assert served.index(0) <= 10 * 30


def test_a_full_queue_takes_nothing_and_a_full_group_leaves_room_for_others() -> None:
    queue = FairQueue(most=3, most_each=2)
    assert queue.add(1, "a", "", priority=5, now=0.0)
    assert queue.add(2, "a", "", priority=5, now=0.0)
    assert not queue.add(3, "a", "", priority=5, now=0.0)
    assert queue.add(4, "b", "", priority=5, now=0.0)
    assert not queue.add(5, "c", "", priority=5, now=0.0)
    queue.remove(1)
    assert queue.add(5, "c", "", priority=5, now=0.0)
    with pytest.raises(ValueError, match="ticket 5 waits already"):
        queue.add(5, "c", "", priority=5, now=0.0)


def test_a_hundred_thousand_names_leave_nothing_behind() -> None:
    queue = FairQueue(most=10_000, most_each=10_000)
    queue.add(0, "key", "patient", priority=0, now=0.0)
    for ticket in range(1, 50_001):
        queue.add(ticket, "key", f"agent-{ticket}", priority=5, now=0.0)  # members that come and go
        queue.add(-ticket, f"key-{ticket}", "", priority=5, now=0.0)  # groups
        queue.remove(ticket)
        queue.remove(-ticket)
    own = queue._groups["key"]
    assert len(queue._groups) == len(queue._turns) == len(queue) == 1
    assert len(own.members) < 100
    assert len(own.order) < 100
    for ticket in range(1, 50_001):  # and behind one that stays at the head of its own line
        queue.add(ticket, "key", "patient", priority=5, now=0.0)
        queue.remove(ticket)
    assert len(own.members["patient"].line) < 100
    assert queue.pop() == 0


def test_members_that_were_served_are_forgotten_beside_one_that_waits_on() -> None:
    queue = FairQueue(most=10, most_each=10)
    queue.add(0, "key", "patient", priority=9, now=0.0)
    for ticket in range(1, 5_001):
        queue.add(ticket, "key", f"agent-{ticket}", priority=0, now=0.0)
        assert queue.pop() == ticket
    assert len(queue._groups["key"].members) < 100
    assert queue.pop() == 0
