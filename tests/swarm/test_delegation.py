"""A model drives the swarm: it creates subagents, assigns tasks, waits, and answers from what came back."""

from __future__ import annotations

import asyncio

from centuria.events import CallOpened, SlotGranted, SlotLeft, TaskAdded
from centuria.messages import Status
from centuria.ports import Caller, ChatRequest
from centuria.settings import Limits
from centuria.testing import clock
from centuria.testing.scripted import Answer, call
from tests.swarm.kit import GOAL, World, assign, create, prompt_of, run, told


def roles_and_tasks(request: ChatRequest, caller: Caller) -> Answer:
    """A goal becomes 3 roles and 100 tasks in two levels: 90 readers, 9 reviewers that need ten each, one editor."""
    if caller.key.task != GOAL:
        return f"result<{caller.key.task}>"
    match caller.key.turn:
        case 0:
            return [create("reader"), create("reviewer"), create("editor")]
        case 1:
            readers = [assign("reader", f"Read part {n}.", id=f"read-{n}") for n in range(90)]
            reviewers = [
                assign("reviewer", f"Review {n}.", id=f"review-{n}", needs=[f"read-{n * 10 + m}" for m in range(10)])
                for n in range(9)
            ]
            # The level above comes first: tasks of one turn may need what is called after them.
            return [*reviewers, assign("editor", "Edit.", id="edit", needs=[f"review-{n}" for n in range(9)]), *readers]
        case _:
            return "\n".join(told(request))


def test_a_goal_becomes_three_roles_and_a_hundred_tasks_with_needs_and_every_result_is_in_the_answer() -> None:
    ended = run(roles_and_tasks)
    assert ended.census == {"ok": 101}
    for n in range(90):
        assert f"result<read-{n}>" in ended.merged.answer
    assert "result<edit>" in ended.merged.answer
    # goal: 3 turns; between the second and the third: readers, reviewers, editor, one call each.
    assert ended.seconds == 6.0 or abs(ended.seconds - 6.0) < 0.2
    assert ended.model.peak == 90
    # By hand: 3 turns of the goal, and in the second of them a reader, its reviewer and the editor.
    steps = ended.progress.steps()
    assert (steps.critical, steps.serial) == (3 + 3, 3 + 100)


def test_a_hundred_tasks_of_one_turn_run_at_once() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task != GOAL:
            return f"did {prompt_of(request)}"
        return [
            [create("worker")],
            [assign("worker", f"Part {n}") for n in range(100)],
            "\n".join(told(request)),
        ][caller.key.turn]

    ended = run(script)
    assert ended.model.peak == 100
    assert all(f"did Part {n}" in ended.merged.answer for n in range(100))


def test_answers_come_back_in_the_order_of_the_calls_and_only_they_come_back() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task != GOAL:
            return f"answer to {prompt_of(request)}"
        return [[create("w")], [assign("w", "one"), assign("w", "two")], "done"][caller.key.turn]

    ended = run(script)
    assert told(ended.requests_of(GOAL)[2])[1:] == ["answer to one", "answer to two"]
    child = next(task for task in ended.outcomes if task != GOAL)
    [request] = ended.requests_of(child)
    assert [message.role for message in request.messages] == ["system", "user"]
    assert request.messages[0].content == "You are careful."


def test_identical_tasks_without_an_id_are_run_once() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task != GOAL:
            return "the same"
        return [[create("w")], [assign("w", "again"), assign("w", "again")], [assign("w", "again")], "done"][
            caller.key.turn
        ]

    ended = run(script)
    assert ended.census == {"ok": 2}
    assert [len(told(request)) for request in ended.requests_of(GOAL)] == [0, 1, 3, 4]


def test_a_task_that_cannot_be_added_is_refused_with_what_the_model_may_do_and_the_others_run() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task != GOAL:
            return "ok"
        return [
            [
                create("w"),
                assign("w", "a", id="a", needs=["b"]),
                assign("w", "b", id="b", needs=["a"]),
                assign("w", "c", id="c", needs=["nobody"]),
                assign("ghost", "d"),
                assign("w", "e", id="e"),
                assign("w", "f", id="e"),
                assign("w", "g", id="../g"),
            ],
            "done",
        ][caller.key.turn]

    ended = run(script)
    answers = told(ended.requests_of(GOAL)[1])
    assert ended.census == {"ok": 2}
    assert "needs 'b', which does not exist" in answers[1]
    assert "needs 'a', which does not exist" in answers[2]
    assert "'nobody', which does not exist" in answers[3]
    assert "Create it first with create_subagent. There is: 'w'." in answers[4]
    assert answers[5] == "ok"
    assert "There is already a task 'e'" in answers[6]
    assert "An id has 1 to 64 letters" in answers[7]


