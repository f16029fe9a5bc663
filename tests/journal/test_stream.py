"""The spine: facts in order, whole or with a known gap; the journal first; nobody slow costs memory."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.core.progress import Progress
from centuria.errors import JournalError
from centuria.events import Event, Notice, Record, TextDelta
from centuria.stream import Feed, Gap, Item, Stream, Subscription
from centuria.testing.journal import MemoryJournal


def make(journal: MemoryJournal | None = None, seq: int = 0) -> tuple[Stream, MemoryJournal]:
    journal = journal or MemoryJournal()
    ticks = count(1)
    return Stream(journal, clock=lambda: float(next(ticks)), progress=Progress(), seq=seq), journal


def fact(number: int) -> Notice:
    return Notice(str(number))


def delta(text: str = "x") -> TextDelta:
    return TextDelta("a", 0, 1, text)


async def take_what_is_there(reader: Subscription, limit: int = 10**6) -> list[Item]:
    """Everything up to the point where the reader would wait."""
    items: list[Item] = []
    while len(items) < limit:
        step = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        if not step.done():
            step.cancel()
            return items
        try:
            items.append(step.result())
        except StopAsyncIteration:
            return items
    return items


async def test_a_fact_is_in_the_journal_before_any_reader_sees_it() -> None:
    stream, journal = make()
    journal.hold()
    reader = stream.subscribe()
    assert stream.publish(fact(1), delta(), fact(2)) == 2
    assert journal.last_seq == 2
    items = await take_what_is_there(reader)
    assert items == [Record(1, 1.0, fact(1)), delta(), Record(2, 1.0, fact(2))]


async def test_deltas_are_never_journaled() -> None:
    stream, journal = make()
    stream.publish(delta(), fact(1), delta())
    stream.publish(delta())
    assert [record.event for record in journal.read()] == [fact(1)]
    assert stream.seq == 1


async def test_events_published_together_are_committed_together() -> None:
    stream, journal = make(MemoryJournal(fail_at=3))
    stream.publish(fact(1))
    stream.publish(fact(2), fact(3))
    assert [record.seq for record in journal.read()] == [1]
    with pytest.raises(JournalError):
        await stream.durable()


async def test_publish_is_all_or_nothing_when_the_journal_refuses() -> None:
    stream, journal = make()
    reader = stream.subscribe()
    stream.publish(fact(1))
    journal.fail()
    for _ in range(2):
        with pytest.raises(JournalError, match="full"):
            stream.publish(delta(), fact(2))
    assert stream.seq == 1
    assert stream.progress.seq == 1
    assert await take_what_is_there(reader) == [Record(1, 1.0, fact(1))]


async def test_durable_means_all_that_was_published_until_now() -> None:
    stream, journal = make()
    await stream.durable()
    journal.hold()
    stream.publish(fact(1))
    first = asyncio.ensure_future(stream.durable())
    stream.publish(fact(2))
    both = asyncio.ensure_future(stream.durable())
    await asyncio.sleep(0)
    assert not first.done()
    journal.flush()
    await asyncio.gather(first, both)
    assert stream.publish(delta()) == 2


async def test_progress_has_seen_a_fact_by_the_time_its_readers_do() -> None:
    stream, _ = make()
    stream.publish(fact(1), fact(2))
    assert stream.progress.seq == 2


async def test_numbers_go_on_where_the_journal_of_an_earlier_process_ends() -> None:
    before, journal = make()
    before.publish(fact(1), fact(2))
    stream, journal = make(MemoryJournal(journal.read()), seq=2)
    assert stream.publish(fact(3)) == 3
    assert [record.seq for record in journal.read()] == [1, 2, 3]


async def test_a_reader_sees_what_is_published_after_it_subscribed_and_ends_with_the_stream() -> None:
    stream, _ = make()
    stream.publish(fact(1))
    reader = stream.subscribe()
    stream.publish(fact(2))
    stream.close()
    assert [item async for item in reader] == [Record(2, 2.0, fact(2))]


async def test_a_waiting_reader_is_woken_by_publish_close_and_unsubscribe() -> None:
    stream, _ = make()
    readers = [stream.subscribe(), stream.subscribe(), stream.subscribe()]
    steps = [asyncio.ensure_future(anext(reader, None)) for reader in readers]
    await asyncio.sleep(0)
    stream.unsubscribe(readers[0])
    assert await steps[0] is None
    stream.publish(fact(1))
    assert await steps[1] == await steps[2] == Record(1, 1.0, fact(1))
    last = asyncio.ensure_future(anext(readers[1], None))
    await asyncio.sleep(0)
    stream.close()
    assert await last is None
    stream.unsubscribe(readers[1])


async def test_a_reader_that_comes_after_the_end_ends_at_once() -> None:
    stream, _ = make()
    stream.close()
    assert [item async for item in stream.subscribe()] == []


async def test_a_second_process_shows_its_readers_what_is_kept_already() -> None:
    feed = Feed(Progress())
    reader = feed.subscribe()
    feed.relay(Record(1, 5.0, fact(1)))
    assert feed.progress.seq == 1
    assert await take_what_is_there(reader) == [Record(1, 5.0, fact(1))]


async def test_a_reader_without_deltas_gets_facts_only() -> None:
    stream, _ = make()
    reader = stream.subscribe(deltas=False)
    stream.publish(delta(), fact(1), delta())
    assert await take_what_is_there(reader) == [Record(1, 1.0, fact(1))]


async def test_a_slow_reader_loses_deltas_before_it_loses_a_fact() -> None:
    stream, _ = make()
    reader = stream.subscribe(bound=4)
    stream.publish(fact(1), delta(), delta(), delta(), delta(), fact(2), fact(3), fact(4))
    items = await take_what_is_there(reader)
    assert [item.seq for item in items if isinstance(item, Record)] == [1, 2, 3, 4]


async def test_a_reader_that_is_too_slow_gets_a_gap_and_then_the_tail() -> None:
    stream, _ = make()
    reader = stream.subscribe(bound=3)
    stream.publish(*(fact(number) for number in range(1, 9)))
    items = await take_what_is_there(reader)
    assert items == [Gap(6), Record(7, 1.0, fact(7)), Record(8, 1.0, fact(8))]
    assert stream.progress.seq == 8


async def test_a_sleeping_reader_never_holds_more_than_its_bound() -> None:
    stream, _ = make()
    reader = stream.subscribe(bound=10)
    for number in range(2000):
        stream.publish(delta(), fact(number), delta(), delta())
        assert len(reader._items) <= 10
    items = await take_what_is_there(reader)
    assert len(items) <= 11
    assert isinstance(items[0], Gap)


async def test_one_sleeping_reader_takes_nothing_from_the_others() -> None:
    stream, _ = make()
    stream.subscribe(bound=1)
    awake = stream.subscribe(bound=1000)
    stream.publish(*(fact(number) for number in range(500)))
    items = await take_what_is_there(awake)
    assert [item.seq for item in items if isinstance(item, Record)] == list(range(1, 501))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.one_of(st.just("fact"), st.just("delta"), st.integers(1, 4)), max_size=60))
def test_facts_come_in_order_and_every_missing_one_is_announced(bound: int, steps: list[str | int]) -> None:
    async def scene() -> None:
        stream, journal = make()
        reader = stream.subscribe(bound=bound)
        seen: list[Item] = []
        for step in steps:
            if isinstance(step, int):
                seen += await take_what_is_there(reader, step)
            else:
                event: Event = fact(stream.seq + 1) if step == "fact" else delta()
                stream.publish(event)
        seen += await take_what_is_there(reader)
        last = 0
        for item in seen:
            if isinstance(item, Gap):
                assert item.seq > last
                last = item.seq
            elif isinstance(item, Record):
                assert item.seq == last + 1
                assert item.event == fact(item.seq)
                last = item.seq
        assert last == stream.seq
        assert [record.seq for record in journal.read()] == list(range(1, stream.seq + 1))

    asyncio.run(scene())
