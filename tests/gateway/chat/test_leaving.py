"""Whoever asks is cancelled at every single step of an answer: each time nothing of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from itertools import count
from typing import Any, Literal, get_args

import pytest

from centuria.gateway.books import Books
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem
from centuria.gateway.settings import GatewaySettings
from centuria.messages import DOLLAR
from centuria.testing.clock import virtual_clock
from centuria.testing.gateway import MemoryStore
from tests.gateway.chat.test_funnel import at, to
from tests.gateway.chat.wire import Rig, Said, fine, refused, rig

#: More steps than anything here takes.
_MOST = 400


#: now: while it waits · due: in the very tick in which what it waits for is there · twice: and once more, as it leaves
How = Literal["now", "due", "twice"]


class Steps:
    """Awaits something, and has its task cancelled when that has waited for `after` times."""

    def __init__(self, work: Coroutine[Any, Any, Any], after: int, how: How) -> None:
        self.work = work
        self.at = {after, after + 1} if how == "twice" else {after}
        self.how = how

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[Any], Any] = self.work.send
        given: Any = None
        for number in count():
            try:
                waits = step(given)
            except StopIteration as end:
                return end.value
            if number in self.at and self.how == "due" and waits is not None:
                waits.add_done_callback(lambda _: task.cancel())
            elif number in self.at:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                step, given = self.work.send, (yield waits)
            except BaseException as error:
                step, given = self.work.throw, error


async def leave(it: Rig, after: int, how: How, **more: Any) -> bool:
    """Ask, and be cancelled after so many waits. Whether that was before the end."""

    async def whole() -> None:
        await Steps(it.ask(**more), after, how)

    task = asyncio.create_task(whole())
    done, _ = await asyncio.wait([task], timeout=5_000)
    assert done, f"it never ended when it was cancelled at step {after}"
    if task.cancelled():
        return True
    assert task.exception() is None or isinstance(task.exception(), Problem)
    return False


async def nothing_is_left(it: Rig, settings: GatewaySettings, books: Books) -> None:
    assert books.reserved() == books.waiting() == it.funnel.in_flight() == it.wire.open == 0
    assert not it.funnel._beginning and not it.funnel._deadlines.waits
    for upstream in it.funnel.upstreams():
        lane = upstream.lane
        assert lane.governor.in_flight() == len(lane.queue) == len(lane.waiters) == 0
    for meter in it.funnel.rates._meters.values():
        assert not meter.waiters and not len(meter.queue)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert {task.get_coro().__qualname__ for task in others} <= {"RowWriter.run", "Books._tick"}, others  # type: ignore[union-attr]


def slow(host: str, body: dict[str, Any]) -> Said:
    return fine(3, late=3 if host == "a" else 1, gap=0.2)


def broken(host: str, body: dict[str, Any]) -> Said:
    return refused(500) if host == "a" else replace(fine(3, gap=0.1), cut=True)


def early(host: str, body: dict[str, Any]) -> Said:
    return Said(200, [], cut=True, late=1) if host == "a" else fine(2)


HEDGED = replace(to("a", "b"), hedge={"kimi": 2.0})
CASES: dict[str, tuple[GatewaySettings, Callable[[str, dict[str, Any]], Said], dict[str, Any]]] = {
    "plain": (to("a"), slow, {}),
    "whole": (to("a"), slow, {"stream": False}),
    "hedged": (HEDGED, slow, {}),
    "hedged, both at once": (HEDGED, lambda host, body: fine(2, late=3 if host == "a" else 1), {"stream": False}),
    "hedged, the rival fails": (HEDGED, lambda host, body: fine(2, late=4) if host == "a" else refused(500), {}),
    "failing, then cut": (to("a", "b"), broken, {}),
    "cut before it began": (to("a", "b"), early, {}),
    "one place": (to(kimi=[at("a", concurrency=1)]), slow, {}),
}


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("case", CASES)
@virtual_clock
async def test_whoever_is_cancelled_at_any_step_leaves_nothing_behind(case: str, how: How) -> None:
    settings, script, more = CASES[case]
    key = Key("key", "key", budget=DOLLAR, rpm=600)
    for after in range(_MOST):
        store = MemoryStore()
        await store.add_key(key, b"x" * 32)
        async with rig(settings, script, store) as it:
            # Beside another, which must not be disturbed.
            other = asyncio.create_task(it.ask(key=key)) if case == "one place" else None
            left = await leave(it, after, how, key=key, **more)
            if other is not None:
                assert b"word" in await other
            await nothing_is_left(it, settings, it.books)
            if it.rows:
                assert {row.end for row in it.rows} <= {"client_closed", "lost", "failed", "done"}
            await it.books.flush()
            (_, money), *_ = await store.keys()
            assert money.spent + money.held == sum(row.cost + row.held for row in it.rows)
        if not left:
            break
    else:
        raise AssertionError("it takes more steps than were tried")
    assert after > 1


@pytest.mark.parametrize("case", CASES)
@virtual_clock
async def test_the_end_of_the_gateway_at_any_moment_leaves_nothing_behind(case: str) -> None:
    settings, script, more = CASES[case]
    for moment in range(60):
        async with rig(settings, script) as it:
            asks = [asyncio.create_task(it.ask(**more)) for _ in range(2)]
            await asyncio.sleep(moment / 10)
            it.funnel.abort()
            done, pending = await asyncio.wait(asks, timeout=10)
            assert not pending
            for task in done:
                assert not task.cancelled(), f"cancelled by nobody, at {moment / 10} s"
                assert task.exception() is None or isinstance(task.exception(), Problem)
            await nothing_is_left(it, settings, it.books)


@virtual_clock
async def test_a_client_that_takes_its_time_hears_of_the_end_and_is_not_cancelled() -> None:
    async with rig(to("a"), lambda host, body: fine(20, gap=0.1)) as it:
        heard: list[bytes] = []

        async def read() -> None:
            async with it.funnel.ask(it.call()) as answer:
                async for chunk in answer.chunks():
                    heard.append(chunk)
                    await asyncio.sleep(5)  # nothing of ours

        reader = asyncio.create_task(read())
        await asyncio.sleep(7)
        it.funnel.abort()
        await reader
        assert b"shutting_down" in heard[-1]
        assert [row.end for row in it.rows] == ["lost"]