def test_a_parent_that_waits_holds_no_slot_so_nested_parents_finish_at_a_limit_of_one() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        depth = 0 if caller.key.task == GOAL else int(caller.key.task[1:])
        if depth == 3:
            return "the bottom"
        return [
            [create("w")],
            [assign("w", f"go to {depth + 1}", id=f"d{depth + 1}")],
            f"{depth}({told(request)[-1] if told(request) else ''})",
        ][caller.key.turn]

    ended = run(script, limits=Limits(agents=1))
    assert ended.merged.answer.strip() == "0(1(2(the bottom)))"
    held, most = 0, 0
    for event in ended.events:
        if isinstance(event, SlotGranted) and event.resource == "agents":
            held += 1
            most = max(most, held)
        elif isinstance(event, SlotLeft) and event.resource == "agents":
            held -= 1
    assert (held, most) == (0, 1)


def test_a_model_that_always_spawns_is_stopped_by_depth_and_count_and_the_run_still_answers() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.turn == 0:
            return [create("w"), *(assign("w", f"{caller.key.task} {n}") for n in range(4))]
        if caller.key.turn == 1 and any("the limit" in text for text in told(request)):
            return f"refused: {told(request)[-1]}"
        return "answered"

    deep = run(script, limits=Limits(depth=2, agents=10))
    assert deep.census == {"ok": 1 + 4 + 16}
    leaf = next(end for task, end in deep.outcomes.items() if deep.progress.tasks[task].depth == 2)
    assert leaf.status is Status.OK
    wide = run(script, limits=Limits(tasks=30, depth=9))
    assert len(wide.outcomes) == 30
    assert wide.outcomes[GOAL].status is Status.OK


def test_tasks_that_wait_for_each_other_are_found_in_the_same_tick_and_one_is_refused_by_name() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        others = {"a": "b", "b": "c", "c": "a"}
        if caller.key.task == GOAL:
            return [[create("w"), *(assign("w", name, id=name) for name in others)], "\n".join(told(request))][
                min(caller.key.turn, 1)
            ]
        if caller.key.turn == 0:
            return [call("wait_for", {"id": others[caller.key.task]})]
        return f"{caller.key.task} heard: {told(request)[-1]}"

    ended = run(script)
    assert ended.census == {"ok": 4}
    assert ended.seconds < 6.5  # goal 2, and three conversations that end one after the other
    refused = [end.text for end in ended.outcomes.values() if "would never end" in end.text and end.task != GOAL]
    assert any("c -> a -> b -> c" in text for text in refused)


def test_one_failed_task_of_a_hundred_is_named_and_the_other_results_are_in_the_answer() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            parts = [assign("w", f"Part {n}", id=f"p{n}") for n in range(100)]
            return [[create("w")], parts, "\n".join(told(request))][caller.key.turn]
        return ValueError("it broke") if caller.key.task == "p7" else f"<{caller.key.task}>"

    ended = run(script)
    assert ended.census == {"ok": 100, "failed": 1}
    assert sum(f"<p{n}>" in ended.merged.answer for n in range(100)) == 99
    assert "p7" in ended.merged.answer and "it broke" in ended.merged.answer
    assert "# Missing" in ended.merged.answer


def test_background_tasks_are_collected_as_they_end_and_what_is_left_ends_with_its_parent() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == GOAL:
            return [
                [create("w"), *(assign("w", f"{n}", id=f"t{n}", background=True) for n in range(3))],
                [call("wait_any", {})],
                [call("cancel_task", {"id": "t1"})],
                "enough",
            ][caller.key.turn]
        slow = int(caller.key.task[1:]) + caller.key.turn
        return [call("nothing", {})] if caller.key.turn < 9 and slow else "first"

    ended = run(script)
    requests = ended.requests_of(GOAL)
    assert "runs in the background" in told(requests[1])[1]
    assert "Task 't0':\n\nfirst" in told(requests[2])[-1]
    assert "Still in the background: t1, t2." in told(requests[2])[-1]
    assert ended.outcomes["t0"].status is Status.OK
    assert ended.outcomes["t1"].cause == f"cancelled by {GOAL}"
    assert ended.outcomes["t2"].cause == f"{GOAL} ended before it"


