"""Promise 2 on the disk: after `kill -9` at any moment, all that was called durable is there, and batches are whole."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from centuria.events import CallOpened, Notice
from centuria.journal import JournalReader, SqliteJournal

VICTIM = Path(__file__).with_name("victim.py")
SEEDS = range(24)


@pytest.fixture(scope="module")
def victims() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(VICTIM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def write_and_kill(victims: subprocess.Popen[str], path: Path, seed: int, after: int) -> int:
    """Let one write; kill it once it has said `after` times that something is durable. The last that it said so of."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    print(f"{path} {seed}", file=victims.stdin, flush=True)
    pid, durable, said = 0, 0, 0
    for line in victims.stdout:
        word, _, number = line.strip().partition(" ")
        if word == "over":
            break
        if word == "pid":
            pid = int(number)
        else:
            durable, said = max(durable, int(number)), said + 1
        if said == after and pid:
            os.kill(pid, signal.SIGKILL)
            pid = 0
    assert said >= after
    return durable


def check_whole(path: Path) -> int:
    """Records without a gap, in whole batches, the tables in step with them. The number of the last."""
    with JournalReader(path) as reader:
        assert reader.writer is None
        opened, last = 0, 0
        for record in reader.records():
            event = record.event
            assert isinstance(event, Notice | CallOpened)
            batch = json.loads(event.text if isinstance(event, Notice) else event.arguments)
            assert batch["first"] <= record.seq <= batch["last"]
            opened += isinstance(event, CallOpened)
            last = batch["last"]
        assert last == reader.last_seq
        assert len(reader.calls()) == opened
        return last


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_called_durable_is_lost_by_kill_9(
    victims: subprocess.Popen[str], tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "journal.sqlite"
    dice = random.Random(seed)
    durable = write_and_kill(victims, path, seed, dice.choice([0, 1, 2, dice.randint(3, 80)]))
    if not path.exists() or not path.stat().st_size:
        assert durable == 0
        return
    kept = check_whole(path)
    assert kept >= durable
    durable = write_and_kill(victims, path, seed + 1000, dice.randint(1, 40))
    assert durable > kept
    assert check_whole(path) >= durable


async def test_a_log_that_was_cut_off_loses_its_last_commits_and_no_others(
    victims: subprocess.Popen[str], tmp_path: Path
) -> None:
    path = tmp_path / "journal.sqlite"
    write_and_kill(victims, path, 7, 30)
    log = path.with_name(path.name + "-wal").read_bytes()
    seen = set()
    for part in range(10, -1, -1):
        folder = tmp_path / f"cut{part}"
        folder.mkdir()
        copy = folder / "journal.sqlite"
        shutil.copy(path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(log[: len(log) * part // 10 - (part > 0) * 13])
        kept = check_whole(copy)
        seen.add(kept)
        journal = SqliteJournal.open(copy)
        assert journal.last_seq == kept
        await journal.aclose()
    assert len(seen) > 3
