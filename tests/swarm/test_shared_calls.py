"""Identical calls of different agents share one execution, where running it again would be safe too."""

from __future__ import annotations

import asyncio
from collections import Counter

from centuria.events import CallClosed
from centuria.messages import Status
from centuria.ports import Caller, ChatRequest
from centuria.settings import Job, Task
from centuria.testing import clock
from centuria.testing.scripted import Answer, call
from centuria.testing.tools import LocalTool
from tests.swarm.kit import Ended, World, told

AGENTS = 20


async def slow(n: int) -> str:
    await asyncio.sleep(5.0)
    return f"found {n}"


def script(request: ChatRequest, caller: Caller) -> Answer:
    if caller.key.turn == 0:
        return [call("local__look", {"n": 7})]
    return told(request)[-1]


def world(**options: object) -> World:
    tasks = tuple(Task(f"t{n}", f"t{n}", f"s{n}") for n in range(AGENTS))
    tools = {"look": LocalTool(slow, {"type": "object"}, {"limit": 50, **options})}
    return World(script, job=Job("rows", tasks), tools=tools)


def run(**options: object) -> tuple[Ended, World]:
    return clock.run(_both(options))


async def _both(options: dict[str, object]) -> tuple[Ended, World]:
    made = world(**options)
    return await made.run(), made


def test_a_call_that_is_safe_to_run_again_runs_once_for_all_who_make_it_at_once_and_each_has_its_row() -> None:
    ended, made = run(rerun=True)
    assert len(made.host.calls) == 1
    assert ended.census == {"ok": AGENTS}
    assert {end.text for end in ended.outcomes.values()} == {"found 7"}
    rows = Counter(event.end for event in ended.events if isinstance(event, CallClosed) and event.result is not None)
    assert rows == {"done": AGENTS}


def test_a_call_that_may_have_an_effect_runs_for_each_who_makes_it() -> None:
    _, made = run()
    assert len(made.host.calls) == AGENTS


def test_what_depends_on_who_asks_is_never_shared() -> None:
    _, made = run(rerun=True, personal=True)
    assert len(made.host.calls) == AGENTS


def test_where_the_one_who_runs_it_is_cancelled_another_takes_over_and_nobody_is_lost() -> None:
    async def main() -> None:
        made = world(rerun=True)
        work = asyncio.ensure_future(made.run())
        await asyncio.sleep(3.0)
        [leader] = [caller.key.task for caller in made.host.callers if caller is not None]
        made.orchestrator.cancel(leader)
        ended = await work
        assert ended.outcomes.pop(leader).status is Status.CANCELLED  # type: ignore[attr-defined]
        assert {end.text for end in ended.outcomes.values()} == {"found 7"}
        assert len(made.host.calls) == 2

    clock.run(main())
