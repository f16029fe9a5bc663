"""Steering one branch while the rest runs: pause, cancel, retry, priorities; and tools that ask first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from centuria.errors import ConfigurationError
from centuria.events import ApprovalAsked, ApprovalGiven, TaskPaused
from centuria.messages import Status
from centuria.ports import Caller, ChatRequest
from centuria.settings import Job, Limits, Task
from centuria.testing import clock
from centuria.testing.scripted import Answer, call
from centuria.testing.tools import LocalTool
from tests.swarm.kit import GOAL, Ended, World, assign, create, told


def branches(request: ChatRequest, caller: Caller) -> Answer:
    """Three branches of three leaves, each of which takes four turns."""
    name = caller.key.task
    if name == GOAL:
        return [[create("w"), *(assign("w", f"b{n}", id=f"b{n}") for n in range(3))], "done"][caller.key.turn]
    if name.count(".") == 0:
        return [[create("w"), *(assign("w", f"{name}.{n}", id=f"{name}.{n}") for n in range(3))], "branch"][
            caller.key.turn
        ]
    return "leaf" if caller.key.turn == 3 else [call("nothing", {"n": caller.key.turn})]


def of(world: World, branch: str) -> int:
    return sum(caller.key.task.startswith(branch) for _, caller in world.model.requests)


def play(main: Coroutine[Any, Any, None]) -> None:
    clock.run(main)


def test_a_paused_branch_makes_no_request_while_the_others_finish_and_goes_on_when_told() -> None:
    async def main() -> None:
        world = World(branches)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(3.5)
        world.orchestrator.pause("b1")
        await asyncio.sleep(1.0)  # what was in flight comes to its end
        sent = of(world, "b1")
        await asyncio.sleep(100.0)
        assert of(world, "b1") == sent
        assert world.graph.outcome("b0") is not None and world.graph.outcome("b2") is not None
        assert world.graph.outcome("b1") is None
        assert world.stream.progress.paused == {"b1"}
        world.orchestrator.go_on("b1")
        ended = await work
        assert ended.census == {"ok": 13}
        assert [event.paused for event in ended.events if isinstance(event, TaskPaused)] == [True, False]

    play(main())


def test_the_whole_run_can_be_paused_before_it_begins_and_while_it_works() -> None:
    async def main() -> None:
        world = World(branches)
        world.orchestrator.pause()
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(50.0)
        assert not world.model.requests
        world.orchestrator.go_on()
        assert (await work).census == {"ok": 13}

    play(main())


def test_a_paused_run_can_be_cancelled() -> None:
    async def main() -> None:
        world = World(branches)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(2.5)
        world.orchestrator.pause()
        await asyncio.sleep(2.0)
        world.orchestrator.cancel(cause="enough")
        ended = await work
        assert set(ended.census) == {"cancelled"}

    play(main())


def test_a_failed_task_is_retried_from_outside_while_its_parent_runs_and_not_after() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            tasks = [assign("w", "a", id="a", background=True), assign("w", "b", id="b")]
            return [[create("w"), *tasks], [call("wait_any", {})], (told(request) or [""])[-1]][caller.key.turn]
        if caller.key.task == "a":
            return ValueError("no") if caller.key.epoch == 0 else "second try"
        return "slow" if caller.key.turn == 9 else [call("nothing", {"n": caller.key.turn})]

    async def main() -> None:
        world = World(script)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(4.5)
        first = world.graph.outcome("a")
        assert first is not None and first.status is Status.FAILED
        world.orchestrator.retry("a")
        with pytest.raises(ConfigurationError, match="has not ended"):
            world.orchestrator.retry("b")
        with pytest.raises(ConfigurationError, match="no task 'x'"):
            world.orchestrator.retry("x")
        ended = await work
        assert ended.ok("a") == "second try"
        assert "second try" in ended.merged.answer
        with pytest.raises(ConfigurationError):
            world.orchestrator.retry("a")

    play(main())


def test_a_task_with_a_new_priority_begins_before_those_that_came_earlier_and_is_served_with_it() -> None:
    tasks = tuple(Task(f"t{n}", f"t{n}", f"s{n}") for n in range(10))
    job = Job("rows", tasks, limits=Limits(agents=1))

    async def main() -> None:
        world = World(lambda request, caller: "done", job=job)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(0.5)
        world.orchestrator.set_priority("t9", 0)
        world.orchestrator.set_priority("t1", 9)
        ended = await work
        order = [caller.key.task for _, caller in world.model.requests]
        assert order == ["t0", "t9", *(f"t{n}" for n in range(2, 9)), "t1"]
        assert {caller.key.task: caller.priority for _, caller in world.model.requests}["t9"] == 0
        assert ended.census == {"ok": 10}
        with pytest.raises(ConfigurationError, match="cannot be 10"):
            world.orchestrator.set_priority("t1", 10)

    play(main())


ASKING = {
    "drop": LocalTool(lambda n: f"dropped {n}", {"type": "object"}, {"ask": True}),
    "look": LocalTool(lambda n: f"saw {n}", {"type": "object"}),
}


def dropping(request: ChatRequest, caller: Caller) -> Answer:
    if caller.key.turn == 0:
        return [call("local__drop", {"n": 1}), call("local__look", {"n": 2})]
    return "\n".join(told(request))


def asked(answer: bool | None) -> Ended:
    found: list[Ended] = []

    async def main() -> None:
        world = World(dropping, tools=ASKING)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(30.0)
        assert list(world.stream.progress.approvals) == ["goal/0/0/1"]
        assert [name for name, _ in world.host.calls] == ["local__look"]
        if answer is not None:
            with pytest.raises(ConfigurationError, match="goal/0/0/1"):
                world.approvals.give("goal/0/0/2", yes=answer)
            assert world.approvals.give("goal/0/0/1", yes=answer) == 1
        found.append(await work)

    play(main())
    return found[0]


def test_a_tool_that_asks_waits_for_a_yes_while_the_others_go_on() -> None:
    ended = asked(True)
    assert ended.merged.answer.split("\n")[:2] == ["dropped 1", "saw 2"]
    assert any(isinstance(event, ApprovalAsked) and event.arguments == '{"n": 1}' for event in ended.events)


def test_a_no_is_told_to_the_model_and_nothing_runs() -> None:
    ended = asked(False)
    assert "it was not approved" in ended.merged.answer
    assert "dropped" not in ended.merged.answer


def test_where_nobody_answers_it_is_a_no_after_a_bounded_time() -> None:
    ended = asked(None)
    [given] = [event for event in ended.events if isinstance(event, ApprovalGiven)]
    assert (given.yes, given.why) == (False, "nobody answered within 600 s")
    assert ended.seconds < 700
