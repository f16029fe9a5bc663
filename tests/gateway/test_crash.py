"""`kill -9` at any moment: what the store says was spent or is held covers what was paid, and no budget is passed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from centuria.gateway.ports import Balance
from centuria.gateway.store.sqlite import SqliteStore
from tests.gateway.store_suite import balance, with_key

VICTIM = Path(__file__).with_name("victim.py")
BUDGET = 10**12


@pytest.fixture(scope="module")
def victims() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(VICTIM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def spend_and_kill(victims: subprocess.Popen[str], path: Path, seed: int, after: int) -> int:
    """Let one spend and kill it after so many payments, if it lives so long. What it paid."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    print(f"{path} {seed}", file=victims.stdin, flush=True)
    pid, paid, payments = 0, 0, 0
    with closing(sqlite3.connect(path, isolation_level=None)) as watcher:
        for line in victims.stdout:
            word, _, number = line.strip().partition(" ")
            if word == "over":
                break
            if word == "pid":
                pid = int(number)
                continue
            paid, payments = paid + int(number), payments + 1
            if payments % 7 == 0:
                [(committed,)] = watcher.execute("SELECT spent + held + leased FROM keys")
                assert committed <= BUDGET
            if payments == after and pid:
                os.kill(pid, signal.SIGKILL)
                pid = 0
    return paid


async def make(path: Path) -> None:
    store = SqliteStore(path)
    await with_key(store, BUDGET)
    await store.aclose()


async def after_a_restart(path: Path) -> Balance:
    store = SqliteStore(path)
    await store.start("next")
    money = await balance(store)
    await store.aclose()
    return money


@pytest.mark.parametrize("seed", range(10))
def test_what_was_paid_before_a_kill_is_spent_or_held_and_within_the_budget(
    victims: subprocess.Popen[str], tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "gateway.db"
    dice = random.Random(seed)
    asyncio.run(make(path))
    paid = 0
    for life in range(4):
        paid += spend_and_kill(victims, path, 10 * seed + life, after=dice.randint(1, 60))
        money = asyncio.run(after_a_restart(path))
        assert money.leased == 0
        assert paid <= money.spent + money.held <= BUDGET
    assert paid > 0


def test_a_gateway_that_ends_in_order_has_spent_what_it_paid_and_holds_nothing(
    victims: subprocess.Popen[str], tmp_path: Path
) -> None:
    path = tmp_path / "gateway.db"
    asyncio.run(make(path))
    paid = spend_and_kill(victims, path, 99, after=10**9)
    assert asyncio.run(after_a_restart(path)) == Balance(spent=paid)
    assert paid > BUDGET * 0.9
