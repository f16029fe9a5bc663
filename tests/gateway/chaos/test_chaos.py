"""An upstream that fails in every way, clients that vanish, keys that run out of money: the books are right.

Seeded: what befalls each request, and when each client goes, is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from centuria.core.prices import cost
from centuria.core.retry import RetryPolicy
from centuria.gateway.settings import Caps
from centuria.gateway.store.sqlite import SqliteStore
from centuria.messages import DOLLAR, Pico, Usage
from centuria.settings import Timeouts
from centuria.testing import FakeUpstream
from centuria.testing.replies import Calls, Cut, HttpError, Reply, Reset, Silence, Stall, Text
from tests.gateway.served import MODEL, PRICE, Served, deployment, serving, settings

REQUESTS, AT_ONCE = 300, 100
TIMEOUTS = Timeouts(connect=5.0, first_token=0.5, silence=0.4, total=1.5)
#: One request costs a cent at most; the budgets are for all, for some, and for three of them.
BUDGETS = {"rich": 100 * DOLLAR, "modest": DOLLAR // 2, "poor": DOLLAR // 30, "free": None}


@dataclass
class Provider:
    """Answers by the dice, and keeps its own books: what each answer used, by the number that its prompt was."""

    dice: random.Random
    used: dict[int, Usage] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def __call__(self, body: dict[str, Any]) -> Reply:
        draw, streams = self.dice.random(), bool(body.get("stream"))
        answer = self._answer()
        for share, name in ((0.05, "cut"), (0.05, "stalled"), (0.05, "failed"), (0.01, "limited"), (0.84, "fine")):  # noqa: B007
            draw -= share
            if draw < 0:
                break
        self.faults[name] += 1
        after = self.dice.random() * 0.8
        match name:
            case "cut":
                return Cut(answer, after) if streams else Reset()
            case "stalled":
                return Stall(answer, after) if streams else Silence()
            case "failed":
                return HttpError(500)
            case "limited":
                return HttpError(429, headers={"retry-after-ms": "50"})
            case _:
                return answer

    def _answer(self) -> Text | Calls:
        number = 1_000 + len(self.used)
        usage = Usage(number, self.dice.randrange(number), 0, self.dice.randrange(1, 1_000))
        self.used[number] = usage
        gap = self.dice.choice((0.0, 0.0, 0.005, 0.02))
        report = self.dice.choice(("top", "choice"))
        if self.dice.random() < 0.2:
            return Calls((("find", '{"q": "all of it"}'),), usage=usage, report=report, gap=gap)
        text = "word " * self.dice.randrange(1, 100)
        return Text(text, usage=usage, report=report, gap=gap)


async def client(served: Served, headers: dict[str, str], dice: random.Random) -> str:
    """One request; what came of it."""
    vanishes = dice.random() < 0.2
    patience = dice.random() * 0.3 if vanishes else 60.0
    stream = dice.random() < 0.6
    more = {"stream_options": {"include_usage": True}} if stream and dice.random() < 0.5 else {}
    agent = {"X-Agent-Id": f"agent-{dice.randrange(20)}", "X-Priority": str(dice.randrange(10))}
    try:
        async with asyncio.timeout(patience):
            got = await served.ask({**headers, **agent}, stream=stream, max_tokens=1_000, **more)
    except TimeoutError:
        assert vanishes, "an answer or an error comes within a minute, whatever happens"
        return "vanished"
    if got.status != 200:
        assert got.error["message"]
        return f"{got.status} {got.error['type']}"
    if not stream:
        return "whole" if got.json["choices"] else "empty"
    done = got.events[-1] == "[DONE]"
    assert done or got.last_error["message"]
    return "streamed" if done else "broken"


async def watch(served: Served, store: SqliteStore) -> None:
    """At no moment is more spent, held and leased than a budget has."""
    while True:
        for key, money in await store.keys():
            if key.budget is not None:
                assert money.spent + money.held + money.leased <= key.budget, key.name
        assert all(upstream.lane.governor.in_flight() <= 60 for upstream in served.gateway.funnel.upstreams())
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_breaks_the_books_are_right_and_nothing_is_left_behind(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    one, two = Provider(random.Random(f"{seed}/1")), Provider(random.Random(f"{seed}/2"))
    store = SqliteStore(tmp_path / "gateway.db")
    async with FakeUpstream(one, latency=0.01) as first, FakeUpstream(two, latency=0.03) as second:
        models = {MODEL: [deployment(each, name=f"{name}/m", concurrency=60) for name, each in
                          (("first", first), ("second", second))]}  # fmt: skip
        caps, soon = Caps(queue=10.0, request=30.0, grace=1.0), RetryPolicy(delays=(0.05, 0.1, 0.2))
        async with serving(settings(models, caps=caps, timeouts=TIMEOUTS), store, retry=soon) as served:
            keys = [await served.add_key(name, budget=budget) for name, budget in BUDGETS.items()]
            places = asyncio.Semaphore(AT_ONCE)

            async def go(number: int) -> str:
                async with places:
                    return await client(served, keys[number % len(keys)], random.Random(f"{seed}/c/{number}"))

            watcher = asyncio.create_task(watch(served, store))
            ends = Counter(await asyncio.gather(*(go(number) for number in dice.sample(range(REQUESTS), REQUESTS))))
            await served.until_quiet()
            watcher.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watcher
            await first.until(lambda: first.in_flight == 0)
            await second.until(lambda: second.in_flight == 0)

            assert min(ends["streamed"], ends["whole"], ends["vanished"]) > 10, ends
            check_rows(served, {"first/m": one, "second/m": two}, len(first.requests) + len(second.requests))
            nothing_is_left(served)
            await check_books(served, store)
        assert first.connections == second.connections == 0


def check_rows(served: Served, providers: dict[str, Provider], requests: int) -> None:
    """What an attempt used is what its provider says, where that could be known."""
    known = [row for row in served.rows if row.prompt]
    assert len({(row.deployment, row.prompt) for row in known}) == len(known) > 100
    for row in known:
        usage = providers[row.deployment].used[row.prompt]
        assert (row.cached, row.output) == (usage.cached, usage.output)
        assert (row.cost, row.held) == (cost(PRICE, usage), 0)
    for row in served.rows:
        if not row.prompt:  # nobody knows: at most its reservation
            assert 0 <= row.cost + row.held <= 1_100 * PRICE.output + 2_000 * PRICE.input
            # Done: all of the answer was there when it was cut, and its usage was not.
            assert (row.end, row.cost + row.held > 0) in {
                ("failed", False), ("lost", True), ("client_closed", True), ("done", True),
            }  # fmt: skip
    assert len({(row.request, row.attempt) for row in served.rows}) == len(served.rows)
    # A client may go in the very moment in which its request leaves.
    assert requests <= len(served.rows) <= requests + sum(row.end == "client_closed" for row in served.rows)


def nothing_is_left(served: Served) -> None:
    gateway = served.gateway
    assert gateway.books.reserved() == gateway.books.pending() == gateway.books.waiting() == 0
    assert gateway.funnel.in_flight() == 0
    assert not gateway.funnel._beginning
    assert not gateway.funnel._deadlines.waits
    for upstream in gateway.funnel.upstreams():
        lane = upstream.lane
        assert lane.governor.in_flight() == len(lane.queue) == len(lane.waiters) == 0


async def check_books(served: Served, store: SqliteStore) -> None:
    balances = {key.name: (key.budget, money) for key, money in await store.keys()}
    for name, (budget, money) in balances.items():
        assert money.spent + money.held == served.spent(name)
        if budget is not None:
            assert money.spent + money.held <= budget
    poor: Pico = balances["poor"][1].spent + balances["poor"][1].held
    assert poor > DOLLAR // 60  # it could use what it had


async def test_a_reply_that_costs_more_than_its_reservation_is_paid_and_the_next_one_refused() -> None:
    greedy = Text("x", usage=Usage(100, 0, 0, 100_000))
    async with FakeUpstream(lambda body: greedy) as upstream:  # noqa: SIM117
        async with serving(settings({MODEL: [deployment(upstream)]})) as served:
            key = await served.add_key("a", budget=DOLLAR // 100)
            got = await served.ask(key, stream=True)
            assert got.status == 200
            await served.until_quiet()
            assert served.rows[0].cost == cost(PRICE, greedy.usage or Usage())
            assert (await served.ask(key)).error["type"] == "exceeded_current_quota_error"
