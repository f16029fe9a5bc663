"""What a call reserves, pays and holds, also where it is cancelled at any moment."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from centuria.core.calls import CallLedger
from centuria.core.prices import Price, cost
from centuria.errors import BudgetExceeded, PriceMissing
from centuria.events import TextDelta, fold
from centuria.messages import DOLLAR, Usage
from centuria.testing.journal import MemoryJournal
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Raw, Reply, Text
from tests.model.kit import PRICE, Desk, ask, caller, desk

CROWDED = "Your request reached max organization concurrency: 300, please try again after 0 seconds"

# -- money ------------------------------------------------------------------------------------------------------------


async def test_ten_leave_and_ninety_end_for_the_budget_and_nothing_paid_is_lost() -> None:
    """The worked example: an answer uses exactly `max_tokens` and costs $0.10; cap $1.00; 100 at once."""
    reply = Text("Hi", usage=Usage(prompt=10, output=1000))
    price = Price(input=0, output=DOLLAR // 10 // 1000)
    async with FakeUpstream(lambda _: reply, latency=0.01) as upstream, desk(upstream, cap=DOLLAR, price=price) as d:
        calls = (d.client.chat(ask(max_tokens=1000), caller(f"t{n}")) for n in range(100))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(end, BudgetExceeded) for end in ends) == 90
        assert len(upstream.billed) == sum(row.end == "done" for row in d.closed) == 10
        assert d.ledger.spent("run") == DOLLAR
        d.assert_nothing_is_left_open()


async def test_a_call_waits_for_money_that_is_only_reserved() -> None:
    """The cap has room for two worst cases, the true cost is a small part of one: all five end well, two by two."""
    cap = 2_700 * PRICE.output  # each may write 1,000 tokens, and has a prompt
    async with (
        FakeUpstream(lambda _: Text("Hi", usage=Usage(100, output=50)), latency=0.01) as upstream,
        desk(upstream, cap=cap) as d,
    ):
        await asyncio.gather(*(d.client.chat(ask(max_tokens=1000), caller(f"t{n}")) for n in range(5)))
        assert cap // d.opened[0].reserved == 2
        assert upstream.peak == 2 and all(request.json["max_tokens"] == 1000 for request in upstream.requests)
        d.assert_nothing_is_left_open()


async def test_an_answer_is_shrunk_to_what_is_affordable_and_below_the_floor_refused() -> None:
    cap = 2000 * PRICE.input + 3000 * PRICE.output
    async with FakeUpstream(lambda _: Text("Hi")) as upstream, desk(upstream, cap=cap) as d:
        await d.client.chat(ask(max_tokens=32_000), caller())
        sent = upstream.requests[0].json["max_tokens"]
        assert 3000 <= sent < 3600, "all that is affordable, and not just half of it"
        d.assert_nothing_is_left_open()
    for thinks, tokens, served in ((False, 1500, True), (False, 900, False), (True, 3900, False), (True, 4600, True)):
        cap = tokens * PRICE.output + 800 * PRICE.input
        async with FakeUpstream() as upstream, desk(upstream, cap=cap, thinks=thinks) as d:
            if served:
                await d.client.chat(ask(max_tokens=32_000), caller())
            else:
                with pytest.raises(BudgetExceeded):
                    await d.client.chat(ask(max_tokens=32_000), caller())
            assert len(upstream.requests) == served
            d.assert_nothing_is_left_open()


async def test_a_prompt_is_reserved_by_its_bytes_whatever_the_ratio_was_so_far() -> None:
    """Many prompts of four bytes a token, then one of a byte a token."""
    thin = iter([True] * 21)
    async with (
        FakeUpstream(lambda _: Text("Hi"), tokenise=lambda b: len(b) // (4 if next(thin, False) else 1)) as upstream,
        desk(upstream) as d,
    ):
        for turn in range(22):
            await d.client.chat(ask("0123456789" * 400, max_tokens=10), caller(turn=turn))
        assert d.closed[20].cost < d.closed[21].cost <= d.opened[21].reserved
        d.assert_nothing_is_left_open()


async def test_without_a_cap_and_a_price_a_call_costs_nothing_and_is_made() -> None:
    async with FakeUpstream() as upstream, desk(upstream, cap=None, price=None) as d:
        await d.client.chat(ask(), caller())
        assert d.closed[0].cost == 0 and d.opened[0].reserved == 0 and d.closed[0].usage is not None
        d.assert_nothing_is_left_open()


async def test_another_model_than_the_priced_one_is_refused_under_a_cap() -> None:
    async with FakeUpstream() as upstream, desk(upstream) as d:
        with pytest.raises(PriceMissing):
            await d.client.chat(ask(model="another"), caller())
        assert upstream.requests == []


PROMPTS = st.one_of(
    st.text("0123456789", max_size=300),
    st.text("0123456789abcdef", max_size=300),
    st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3), max_size=300),
    st.text("😀👩‍👩‍👧🏳️‍🌈", max_size=200),
    st.text(st.characters(exclude_categories=()), max_size=200),
)


def worst_tokens(body: bytes) -> int:
    """The worst that a byte-level tokenizer can do: a token of each byte of the text, and a template around
    it."""
    return len(body) + 300


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PROMPTS, min_size=1, max_size=6))
def test_no_prompt_costs_more_than_its_reservation(prompts: list[str]) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return Text("x" * 4 * body["max_tokens"], piece=100_000)

    async def main() -> None:
        async with FakeUpstream(answer, tokenise=worst_tokens) as upstream, desk(upstream) as d:
            for turn, prompt in enumerate(prompts * 5):
                await d.client.chat(ask(prompt, max_tokens=50), caller(turn=turn))
            assert all(shut.cost <= opened.reserved for opened, shut in zip(d.opened, d.closed, strict=True))
            assert d.ledger.spent("run") == sum(cost(PRICE, usage) for usage in upstream.billed)
            d.assert_nothing_is_left_open()

    asyncio.run(main())


async def test_an_upstream_that_bills_more_than_was_reserved_is_named_once_and_counted_in_full() -> None:
    greedy = Text("Hi", usage=Usage(prompt=10**6, output=10**6))
    async with FakeUpstream(lambda _: greedy) as upstream, desk(upstream) as d:
        for turn in range(2):
            await d.client.chat(ask(max_tokens=10), caller(turn=turn))
        assert d.ledger.spent("run") == 2 * 10**6 * (PRICE.input + PRICE.output)
        said = [notice.text for notice in d.notices if "no cap can hold" in notice.text]
        assert len(said) == 1


# -- cancellation -----------------------------------------------------------------------------------------------------


class EagerlyFlushed(MemoryJournal):
    """Commits one turn of the event loop after the append, so that `durable` is a real await."""

    def append(self, records: Any) -> None:
        self.hold()
        super().append(records)
        asyncio.get_running_loop().call_soon(lambda: self.flush(keep_holding=True))


async def cancelled_after(steps: int, d: Desk) -> bool:
    """Whether the call was still under way when it was cancelled after so many turns of the event loop."""
    task = asyncio.create_task(d.client.chat(ask(), caller()))
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            break
    was_running = not task.done()
    task.cancel()
    ended = (await asyncio.gather(task, return_exceptions=True))[0]
    assert not was_running or isinstance(ended, asyncio.CancelledError)
    await asyncio.sleep(0)
    return was_running


async def test_cancelled_at_any_await_a_call_leaves_no_hold_no_slot_and_no_open_row() -> None:
    ends = set()
    async with FakeUpstream(lambda _: Text("Hello there.", "Hm.", piece=2)) as upstream:
        for steps in range(400):
            async with desk(upstream, journal=EagerlyFlushed(), limit=1) as d:
                running = await cancelled_after(steps, d)
                d.assert_nothing_is_left_open()
                ends |= {row.end for row in d.closed}
                held = sum(row.reserved for row, shut in zip(d.opened, d.closed, strict=True) if shut.end == "lost")
                assert d.ledger.held("run") == held
                if not running:
                    break
        else:
            raise AssertionError("the call never ended by itself")
        assert {"failed", "lost", "done"} <= ends, "not sent, may have left, and answered: all were met"
        await upstream.until(lambda: upstream.connections == 0)


@pytest.mark.parametrize("seed", range(4))
async def test_a_crowd_cancelled_at_random_leaves_nothing_open_and_is_never_over_the_cap(seed: int) -> None:
    dice = random.Random(seed)
    # A rate has to be found out, which takes seconds: with one seed only.
    limited = HttpError(429, "rate_limit_reached_error", CROWDED, {"retry-after-ms": "10"}) if seed else HttpError(429)
    faults: list[Reply] = [Text("Hello."), Text("Hi", usage=None), HttpError(500), limited, Cut(Text("Hello"))]
    async with (
        FakeUpstream(lambda _: dice.choice(faults), latency=0.005) as upstream,
        desk(upstream, journal=EagerlyFlushed(), limit=5, cap=DOLLAR // 20) as d,
    ):
        tasks = [asyncio.create_task(d.client.chat(ask(), caller(f"t{n}", index=n))) for n in range(60)]
        for task in dice.sample(tasks, 30):
            await asyncio.sleep(dice.random() * 0.004)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert upstream.peak <= 5
        assert sum(cost(PRICE, usage) for usage in upstream.billed) <= d.ledger.spent("run") + d.ledger.held("run")
        assert d.ledger.spent("run") + d.ledger.held("run") <= DOLLAR // 20
        d.assert_nothing_is_left_open()


async def test_a_call_cancelled_with_its_answer_in_hand_keeps_what_was_paid() -> None:
    usage = b'"usage":{"prompt_tokens":9,"completion_tokens":2}'
    body = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}],' + usage + b"}\n\n"
    async with FakeUpstream(lambda _: Raw((body,), end=False)) as upstream, desk(upstream) as d:
        task = asyncio.create_task(d.client.chat(ask(), caller()))
        await d.until(lambda item: isinstance(item, TextDelta))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert d.closed[0].end == "done" and d.ledger.spent("run") == cost(PRICE, Usage(9, output=2))
        d.assert_nothing_is_left_open()
        later = CallLedger()
        fold(later, d.facts())
        assert later.find(caller().key, d.opened[0].fingerprint) is not None
