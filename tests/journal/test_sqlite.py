"""The file of a journal: one writer, readers in other processes, no thread that outlives its work."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from centuria.codec import SCHEMA
from centuria.errors import JournalError
from centuria.events import Notice
from centuria.journal import JournalReader, SqliteJournal
from tests.journal.steps import keep, rows


def python(code: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "centuria-journal"]


# -- the file --------------------------------------------------------------------------------------------------------


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


# -- one writer ------------------------------------------------------------------------------------------------------


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


# -- the thread ------------------------------------------------------------------------------------------------------


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


# -- readers ---------------------------------------------------------------------------------------------------------


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


# -- files of other makes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 8192])
async def test_what_is_no_journal_is_called_that(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for attempt in (JournalReader, SqliteJournal.open):
        with pytest.raises(JournalError, match=r"not a journal|damaged"):
            attempt(path)
    assert path.read_bytes() == content


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE records (seq)")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="not a journal"):
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
