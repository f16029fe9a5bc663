"""A call of the model client, from its request to its end: answers, failures, time-outs, slots."""

import asyncio
from collections.abc import Iterator

import pytest

from centuria.core.prices import cost
from centuria.core.retry import RetryPolicy
from centuria.errors import (
    ContextTooLong,
    FingerprintMismatch,
    ModelDenied,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    SlotRefused,
)
from centuria.events import (
    CallClosed,
    CallOpened,
    MoneyHeld,
    MoneyReleased,
    MoneyReserved,
    MoneySettled,
    Record,
    SlotGranted,
    SlotLeft,
    fold,
)
from centuria.messages import Message, Usage
from centuria.model.http import HttpTransport
from centuria.settings import Timeouts
from centuria.testing.journal import MemoryJournal
from centuria.testing.upstream import (
    Calls,
    Cut,
    Document,
    FakeUpstream,
    HttpError,
    Raw,
    Reply,
    Reset,
    Script,
    Silence,
    Stall,
    Text,
)
from tests.model.kit import KEY, PRICE, Desk, ask, caller, desk

NO_RETRY = RetryPolicy(delays=())


def in_turn(*replies: Reply) -> Script:
    """Each request gets the next reply, the last one again and again."""
    left: Iterator[Reply] = iter(replies)
    last = replies[-1]
    return lambda body: next(left, last)


# -- an answer --------------------------------------------------------------------------------------------------------


async def test_an_answer_is_paid_by_its_usage_and_the_row_is_there_before_and_after_it() -> None:
    usage = Usage(prompt=1000, cached=400, output=20)
    async with FakeUpstream(lambda body: Text("Hello.", "Hm.", usage=usage)) as upstream, desk(upstream) as d:
        got = await d.client.chat(ask(), caller())
        assert (got.message.content, got.message.reasoning, got.usage) == ("Hello.", "Hm.", usage)
        d.assert_nothing_is_left_open()
        kinds = (MoneyReserved, SlotGranted, CallOpened, SlotLeft, CallClosed, MoneySettled)
        assert [type(fact) for fact in d.facts(*kinds)] == list(kinds)
        (opened,), (closed,) = d.opened, d.closed
        assert opened.call == "model" and opened.name == "kimi-k2.5" and opened.rerun and opened.attempt == 1
        assert closed.end == "done" and closed.cost == 600 * 600_000 + 400 * 100_000 + 20 * 3_000_000
        assert closed.completion == got and closed.cost <= opened.reserved
        assert closed.first_token_s is not None and 0 < closed.first_token_s <= closed.total_s


async def test_a_request_says_what_it_must_and_its_idempotency_key_is_the_calls() -> None:
    async with FakeUpstream(in_turn(HttpError(503), Text("Hi"))) as upstream, desk(upstream) as d:
        await d.client.chat(ask(), caller())
        await d.client.chat(ask(), caller(turn=1))
        first, again, other = upstream.requests
        assert first.path == "/v1/chat/completions" and first.headers["authorization"] == f"Bearer {KEY}"
        assert first.headers["content-type"] == "application/json" and first.json["max_tokens"] == 2000
        assert first.idempotency_key == again.idempotency_key != other.idempotency_key
        assert sorted(upstream.attempts.values()) == [1, 2]


async def test_nothing_is_sent_before_its_row_is_durable_nor_returned_before_its_answer_is() -> None:
    journal = MemoryJournal()
    async with FakeUpstream() as upstream, desk(upstream, journal=journal) as d:
        journal.hold()
        task = asyncio.create_task(d.client.chat(ask(), caller()))
        await d.until(lambda item: isinstance(item, Record) and isinstance(item.event, CallOpened))
        for _ in range(100):
            await asyncio.sleep(0)
        assert upstream.opened == 0
        journal.flush(keep_holding=True)
        await d.until(lambda item: isinstance(item, Record) and isinstance(item.event, MoneySettled))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done() and len(upstream.requests) == 1
        journal.flush()
        assert (await task).message.content == "Hello."


async def test_an_answer_that_the_journal_holds_is_given_again_and_nothing_is_sent() -> None:
    async with FakeUpstream() as upstream, desk(upstream) as first, desk(upstream) as later:
        got = await first.client.chat(ask(), caller())
        fold(later.calls, first.facts())
        assert await later.client.chat(ask(max_tokens=500), caller()) == got
        assert len(upstream.requests) == 1 and later.facts(MoneyReserved, CallOpened) == []
        with pytest.raises(FingerprintMismatch):
            await later.client.chat(ask("Something else"), caller())


async def test_tool_calls_come_through() -> None:
    reply = Calls((("web__search", '{"q": "a"}'), ("web__search", '{"q": "b"}')), text="I search.")
    async with FakeUpstream(lambda body: reply) as upstream, desk(upstream) as d:
        got = await d.client.chat(ask(), caller())
        assert [(call.id, call.arguments) for call in got.message.tool_calls] == [
            ("functions.web__search:0", '{"q": "a"}'),
            ("functions.web__search:1", '{"q": "b"}'),
        ]
        assert got.finish == "tool_calls" and got.message.reasoning == ""


