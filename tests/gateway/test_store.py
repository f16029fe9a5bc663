"""The stores in memory and in a SQLite file; what is SQLite's own: faults of the disk, schemas, modes, one gateway."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import sqlite3
import stat
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from centuria.errors import ConfigurationError
from centuria.gateway.keys import digest_of, new_token
from centuria.gateway.ports import Balance, Document, Store
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store import open_store, sqlite
from centuria.gateway.store.files import connect
from centuria.gateway.store.sqlite import SqliteStore
from centuria.testing.gateway import MemoryStore
from tests.gateway.store_suite import CENT, StoreSuite, attempt, balance, with_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


class TestMemory(StoreSuite):
    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()


class TestSqlite(StoreSuite):
    @pytest.fixture
    async def store(self, path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(path)
        yield store
        await store.aclose()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program that writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_what_was_written_is_there_when_the_file_is_opened_again(path: Path) -> None:
    first = SqliteStore(path)
    await with_key(first)
    await first.write("g", [attempt("r1", "k1", 5)])
    await first.aclose()
    again = await open_store(str(path))
    assert await balance(again) == Balance(spent=5)
    await again.aclose()
    assert sorted(each.name for each in path.parent.iterdir()) == ["gateway.db"]


async def test_the_files_of_a_store_are_its_owners_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(path)
        await with_key(store)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        await store.aclose()
    finally:
        os.umask(before)
    assert modes == {"gateway.db": 0o600, "gateway.db-wal": 0o600, "gateway.db-shm": 0o600}


async def test_no_byte_of_a_token_is_in_the_store(path: Path) -> None:
    token = new_token()
    store = SqliteStore(path)
    key = await with_key(store)
    await store.add_key(type(key)("k2", "second"), digest_of(token))
    found = await store.find_key(digest_of(token))
    assert found is not None
    await store.write("g", [attempt("r1", "k2", 5)])
    bytes_there = b"".join(each.read_bytes() for each in path.parent.iterdir())
    await store.aclose()
    assert b"second" in bytes_there
    for start in range(len(token) - 12):
        assert token[start : start + 12].encode() not in bytes_there


async def test_the_next_gateway_holds_what_the_last_one_had_leased(path: Path) -> None:
    first = SqliteStore(path)
    await with_key(first)
    await first.start("same")
    await first.extend_lease("same", "k1", 10 * CENT, 10 * CENT)
    await first.write("same", [attempt("r1", "k1", CENT)])
    await first.aclose()
    second = SqliteStore(path)
    await second.start("same")
    assert await balance(second) == Balance(spent=CENT, held=9 * CENT)
    await second.return_leases("same")
    assert await balance(second) == Balance(spent=CENT, held=9 * CENT)
    await second.aclose()


async def test_two_gateways_never_work_with_one_file_but_commands_may(path: Path) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    await first.start("g1")
    with pytest.raises(ConfigurationError, match="Another gateway") as caught:
        await second.start("g2")
    assert "postgresql://" in caught.value.remedy
    await with_key(second)
    assert len(await first.keys()) == 1
    await first.aclose()
    await second.start("g2")
    await second.aclose()


async def test_a_store_of_a_newer_schema_is_refused(path: Path) -> None:
    await SqliteStore(path).aclose()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigurationError, match="newer Centuria") as caught:
        SqliteStore(path)
    assert "pip install --upgrade" in caught.value.remedy


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 50, None])
async def test_a_file_of_something_else_is_refused_and_not_touched(path: Path, content: bytes | None) -> None:
    if content is None:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE theirs (x)")
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="not a store"):
        SqliteStore(path)
    if content is None:
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    else:
        assert path.read_bytes() == content


@pytest.mark.parametrize("where", ["mysql://host/db", "", "a\0b"])
async def test_a_store_that_cannot_be_is_refused_with_what_can(where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await open_store(where)
    assert "postgresql://" in caught.value.remedy


@pytest.mark.parametrize("where", ["127.0.0.1:1/none", "host:port/none", "[::1/none", "h/n?sslmode=odd"])
async def test_a_password_of_the_stores_url_is_in_no_error(where: str) -> None:
    canary = "canary-of-a-password"
    with pytest.raises((StoreUnavailable, ConfigurationError)) as caught:
        await open_store(f"postgresql://user:{canary}@{where}")
    assert canary not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value, StoreUnavailable) == (where == "127.0.0.1:1/none")


async def test_no_look_up_and_no_write_takes_longer_with_the_rows_of_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps of SQLite's own machine."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    def counted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_progress_handler(step, 10)
        return connection

    monkeypatch.setattr(sqlite, "connect", counted)
    store = SqliteStore(path)
    await with_key(store)
    mine = [attempt(f"mine{number}", "k1", 1) for number in range(20)]
    await store.write("g", mine)
    await store.put("swarm", "k1", Document("mine", "{}", 1.0))

    async def cost() -> list[int]:
        costs = []
        for number, work in enumerate(
            (
                lambda: store.write("g", mine),
                lambda: store.write("g", [attempt(secrets.token_hex(8), "k1", 1)]),
                lambda: store.usage(key="k1"),
                lambda: store.attempts("mine1", key="k1"),
                lambda: store.find("swarm", "k1"),
                lambda: store.find_key(digest_of("k1")),
            )
        ):
            before = steps
            await work()
            costs.append(steps - before)
            assert number == 5 or costs[-1] > 0
        return costs

    before = await cost()
    for part in range(5):
        await store.write("g", [attempt(f"r{part}/{number}", "k2", 1) for number in range(1_000)])
    for number in range(300):
        await store.put("swarm", "k2", Document(f"d{number}", "{}", 1.0))
    after = await cost()
    await store.aclose()
    assert all(now <= 2 * then + 10 for then, now in zip(before, after, strict=True)), (before, after)


async def test_a_file_that_another_program_holds_is_unavailable_until_it_lets_go(path: Path) -> None:
    store = SqliteStore(path, patience=0.05)
    await with_key(store)
    with locked(path):
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.write("g", [attempt("r1", "k1", 5)])
        found = await store.find_key(digest_of("k1"))  # readers are not in the way
        assert found is not None
    await store.write("g", [attempt("r1", "k1", 5)])
    assert await balance(store) == Balance(spent=5)
    await store.aclose()


async def test_a_file_that_is_gone_is_unavailable_and_is_not_made_anew(path: Path) -> None:
    store = SqliteStore(path, patience=0.05)
    aside = path.with_name("aside.db")
    path.rename(aside)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await store.keys()
    assert not path.exists()
    aside.rename(path)
    assert await store.keys() == []
    await store.aclose()


async def test_a_file_on_a_full_disk_is_unavailable_and_whole_afterwards(path: Path) -> None:
    """The disk is full for a process of its own: a file of it may not grow."""
    program = """if True:
        import asyncio, pathlib, resource, signal, sys
        from centuria.gateway.ports import Document
        from centuria.gateway.problems import StoreUnavailable
        from centuria.gateway.store.sqlite import SqliteStore
        async def main(path):
            store = SqliteStore(path)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
            kept = 0
            try:
                while True:
                    await store.put("k", "o", Document(f"d{kept}", "x" * 5000, kept))
                    kept += 1
            except StoreUnavailable as error:
                print(kept, error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await store.put("k", "o", Document("last", "x" * 5000, 1e6))
            print(len(await store.find("k", "o", limit=10_000)))
            await store.aclose()
        asyncio.run(main(pathlib.Path(sys.argv[1])))
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60
    )
    first, second = done.stdout.splitlines()
    kept = int(first.split(" ", 1)[0])
    assert kept > 10, done
    assert "cannot be used" in first
    assert int(second) == kept + 1
    store = SqliteStore(path)
    assert (await store.find("k", "o", limit=1))[0][1] == Document("last", "x" * 5000, 1e6)
    await store.aclose()
