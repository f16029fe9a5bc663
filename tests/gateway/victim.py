"""Gateways to be killed. For each line `PATH SEED` on its input it forks one that spends the key's money until it dies.

It prints `pid N`, then `paid COST` whenever an upstream has answered, before its books know; its parent prints `over`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from itertools import count
from pathlib import Path

from centuria.errors import BudgetExceeded
from centuria.gateway.books import Books
from centuria.gateway.ports import AttemptRow
from centuria.gateway.store.sqlite import SqliteStore

CENT = 10**10


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def spend(path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = SqliteStore(path)
    [(key, _)] = await store.keys()
    numbers = count()

    async def agent(books: Books) -> None:
        while True:
            amount = dice.randint(1, 2 * CENT)
            try:
                reservation = await books.reserve(key, amount, patience=30)
            except BudgetExceeded:
                return
            await asyncio.sleep(dice.random() * 0.003)
            end = dice.random()
            if end < 0.2:
                books.release(reservation)
                continue
            cost = amount if end < 0.5 else dice.randint(0, amount)
            say(f"paid {cost}")
            row = AttemptRow(f"{seed}/{next(numbers)}", 1, time.time(), key.id, "m", "d", "chat", "done", cost=cost)
            books.settle(reservation, row)

    async with Books(store, gateway="g", wall=time.time) as books, asyncio.TaskGroup() as group:
        for _ in range(dice.randint(1, 12)):
            group.create_task(agent(books))
    await store.aclose()


def main() -> None:
    for line in sys.stdin:
        path, seed = line.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            asyncio.run(spend(Path(path), int(seed)))
            os._exit(0)
        os.waitpid(child, 0)
        say("over")


if __name__ == "__main__":
    main()
