"""A thousand cancels over real sockets, at every moment that a call has: nothing is left of any of them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

import pytest

from centuria.messages import Completion
from centuria.settings import Timeouts
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Late, Reply, Reset, Silence, Stall, Text
from tests.chaos.kit import Crowd, answer_to, prompt, seeds, stand
from tests.model.kit import PRICE

CANCELS, LIMIT = 1000, 50
#: Only cancels end what hangs.
PATIENT = Timeouts(first_token=600, silence=600, total=600)


class Whims:
    """An upstream that answers, dawdles, hangs or breaks, by its dice, in a `mood`; what it answers is the asker's."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.mood = "wild"

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        answer = Text(answer_to(prompt(body)), piece=8)
        if self.mood != "wild":
            return answer if self.mood == "tame" else Silence()
        slow = Text(answer.text, "Hm. " * 5, piece=2, gap=0.002)
        kinds: tuple[tuple[int, Reply], ...] = (
            (25, answer),
            (25, slow),
            (15, Late(slow, 0.02)),
            (8, Silence()),
            (12, Stall(slow, self.dice.random())),
            (5, Cut(answer, self.dice.random() / 2)),
            (5, Reset()),
            (5, HttpError(500)),
        )
        [reply] = self.dice.choices([reply for _, reply in kinds], [share for share, _ in kinds])
        return reply


class Canceller:
    """Keeps a crowd at its size, and ends every one of it, if it has not ended, at a moment of its own: so many turns
    of the event loop after it began, often few and sometimes thousands. One in four is cancelled twice."""

    def __init__(self, crowd: Crowd, seed: int) -> None:
        self.crowd = crowd
        self.dice = random.Random(seed)
        self.due: list[tuple[int, int, asyncio.Task[None]]] = []
        self.hits = 0
        self.again = 0

    async def run(self, cancels: int, size: int) -> None:
        running: set[asyncio.Task[None]] = set()
        begun, turn = 0, 0
        while self.hits < cancels or running:
            while self.hits < cancels and len(running) < size:
                task = asyncio.create_task(self.crowd.call(begun, 0))
                running.add(task)
                task.add_done_callback(running.discard)
                heappush(self.due, (turn + int(10 ** self.dice.uniform(0, 3.8)), begun, task))
                begun += 1
            while self.due and self.due[0][0] <= turn:
                _, number, task = heappop(self.due)
                if not task.done():
                    self._cancel(task, turn, number)
            await asyncio.sleep(0)
            turn += 1
        self.crowd.agents = begun

    def _cancel(self, task: asyncio.Task[None], turn: int, number: int) -> None:
        self.again += task.cancelling() > 0
        self.hits += task.cancelling() == 0
        task.cancel()
        if task.cancelling() == 1 and self.dice.random() < 0.5:
            heappush(self.due, (turn + self.dice.choice([0, 1, 1, 2]), number, task))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", seeds(1))
async def test_after_a_thousand_random_cancels_the_pool_serves_at_once_and_no_connection_is_left(seed: int) -> None:
    before = open_files()
    whims = Whims(seed)
    async with FakeUpstream(whims) as upstream:
        async with stand(upstream, limit=LIMIT, timeouts=PATIENT) as desk:
            crowd = Crowd(desk, agents=0)
            canceller = Canceller(crowd, seed)
            await canceller.run(CANCELS, size=LIMIT + 10)
            desk.assert_nothing_is_left_open()
            await upstream.until(lambda: upstream.in_flight == 0)

            # Every slot and a connection for it is there at once: so many requests arrive without one being answered.
            whims.mood = "silent"
            again = Crowd(desk, agents=2 * LIMIT)
            hanging = [asyncio.create_task(again.call(index, 1)) for index in range(2 * LIMIT)]
            await upstream.until(lambda: upstream.in_flight == LIMIT)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
            await upstream.until(lambda: upstream.in_flight == 0)
            whims.mood = "tame"
            last = Crowd(desk, agents=LIMIT)
            await asyncio.gather(*(last.call(index, 2) for index in range(LIMIT)))
        await upstream.until(lambda: upstream.connections == 0)

        crowd.assert_every_call_has_an_outcome()
        crowd.assert_every_answer_is_its_own()
        last.assert_every_answer_is_its_own()
        assert all(isinstance(end, Completion) for end in last.ends.values())
        desk.assert_nothing_is_left_open()
        assert upstream.charged(PRICE) <= desk.ledger.spent("run") + desk.ledger.held("run")

        ends = list(crowd.ends.values())
        cancelled = [key for key, end in crowd.ends.items() if isinstance(end, asyncio.CancelledError)]
        rows = {str(row.key): row for row in desk.closed}
        moments = {
            "unsent": sum(key not in rows for key in cancelled),
            "without a word": sum(key in rows and not rows[key].partial for key in cancelled),
            "half said": sum(key in rows and bool(rows[key].partial) for key in cancelled),
        }
        print(f"seed {seed}: {len(ends)} calls, {canceller.hits} cancels, {canceller.again} twice, {moments}")
        assert canceller.hits >= CANCELS and canceller.again > CANCELS // 10
        assert min(moments.values()) > CANCELS // 20
    assert open_files() <= before