async def test_a_server_that_ignores_stream_is_understood() -> None:
    async with FakeUpstream(lambda body: Document(Text("Whole."))) as upstream, desk(upstream) as d:
        assert (await d.client.chat(ask(), caller())).message.content == "Whole."
        assert d.ledger.held("run") == 0


async def test_deltas_carry_their_attempt_and_say_what_is_reasoning() -> None:
    old = Raw((b'data: {"choices":[{"delta":{"content":"Old text"}}]}\n\n',), end=False, after="close")
    replies = in_turn(old, Text("New text.", "Thought.", piece=4))
    async with FakeUpstream(replies) as upstream, desk(upstream) as d:
        await d.client.chat(ask(), caller("a", 3))
        deltas = await d.deltas()
        assert {(delta.task, delta.turn) for delta in deltas} == {("a", 3)}
        second = [delta for delta in deltas if delta.attempt == 2]
        assert "".join(delta.text for delta in second if not delta.reasoning) == "New text."
        assert "".join(delta.text for delta in second if delta.reasoning) == "Thought."
        assert [delta.text for delta in deltas if delta.attempt == 1] == ["Old text"]


async def test_an_upstream_that_never_ends_its_body_does_not_keep_the_answer() -> None:
    body = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with FakeUpstream(lambda _: Raw((body,), end=False)) as upstream, desk(upstream) as d:
        async with asyncio.timeout(3):
            assert (await d.client.chat(ask(), caller())).message.content == "Hi"
        await upstream.until(lambda: upstream.connections == 0)


async def test_an_answer_that_is_whole_is_kept_although_its_connection_breaks() -> None:
    stream = Cut(Text("All of it.", usage=Usage(9, output=3), piece=100), after=1.0)
    async with FakeUpstream(lambda _: stream) as upstream, desk(upstream) as d:
        assert (await d.client.chat(ask(), caller())).message.content == "All of it."
        assert [row.end for row in d.closed] == ["done"] and len(upstream.requests) == 1


async def test_messages_of_a_conversation_arrive_as_they_were_meant() -> None:
    async with FakeUpstream() as upstream, desk(upstream) as d:
        got = await d.client.chat(ask("\ud83d\ude00 and \ud800"), caller())
        assert upstream.requests[0].json["messages"] == [{"role": "user", "content": "😀 and �"}]
        assert got.message == Message("assistant", "Hello.")


# -- ends without an answer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "end", "money"),
    [
        (HttpError(429, "rate_limit_reached_error", headers={"retry-after": "0"}), "failed", MoneyReleased),
        (HttpError(409), "failed", MoneyReleased),
        (HttpError(500), "lost", MoneyHeld),
        (HttpError(503, "server_unavailable"), "lost", MoneyHeld),
        (Reset(), "lost", MoneyHeld),
        (Cut(Text("Half of this.", piece=2)), "lost", MoneyHeld),
        (Raw((b"data: {oops\n\n",)), "lost", MoneyHeld),
        (Raw((b'data: {"error":{"type":"server_error","message":"x"}}\n\n',)), "lost", MoneyHeld),
        (Text("", usage=Usage(10, output=1)), "failed", MoneySettled),
    ],
)
async def test_a_failed_attempt_is_tried_again_and_its_money_ends_by_what_may_be_billed(
    reply: Reply, end: str, money: type
) -> None:
    async with FakeUpstream(in_turn(reply, Text("Hi"))) as upstream, desk(upstream) as d:
        assert (await d.client.chat(ask(), caller())).message.content == "Hi"
        first, second = d.closed
        assert (first.end, first.attempt) == (end, 1) and first.error
        assert (second.end, second.attempt) == ("done", 2)
        assert d.facts(MoneyReleased, MoneyHeld, MoneySettled)[0].__class__ is money
        d.assert_nothing_is_left_open()
        assert d.ledger.held("run") == (d.opened[0].reserved if end == "lost" else 0)


async def test_an_empty_answer_is_paid_and_tried_again() -> None:
    async with FakeUpstream(lambda _: Text("", usage=Usage(10, output=1))) as upstream, desk(upstream) as d:
        with pytest.raises(ModelUnavailable) as caught:
            await d.client.chat(ask(), caller())
        assert caught.value.kind == "empty" and len(upstream.requests) == 4
        assert d.ledger.spent("run") == 4 * cost(PRICE, Usage(10, output=1)) and d.ledger.held("run") == 0
        d.assert_nothing_is_left_open()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HttpError(400, "invalid_request_error", "Bad tool."), ModelRefused),
        (HttpError(400, "invalid_request_error", "maximum context length is 10"), ContextTooLong),
        (HttpError(401, "incorrect_api_key_error", f"Incorrect API key: {KEY}"), ModelDenied),
        (HttpError(404, "resource_not_found_error"), ModelRefused),
        (HttpError(429, "exceeded_current_quota_error"), ModelDenied),
        (Raw((b"",), 307), ModelRefused),
    ],
)
async def test_what_can_never_succeed_is_sent_once_costs_nothing_and_shows_no_key(
    reply: Reply, error: type[ModelError]
) -> None:
    async with FakeUpstream(lambda _: reply) as upstream, desk(upstream) as d:
        with pytest.raises(error) as caught:
            await d.client.chat(ask(), caller())
        assert len(upstream.requests) == 1
        assert d.ledger.spent("run") == d.ledger.held("run") == 0
        assert KEY not in f"{caught.value!r}{caught.value}{d.closed}"
        d.assert_nothing_is_left_open()


