"""Slots, the shell on the slot table: whatever ends a block, its slot is free in that very tick."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from centuria.admission import Slots
from centuria.core.progress import Progress
from centuria.core.slots import SlotTable
from centuria.errors import SlotRefused
from centuria.events import LimitSet, SlotGranted, SlotRejected, fold
from centuria.stream import Stream
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal

TOOL = "tool:web__search"


class Desk:
    """Slots on a stream of their own, with some calls to make on them."""

    def __init__(self, limit: int = 1, *, queue_cap: int = 100_000) -> None:
        self.journal = MemoryJournal()
        self.table = SlotTable(queue_cap=queue_cap)
        stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress())
        self.slots = Slots(self.table, stream)
        self.slots.set_limit(TOOL, limit, "test")
        self.order: list[str] = []

    async def call(self, agent: str, seconds: float = 1.0, *, priority: int = 5, patience: float | None = None) -> None:
        async with self.slots.hold(TOOL, agent=agent, priority=priority, patience=patience) as granted:
            assert granted.agent == agent
            assert self.table.holders(TOOL)[granted.slot] == granted
            self.order.append(agent)
            await asyncio.sleep(seconds)

    def assert_idle(self) -> None:
        """Nothing is in use or waits, and the journal, folded, says the same."""
        assert (self.table.in_use(TOOL), self.table.waiting(TOOL)) == (0, 0)
        copy = SlotTable()
        fold(copy, (record.event for record in self.journal.read()))
        assert copy == self.table


def now() -> float:
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


@virtual_clock
async def test_calls_run_up_to_the_limit_and_the_rest_wait_their_turn() -> None:
    desk = Desk(3)
    async with asyncio.TaskGroup() as group:
        for number in range(9):
            group.create_task(desk.call(f"agent-{number}"))
        await settle()
        assert (desk.table.in_use(TOOL), desk.table.waiting(TOOL)) == (3, 6)
    assert desk.order == [f"agent-{number}" for number in range(9)]
    assert now() == 3
    desk.assert_idle()


@virtual_clock
async def test_a_waiter_gives_up_at_its_deadline_and_is_told_what_to_do() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.call("holder", 100))
        await settle()
        with pytest.raises(SlotRefused, match="No slot of tool:web__search came free within 30 s") as refusal:
            await desk.call("waiter", patience=30)
        assert now() == 30
        assert "Raise its limit" in refusal.value.remedy
        assert desk.table.waiting(TOOL) == 0
    desk.assert_idle()


@virtual_clock
async def test_a_waiter_whose_deadline_falls_on_the_release_never_runs_and_the_next_one_does() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.call("holder", 30))
        await settle()
        late = group.create_task(refused(desk.call("late", patience=30)))
        group.create_task(desk.call("next"))
    assert late.result()
    assert desk.order == ["holder", "next"]
    desk.assert_idle()


async def refused(call: Coroutine[Any, Any, None]) -> bool:
    try:
        await call
    except SlotRefused:
        return True
    return False


@virtual_clock
async def test_no_patience_is_refused_at_once() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.call("holder"))
        await settle()
        with pytest.raises(SlotRefused, match="may not wait"):
            await desk.call("hasty", patience=0)
        assert now() == 0
    desk.assert_idle()


@virtual_clock
async def test_a_full_queue_refuses_the_newcomer_with_the_reason() -> None:
    desk = Desk(queue_cap=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.call("holder"))
        group.create_task(desk.call("waiter"))
        await settle()
        with pytest.raises(SlotRefused, match="1 wait for it already"):
            await desk.call("newcomer")
    assert desk.order == ["holder", "waiter"]
    desk.assert_idle()


@virtual_clock
async def test_a_slot_is_free_in_the_tick_in_which_its_block_fails() -> None:
    desk = Desk()
    with pytest.raises(KeyError):
        async with desk.slots.hold(TOOL, agent="a"):
            raise KeyError
    desk.assert_idle()


@virtual_clock
async def test_cancelling_a_call_in_service_hands_its_slot_to_the_next() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        holder = group.create_task(desk.call("holder", 1000))
        group.create_task(desk.call("next"))
        await settle()
        holder.cancel()
    assert desk.order == ["holder", "next"]
    assert now() == 1
    desk.assert_idle()


@virtual_clock
async def test_cancelling_a_waiter_frees_its_place_and_nothing_else() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.call("holder"))
        waiter = group.create_task(desk.call("waiter"))
        group.create_task(desk.call("next"))
        await settle()
        waiter.cancel()
        await settle()
        assert waiter.cancelled()
        assert (desk.table.in_use(TOOL), desk.table.waiting(TOOL)) == (1, 1)
    assert desk.order == ["holder", "next"]
    desk.assert_idle()


@virtual_clock
async def test_a_waiter_cancelled_in_the_tick_of_its_grant_leaks_no_slot() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        async with desk.slots.hold(TOOL, agent="holder"):
            waiter = group.create_task(desk.call("waiter"))
            await settle()
        assert desk.table.in_use(TOOL) == 1  # the waiter's, which does not know it yet
        waiter.cancel()
        await settle()
        assert waiter.cancelled()
    assert desk.order == []
    desk.assert_idle()


@virtual_clock
async def test_raising_the_limit_wakes_waiters_and_lowering_it_disturbs_no_one() -> None:
    desk = Desk()
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(desk.call(f"agent-{number}", 10))
        await settle()
        desk.slots.set_limit(TOOL, 3, "the operator")
        await settle()
        assert len(desk.order) == 3
        desk.slots.set_limit(TOOL, 1, "429")
        assert desk.table.in_use(TOOL) == 3
    assert now() == 20
    desk.assert_idle()


@virtual_clock
async def test_a_slot_taken_in_silence_is_a_slot_like_any_other_and_no_fact_until_it_is_told() -> None:
    desk = Desk(1)
    before = desk.journal.last_seq
    first, second = desk.slots.hold(TOOL, agent="first"), desk.slots.hold(TOOL, agent="second")
    assert first.at_once() and not second.at_once()
    assert desk.table.in_use(TOOL) == 1 and desk.journal.last_seq == before
    waiter = asyncio.create_task(desk.call("waiter"))
    await settle()
    first.leave()
    first.leave()
    await waiter
    heard = [record.event for record in desk.journal.read(after=before)]
    assert [event.kind for event in heard] == ["slot_queued", "slot_granted", "slot_left"]
    assert second.at_once()
    second.tell()
    second.tell()
    second.leave()
    told = [record.event for record in desk.journal.read(after=before + 3)]
    assert [event.kind for event in told] == ["slot_granted", "slot_left"]
    desk.assert_idle()


@virtual_clock
async def test_nobody_who_asks_at_once_passes_one_that_waits() -> None:
    desk = Desk(0)
    waiter = asyncio.create_task(desk.call("waiter"))
    await settle()
    desk.table.apply(LimitSet(TOOL, 1, "test"))  # and nobody is served yet
    assert not desk.slots.hold(TOOL, agent="hasty").at_once()
    desk.slots.set_limit(TOOL, 1, "test")
    await waiter
    assert desk.order == ["waiter"]


@virtual_clock
async def test_a_parent_that_holds_nothing_while_it_waits_cannot_starve_its_children() -> None:
    """Two levels of children on a single slot: a slot is held for one call, never for an agent's lifetime."""
    desk = Desk(1)

    async def agent(name: str, depth: int) -> None:
        await desk.call(name)
        if depth:
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(agent(f"{name}.{number}", depth - 1))
        await desk.call(name)

    await agent("root", 2)
    assert len(desk.order) == 2 * (1 + 3 + 9)
    desk.assert_idle()


