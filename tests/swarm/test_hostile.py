"""What models ask for that they had better not: their own task again, what was stopped for others, what is blocked."""

from __future__ import annotations

import asyncio

from centuria.core.batch import _near, needed_first
from centuria.core.graph import NewTask
from centuria.delegation import WaitRefused
from centuria.errors import ModelRefused
from centuria.events import SlotGranted
from centuria.ports import Caller, ChatRequest
from centuria.settings import MERGE, Job, Limits, Merge, Task
from centuria.testing import clock
from centuria.testing.scripted import Answer, call
from tests.swarm.kit import GOAL, Ended, World, assign, create, run, told


def heard(request: ChatRequest) -> str:
    """What the last tool answered."""
    return (told(request) or [""])[-1]


def idle(turn: int) -> Answer:
    return [call("nothing", {"turn": turn})]


def test_a_blocked_task_is_not_retried_before_what_it_needs_and_the_run_ends() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            tasks = [create("w"), assign("w", "a", id="a"), assign("w", "b", id="b", needs=["a"])]
            return [tasks, [call("retry_task", {"id": "b"})], heard(request)][caller.key.turn]
        return ValueError("no")

    async def main() -> Ended:
        async with asyncio.timeout(1_000):
            return await World(script).run()

    ended = clock.run(main())
    assert ended.census == {"ok": 1, "failed": 1, "blocked": 1}
    assert ended.merged.answer.startswith("Task 'b' needs 'a', which did not end well")


def test_an_agent_that_hands_on_its_own_task_is_told_to_do_it_and_ends_with_its_parent() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        turn = caller.key.turn
        if caller.key.task == GOAL:
            return [[create("w"), assign("w", "the same", background=True)], idle(turn), idle(turn), "end"][turn]
        return [create("w"), assign("w", "the same", background=True)] if turn == 0 else idle(turn)

    ended = run(script)
    assert ended.census == {"ok": 1, "cancelled": 1}
    [child] = set(ended.outcomes) - {GOAL}
    assert ended.outcomes[child].cause == f"{GOAL} ended before it"
    assert "the very task" in told(ended.requests_of(child)[1])[1]


def test_what_was_stopped_with_another_parent_runs_again_for_whoever_asks_for_the_same() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        name, turn = caller.key.task, caller.key.turn
        if name == GOAL:
            return [[create("w"), assign("w", "A", id="a"), assign("w", "B", id="b")], heard(request)][turn]
        if name == "a":
            return [[create("x"), assign("x", "shared", background=True)], "enough"][turn]
        if name == "b":
            asked = [create("x"), assign("x", "shared")]
            return idle(turn) if turn < 3 else asked if turn == 3 else heard(request)
        return "what both wanted" if turn == 2 else idle(turn)

    ended = run(script)
    assert ended.census == {"ok": 4}
    assert ended.ok("b") == "what both wanted"


def test_no_task_has_the_name_of_the_merge() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        return [[create("w"), assign("w", "A", id="merge")], heard(request)][caller.key.turn]

    assert "names the merge of the run itself" in run(script).ok(GOAL)


def test_two_waits_of_one_turn_bring_two_answers() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            tasks = [create("w"), *(assign("w", n, id=f"t{n}", background=True) for n in "12")]
            return [tasks, [call("wait_any", {}), call("wait_any", {})], "\n".join(told(request)[-2:])][caller.key.turn]
        return f"<{caller.key.task}>" if caller.key.task == "t1" or caller.key.turn == 3 else idle(caller.key.turn)

    answer = run(script).ok(GOAL)
    assert "<t1>" in answer and "<t2>" in answer


def test_a_question_that_the_model_refuses_is_told_to_who_asked_and_ends_nobody() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        turn = caller.key.turn
        if "You are asked a question" in request.messages[0].content:
            return ModelRefused("not this one")
        if caller.key.task == GOAL:
            asks = [call("ask_agent", {"id": "a", "question": "What?"})]
            return [[create("w"), assign("w", "a", id="a", background=True)], idle(turn), asks, heard(request)][turn]
        return idle(turn)

    assert "could not be answered: not this one" in run(script).ok(GOAL)


def test_an_agent_whose_wait_is_broken_goes_on_in_a_seat() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            tasks = [create("w"), assign("w", "a", id="a", background=True)]
            return [tasks, [call("wait_any", {})], heard(request)][caller.key.turn]
        return idle(caller.key.turn)

    async def main() -> Ended:
        world = World(script)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(2.5)
        for waiter in world.orchestrator._assigning._waiters["a"]:
            waiter.set_exception(WaitRefused("It was broken."))
        return await work

    ended = clock.run(main())
    assert ended.ok(GOAL) == "It was broken."
    seats = [event for event in ended.events if isinstance(event, SlotGranted) and event.resource == "agents"]
    assert [event.agent for event in seats].count(GOAL) == 2


def test_twenty_background_tasks_are_collected_one_by_one_by_the_same_call() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            if caller.key.turn == 0:
                return [create("w"), *(assign("w", f"{n}", id=f"t{n}", background=True) for n in range(20))]
            return [call("wait_any", {})] if caller.key.turn <= 20 else "\n".join(told(request))
        return f"<{caller.key.task}>"

    answer = run(script, limits=Limits(steps=40)).ok(GOAL)
    assert all(f"<t{n}>" in answer for n in range(20))
    assert "this very call" not in answer


def test_groups_of_a_merge_that_are_alike_word_for_word_are_asked_for_once_at_a_time() -> None:
    tasks = tuple(Task(f"t{n}", f"Find {n}.", f"spec {n}", label="the same") for n in range(40))
    job = Job("alike", tasks, limits=Limits(budget=None, agents=1), merge=Merge("written"))

    def script(request: ChatRequest, caller: Caller) -> Answer:
        return "filler " * 2_800 if caller.key.task != MERGE else "nothing"

    assert run(script, job=job, context=32_000).model.peak == 1


def test_a_name_that_is_not_there_is_compared_with_few_of_ten_thousand() -> None:
    names = [f"reader-{n:05}" for n in range(10_000)]
    assert len(_near("reader-99999", names)) <= 100
    assert _near("reader", names[:50]) == names[:50]


def test_tasks_come_after_those_that_they_need_each_once_and_a_cycle_keeps_its_order() -> None:
    chain = [NewTask(f"{n}", "s", needs=(f"{n + 1}",)) for n in range(200)]
    assert [task.id for task in needed_first(chain)] == [f"{n}" for n in reversed(range(200))]
    ring = [NewTask("a", "s", needs=("b",)), NewTask("b", "s", needs=("a",)), NewTask("c", "s")]
    assert sorted(task.id for task in needed_first(ring)) == ["a", "b", "c"]
