"""What a resume does, and what a run comes to: `plan_resume` and `verdict`, as the pure functions that they are."""

from __future__ import annotations

import pytest

from centuria.core.calls import CallLedger
from centuria.core.graph import TaskGraph
from centuria.cores import new_tasks
from centuria.ending import verdict
from centuria.errors import JobError
from centuria.merger import Merged
from centuria.messages import CallKey, Completion, Message, Outcome, Status
from centuria.resume import plan_resume
from centuria.settings import Job, Task


def task(id_: str, *needs: str, spec: str = "", **more: bool) -> Task:
    return Task(id_, f"Do {id_}.", spec or f"spec of {id_}", needs=needs, **more)


def broken(*tasks: Task, ends: dict[str, Status]) -> tuple[TaskGraph, CallLedger]:
    """A run of these tasks in which these have ended, each after one model call."""
    graph, calls = TaskGraph(), CallLedger()
    graph.add(new_tasks(Job("job", tasks)))
    for id_, status in ends.items():
        if graph.outcome(id_) is None:
            ask(calls, id_, done=status is Status.OK)
            graph.end(id_, Outcome(id_, status, "" if status is Status.OK else "for a reason"))
    return graph, calls


def ask(calls: CallLedger, id_: str, *, epoch: int = 0, turn: int = 0, done: bool = True) -> None:
    key = CallKey(id_, epoch, turn, 0)
    calls.open(key, call="model", name="m", fingerprint="f", rerun=True)
    answer = Completion(Message("assistant", "Here."), None, "stop")
    calls.close(key, 1, end="done" if done else "failed", completion=answer if done else None)


ABC = (task("a"), task("b"), task("c"))


def test_everything_that_is_not_ok_runs_again_under_its_own_epoch() -> None:
    graph, calls = broken(*ABC, ends={"a": Status.OK, "b": Status.TIMEOUT})
    plan = plan_resume(Job("job", ABC), graph, calls)
    assert (set(plan.reused), dict(plan.resets)) == ({"a"}, {"b": 0, "c": 0})
    assert plan.added == frozenset() and list(plan.dropped) == []


def test_only_some_statuses_run_again_and_what_had_no_end_always() -> None:
    ends = {"a": Status.FAILED, "b": Status.BUDGET}
    graph, calls = broken(*ABC, ends=ends)
    plan = plan_resume(Job("job", ABC), graph, calls, only=frozenset({Status.BUDGET}))
    assert dict(plan.resets) == {"b": 0, "c": 0} and set(plan.reused) == {"a"}


def test_a_finished_run_has_nothing_to_do() -> None:
    graph, calls = broken(*ABC, ends=dict.fromkeys("abc", Status.OK))
    plan = plan_resume(Job("job", ABC), graph, calls)
    assert dict(plan.resets) == {} and sorted(plan.reused) == ["a", "b", "c"]


def test_a_task_that_failed_at_the_end_of_its_conversation_begins_afresh() -> None:
    graph, calls = broken(*ABC, ends={"a": Status.OK, "b": Status.OK})
    ask(calls, "c")
    graph.end("c", Outcome("c", Status.FAILED, "its answer was no use"))
    assert dict(plan_resume(Job("job", ABC), graph, calls).resets) == {"c": 1}


def test_a_task_that_failed_in_the_middle_goes_on_where_it_was() -> None:
    graph, calls = broken(*ABC, ends={"a": Status.OK, "b": Status.OK})
    ask(calls, "c")
    ask(calls, "c", turn=1, done=False)
    graph.end("c", Outcome("c", Status.FAILED, "refused"))
    assert dict(plan_resume(Job("job", ABC), graph, calls).resets) == {"c": 0}


def test_an_edited_task_begins_afresh_and_so_does_what_was_made_of_it() -> None:
    chain = (task("a"), task("b", "a"), task("c", "b"), task("d"))
    graph, calls = broken(*chain, ends=dict.fromkeys("abcd", Status.OK))
    edited = (task("a", spec="another"), *chain[1:])
    plan = plan_resume(Job("job", edited), graph, calls)
    assert dict(plan.resets) == {"a": 1, "b": 1, "c": 1} and list(plan.reused) == ["d"]


def test_what_was_blocked_runs_when_that_which_blocked_it_runs_again() -> None:
    chain = (task("a"), task("b", "a"))
    graph, calls = broken(*chain, ends={"a": Status.FAILED})
    assert graph.outcome("b") is not None
    plan = plan_resume(Job("job", chain), graph, calls, only=frozenset({Status.FAILED}))
    assert dict(plan.resets) == {"a": 0, "b": 0}


def test_added_tasks_are_new_and_those_that_are_gone_end_as_skipped_unless_they_had_ended() -> None:
    graph, calls = broken(*ABC, ends={"a": Status.OK})
    plan = plan_resume(Job("job", (ABC[1], task("new"))), graph, calls)
    assert plan.added == frozenset({"new"}) and dict(plan.resets) == {"b": 0}
    assert [(end.task, end.status) for end in plan.dropped] == [("c", Status.SKIPPED)]
    assert all(end.cause for end in plan.dropped)


def test_needs_cannot_change() -> None:
    graph, calls = broken(*ABC, ends={})
    with pytest.raises(JobError, match="needs of task 'c'"):
        plan_resume(Job("job", (*ABC[:2], task("c", "a", spec="another"))), graph, calls)


def test_a_star_still_means_the_same_tasks() -> None:
    star = (task("a"), task("b"), task("sum", "*"))
    graph, calls = broken(*star, ends=dict.fromkeys(("a", "b", "sum"), Status.OK))
    edited = (*star[:2], task("sum", "*", spec="another"))
    assert dict(plan_resume(Job("job", edited), graph, calls).resets) == {"sum": 1}


def test_what_a_plan_resets_the_graph_makes_ready() -> None:
    chain = (task("a"), task("b", "a"), task("c", "a", allow_failed=True))
    graph, calls = broken(*chain, ends={"a": Status.FAILED})
    plan = plan_resume(Job("job", chain), graph, calls)
    graph.reset(plan.resets)
    assert graph.ready() == ("a",) and set(graph.unfinished()) == {"a", "b", "c"}


# -- the verdict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "merged", "stopped", "wanted"),
    [
        (["ok", "ok"], Merged("x"), "", ("ok", 0)),
        (["ok", "failed"], Merged("x"), "", ("partial", 1)),
        (["ok", "skipped"], Merged("x"), "", ("partial", 1)),
        (["failed", "timeout", "blocked"], Merged("x"), "", ("failed", 1)),
        (["ok", "budget"], Merged("x"), "", ("budget", 3)),
        (["failed", "budget"], Merged("x"), "", ("budget", 3)),
        (["ok", "ok"], Merged("x", "the summary was not written: no money", budget=True), "", ("budget", 3)),
        (["ok", "ok"], Merged("x", "the summary was not written: refused"), "", ("partial", 1)),
        (["ok", "cancelled"], Merged("x"), "", ("partial", 1)),
        (["ok", "cancelled"], Merged("x"), "interrupted", ("cancelled", 130)),
        (["budget", "failed"], Merged("x"), "interrupted", ("cancelled", 130)),
    ],
)
def test_the_exit_code_follows_from_the_census_and_an_interrupt_goes_before_money_before_failures(
    statuses: list[str], merged: Merged, stopped: str, wanted: tuple[str, int]
) -> None:
    outcomes = {str(number): Outcome(str(number), Status(status), "why") for number, status in enumerate(statuses)}
    status, code, cause = verdict(outcomes, merged, stopped=stopped)
    assert (status, code) == wanted
    assert bool(cause) is (code != 0)