@virtual_clock
async def test_an_unknown_resource_is_an_error_of_the_program_and_leaves_nothing_behind() -> None:
    desk = Desk()
    with pytest.raises(ValueError, match="no limit was set for 'tool:typo'"):
        async with desk.slots.hold("tool:typo", agent="a"):
            pass
    assert desk.slots._waiters == {}
    desk.assert_idle()


@pytest.mark.parametrize("seed", range(5))
@virtual_clock
async def test_random_cancels_and_deadlines_leak_no_slot(seed: int) -> None:
    dice = random.Random(seed)
    desk = Desk(7)
    calls: list[asyncio.Task[bool]] = []
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            patience = dice.choice([None, 0.0, 5.0, 20.0])
            # Whole seconds, so that ends, deadlines and cancels often fall on the same tick.
            call = desk.call(f"agent-{number % 40}", dice.randint(1, 3), patience=patience)
            calls.append(group.create_task(refused(call)))
        for _ in range(150):
            dice.choice(calls).cancel()
            await asyncio.sleep(dice.choice([0, 0, 1]))
            desk.slots.set_limit(TOOL, dice.randint(1, 9), "dice")
    assert desk.slots._waiters == {}
    desk.assert_idle()
    events = [record.event for record in desk.journal.read()]
    served = {event.ticket for event in events if isinstance(event, SlotGranted)}
    assert not served & {event.ticket for event in events if isinstance(event, SlotRejected)}
