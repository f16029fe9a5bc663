"""Writers to be killed. For each line `PATH SEED` on its input it forks one that appends until it dies.

A writer prints `pid N`, then `durable N` for every record that it was told is on disk; its parent prints `over`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from itertools import count
from pathlib import Path

from centuria.codec import encode
from centuria.events import CallOpened, Fact, Notice, Record
from centuria.journal import SqliteJournal
from centuria.messages import CallKey


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def write(path: Path, seed: int) -> None:
    dice = random.Random(seed)
    journal = (
        SqliteJournal.open(path)
        if path.exists() and path.stat().st_size
        else SqliteJournal.create(path, run="r", name="n")
    )
    calls = count(journal.last_seq)

    async def agent() -> None:
        while True:
            size = dice.randint(1, 12)
            first = journal.last_seq + 1
            note = json.dumps({"first": first, "last": first + size - 1, "pad": "x" * dice.randint(0, 3000)})
            events: list[Fact] = [Notice(note)] * size
            key = CallKey(f"t{next(calls)}", 0, 0, 0)
            events[-1] = CallOpened(key, 1, "model", "m", "f", True, arguments=note)
            journal.append([Record(first + place, 0.0, event) for place, event in enumerate(events)])
            await journal.durable(first + size - 1)
            say(f"durable {first + size - 1}")

    async with asyncio.TaskGroup() as group:
        for _ in range(dice.randint(1, 8)):
            group.create_task(agent())


def main() -> None:
    encode(Notice("warm"))
    for line in sys.stdin:
        path, seed = line.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            asyncio.run(write(Path(path), int(seed)))
            os._exit(1)
        os.waitpid(child, 0)
        say("over")


if __name__ == "__main__":
    main()
