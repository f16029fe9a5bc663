"""What every journal promises, on SQLite and in memory alike."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from centuria.errors import JournalError
from centuria.events import Notice, Record
from centuria.journal import SqliteJournal
from centuria.ports import Journal
from centuria.testing.journal import MemoryJournal


class OnDisk:
    """SQLite; what a disk does is done to it by a second connection."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run" / "journal.sqlite"
        self.journal: SqliteJournal
        self.others: list[sqlite3.Connection] = []

    def create(self, **options: int) -> SqliteJournal:
        self.journal = SqliteJournal.create(self.path, run="r1", name="test", **options)
        return self.journal

    def reopen(self) -> SqliteJournal:
        self.journal = SqliteJournal.open(self.path)
        return self.journal

    def hold(self) -> None:
        self._other().execute("BEGIN IMMEDIATE")

    def flush(self) -> None:
        self.others[-1].execute("ROLLBACK")

    def fail_at(self, seq: int) -> None:
        self._other().execute(
            f"CREATE TRIGGER fault BEFORE INSERT ON records WHEN new.seq = {seq} "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )

    def mend(self) -> None:
        self.others[-1].execute("DROP TRIGGER fault")

    def _other(self) -> sqlite3.Connection:
        self.others.append(sqlite3.connect(self.path, isolation_level=None))
        return self.others[-1]


class InMemory:
    def __init__(self) -> None:
        self.journal: MemoryJournal

    def create(self, **options: int) -> MemoryJournal:
        self.journal = MemoryJournal(**options)
        return self.journal

    def reopen(self) -> MemoryJournal:
        self.journal = MemoryJournal(self.journal.read())
        return self.journal

    def hold(self) -> None:
        self.journal.hold()

    def flush(self) -> None:
        self.journal.flush()

    def fail_at(self, seq: int) -> None:
        self.journal._fail_at = seq

    def mend(self) -> None:
        self.journal._fail_at = None


Bench = OnDisk | InMemory


@pytest.fixture(params=["sqlite", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "memory":
        yield InMemory()
        return
    disk = OnDisk(tmp_path)
    yield disk
    for other in disk.others:
        other.close()


def facts(first: int, last: int) -> list[Record]:
    return [Record(seq, seq / 10, Notice(f"fact {seq}")) for seq in range(first, last + 1)]


def kept(journal: Journal) -> list[int]:
    return [record.seq for record in journal.read()]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_durable_is_there_for_the_next_process(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 3))
    journal.append(facts(4, 4))
    await journal.durable(4)
    assert list(journal.read()) == facts(1, 4)
    await journal.aclose()
    again = bench.reopen()
    assert again.last_seq == 4
    assert list(again.read()) == facts(1, 4)
    assert list(again.read(after=3)) == facts(4, 4)
    again.append(facts(5, 5))
    await again.durable(5)
    assert kept(again) == [1, 2, 3, 4, 5]
    await again.aclose()


async def test_nobody_is_told_durable_before_the_commit(bench: Bench) -> None:
    journal = bench.create()
    bench.hold()
    journal.append(facts(1, 2))
    waiting = asyncio.ensure_future(journal.durable(1))
    await settle()
    assert not waiting.done()
    assert kept(journal) == []
    bench.flush()
    await waiting
    assert kept(journal) == [1, 2]
    await journal.aclose()


async def test_a_batch_is_committed_whole_or_not_at_all(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 2))
    await journal.durable(2)
    bench.fail_at(5)
    journal.append(facts(3, 6))
    with pytest.raises(JournalError):
        await journal.durable(3)
    assert kept(journal) == [1, 2]
    with pytest.raises(JournalError):
        await journal.aclose()


async def test_everything_that_waits_goes_into_one_commit(bench: Bench) -> None:
    journal = bench.create()
    bench.hold()
    for seq in range(1, 401):
        journal.append(facts(seq, seq))
    bench.flush()
    await journal.durable(400)
    assert journal.commits <= 2
    assert len(kept(journal)) == 400
    await journal.aclose()


async def test_ten_thousand_may_wait_at_once(bench: Bench) -> None:
    journal = bench.create()
    bench.hold()
    async with asyncio.TaskGroup() as group:
        for seq in range(1, 10_001):
            journal.append([Record(seq, 0.0, Notice("x"))])
            group.create_task(journal.durable(seq))
        await settle()
        bench.flush()
    assert journal.commits <= 2
    await journal.aclose()


