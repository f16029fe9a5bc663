"""Disks that are full, read-only, locked or damaged: an error with a remedy, and nothing lost that was committed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from centuria.errors import JournalError
from centuria.events import Notice, Record
from centuria.journal import JournalReader, SqliteJournal


def notices(first: int, last: int, size: int = 200) -> list[Record]:
    return [Record(seq, 0.0, Notice(f"{seq} " + "x" * size)) for seq in range(first, last + 1)]


async def make(path: Path, number: int) -> None:
    journal = SqliteJournal.create(path, run="r", name="n")
    journal.append(notices(1, number))
    await journal.aclose()


def numbers_read(path: Path) -> tuple[int, JournalError | None]:
    """How many records can be read, and the error that ends them."""
    number = 0
    try:
        with JournalReader(path) as reader:
            for record in reader.records():
                number += 1
                assert record.seq == number
    except JournalError as error:
        return number, error
    return number, None


# -- full ------------------------------------------------------------------------------------------------------------

FILL = """if True:
    import asyncio, pathlib, resource, signal, sys
    from centuria.errors import JournalError
    from centuria.events import Notice, Record
    from centuria.journal import SqliteJournal
    async def main(path):
        journal = SqliteJournal.create(path, run="r", name="n")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
        seq = 0
        try:
            while True:
                journal.append([Record(seq + 1, 0.0, Notice("x" * 5000)), Record(seq + 2, 0.0, Notice("y"))])
                await journal.durable(seq + 2)
                seq += 2
        except JournalError as error:
            print(seq)
            print(error.remedy)
            print(error)
        try:
            journal.append([Record(journal.last_seq + 1, 0.0, Notice("z"))])
        except JournalError as error:
            print("refused")
        try:
            await journal.aclose()
        except JournalError:
            print("told")
        await journal.aclose()
    asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


async def test_a_disk_that_takes_no_more_ends_the_journal_with_a_remedy_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    there = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FILL, str(path)], capture_output=True, text=True, timeout=60
    )
    assert there.returncode == 0, there.stderr
    durable, remedy, error, *rest = there.stdout.splitlines()
    assert int(durable) > 20
    assert rest == ["refused", "told"]
    assert "centuria resume" in remedy
    assert str(path) in error
    assert numbers_read(path) == (int(durable), None)
    journal = SqliteJournal.open(path)
    journal.append(notices(int(durable) + 1, int(durable) + 50))
    await journal.aclose()
    assert numbers_read(path) == (int(durable) + 50, None)


