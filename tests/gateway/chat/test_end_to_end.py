"""The funnel over real HTTP: fallback, faults in mid-stream, clients that vanish, and a budget under a crowd."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from centuria.core.prices import Price, cost
from centuria.gateway.settings import Caps
from centuria.messages import DOLLAR
from centuria.settings import Timeouts
from centuria.testing import FakeUpstream
from centuria.testing.replies import Cut, HttpError, Raw, Reset, Silence, Stall, Text
from tests.gateway.served import ASKED, MODEL, PRICE, QUICK, Served, deployment, one, serving, settings, usage
from tests.waiting import until

ANSWER = Text("One two three four five six seven eight.", usage=usage(100, 10), piece=4)


async def test_another_deployment_answers_where_one_fails_and_then_the_next_model() -> None:
    async with (
        FakeUpstream(lambda body: HttpError(500)) as broken,
        FakeUpstream(lambda body: HttpError(401)) as locked,
        FakeUpstream(lambda body: ANSWER) as good,
    ):
        dear = replace(PRICE, output=10**8)
        models = {
            MODEL: [deployment(broken, name="a/m"), deployment(locked, name="b/m")],
            "other": [deployment(good, name="c/m", price=dear)],
        }
        async with serving(settings(models)) as served:
            key = await served.add_key("a")
            for stream in (True, False):
                got = await served.ask(key, models=["other"], stream=stream)
                assert got.status == 200
                assert got.headers["x-centuria-model"] == "other"
            assert [seen.json["model"] for seen in good.requests] == ["m", "m"]
            assert len(locked.requests) == 1  # denied: it is not asked again for a minute
            answered = [row for row in served.rows if row.end == "done"]
            assert [(row.model, row.deployment, row.cost) for row in answered] == [
                ("other", "c/m", cost(dear, usage(100, 10)))
            ] * 2
            assert {row.deployment: row.held > 0 for row in served.rows} == {"a/m": True, "b/m": False, "c/m": False}


async def test_every_row_of_a_request_has_its_id_and_a_number_of_its_own() -> None:
    rest: list[Any] = [HttpError(500), Reset(), ANSWER]
    async with FakeUpstream(lambda body: rest.pop(0)) as upstream:
        models = {MODEL: [deployment(upstream, name=f"d{n}/m") for n in range(3)]}
        async with serving(settings(models)) as served:
            got = await served.ask(await served.add_key("a"), stream=True)
            assert got.text == ANSWER.text
            assert got.headers["x-centuria-attempts"] == "3"
            await served.until_quiet()
            kept = await served.store.attempts(got.headers["x-request-id"])
            assert [(row.attempt, row.end) for row in kept] == [(1, "lost"), (2, "lost"), (3, "done")]


@pytest.mark.parametrize("fault", [Cut(ANSWER, 0.5), Stall(ANSWER, 0.5)], ids=["cut", "stalled"])
async def test_a_stream_that_breaks_ends_with_an_error_and_without_done(fault: Any) -> None:
    async with FakeUpstream(lambda body: fault) as upstream, serving(one(upstream, timeouts=QUICK)) as served:
        got = await served.ask(await served.add_key("a"), stream=True)
        assert got.status == 200
        assert 0 < len(got.text) < len(ANSWER.text)
        assert ANSWER.text.startswith(got.text)
        assert got.last_error["type"] == "server_error"
        assert "[DONE]" not in got.events
        assert len(upstream.requests) == 1
        assert [(row.end, row.cost) for row in served.rows] == [("lost", 0)]
        await upstream.until(lambda: upstream.connections == 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_upstreams_429_is_a_429_with_its_retry_after_streamed_or_not(stream: bool) -> None:
    reply = HttpError(429, "rate_limit_reached_error", "Slow down.", {"retry-after": "30"})
    async with FakeUpstream(lambda body: reply) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"), stream=stream)
        assert (got.status, got.error["type"]) == (429, "rate_limit_reached_error")
        assert 30 <= int(got.headers["retry-after"]) <= 34
        assert got.headers["content-type"] == "application/json"
        assert len(upstream.requests) == 1
        assert served.spent("a") == 0


async def test_an_error_inside_the_first_event_is_tried_again_and_one_later_ends_the_stream() -> None:
    bad = b'data: {"error": {"type": "server_error", "message": "It broke."}}\n\n'
    first = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    rest = [Raw((bad,)), Raw((first, bad), gap=0.05)]
    async with FakeUpstream(lambda body: rest.pop(0)) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"), stream=True)
        assert got.body.startswith(first)
        assert "It broke." in got.last_error["message"]
        assert len(upstream.requests) == 2


async def leave(served: Served, key: dict[str, str], *, after: int, stream: bool) -> None:
    """Ask, and go away: after so many bytes of the answer."""
    async with served.post(key, stream=stream) as response:
        if after:
            await response.content.readexactly(after)
        response.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_goes_before_the_first_token_cancels_the_upstream_at_once(stream: bool) -> None:
    async with (
        FakeUpstream(lambda body: Silence()) as upstream,
        serving(one(upstream, timeouts=Timeouts(first_token=60.0, total=60.0))) as served,
    ):
        key = await served.add_key("a")
        tasks = [asyncio.create_task(served.ask(key, stream=stream)) for _ in range(20)]
        await upstream.until(lambda: upstream.in_flight == 20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await upstream.until(lambda: upstream.connections == 0)
        await upstream.until(lambda: upstream.aborted == 20)
        await served.until_quiet()
        assert Counter(row.end for row in served.rows) == {"client_closed": 20}
        assert all(row.held > 0 for row in served.rows)
        assert served.gateway.books.reserved() == 0


async def test_a_client_that_goes_in_mid_stream_cancels_the_upstream_and_pays_for_what_was_relayed() -> None:
    slow = replace(ANSWER, text="word " * 2_000, gap=0.02)
    async with FakeUpstream(lambda body: slow) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        await asyncio.gather(*(leave(served, key, after=400, stream=True) for _ in range(10)))
        await upstream.until(lambda: upstream.connections == 0)
        await upstream.until(lambda: upstream.aborted == 10)
        await served.until_quiet()
        for row in served.rows:
            assert row.end == "client_closed"
            assert row.cost > 0
            assert row.held > 0
        assert served.gateway.books.reserved() == 0


async def test_a_client_that_goes_while_its_request_waits_is_never_sent() -> None:
    async with FakeUpstream(lambda body: ANSWER, latency=0.4) as upstream:
        made = settings({MODEL: [deployment(upstream, concurrency=1)]})
        async with serving(made) as served:
            key = await served.add_key("a")
            first = asyncio.create_task(served.ask(key))
            await upstream.until(lambda: upstream.in_flight == 1)
            queue = next(iter(served.gateway.funnel.upstreams())).lane.queue
            rest = [asyncio.create_task(served.ask(key, stream=bool(n % 2))) for n in range(10)]
            await until(lambda: len(queue) == 10)
            for task in rest:
                task.cancel()
            assert (await first).status == 200
            await served.until_quiet()
            assert len(queue) == 0
            assert len(upstream.requests) == len(served.rows) == 1


async def test_a_client_that_goes_at_done_has_had_a_whole_answer() -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        async with served.post(key, stream=True) as response:
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    break
            response.close()
        await served.until_quiet()
        assert [(row.end, row.cost, row.held) for row in served.rows] == [("done", cost(PRICE, usage(100, 10)), 0)]


async def test_a_hundred_at_once_on_a_budget_for_two_are_two_answers_and_98_refusals() -> None:
    price = Price(input=0, output=DOLLAR // 10_000)  # 50 tokens: half a cent
    answer = Text("Fifty.", usage=usage(100, 50))
    async with FakeUpstream(lambda body: answer, latency=0.05) as upstream:  # noqa: SIM117
        async with serving(settings({MODEL: [deployment(upstream, price=price)]})) as served:
            key = await served.add_key("a", budget=DOLLAR // 100)
            got = await asyncio.gather(*(served.ask(key, stream=bool(n % 2)) for n in range(100)))
            assert Counter(reply.status for reply in got) == {200: 2, 429: 98}
            for reply in got:
                if reply.status == 429:
                    assert reply.error["type"] == "exceeded_current_quota_error"
                    assert reply.headers["x-should-retry"] == "false"
                    assert "retry-after" not in reply.headers
            assert len(upstream.requests) == 2
            assert served.spent("a") == upstream.charged(price) == DOLLAR // 100
            assert (await served.ask(key)).status == 429
            assert (await served.ask(await served.add_key("b"))).status == 200


async def test_requests_beyond_a_keys_rate_wait_and_the_headers_say_what_is_left() -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a", rpm=2)
        got = await served.ask(key)
        assert got.headers["x-ratelimit-limit-requests"] == "2"
        assert got.headers["x-ratelimit-remaining-requests"] == "0"
        refused = await served.ask(key, stream=True)  # its turn comes in 30 s, the queue is for 3
        assert (refused.status, refused.error["type"]) == (429, "rate_limit_reached_error")
        assert 28 <= int(refused.headers["retry-after"]) <= 30
        quick = await served.add_key("b", rpm=600)
        answers = await asyncio.gather(*(served.ask(quick) for _ in range(310)))
        assert {answer.status for answer in answers} == {200}


async def test_a_full_queue_is_a_503_with_retry_after() -> None:
    async with FakeUpstream(lambda body: Silence()) as upstream:
        caps = Caps(queue=5.0, waiting=3, waiting_all=3, request=20.0)
        made = settings({MODEL: [deployment(upstream, concurrency=1)]}, caps=caps)
        async with serving(made) as served:
            key = await served.add_key("a")
            tasks = [asyncio.create_task(served.ask(key)) for _ in range(10)]
            done, waiting = await asyncio.wait(tasks, timeout=2.0, return_when=asyncio.FIRST_COMPLETED)
            reply = done.pop().result()
            assert (reply.status, reply.error["type"]) == (503, "engine_overloaded_error")
            assert int(reply.headers["retry-after"]) >= 1
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-agent-id": "a" * 201}, "X-Agent-Id"),
        ({"x-agent-id": "a\tb"}, "X-Agent-Id"),
        ({"x-priority": "10"}, "X-Priority"),
        ({"x-priority": "-1"}, "X-Priority"),
        ({"x-priority": "²"}, "X-Priority"),
    ],
)
async def test_headers_of_ours_that_cannot_be_are_a_400(headers: dict[str, str], param: str) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        got = await served.ask({**await served.add_key("a"), **headers})
        assert (got.status, got.error["param"]) == (400, param)
        assert not upstream.requests


async def test_a_body_with_a_name_twice_reaches_no_other_model() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        twice = json.dumps(ASKED)[:-1] + ', "model": "smuggled"}'
        headers = {**key, "content-type": "application/json"}
        url = f"{served.url}/v1/chat/completions"
        async with served.session.post(url, data=twice, headers=headers) as response:
            assert response.status == 404
        back = '{"model": "smuggled", ' + json.dumps(ASKED)[1:]
        async with served.session.post(url, data=back, headers=headers) as response:
            assert response.status == 200
        assert b"smuggled" not in upstream.requests[0].body
