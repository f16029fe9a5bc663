"""A cap of five dollars against ten thousand calls in flight, with all that can go wrong mixed in."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

from centuria.core.prices import Price
from centuria.core.retry import RetryPolicy
from centuria.events import MoneyReserved
from centuria.messages import DOLLAR, Usage
from centuria.settings import Timeouts
from centuria.testing import clock
from centuria.testing.transport import Faults, Provider, Tariff
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Reply, Reset, Silence, Stall, Text
from tests.chaos.kit import (
    KIMI,
    Crowd,
    Stand,
    answer_to,
    assert_never_above,
    assert_the_books_agree,
    calls,
    prompt,
    seeds,
    stand,
)
from tests.model.kit import PRICE

CAP = 5 * DOLLAR
MIX = {"limited": 0.002, "failed": 0.07, "reset": 0.07, "cut": 0.07, "stall": 0.06, "unsaid": 0.38}
#: So cheap that five dollars reserve the worst case of ten thousand short calls at once.
CHEAP = Tariff(input=250_000, cached=200_000, output=2_900_000)


def price(tariff: Tariff) -> Price:
    return Price(input=tariff.input, cached=tariff.cached, output=tariff.output)


def long_winded(body: Mapping[str, Any]) -> Text:
    """Nearly all of the hundred tokens that it may use."""
    return Text(answer_to(prompt(body)), "hm, " * 76, piece=120)


class Cancelled(Crowd):
    """One in ten is cancelled at any time from the first moment on, one in five of those twice."""

    async def run(self, seed: int, within: float) -> None:  # type: ignore[override]
        dice, loop = random.Random(seed), asyncio.get_running_loop()
        self.tasks = [asyncio.create_task(self.agent(index)) for index in range(self.agents)]
        for task in dice.sample(self.tasks, self.agents // 10):
            at = loop.time() + dice.uniform(0.0, within)
            loop.call_at(at, task.cancel)
            if dice.random() < 0.2:
                loop.call_at(at + dice.choice([0.0, 0.1]), task.cancel)
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tariff", [KIMI, CHEAP], ids=["money is short", "all are in flight"])
@pytest.mark.parametrize("seed", seeds(1))
def test_a_cap_of_five_dollars_holds_with_ten_thousand_calls_in_flight(seed: int, tariff: Tariff) -> None:
    count = calls()

    async def main() -> tuple[Stand, Provider, Cancelled]:
        provider = Provider(
            long_winded,
            faults=Faults(**MIX, seed=seed),
            tariff=tariff,
            latency=(5.0, 20.0),
            tokenise=lambda body: len(body) * 9 // 10,
        )
        desk = Stand(
            provider,
            cap=CAP * count // 10_000,
            price=price(tariff),
            limit=count,
            retry=RetryPolicy(),
            timeouts=Timeouts(queue=1e6),
        )
        crowd = Cancelled(desk, agents=count)
        await crowd.run(seed, within=40.0)
        return desk, provider, crowd

    desk, provider, crowd = clock.run(main())
    assert crowd.busy == 0 and crowd.peak == count
    crowd.assert_every_answer_is_its_own()
    assert_the_books_agree(desk, provider)
    desk.assert_nothing_is_left_open()

    cap, spent, held = CAP * count // 10_000, desk.ledger.spent("run"), desk.ledger.held("run")
    largest = max(fact.amount for fact in desk.facts(MoneyReserved))
    ends = Counter(type(end).__name__ for end in crowd.ends.values())
    told = {"spent": spent / DOLLAR, "held": held / DOLLAR, "charged": provider.charged / DOLLAR}
    print(f"seed {seed}: {told} peak {provider.peak} requests {provider.requests} {dict(ends)}")
    # All that could be in flight was: the calls themselves, or as many as the money was enough for.
    assert provider.peak >= min(count * 98 // 100, cap // largest)
    # The cap was a bound indeed: what it left is less than one more call would need.
    assert ends["BudgetExceeded"] and cap - spent - held < largest


class Whims:
    """Answers of nearly a hundred tokens, half of them without usage, and every way to break one off."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def __call__(self, body: dict[str, Any]) -> Reply:
        whole = long_winded(body)
        bill = Usage(prompt=len(str(body)), output=int(body["max_tokens"]))
        kinds: tuple[tuple[int, Reply], ...] = (
            (40, whole),
            (30, replace(whole, usage=None)),
            (5, Cut(whole, self.dice.random() * 0.8)),
            (5, Stall(whole, self.dice.random() * 0.8)),
            (5, Reset()),
            (5, HttpError(500, billed=bill)),
            (5, Silence()),
            (3, HttpError(429, "rate_limit_reached_error", CROWDED, {"retry-after-ms": "10"})),
        )
        [reply] = self.dice.choices([reply for _, reply in kinds], [share for share, _ in kinds])
        return reply


#: It says which limit was met: nothing is to be found out about the rate.
CROWDED = "Your request reached max organization concurrency: 300, please try again after 0 seconds"


@pytest.mark.parametrize("bill", ["begun", "sent"])
@pytest.mark.parametrize("seed", seeds())
async def test_a_cap_holds_over_real_sockets_with_faults_missing_usage_and_cancels(
    seed: int, bill: Literal["begun", "sent"]
) -> None:
    cap, count = 15 * DOLLAR // 100, 400
    async with FakeUpstream(
        Whims(seed), latency=0.05, bill=bill, tokenise=lambda body: len(body) * 9 // 10
    ) as upstream:
        async with stand(upstream, cap=cap, limit=300, timeouts=Timeouts(first_token=1.5, silence=1.5)) as desk:
            crowd = Cancelled(desk, agents=count)
            await crowd.run(seed, within=1.0)
        await upstream.until(lambda: upstream.connections == 0)
    assert crowd.busy == 0 and crowd.peak == count
    crowd.assert_every_answer_is_its_own()
    desk.assert_nothing_is_left_open()
    assert_never_above(desk, cap)
    spent, held = desk.ledger.spent("run"), desk.ledger.held("run")
    largest = max(fact.amount for fact in desk.facts(MoneyReserved))
    ends = Counter(type(end).__name__ for end in crowd.ends.values())
    charged = upstream.charged(PRICE)
    told = {"spent": spent / DOLLAR, "held": held / DOLLAR, "charged": charged / DOLLAR}
    print(f"seed {seed}: {told} peak {upstream.peak} requests {len(upstream.requests)} {dict(ends)}")
    assert charged <= spent + held <= cap
    assert ends["BudgetExceeded"] and cap - spent - held < largest
