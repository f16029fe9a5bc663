"""The journal's file: one writer, readers in other processes, tables for SQL, no thread that outlives its work."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from centuria.errors import JournalError
from centuria.events import (
    SCHEMA,
    CallClosed,
    CallOpened,
    Fact,
    MoneyHeld,
    MoneyReleased,
    MoneySettled,
    Notice,
    Record,
    TaskEnded,
    TaskReset,
)
from centuria.journal import JournalReader, SqliteJournal
from centuria.messages import CallKey, Completion, Message, Outcome, Status, ToolResult, Usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.sqlite"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal.create(path, run="r1", name="market-reports")
    yield journal
    await journal.aclose()


async def keep(journal: SqliteJournal, *events: Fact) -> None:
    first = journal.last_seq + 1
    journal.append([Record(seq, float(seq), event) for seq, event in enumerate(events, first)])
    await journal.durable(journal.last_seq)


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def python(code: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "centuria-journal"]


# -- the file ----------------------------------------------------------------------------------------------


async def test_the_file_says_what_it_is(journal: SqliteJournal, path: Path) -> None:
    with JournalReader(path) as reader:
        assert reader.meta == journal.meta
    assert (journal.meta.run, journal.meta.name, journal.meta.schema) == ("r1", "market-reports", SCHEMA)
    assert rows(path, "PRAGMA application_id") == [(0x63656E74,)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


async def test_commits_are_synchronous_and_logged_ahead(journal: SqliteJournal) -> None:
    assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_closed_journal_is_one_plain_file(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"))
    await journal.aclose()
    with JournalReader(path) as reader:
        assert len(list(reader.records())) == 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal.sqlite", "journal.sqlite.lock"]


async def test_a_journal_is_never_begun_over_another(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"))
    await journal.aclose()
    with pytest.raises(JournalError, match="already") as caught:
        SqliteJournal.create(path, run="r2", name="other")
    assert "centuria resume" in caught.value.remedy
    assert rows(path, "SELECT count(*) FROM records") == [(1,)]


async def test_a_begin_that_was_killed_does_not_stand_in_the_way(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(JournalError, match="empty"):
        JournalReader(path)
    journal = SqliteJournal.create(path, run="r1", name="x")
    await keep(journal, Notice("x"))
    await journal.aclose()


# -- one writer --------------------------------------------------------------------------------------------


async def test_a_second_writer_is_refused_and_told_who_the_first_is(journal: SqliteJournal, path: Path) -> None:
    code = "import sys, pathlib, centuria.journal as j; j.SqliteJournal.open(pathlib.Path(sys.argv[1]))"
    await keep(journal, Notice("x"))
    there = await asyncio.to_thread(python, code, path)
    assert there.returncode == 1
    assert "JournalError" in there.stderr
    assert "running already (process" in there.stderr
    assert "centuria watch" in there.stderr
    with pytest.raises(JournalError, match="running already"):
        SqliteJournal.open(path)
    await keep(journal, Notice("y"))


async def test_the_next_writer_may_go_on_once_the_first_has_closed(journal: SqliteJournal, path: Path) -> None:
    await journal.aclose()
    again = SqliteJournal.open(path)
    await again.aclose()


def test_a_begin_that_fails_leaves_the_lock_free_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_text("this is somebody's text")
    with pytest.raises(JournalError):
        SqliteJournal.create(path, run="r", name="n")
    with pytest.raises(JournalError):
        SqliteJournal.open(path)
    assert path.read_text() == "this is somebody's text"
    path.unlink()
    asyncio.run(SqliteJournal.create(path, run="r", name="n").aclose())


# -- the thread --------------------------------------------------------------------------------------------


async def test_no_thread_is_left_after_closing(journal: SqliteJournal) -> None:
    await keep(journal, Notice("x"))
    assert len(writers()) == 1
    await journal.aclose()
    assert writers() == []


async def test_an_idle_journal_has_no_thread_and_goes_on_when_there_is_work(journal: SqliteJournal) -> None:
    await keep(journal, Notice("x"))
    (thread,) = writers()
    await asyncio.to_thread(thread.join, 30)
    assert writers() == []
    await keep(journal, Notice("y"))
    assert [record.seq for record in journal.read()] == [1, 2]


def test_a_process_that_forgets_to_close_ends_and_has_lost_nothing(path: Path) -> None:
    code = """if True:
        import sys, pathlib
        from centuria.events import Notice, Record
        from centuria.journal import SqliteJournal
        journal = SqliteJournal.create(pathlib.Path(sys.argv[1]), run="r", name="n")
        journal.append([Record(seq, 0.0, Notice("x")) for seq in range(1, 501)])
    """
    there = python(code, path)
    assert there.returncode == 0, there.stderr
    with JournalReader(path) as reader:
        assert reader.last_seq == 500
        assert reader.writer is None


# -- readers -----------------------------------------------------------------------------------------------


async def test_a_second_process_follows_a_run_to_its_end(journal: SqliteJournal, path: Path) -> None:
    code = """if True:
        import asyncio, sys, pathlib
        from centuria.journal import JournalReader
        async def main():
            with JournalReader(pathlib.Path(sys.argv[1])) as reader:
                assert reader.writer is not None
                async for record in reader.follow(interval=0.01):
                    print(record.seq, flush=True)
        asyncio.run(main())
    """
    follower = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert follower.stdout is not None
    await keep(journal, Notice("first"))
    assert await asyncio.wait_for(follower.stdout.readline(), 60) == b"1\n"
    for number in range(50):
        await keep(journal, Notice("x"), Notice(str(number)))
    await journal.aclose()
    rest, _ = await asyncio.wait_for(follower.communicate(), 60)
    assert [int(line) for line in rest.split()] == list(range(2, 102))
    assert follower.returncode == 0


async def test_a_reader_that_stands_still_holds_nobody_up(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, *(Notice("x" * 1000) for _ in range(1200)))
    with JournalReader(path) as reader:
        records = reader.records()
        assert next(records).seq == 1
        before = journal.commits
        for _ in range(20):
            await keep(journal, Notice("y" * 1000))
        assert journal.commits == before + 20
        assert [record.seq for record in records] == list(range(2, 1221))


async def test_a_reader_changes_no_file(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"))

    def state() -> dict[str, tuple[int, int]]:
        files = sorted(path.parent.iterdir())
        return {f.name: (f.stat().st_mtime_ns, f.stat().st_size) for f in files if not f.name.endswith("-shm")}

    before = state()
    with JournalReader(path) as reader:
        assert len(list(reader.records())) == 1
        assert reader.outcomes() == []
        assert reader.calls() == []
        assert reader.writer is not None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM records")
    assert state() == before
    with pytest.raises(JournalError, match="no journal"):
        JournalReader(path.parent / "other.sqlite")
    assert state() == before


async def test_readers_are_no_obstacle_to_closing_nor_to_going_on(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"))
    with JournalReader(path) as reader:
        assert reader.last_seq == 1
        await journal.aclose()
        again = SqliteJournal.open(path)
        await keep(again, Notice("y"))
        assert reader.last_seq == 2
        await again.aclose()
    # All of it is in the one file, even so.
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    with JournalReader(copy) as reader:
        assert reader.last_seq == 2


# -- files of other makes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 8192])
async def test_what_is_no_journal_is_called_that(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for attempt in (JournalReader, SqliteJournal.open):
        with pytest.raises(JournalError, match=r"no journal|damaged"):
            attempt(path)
    assert path.read_bytes() == content


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE records (seq)")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="no journal"):
        SqliteJournal.open(path)
    assert path.read_bytes() == before


def test_a_missing_journal_and_a_folder_in_its_place_are_called_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "journal.sqlite", tmp_path):
        with pytest.raises(JournalError, match="There is no journal"):
            JournalReader(path)
    assert list(tmp_path.iterdir()) == []


async def test_a_newer_schema_is_refused_before_anything_is_read(journal: SqliteJournal, path: Path) -> None:
    await journal.aclose()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        other.execute("DROP TABLE meta")
    for attempt in (JournalReader, SqliteJournal.open):
        with pytest.raises(JournalError, match="newer Centuria") as caught:
            attempt(path)
        assert "upgrade" in caught.value.remedy


async def test_an_old_journal_with_unknown_fields_is_read(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"))
    await journal.aclose()
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE records SET event = json_set(event, '$.mood', 'fine', '$.deep', json('{\"a\":[1]}'))")
        other.commit()
    again = SqliteJournal.open(path)
    assert [record.event for record in again.read()] == [Notice("x")]
    await again.aclose()


async def test_a_fact_of_an_unknown_kind_is_named_with_its_record(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("x"), Notice("y"), Notice("z"))
    await journal.aclose()
    with closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE records SET event = json_set(event, '$.kind', 'teleported') WHERE seq = 2")
        other.commit()
    with JournalReader(path) as reader:
        records = reader.records()
        assert next(records).event == Notice("x")
        with pytest.raises(JournalError, match="record 2 ") as caught:
            next(records)
    assert "teleported" in str(caught.value)
    assert "damaged" not in str(caught.value)


# -- tables for SQL ----------------------------------------------------------------------------------------

KEY = CallKey("a", 1, 2, 0)
DONE = Completion(Message("assistant", "hi"), Usage(100, 40, 0, 7), "stop")


def opened(attempt: int = 1, hold: int | None = 9, key: CallKey = KEY) -> CallOpened:
    return CallOpened(key, attempt, "model", "kimi-k2.5", "f00d", True, hold=hold, reserved=500)


async def test_a_call_is_one_row_from_its_opening_to_its_end(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, opened())
    with JournalReader(path) as reader:
        (row,) = reader.calls()
        assert (row.state, row.reserved, row.cost, row.closed_at, row.prompt) == ("open", 500, 0, None, None)
        closed = CallClosed(KEY, 1, "done", cost=120, usage=DONE.usage, completion=DONE)
        await keep(journal, closed, MoneySettled(9, 120))
        (row,) = reader.calls()
    assert (row.task, row.epoch, row.turn, row.position, row.attempt) == ("a", 1, 2, 0, 1)
    assert (row.call, row.name, row.fingerprint, row.rerun) == ("model", "kimi-k2.5", "f00d", 1)
    assert (row.state, row.cost, row.held, row.prompt, row.cached, row.output) == ("done", 120, 0, 100, 40, 7)
    assert (row.opened_at, row.closed_at, row.error) == (1.0, 2.0, "")


async def test_each_attempt_is_a_row_and_the_rows_add_up_to_what_was_spent_and_held(
    journal: SqliteJournal, path: Path
) -> None:
    other = CallKey("b", 0, 0, 0)
    await keep(
        journal,
        opened(1, 1),
        CallClosed(KEY, 1, "lost", error="cut"),
        MoneyHeld(1),
        opened(2, 2),
        CallClosed(KEY, 2, "failed", error="429"),  # surely not served: its reservation goes to the next attempt
        opened(3, 2),
        CallClosed(KEY, 3, "done", cost=70, usage=DONE.usage, completion=DONE),
        MoneySettled(2, 70),
        opened(1, 3, other),
        CallClosed(other, 1, "failed", error="refused"),
        MoneyReleased(3),
        opened(2, None, other),
    )
    assert rows(path, "SELECT attempt, state, cost, held FROM calls WHERE task = 'a' ORDER BY attempt") == [
        (1, "lost", 0, 500),
        (2, "failed", 0, 0),
        (3, "done", 70, 0),
    ]
    assert rows(path, "SELECT sum(cost), sum(held) FROM calls") == [(70, 500)]
    with JournalReader(path) as reader:
        assert [row.error for row in reader.calls(task="a")] == ["cut", "429", ""]
        assert reader.calls(task="b")[-1].state == "open"


async def test_the_money_of_a_loser_that_comes_late_is_counted_instead_of_held(
    journal: SqliteJournal, path: Path
) -> None:
    await keep(journal, opened(1, 1), CallClosed(KEY, 1, "lost"), MoneyHeld(1), MoneySettled(1, 42))
    assert rows(path, "SELECT cost, held FROM calls") == [(42, 0)]


async def test_a_tool_call_whose_outcome_is_unknown_is_said_to_be_unknown(journal: SqliteJournal, path: Path) -> None:
    key = CallKey("a", 0, 0, 1)
    await keep(
        journal,
        CallOpened(key, 1, "tool", "shop__order", "f", False, arguments="{}"),
        CallClosed(key, 1, "unknown", result=ToolResult("may have happened"), error="answer lost"),
    )
    assert rows(path, "SELECT call, name, rerun, state, error FROM calls") == [
        ("tool", "shop__order", 0, "unknown", "answer lost")
    ]


async def test_each_task_has_one_outcome_and_a_reset_task_has_none(journal: SqliteJournal, path: Path) -> None:
    ok = Outcome("a", Status.OK, text="long text", structured={"n": 1}, usage=Usage(10, 4, 0, 2), cost=5, ended_at=9.0)
    bad = Outcome("b", Status.FAILED, cause="no answer", held=3)
    await keep(journal, TaskEnded("a", ok), TaskEnded("b", bad))
    with JournalReader(path) as reader:
        assert reader.outcomes() == [ok, bad]
        assert rows(path, "SELECT task, status, cause, prompt, cost, held FROM outcomes ORDER BY task") == [
            ("a", "ok", "", 10, 5, 0),
            ("b", "failed", "no answer", 0, 0, 3),
        ]
        await keep(journal, TaskReset("b", 1))
        assert reader.outcomes() == [ok]
        good = Outcome("b", Status.OK, text="at last")
        await keep(journal, TaskEnded("b", good))
        assert reader.outcomes() == [ok, good]


async def test_no_text_or_number_of_an_upstream_can_break_the_tables(journal: SqliteJournal, path: Path) -> None:
    key = CallKey("a\0\ud800", 0, 0, 0)
    huge = Usage(prompt=10**30, output=-(10**30))
    await keep(
        journal,
        CallOpened(key, 1, "model", "m\0\udfff", "f", True, hold=10**30, reserved=10**30),
        CallClosed(key, 1, "done", cost=10**30, usage=huge, error="\0\ud800'; DROP TABLE calls; --"),
        TaskEnded("\ud800", Outcome("\ud800", Status.OK, usage=huge, started_at=float("nan"), ended_at=float("inf"))),
    )
    assert rows(path, "SELECT task, cost, prompt, output FROM calls") == [
        ("a\ufffd\ufffd", 2**63 - 1, 2**63 - 1, 1 - 2**63)
    ]
    assert len(list(journal.read())) == 3


async def test_a_call_that_ends_without_having_been_opened_is_still_a_row(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, CallClosed(KEY, 1, "done", cost=3))
    assert rows(path, "SELECT task, state, cost FROM calls") == [("a", "done", 3)]


async def test_records_can_be_asked_with_sql(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("먼저"), Notice("y"))
    assert rows(path, "SELECT seq, kind, json_extract(event, '$.text') FROM records") == [
        (1, "notice", "먼저"),
        (2, "notice", "y"),
    ]
    assert json.loads(rows(path, "SELECT event FROM records")[0][0])["text"] == "먼저"


# -- how fast ----------------------------------------------------------------------------------------------


async def test_ten_thousand_calls_go_through(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = SqliteJournal.create(path, run="r", name="n")
    slots = asyncio.Semaphore(100)
    started = time.perf_counter()

    async def call(number: int) -> None:
        key = CallKey(f"t{number}", 0, 0, 0)
        async with slots:
            await keep(journal, opened(1, number, key))
            await keep(journal, CallClosed(key, 1, "done", cost=1, completion=DONE), MoneySettled(number, 1))

    async with asyncio.TaskGroup() as group:
        for number in range(3_334):
            group.create_task(call(number))
    seconds = time.perf_counter() - started
    assert journal.last_seq == 3 * 3_334
    commits = journal.commits
    await journal.aclose()
    assert rows(path, "SELECT count(*), sum(cost) FROM calls WHERE state = 'done'") == [(3_334, 3_334)]
    with capsys.disabled():
        print(f"\n10,002 records, 100 slots: {seconds:.2f} s, {commits} commits, {path.stat().st_size / 2**20:.1f} MB")