async def test_one_who_gives_up_waiting_disturbs_nobody(bench: Bench) -> None:
    journal = bench.create()
    bench.hold()
    journal.append(facts(1, 1))
    leaving, staying = (asyncio.ensure_future(journal.durable(1)) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    assert leaving.cancelled()
    bench.flush()
    await staying
    await journal.aclose()


async def test_after_a_failed_commit_everyone_is_told_and_what_was_committed_stays(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 1))
    await journal.durable(1)
    bench.fail_at(2)
    journal.append(facts(2, 2))
    waiters = await asyncio.gather(*(journal.durable(2) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(end, JournalError) for end in waiters)
    assert len({id(end) for end in waiters}) == 20
    assert "centuria resume" in str(waiters[0])
    bench.mend()
    for _ in range(2):
        with pytest.raises(JournalError, match="full"):
            journal.append(facts(2, 2))
        with pytest.raises(JournalError):
            await journal.durable(2)
    await journal.durable(1)
    assert kept(journal) == [1]
    with pytest.raises(JournalError):
        await journal.aclose()
    await journal.aclose()
    again = bench.reopen()
    again.append(facts(2, 2))
    await again.durable(2)
    assert kept(again) == [1, 2]
    await again.aclose()


async def test_closing_commits_what_is_queued_and_closing_again_does_nothing(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 300))
    await journal.aclose()
    await journal.aclose()
    assert kept(journal) == list(range(1, 301))
    await journal.durable(300)
    with pytest.raises(JournalError, match="closed"):
        journal.append(facts(301, 301))


async def test_closing_a_journal_that_was_never_used_does_nothing(bench: Bench) -> None:
    journal = bench.create()
    await journal.aclose()
    assert kept(journal) == []


async def test_closing_lets_go_of_those_who_wait(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 1))
    waiting = asyncio.ensure_future(journal.durable(1))
    await journal.aclose()
    await waiting


async def test_a_number_out_of_turn_is_refused_and_changes_nothing(bench: Bench) -> None:
    journal = bench.create()
    journal.append(facts(1, 1))
    for wrong in (facts(1, 1), facts(3, 3), [*facts(2, 3), *facts(5, 5)]):
        with pytest.raises(ValueError, match="in place of"):
            journal.append(wrong)
    journal.append([])
    journal.append(facts(2, 2))
    await journal.durable(2)
    assert kept(journal) == [1, 2]
    with pytest.raises(ValueError, match="never appended"):
        await journal.durable(3)
    await journal.aclose()


async def test_what_may_wait_for_the_disk_is_bounded_and_what_was_taken_is_kept(bench: Bench) -> None:
    journal = bench.create(queue_bytes=20_000)
    bench.hold()
    taken = 0
    with pytest.raises(JournalError, match="too much waits"):
        for seq in range(1, 1000):
            journal.append([Record(seq, 0.0, Notice("x" * 1000))])
            taken = seq
    assert 10 <= taken < 20
    assert journal.last_seq == taken
    waiting = asyncio.ensure_future(journal.durable(taken))
    await settle()
    bench.flush()
    await waiting
    assert kept(journal) == list(range(1, taken + 1))
    with pytest.raises(JournalError, match="too much waits"):
        journal.append(facts(taken + 1, taken + 1))
    with pytest.raises(JournalError, match="too much waits"):
        await journal.durable(taken + 1)
    await journal.aclose()


async def test_room_in_the_queue_comes_back_with_each_commit(bench: Bench) -> None:
    journal = bench.create(queue_bytes=5_000)
    for seq in range(1, 51):
        journal.append([Record(seq, 0.0, Notice("x" * 1000))])
        await journal.durable(seq)
    await journal.aclose()
    assert len(kept(journal)) == 50


async def test_text_that_is_no_unicode_is_no_reason_to_fail(bench: Bench) -> None:
    journal = bench.create()
    journal.append([Record(1, 0.0, Notice("a\ud800\0b"))])
    await journal.durable(1)
    assert [record.event for record in journal.read()] == [Notice("a\ufffd\0b")]
    await journal.aclose()


async def test_records_are_not_kept_in_memory_once_they_are_committed(bench: Bench) -> None:
    journal = bench.create()

    class Marked(str):
        __slots__ = ("__weakref__",)

    text = Marked("x")
    mark = weakref.ref(text)
    journal.append([Record(1, 0.0, Notice(text))])
    del text
    await journal.durable(1)
    journal.append(facts(2, 2))
    await journal.durable(2)
    await journal.aclose()
    gc.collect()
    assert mark() is None