async def test_a_full_disk_is_called_full(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal.create(path, run="r", name="n")
    journal._connection.execute("PRAGMA max_page_count = 40")  # SQLite then says what it says on a full disk
    journal.append(notices(1, 10))
    await journal.durable(10)
    journal.append(notices(11, 2000))
    with pytest.raises(JournalError, match="the disk is full") as caught:
        await journal.durable(2000)
    assert "Free some space" in caught.value.remedy
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    with pytest.raises(JournalError, match="the disk is full"):
        await journal.aclose()
    assert numbers_read(path) == (10, None)


# -- read-only -------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which those of tests are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


BECOME_NOBODY = """if True:
    import importlib.metadata, os, pathlib, sys
    from centuria.errors import JournalError
    from centuria.codec import decode, encode
    from centuria.events import Notice
    from centuria.journal import JournalReader, SqliteJournal
    decode(encode(Notice("what is imported late is imported now")))
    importlib.metadata.version("centuria")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    path = pathlib.Path(sys.argv[1])
"""

TRY_TO_WRITE = """
    try:
        SqliteJournal.open(path) if path.exists() else SqliteJournal.create(path, run="r", name="n")
    except JournalError as error:
        print(error)
"""

READ = """
    with JournalReader(path) as reader:
        print(len(list(reader.records())), reader.writer)
"""


def as_nobody(code: str, path: Path) -> str:
    """Run code with the folder read-only, and without the rights of root, to whom nothing is. Its output."""
    files = list(path.parent.iterdir())
    for file in files:
        file.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        command = [sys.executable, "-c", BECOME_NOBODY + code, str(path)]
        there = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        path.parent.chmod(0o755)
        for file in files:
            file.chmod(0o644)
    assert there.returncode == 0, there.stderr
    return there.stdout


async def test_a_read_only_folder_is_refused_with_a_remedy_and_can_be_read(open_folder: Path) -> None:
    new = open_folder / "journal.sqlite"
    said = as_nobody(TRY_TO_WRITE, new)
    assert "ermission" in said
    assert "Make the folder and the file writable" in said
    assert list(open_folder.iterdir()) == []
    await make(new, 30)
    assert "ermission" in as_nobody(TRY_TO_WRITE, new)
    assert as_nobody(READ, new) == "30 None\n"


async def test_a_run_that_was_killed_can_be_read_in_a_read_only_folder(open_folder: Path) -> None:
    path = open_folder / "journal.sqlite"
    code = """if True:
        import asyncio, os, pathlib, sys
        from centuria.events import Notice, Record
        from centuria.journal import SqliteJournal
        async def main():
            journal = SqliteJournal.create(pathlib.Path(sys.argv[1]), run="r", name="n")
            journal.append([Record(seq, 0.0, Notice("x")) for seq in range(1, 41)])
            await journal.durable(40)
            os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert path.with_name("journal.sqlite-wal").stat().st_size > 0
    assert as_nobody(READ, path) == "40 None\n"


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JournalError, match="cannot be made"):
        SqliteJournal.create(tmp_path / "file" / "run" / "journal.sqlite", run="r", name="n")


async def test_a_folder_that_vanishes_is_an_error_and_no_hang(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.sqlite"
    await make(path, 3)
    path.unlink()
    with pytest.raises(JournalError, match="There is no journal"):
        SqliteJournal.open(path)


# -- locked ----------------------------------------------------------------------------------------------------------


async def test_a_file_that_another_program_locks_for_long_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal.create(path, run="r", name="n", patience=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.append(notices(1, 1))
        with pytest.raises(JournalError, match="another program holds it locked") as caught:
            await journal.durable(1)
    assert "Close that program" in caught.value.remedy
    with pytest.raises(JournalError):
        await journal.aclose()


async def test_a_file_that_another_program_locks_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = SqliteJournal.create(path, run="r", name="n")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.append(notices(1, 1))
        other.execute("ROLLBACK")
    await journal.durable(1)
    await journal.aclose()


# -- damaged ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.15, 0.4, 0.7, 0.95])
async def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes_and_never_written_to(
    tmp_path: Path, share: float
) -> None:
    path = tmp_path / "journal.sqlite"
    await make(path, 2000)
    whole = path.read_bytes()
    cut = whole[: int(len(whole) * share)]
    path.write_bytes(cut)
    number, error = numbers_read(path)
    assert error is not None
    assert f"from record {number + 1} on" in str(error)
    assert "damaged" in str(error)
    assert 2000 * share * 0.6 < number < 2000
    with pytest.raises(JournalError, match=f"from record {number + 1} on"):
        SqliteJournal.open(path)
    assert path.read_bytes() == cut


async def test_a_damaged_record_is_named_and_all_before_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    await make(path, 2000)
    content = path.read_bytes()
    place = content.index(b'{"text":"1234 ')
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    number, error = numbers_read(path)
    assert number == 1233
    assert "from record 1234 on" in str(error)
    assert "records 1 to 1233 can be" in str(error)


async def test_a_damaged_page_is_an_error_that_names_the_first_record_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    await make(path, 2000)
    content = path.read_bytes()
    page = content.index(b'{"text":"1234 ') // 4096 * 4096
    path.write_bytes(content[:page] + b"\xee" * 4096 + content[page + 4096 :])
    number, error = numbers_read(path)
    assert 1200 < number < 1234
    assert f"from record {number + 1} on" in str(error)
    with pytest.raises(JournalError, match=f"from record {number + 1} on"):
        SqliteJournal.open(path)


async def test_a_missing_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    await make(path, 20)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DELETE FROM records WHERE seq = 7")
        other.commit()
    number, error = numbers_read(path)
    assert number == 6
    assert "from record 7 on" in str(error)
    with pytest.raises(JournalError, match="from record 7 on"):
        SqliteJournal.open(path)


async def test_damage_outside_the_records_is_found_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    await make(path, 20)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE INDEX by_kind ON records (kind)")  # a user's own
        ((page,),) = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_kind'").fetchall()
    content = path.read_bytes()
    path.write_bytes(content[: (page - 1) * 4096] + b"\xee" * 4096 + content[page * 4096 :])
    assert numbers_read(path) == (20, None)
    with pytest.raises(JournalError, match="its 20 records can be read"):
        SqliteJournal.open(path)
