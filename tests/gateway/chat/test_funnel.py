"""The funnel on the virtual clock: retries, fallbacks, deadlines, and what is never tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from centuria.gateway.problems import Problem
from centuria.gateway.settings import Caps, Deployment, GatewaySettings
from centuria.settings import Timeouts
from centuria.testing.clock import virtual_clock
from tests.gateway.chat.wire import Said, fine, now, refused, rig
from tests.gateway.served import PRICE, deployment, settings

CAPS = Caps(queue=120.0, request=600.0, attempts=4)
SLOW = Timeouts(connect=10.0, first_token=60.0, silence=30.0, total=200.0)


def at(host: str, **more: Any) -> Deployment:
    return deployment(f"http://{host}/v1", name=f"{host}/m", **more)


def to(*hosts: str, caps: Caps = CAPS, **models: list[Deployment]) -> GatewaySettings:
    found = {"kimi": [at(host) for host in hosts]} if hosts else {}
    return settings({**found, **models}, caps=caps, timeouts=SLOW)


def in_turn(*said: Said) -> Callable[[str, dict[str, Any]], Said]:
    rest = list(said)
    return lambda host, body: rest.pop(0) if len(rest) > 1 else rest[0]


@virtual_clock
async def test_what_can_succeed_is_tried_again_after_one_two_and_four_seconds() -> None:
    async with rig(to("a"), in_turn(refused(500), refused(500), refused(500), fine())) as it:
        assert b"word" in await it.ask()
        assert [time for time, _ in it.wire.asked] == [0, 1, 3, 7]
        assert [(row.attempt, row.end) for row in it.rows] == [(1, "lost"), (2, "lost"), (3, "lost"), (4, "done")]


@virtual_clock
async def test_attempts_never_exceed_the_cap_over_retries_fallbacks_and_models() -> None:
    models = {"kimi": [at("a"), at("b")], "other": [at("c"), at("d")]}
    async with rig(to(**models), lambda host, body: refused(500)) as it:
        with pytest.raises(Problem) as caught:
            await it.ask(models=("kimi", "other"))
        assert caught.value.status == 502
        assert [host for _, host in it.wire.asked] == ["a", "b", "c", "d"]


@virtual_clock
async def test_every_deployment_and_model_is_asked_once_before_any_is_asked_again() -> None:
    models = {"kimi": [at("a"), at("b")], "other": [at("c")]}
    async with rig(to(caps=replace(CAPS, attempts=6), **models), lambda host, body: refused(500)) as it:
        with pytest.raises(Problem):
            await it.ask(models=("kimi", "other"))
        assert it.wire.asked == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_cannot_succeed_is_tried_once_at_each_deployment(status: int) -> None:
    @virtual_clock
    async def main() -> None:
        async with rig(to("a", "b"), lambda host, body: refused(status)) as it:
            with pytest.raises(Problem) as caught:
                await it.ask()
            assert caught.value.status == (400 if status in (400, 422) else 502)
            assert it.wire.asked == [(0, "a"), (0, "b")]
            assert [(row.end, row.cost, row.held) for row in it.rows] == [("failed", 0, 0)] * 2

    main()


@virtual_clock
async def test_the_model_and_price_are_those_of_the_one_that_answered() -> None:
    dear = replace(PRICE, input=10**8, output=10**9)
    models = {"kimi": [at("a")], "other": [at("c", price=dear)]}
    async with rig(to(**models), lambda host, body: refused(400) if host == "a" else fine(5)) as it:
        async with it.funnel.ask(it.call(models=("kimi", "other"))) as answer:
            assert answer.headers["x-centuria-model"] == "other"
            assert answer.headers["x-centuria-attempts"] == "2"
            async for _ in answer.chunks():
                pass
        assert answer.cost == 20 * 10**8 + 5 * 10**9
        assert [(row.model, row.deployment) for row in it.rows] == [("kimi", "a/m"), ("other", "c/m")]


@virtual_clock
async def test_nothing_is_tried_again_after_the_first_byte() -> None:
    whole = fine(5)
    async with rig(to("a", "b"), lambda host, body: replace(whole, pieces=whole.pieces[:3], cut=True)) as it:
        out = await it.ask()
        assert len(it.wire.asked) == 1
        assert out.startswith(b"".join(whole.pieces[:3]))
        assert b"[DONE]" not in out
        last = out.decode().strip().split("\n\n")[-1]
        assert last.startswith('data: {"error"')
        assert [(row.end, row.cost) for row in it.rows] == [("lost", 0)]
        assert it.rows[0].held > 0


@virtual_clock
async def test_an_answer_that_breaks_before_its_first_event_is_tried_elsewhere() -> None:
    broken = [
        Said(200, [b": hello\n\n"], cut=True),
        Said(200, [b"data: [DONE]\n\n"]),
        Said(200, [b'data: {"error": {"message": "overloaded"}}\n\n']),
        Said(200, []),
    ]
    for said in broken:
        async with rig(to("a", "b"), lambda host, body, said=said: said if host == "a" else fine()) as it:
            assert b"word" in await it.ask()
            assert [host for _, host in it.wire.asked] == ["a", "b"]


@virtual_clock
async def test_a_stream_whose_first_token_or_next_one_does_not_come_ends_in_time() -> None:
    async with rig(to("a", caps=replace(CAPS, attempts=1)), lambda host, body: fine(late=1_000)) as it:
        with pytest.raises(Problem) as caught:
            await it.ask()
        assert (caught.value.status, caught.value.code) == (504, "upstream_timeout")
        assert 60 <= now() <= 60.2
    async with rig(to("a"), lambda host, body: fine(gap=50)) as it:
        out = await it.ask()
        assert b"fell silent for 30 s" in out
        assert b"[DONE]" not in out


@virtual_clock
async def test_a_whole_answer_may_take_longer_than_a_first_token() -> None:
    said = Said(200, [b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'], late=100)
    async with rig(to("a"), lambda host, body: said) as it:
        call = it.call(stream=False, max_tokens=16_384)
        async with it.funnel.ask(call) as answer:
            assert answer.body == said.pieces[0]
            assert answer.status == 200


@virtual_clock
async def test_one_deadline_holds_for_the_whole_request() -> None:
    async with rig(to("a"), lambda host, body: refused(500)) as it:
        with pytest.raises(Problem):
            await it.ask(patience=2.5)
        assert [time for time, _ in it.wire.asked] == [0, 1]  # the next one would be at 3
    async with rig(to("a", "b"), lambda host, body: fine(late=1_000)) as it:
        began = now()
        with pytest.raises(Problem) as caught:
            await it.ask(patience=10)
        assert caught.value.status == 504
        assert now() - began < 10.3


@virtual_clock
async def test_stream_options_are_left_out_where_an_upstream_refuses_them_and_that_is_remembered() -> None:
    def old(host: str, body: dict[str, Any]) -> Said:
        return refused(400, "Unknown field: stream_options") if "stream_options" in body else fine()

    async with rig(to("a"), old) as it:
        for _ in range(2):
            assert b"word" in await it.ask()
        assert ["stream_options" in body for body in it.wire.bodies] == [True, False, False]
        assert [(row.request, row.attempt) for row in it.rows] == [("req-1", 1), ("req-1", 2), ("req-2", 1)]


@virtual_clock
async def test_a_caller_cannot_teach_the_gateway_to_ask_for_no_usage() -> None:
    def strict(host: str, body: dict[str, Any]) -> Said:
        return refused(400, "You said: stream_options") if "evil" in str(body) else fine()

    async with rig(to("a"), strict) as it:
        with pytest.raises(Problem) as caught:
            await it.ask(fields={"messages": [{"role": "user", "content": "evil"}], "stream": True})
        assert caught.value.status == 400
        await it.ask()
        assert "stream_options" in it.wire.bodies[-1]
        assert it.rows[-1].held == 0


@virtual_clock
async def test_a_429_is_waited_out_and_served_then() -> None:
    async with rig(to("a"), in_turn(refused(429, headers={"retry-after": "20"}), fine())) as it:
        assert b"word" in await it.ask()
        first, second = it.wire.asked
        assert 20 <= second[0] - first[0] < 21
        assert [(row.end, row.status, row.cost, row.held) for row in it.rows[:1]] == [("failed", 429, 0, 0)]


@virtual_clock
async def test_a_429_that_asks_for_too_long_is_a_429_at_once_with_that_time() -> None:
    async with rig(to("a"), lambda host, body: refused(429, headers={"retry-after": "300"})) as it:
        for expected in (range(300, 301), range(299, 302)):  # the second is not even sent
            with pytest.raises(Problem) as caught:
                await it.ask()
            assert (caught.value.status, caught.value.type) == (429, "rate_limit_reached_error")
            assert int(caught.value.headers["Retry-After"]) in expected
        assert len(it.wire.asked) == 1


@virtual_clock
async def test_who_cannot_begin_before_its_deadline_hears_so_at_once() -> None:
    async with rig(to("a"), in_turn(refused(429, headers={"retry-after": "50"}), fine())) as it:
        patient = asyncio.create_task(it.ask())
        await asyncio.sleep(1)
        with pytest.raises(Problem) as caught:
            await it.ask(patience=10)
        assert now() == 1
        assert caught.value.status == 503
        assert caught.value.headers["Retry-After"] == "49"
        assert b"word" in await patient


@virtual_clock
async def test_whoever_goes_away_leaves_nothing_behind_wherever_it_was() -> None:
    for moment in (0.0, 0.5, 1.0, 3.0, 5.0, 7.5):
        for stream in (True, False):
            async with rig(to("a"), lambda host, body: fine(20, late=2, gap=0.5)) as it:
                task = asyncio.create_task(it.ask(stream=stream))
                await asyncio.sleep(moment)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert it.wire.open == 0
                if it.rows:
                    assert [row.end for row in it.rows] == ["client_closed"]
                    assert it.rows[0].cost + it.rows[0].held > 0


@virtual_clock
async def test_whoever_goes_at_done_had_a_whole_answer_also_where_its_usage_was_not_said() -> None:
    whole = fine()
    silent = replace(whole, pieces=[piece for piece in whole.pieces if b"usage" not in piece])
    async with rig(to("a"), lambda host, body: silent) as it:
        async with it.funnel.ask(it.call()) as answer:
            async for chunk in answer.chunks():
                if b"[DONE]" in chunk:
                    break
        assert [(row.end, row.cost, row.held > 0) for row in it.rows] == [("done", 0, True)]


@virtual_clock
async def test_the_end_of_the_gateway_is_told_to_whoever_streams_waits_or_pauses() -> None:
    def script(host: str, body: dict[str, Any]) -> Said:
        return fine(100, gap=1) if host == "a" else refused(500)

    models = {"kimi": [at("a", concurrency=1)], "other": [at("b")]}
    async with rig(to(**models), script) as it:
        streaming = asyncio.create_task(it.ask())
        await asyncio.sleep(2)
        waiting = asyncio.create_task(it.ask())
        pausing = asyncio.create_task(it.ask(models=("other",)))
        await asyncio.sleep(0.5)
        it.funnel.abort()
        began = now()
        out = await streaming
        assert out.strip().split(b"\n\n")[-1].startswith(b'data: {"error"')
        assert b"[DONE]" not in out
        for task in (waiting, pausing):
            with pytest.raises(Problem) as caught:
                await task
            assert (caught.value.status, caught.value.code) == (503, "shutting_down")
        with pytest.raises(Problem):
            await it.ask()
        assert now() == began