def test_a_failed_task_can_be_retried_by_who_assigned_it_and_by_nobody_else() -> None:
    tries: list[int] = []

    def script(request: ChatRequest, caller: Caller) -> Answer:
        heard = (told(request) or [""])[-1]
        if caller.key.task == GOAL:
            return [
                [create("w"), assign("w", "try", id="t"), assign("w", "meddle", id="m")],
                [call("retry_task", {"id": "t"})],
                heard,
            ][caller.key.turn]
        if caller.key.task == "m":
            return [[call("retry_task", {"id": "t"})], heard][caller.key.turn]
        tries.append(caller.key.epoch)
        return ValueError("no") if len(tries) == 1 else "yes"

    ended = run(script)
    assert tries == [0, 1]
    assert ended.merged.answer.strip() == "yes"
    assert "You assigned no task 't'" in ended.ok("m")


def test_cancelling_one_branch_of_three_levels_starts_no_request_of_it_and_the_others_finish() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        name = caller.key.task
        if name.count(".") == 2:
            return "leaf" if caller.key.turn == 2 else [call("nothing", {})]
        root = "" if name == GOAL else f"{name}."
        return [
            [create("w"), *(assign("w", f"{root}{n}", id=f"{root}{n}" if root else f"b{n}") for n in range(3))],
            "done",
        ][caller.key.turn]

    async def main() -> None:
        world = World(script)
        work = asyncio.ensure_future(world.run())
        await asyncio.sleep(4.5)  # all three levels are at work
        world.orchestrator.cancel("b1", cause="not wanted")
        sent = len([1 for _, caller in world.model.requests if caller.key.task.startswith("b1")])
        ended = await work
        assert len([1 for _, caller in world.model.requests if caller.key.task.startswith("b1")]) == sent
        for task, end in ended.outcomes.items():
            branch = task == "b1" or task.startswith("b1.")
            assert end.status is (Status.CANCELLED if branch else Status.OK), end
        assert sum(task.startswith("b1") for task in ended.outcomes) == 1 + 3 + 9

    clock.run(main())


def test_what_the_model_may_call_is_the_same_for_all_siblings_and_begins_with_its_own_tools() -> None:
    ended = run(roles_and_tasks)
    specs = [request.tools for request, caller in ended.model.requests if caller.key.task != GOAL]
    assert all(one == specs[0] for one in specs)
    names = [spec.name for spec in ended.requests_of(GOAL)[0].tools]
    assert names[:2] == ["create_subagent", "assign_task"]


def test_the_trained_schemas_are_those_of_the_report() -> None:
    ended = run(roles_and_tasks)
    create_spec, assign_spec = ended.requests_of(GOAL)[0].tools[:2]
    assert create_spec.description == "Create a custom subagent with specific system prompt and name for reuse."
    assert list(create_spec.schema["properties"]) == ["name", "system_prompt"]
    assert list(assign_spec.schema["properties"])[:2] == ["agent", "prompt"]
    assert assign_spec.schema["required"] == ["agent", "prompt"]


def test_a_model_that_was_not_trained_for_it_is_taught() -> None:
    taught = run(roles_and_tasks, model="gpt-9").requests_of(GOAL)[0].messages[0].content
    trained = run(roles_and_tasks, model="moonshotai/kimi-k2.5").requests_of(GOAL)[0].messages[0].content
    assert "How to use the swarm" in taught
    assert "How to use the swarm" not in trained


def test_every_call_of_the_swarm_is_in_the_journal_and_says_who_asked() -> None:
    ended = run(roles_and_tasks)
    added = [event for event in ended.events if isinstance(event, TaskAdded) and event.assigned is not None]
    assert len(added) == 100
    assert {event.parent for event in added} == {GOAL}
    calls = {event.key for event in ended.events if isinstance(event, CallOpened) and event.name == "assign_task"}
    assert {event.assigned.call for event in added if event.assigned is not None} == calls


def test_an_agent_can_ask_another_one_that_works_on_and_hears_its_answer_alone() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        name, turn = caller.key.task, caller.key.turn
        if "You are asked a question" in request.messages[0].content:
            assert "secret 42" in request.messages[1].content
            assert caller.node == "task:b"
            return "It was 42."
        if name == GOAL:
            tasks = [create("w"), assign("w", "secret 42", id="a"), assign("w", "ask", id="b")]
            return [tasks, "\n".join(told(request))][turn]
        if name == "a":
            return "a is done" if turn == 5 else [call("nothing", {"n": turn})]
        asked = [call("ask_agent", {"id": who, "question": "Which number?"}) for who in ("a", "nobody")]
        return [asked, " | ".join(told(request))][turn]

    ended = run(script)
    assert ended.ok("b") == "It was 42. | There is no task 'nobody' in this run."
    assert ended.ok("a") == "a is done"
    assert "It was 42." in ended.merged.answer