async def test_three_retries_and_no_more_and_a_connection_that_was_refused_costs_nothing() -> None:
    async with FakeUpstream() as upstream:
        gone = upstream.base_url
    transport = HttpTransport()
    d = Desk(transport, gone)
    with pytest.raises(ModelUnavailable) as caught:
        await d.client.chat(ask(), caller())
    assert caught.value.kind == "connect"
    assert [row.end for row in d.closed] == ["failed"] * 4 and d.ledger.held("run") == 0
    d.assert_nothing_is_left_open()
    await transport.aclose()


async def test_a_missing_usage_keeps_the_answer_holds_the_money_and_is_said_once() -> None:
    async with FakeUpstream(lambda _: Text("Hi", usage=None)) as upstream, desk(upstream) as d:
        for turn in range(2):
            got = await d.client.chat(ask(), caller(turn=turn))
            assert got.message.content == "Hi" and got.usage is None
        assert [row.end for row in d.closed] == ["done", "done"]
        assert d.ledger.held("run") == sum(row.reserved for row in d.opened) and d.ledger.spent("run") == 0
        assert len(d.notices) == 1 and "no usage" in d.notices[0].text
        d.assert_nothing_is_left_open()


async def test_usage_inside_the_choice_is_paid_as_well() -> None:
    reply = Text("Hi", usage=Usage(100, output=10), report="choice")
    async with FakeUpstream(lambda _: reply) as upstream, desk(upstream) as d:
        await d.client.chat(ask(), caller())
        assert d.ledger.spent("run") == cost(PRICE, Usage(100, output=10))


# -- time-outs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "timeouts", "kind", "partial"),
    [
        (Silence(), Timeouts(first_token=0.05), "first_token", ""),
        (Raw((b": wait\n\n",) * 50, gap=0.02), Timeouts(first_token=0.1), "first_token", ""),
        (Stall(Text("Half of it, then no", piece=4)), Timeouts(silence=0.05), "silence", "Half of"),
        (Raw((b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n', *(b": wait\n\n",) * 50), gap=0.02),
         Timeouts(silence=0.1), "silence", "Hi"),
        (Silence(), Timeouts(total=0.05), "total", ""),
    ],
)  # fmt: skip
async def test_each_wait_of_a_call_has_its_own_bound(reply: Reply, timeouts: Timeouts, kind: str, partial: str) -> None:
    async with (
        FakeUpstream(lambda _: reply) as upstream,
        desk(upstream, timeouts=timeouts, retry=RetryPolicy(delays=(0.001,))) as d,
    ):
        with pytest.raises(ModelUnavailable) as caught:
            await d.client.chat(ask(), caller())
        assert caught.value.kind == kind and caught.value.partial.startswith(partial)
        assert len(upstream.requests) == 2
        assert [row.end for row in d.closed] == ["lost", "lost"] and d.closed[0].partial.startswith(partial)
        await upstream.until(lambda: upstream.connections == 0)
        d.assert_nothing_is_left_open()


async def test_a_total_time_out_after_text_is_not_tried_again_and_keeps_its_partial() -> None:
    slow = Text("Many words that take their time. " * 20, piece=4, gap=0.02)
    async with (
        FakeUpstream(lambda _: slow) as upstream,
        desk(upstream, timeouts=Timeouts(total=0.15)) as d,
    ):
        with pytest.raises(ModelUnavailable) as caught:
            await d.client.chat(ask(), caller())
        assert caught.value.kind == "total" and caught.value.partial.startswith("Many")
        assert len(upstream.requests) == 1 and d.closed[0].partial == caught.value.partial
        d.assert_nothing_is_left_open()


# -- slots ------------------------------------------------------------------------------------------------------------


async def test_no_more_calls_are_in_flight_than_there_are_slots() -> None:
    async with FakeUpstream(latency=0.02) as upstream, desk(upstream, limit=7) as d:
        await asyncio.gather(*(d.client.chat(ask(), caller(f"t{n}", index=n)) for n in range(40)))
        assert upstream.peak == 7
        d.assert_nothing_is_left_open()


async def test_a_call_that_gets_no_slot_in_time_gives_its_money_back() -> None:
    async with (
        FakeUpstream(lambda _: Silence()) as upstream,
        desk(upstream, limit=1, timeouts=Timeouts(queue=0.05, first_token=1), retry=NO_RETRY) as d,
    ):
        first = asyncio.create_task(d.client.chat(ask(), caller("a")))
        await upstream.until(lambda: upstream.in_flight == 1)
        with pytest.raises(SlotRefused):
            await d.client.chat(ask(), caller("b"))
        assert len(d.ledger.open_holds()) == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        d.assert_nothing_is_left_open()
