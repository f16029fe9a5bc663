"""SlotTable: limits hold, no slot is free while anyone waits, the order is as promised, nothing starves."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.codec import decode, encode
from centuria.core.slots import SlotTable
from centuria.events import (
    Event,
    Fact,
    LimitSet,
    RunResumed,
    SlotGranted,
    SlotLeft,
    SlotQueued,
    SlotRejected,
    TaskReady,
    fold,
)

TOOL = "tool:web__search"


def table(limit: int = 1, **options: float) -> SlotTable:
    made = SlotTable(**options)  # type: ignore[arg-type]
    made.set_limit(TOOL, limit, "test", now=0.0)
    return made


def ask(
    slots: SlotTable,
    ticket: int,
    agent: str = "",
    *,
    index: int = 0,
    priority: int = 5,
    now: float = 0.0,
    deadline: float | None = None,
) -> Fact:
    [event] = slots.ask(
        ticket, TOOL, agent or f"agent-{ticket}", index=index, priority=priority, now=now, deadline=deadline
    )
    return event


def granted(events: list[Fact]) -> list[int]:
    return [event.ticket for event in events if isinstance(event, SlotGranted)]


def order_of_service(slots: SlotTable, holder: int, *, now: float = 0.0) -> list[int]:
    """Leave, one by one, from `holder` on, at limit 1."""
    order: list[int] = []
    while events := granted(slots.leave(holder, now=now)):
        [holder] = events
        order.append(holder)
    return order


# -- home slots ------------------------------------------------------------------------------------------------------


def test_an_agent_gets_its_home_slot_then_the_next_two() -> None:
    slots = table(10)
    grants = [ask(slots, ticket, index=7) for ticket in range(3)]
    assert [event.slot for event in grants if isinstance(event, SlotGranted)] == [7, 8, 9]


def test_home_slots_wrap_around_the_limit() -> None:
    slots = table(4)
    first, second = ask(slots, 1, index=103), ask(slots, 2, index=103)
    assert isinstance(first, SlotGranted) and isinstance(second, SlotGranted)
    assert (first.slot, second.slot) == (3, 0)


def test_where_three_home_slots_are_taken_any_free_slot_is_granted_in_the_same_step() -> None:
    slots = table(5)
    for ticket in range(3):
        ask(slots, ticket, index=2)
    event = ask(slots, 3, index=2)
    assert isinstance(event, SlotGranted)
    assert event.slot in (0, 1)
    assert event.waited == 0


def test_a_home_slot_that_was_left_is_met_again() -> None:
    slots = table(10)
    ask(slots, 1, index=6)
    slots.leave(1, now=1.0)
    event = ask(slots, 2, index=6, now=2.0)
    assert isinstance(event, SlotGranted)
    assert event.slot == 6


def test_slots_below_a_raised_limit_are_all_found_again_after_it_was_lowered() -> None:
    slots = table(6)
    for ticket in range(6):
        ask(slots, ticket, index=0)
    slots.set_limit(TOOL, 2, "busy", now=0.0)
    for ticket in range(6):
        slots.leave(ticket, now=1.0)
    slots.set_limit(TOOL, 6, "calm", now=2.0)
    for ticket in range(10, 16):
        assert isinstance(ask(slots, ticket, index=0, now=3.0), SlotGranted)
    assert set(slots.holders(TOOL)) == set(range(6))


# -- queue, limits, leaving ------------------------------------------------------------------------------------------


def test_a_ticket_that_is_left_gives_its_slot_to_the_next_waiter_in_the_same_step() -> None:
    slots = table()
    ask(slots, 1)
    assert isinstance(ask(slots, 2, now=1.0), SlotQueued)
    events = slots.leave(1, now=4.0)
    assert events == [SlotLeft(1, TOOL, 4.0), SlotGranted(2, TOOL, 0, "agent-2", 4.0, 3.0)]


def test_leaving_twice_is_harmless() -> None:
    slots = table()
    ask(slots, 1)
    ask(slots, 2)
    slots.leave(1, now=0.0)
    assert slots.leave(1, now=0.0) == []
    assert slots.leave(99, now=0.0) == []
    assert slots.in_use(TOOL) == 1


def test_a_waiter_that_leaves_frees_its_place_in_the_queue_and_no_slot() -> None:
    slots = table()
    for ticket in (1, 2, 3):
        ask(slots, ticket)
    assert slots.leave(2, now=0.0) == [SlotLeft(2, TOOL, 0.0)]
    assert granted(slots.leave(1, now=0.0)) == [3]


def test_lowering_a_limit_disturbs_nothing_in_service_and_admits_no_one_until_it_fits() -> None:
    slots = table(4)
    for ticket in range(4):
        ask(slots, ticket)
    assert slots.set_limit(TOOL, 2, "429", now=0.0) == [LimitSet(TOOL, 2, "429")]
    assert slots.in_use(TOOL) == 4
    assert isinstance(ask(slots, 9), SlotQueued)
    assert granted(slots.leave(0, now=0.0) + slots.leave(1, now=0.0)) == []
    assert granted(slots.leave(2, now=0.0)) == [9]


def test_raising_a_limit_grants_waiters_at_once() -> None:
    slots = table()
    for ticket in range(5):
        ask(slots, ticket)
    events = slots.set_limit(TOOL, 3, "operator", now=1.0)
    assert events[0] == LimitSet(TOOL, 3, "operator")
    assert granted(events) == [1, 2]


def test_a_limit_of_zero_pauses_a_resource() -> None:
    slots = table(0)
    assert isinstance(ask(slots, 1), SlotQueued)
    assert granted(slots.set_limit(TOOL, 1, "go", now=1.0)) == [1]


def test_a_full_queue_rejects_the_newcomer() -> None:
    slots = table(queue_cap=2)
    for ticket in range(3):
        ask(slots, ticket)
    event = ask(slots, 3)
    assert isinstance(event, SlotRejected)
    assert "2 wait" in event.reason
    assert slots.leave(3, now=0.0) == []
    assert slots.waiting(TOOL) == 2


def test_one_resource_never_waits_for_another() -> None:
    slots = table()
    slots.set_limit("model:kimi", 1, "test", now=0.0)
    ask(slots, 1)
    ask(slots, 2)
    [event] = slots.ask(3, "model:kimi", "a", index=0, priority=5, now=0.0, deadline=None)
    assert isinstance(event, SlotGranted)
    assert slots.resources() == (TOOL, "model:kimi")


def test_misuse_is_refused() -> None:
    slots = table()
    ask(slots, 1)
    with pytest.raises(ValueError, match="ticket 1 is in use"):
        ask(slots, 1)
    with pytest.raises(ValueError, match="no limit was set for 'tool:x'"):
        slots.ask(2, "tool:x", "a", index=0, priority=5, now=0.0, deadline=None)
    with pytest.raises(ValueError, match="cannot be -1"):
        slots.set_limit(TOOL, -1, "", now=0.0)
    with pytest.raises(ValueError, match="aging"):
        SlotTable(aging=0)


# -- deadlines -------------------------------------------------------------------------------------------------------


def test_a_waiter_whose_deadline_has_passed_never_runs() -> None:
    slots = table()
    ask(slots, 1)
    ask(slots, 2, deadline=5.0)
    ask(slots, 3)
    events = slots.leave(1, now=5.0)
    assert [type(event) for event in events] == [SlotLeft, SlotRejected, SlotGranted]
    assert granted(events) == [3]
    assert slots.leave(2, now=6.0) == []


def test_a_waiter_runs_up_to_its_deadline() -> None:
    slots = table()
    ask(slots, 1)
    ask(slots, 2, deadline=5.0)
    assert granted(slots.leave(1, now=4.999)) == [2]


def test_expire_rejects_every_late_waiter_and_no_other() -> None:
    slots = table()
    for ticket, deadline in enumerate([None, 3.0, 7.0, 2.0, None]):
        ask(slots, ticket, deadline=deadline)
    assert [event.ticket for event in slots.expire(now=3.0) if isinstance(event, SlotRejected)] == [1, 3]
    assert slots.waiting(TOOL) == 2
    assert slots.expire(now=3.0) == []


def test_no_patience_means_now_or_never() -> None:
    slots = table()
    assert isinstance(ask(slots, 1, now=2.0, deadline=2.0), SlotGranted)
    assert isinstance(ask(slots, 2, now=2.0, deadline=2.0), SlotRejected)
    slots.leave(1, now=2.0)
    assert isinstance(ask(slots, 3, now=2.0, deadline=1.0), SlotRejected)


# -- order -----------------------------------------------------------------------------------------------------------


def test_among_equals_the_queue_is_first_in_first_out() -> None:
    slots = table()
    for ticket in range(50):
        ask(slots, ticket)
    assert order_of_service(slots, 0) == list(range(1, 50))


def test_a_lower_number_is_served_sooner() -> None:
    slots = table()
    ask(slots, 0)
    for ticket, priority in enumerate([5, 9, 0, 5, 0], 1):
        ask(slots, ticket, priority=priority)
    assert order_of_service(slots, 0) == [3, 5, 1, 4, 2]


def test_a_newcomer_never_overtakes_the_queue_whatever_its_home() -> None:
    slots = table(2)
    ask(slots, 1, index=0)
    ask(slots, 2, index=1)
    ask(slots, 3, index=0)
    assert isinstance(ask(slots, 4, index=1), SlotQueued)
    assert granted(slots.leave(2, now=0.0)) == [3]


def test_who_takes_a_slot_without_a_wait_never_overtakes_one_who_waits_beside_a_free_slot() -> None:
    """A journal may end between a slot that was left and its grant to who is next."""
    slots = table()
    ask(slots, 1)
    ask(slots, 2)
    slots.apply(SlotLeft(1, TOOL, 1.0))
    assert (slots.in_use(TOOL), slots.waiting(TOOL), slots.limit(TOOL)) == (0, 1, 1)
    before = slots.snapshot()
    assert slots.take(3, TOOL, "late", index=0, now=1.0) is None
    assert slots.snapshot() == before
    assert isinstance(ask(slots, 3, now=1.0), SlotQueued)
    assert granted(slots.set_limit(TOOL, 1, "go", now=1.0)) == [2]


def test_waiting_raises_a_ticket_by_one_for_every_aging_seconds() -> None:
    slots = table(aging=10.0)
    ask(slots, 0)
    ask(slots, 1, priority=7, now=0.0)
    ask(slots, 2, priority=5, now=19.0)  # by now ticket 1 stands at 6
    ask(slots, 3, priority=5, now=20.0)  # and at 5: it came first
    assert order_of_service(slots, 0, now=20.0) == [2, 1, 3]


def test_a_ticket_that_left_the_queue_and_asks_again_stands_where_it_asks_now() -> None:
    slots = table()
    ask(slots, 0)
    ask(slots, 1, priority=0)
    ask(slots, 2, priority=5)
    slots.leave(1, now=0.0)
    ask(slots, 1, priority=9)
    ask(slots, 3, priority=7)
    assert order_of_service(slots, 0) == [2, 3, 1]


def test_without_aging_priority_alone_decides() -> None:
    slots = table(aging=math.inf)
    ask(slots, 0)
    ask(slots, 1, priority=9, now=0.0)
    ask(slots, 2, priority=0, now=1e6)
    assert order_of_service(slots, 0, now=1e6) == [2, 1]


def test_nothing_starves_under_a_flood_of_the_highest_priority() -> None:
    """One slot, calls of a second, a new priority-0 ticket every second: 9 would wait for ever."""
    slots = table(aging=10.0)
    ask(slots, 0)
    ask(slots, 1, priority=0)
    ask(slots, 2, "patient", priority=9)
    holder = 0
    for second in range(1, 200):
        ask(slots, 2 + second, priority=0, now=float(second))
        [holder] = granted(slots.leave(holder, now=float(second)))
        if holder == 2:
            break
    assert holder == 2
    assert second <= (9 + 1) * 10 + 2  # plus those two that were there before it


def test_the_agent_with_the_fewest_calls_in_service_goes_first() -> None:
    slots = table(3)
    ask(slots, 1, "greedy")
    ask(slots, 2, "greedy")
    ask(slots, 3, "other")
    for ticket in range(10, 14):
        ask(slots, ticket, "greedy")
    ask(slots, 20, "modest")
    ask(slots, 21, "modest")
    assert granted(slots.leave(3, now=0.0)) == [20]  # greedy has 2, modest 0
    assert granted(slots.leave(1, now=0.0)) == [10]  # 1 against 1: arrival
    assert granted(slots.leave(10, now=0.0)) == [11]
    assert granted(slots.leave(20, now=0.0)) == [21]  # 2 against 0


def test_one_agents_flood_shares_the_slots_evenly_with_another() -> None:
    slots = table(4)
    for ticket in range(100):
        ask(slots, ticket, "flood")
    for ticket in range(100, 104):
        ask(slots, ticket, "late")
    for ticket in range(2):
        slots.leave(ticket, now=1.0)
    assert Counter(grant.agent for grant in slots.holders(TOOL).values()) == {"flood": 2, "late": 2}


def test_priority_comes_before_fairness() -> None:
    slots = table(2)
    ask(slots, 1, "busy")
    ask(slots, 2, "x")
    ask(slots, 3, "idle", priority=5)
    ask(slots, 4, "busy", priority=4)
    assert granted(slots.leave(2, now=0.0)) == [4]


# -- replay ----------------------------------------------------------------------------------------------------------


def test_events_survive_the_codec_and_foreign_ones_are_ignored() -> None:
    slots = table(2)
    events: list[Event] = [LimitSet(TOOL, 2, "test")]
    events += [ask(slots, ticket, index=ticket, deadline=9.5) for ticket in range(4)]
    events += slots.leave(0, now=1.25)
    copy = SlotTable()
    fold(copy, [decode(encode(event)) for event in events] + [TaskReady("a")])  # type: ignore[arg-type]
    assert copy == slots
    assert granted(copy.leave(1, now=2.0)) == granted(slots.leave(1, now=2.0)) == [3]


def test_a_resumed_run_keeps_limits_and_forgets_the_tickets_of_the_dead_process() -> None:
    slots = table(1)
    ask(slots, 1)
    ask(slots, 2)
    slots.apply(RunResumed(reused=0, rerun=2, in_doubt=0, budget=None))
    assert slots.limit(TOOL) == 1
    assert (slots.in_use(TOOL), slots.waiting(TOOL)) == (0, 0)
    assert isinstance(ask(slots, 1), SlotGranted)


def test_a_gone_agent_leaves_nothing_behind() -> None:
    """A run of days must not grow: churn with one patient ticket always waiting at the back."""
    slots = table(1, aging=math.inf)
    ask(slots, 0, "a")
    ask(slots, 1, "a", priority=9)
    holder = 0
    for ticket in range(2, 5000):
        ask(slots, ticket, "a" if ticket % 2 else f"agent-{ticket}", priority=0)
        ask(slots, -ticket, "a", priority=8)
        slots.leave(-ticket, now=0.0)
        [holder] = granted(slots.leave(holder, now=0.0))
    place = slots._resources[TOOL]
    assert len(place._queue) < 200
    assert len(place._agents) <= 2
    assert sum(len(agent.line) for agent in place._agents.values()) < 50


# -- the state machine -----------------------------------------------------------------------------------------------

AGENTS = ["a", "b", "c", "d"]


class SlotMachine(RuleBasedStateMachine):
    """Any requests, against the rules written as a sort, and against a table folded from the events."""

    @initialize(aging=st.sampled_from([10.0, 1.0, math.inf]), limit=st.integers(0, 4))
    def begin(self, aging: float, limit: int) -> None:
        self.aging = aging
        self.live = SlotTable(aging=aging, queue_cap=12)
        self.journal: list[Fact] = []
        self.now = 100.0
        self.tickets = 0
        self.queued: dict[int, SlotQueued] = {}
        self.served: dict[int, str] = {}
        self.ceiling = limit
        self.publish(self.live.set_limit(TOOL, limit, "begin", now=self.now))

    def next_waiter(self) -> int | None:
        busy = Counter(self.served.values())
        order = sorted(
            (event.priority + math.floor(event.at / self.aging), busy[event.agent], place, ticket)
            for place, (ticket, event) in enumerate(self.queued.items())
            if event.deadline is None or event.deadline > self.now
        )
        return order[0][-1] if order else None

    def publish(self, events: list[Fact]) -> None:
        self.journal += events
        for event in events:
            if isinstance(event, SlotGranted):
                if event.ticket in self.queued:
                    assert event.ticket == self.next_waiter()
                    asked = self.queued.pop(event.ticket)
                    assert event.waited == self.now - asked.at
                else:
                    assert not self.queued, "a newcomer overtook the queue"
                assert event.slot < self.live.limit(TOOL)
                self.served[event.ticket] = event.agent
            elif isinstance(event, SlotQueued):
                self.queued[event.ticket] = event
            elif isinstance(event, SlotRejected):
                late = self.queued.pop(event.ticket, None)
                assert late is None or (late.deadline is not None and late.deadline <= self.now)
            elif isinstance(event, SlotLeft):
                self.queued.pop(event.ticket, None)
                self.served.pop(event.ticket, None)

    @rule(
        agent=st.sampled_from(AGENTS),
        priority=st.integers(0, 9),
        patience=st.one_of(st.none(), st.sampled_from([0.0, 3.0, 25.0])),
    )
    def ask(self, agent: str, priority: int, patience: float | None) -> None:
        self.tickets += 1
        deadline = None if patience is None else self.now + patience
        events = self.live.ask(
            self.tickets,
            TOOL,
            agent,
            index=AGENTS.index(agent),
            priority=priority,
            now=self.now,
            deadline=deadline,
        )
        assert len(events) == 1
        self.publish(events)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        known = [*self.served, *self.queued] or [self.tickets]
        ticket = data.draw(st.sampled_from(known))
        was = ticket in self.served or ticket in self.queued
        events = self.live.leave(ticket, now=self.now)
        assert bool(events) == was
        self.publish(events)
        assert self.live.leave(ticket, now=self.now) == []

    @rule(agent=st.sampled_from(AGENTS))
    def take(self, agent: str) -> None:
        """What is taken without a wait is what one who asks would have been granted."""
        self.tickets += 1
        before = self.live.snapshot()
        room = self.live.in_use(TOOL) < self.live.limit(TOOL) and not self.queued
        taken = self.live.take(self.tickets, TOOL, agent, index=AGENTS.index(agent), now=self.now)
        assert (taken is not None) == room
        if taken is None:
            assert self.live.snapshot() == before
            return
        copy = SlotTable(aging=self.aging, queue_cap=12)
        fold(copy, self.journal)
        asked = copy.ask(
            self.tickets, TOOL, agent, index=AGENTS.index(agent), priority=5, now=self.now, deadline=self.now
        )
        assert asked == [taken]
        self.publish(asked)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def leave_in_silence(self, data: st.DataObject) -> None:
        """The facts are those of the others, and nothing else is different."""
        ticket = data.draw(st.sampled_from([*self.served]))
        copy = SlotTable(aging=self.aging, queue_cap=12)
        fold(copy, self.journal)
        told = copy.leave(ticket, now=self.now)
        assert self.live.leave(ticket, now=self.now, told=False) == told[1:]
        assert copy == self.live
        self.publish(told)

    @rule(limit=st.integers(0, 5))
    def change_limit(self, limit: int) -> None:
        self.publish(self.live.set_limit(TOOL, limit, "rule", now=self.now))

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.publish(self.live.expire(now=self.now))
        assert all(event.deadline is None or event.deadline > self.now for event in self.queued.values())

    @rule()
    def restart(self) -> None:
        """Go on with what the journal says: it must not only look the same but decide the same."""
        copy = SlotTable(aging=self.aging, queue_cap=12)
        fold(copy, self.journal)
        assert copy == self.live
        self.live = copy

    @invariant()
    def in_use_is_within_the_limit_or_falls_to_it(self) -> None:
        limit, in_use = self.live.limit(TOOL), self.live.in_use(TOOL)
        self.ceiling = max(limit, min(self.ceiling, in_use))
        assert in_use <= self.ceiling

    @invariant()
    def no_slot_is_free_while_anyone_waits(self) -> None:
        if self.live.waiting(TOOL):
            assert self.live.in_use(TOOL) >= self.live.limit(TOOL)

    @invariant()
    def the_books_agree(self) -> None:
        assert self.live.in_use(TOOL) == len(self.served)
        assert self.live.waiting(TOOL) == len(self.queued) <= 12
        held = {grant.ticket: slot for slot, grant in self.live.holders(TOOL).items()}
        assert held.keys() == self.served.keys()

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        self.publish(self.live.set_limit(TOOL, 2, "end", now=self.now))
        while self.served or self.queued:
            for ticket in [*self.served, *self.queued]:
                self.publish(self.live.leave(ticket, now=self.now))
        assert (self.live.in_use(TOOL), self.live.waiting(TOOL)) == (0, 0)


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
