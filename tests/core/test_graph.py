"""TaskGraph: whole batches or nothing, each task one outcome, failures block exactly what needs them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.codec import decode, encode
from centuria.core.batch import MAX_NEEDS
from centuria.core.graph import NewTask, TaskGraph
from centuria.errors import GraphError
from centuria.events import Event, Fact, SlotLeft, TaskAdded, TaskEnded, TaskReady, TaskReset, TaskStarted, fold
from centuria.messages import Outcome, Status


def new(id: str, *needs: str, parent: str | None = None, allow_failed: bool = False) -> NewTask:
    return NewTask(id, f"spec-{id}", needs=needs, parent=parent, allow_failed=allow_failed)


def graph(*tasks: NewTask) -> TaskGraph:
    made = TaskGraph()
    made.add(tasks)
    return made


def outcome(task: str, status: Status = Status.OK, at: float = 0.0) -> Outcome:
    return Outcome(task, status, ended_at=at)


def finish(tasks: TaskGraph, task: str, status: Status = Status.OK) -> list[Fact]:
    return tasks.start(task) + tasks.end(task, outcome(task, status))


def statuses(tasks: TaskGraph) -> dict[str, str]:
    return {id: str(end.status) for id in tasks.ids() if (end := tasks.outcome(id))}


# -- adding ----------------------------------------------------------------------------------------------------------


def test_tasks_are_added_with_their_index_depth_and_what_is_ready() -> None:
    tasks = TaskGraph()
    events = tasks.add([new("b", "a"), new("a"), new("c", parent="a")])
    assert events == [
        TaskAdded("b", 0, "spec-b", needs=("a",)),
        TaskAdded("a", 1, "spec-a"),
        TaskAdded("c", 2, "spec-c", parent="a", depth=1),
        TaskReady("a"),
        TaskReady("c"),
    ]
    assert tasks.ids() == ("b", "a", "c")
    assert tasks.ready() == ("a", "c")
    assert tasks.state("b") == "waiting"
    assert (tasks.needs("b"), tasks.dependents("a")) == (("a",), ("b",))
    assert len(tasks) == 3 and "c" in tasks and "d" not in tasks


def test_an_empty_batch_is_nothing() -> None:
    assert TaskGraph().add([]) == []


def test_a_star_needs_every_task_without_a_star_there_or_in_the_batch() -> None:
    tasks = graph(new("old"), new("old-sum", "*"))
    tasks.add([new("sum", "*"), new("late"), new("after", "*", "sum")])
    assert tasks.needs("old-sum") == ("old",)
    assert tasks.needs("sum") == ("old", "late")
    assert tasks.needs("after") == ("old", "late", "sum")


def test_a_star_is_still_known_as_one_after_a_replay() -> None:
    tasks = TaskGraph()
    events = tasks.add([new("a"), new("sum", "*")])
    copy = TaskGraph()
    fold(copy, events)
    copy.add([new("sum2", "*")])
    assert copy.needs("sum2") == ("a",)


def test_a_need_given_twice_counts_once() -> None:
    tasks = graph(new("a"), new("b", "a", "a"))
    assert tasks.needs("b") == ("a",)
    assert TaskReady("b") in finish(tasks, "a")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([new("a", "b"), new("b", "a")], r"a -> b -> a"),
        ([new("x"), new("a", "x", "b"), new("b", "c"), new("c", "b")], r"b -> c -> b"),
        ([new("a", "sum"), new("sum", "*")], r"a -> sum -> a"),
        ([new("a", "a")], r"'a' needs itself"),
        ([new("a", "custmer")], r"needs 'custmer', which does not exist. Did you mean 'customer'\?"),
        ([new("a", "zzz")], r"which does not exist. There is: 'customer'."),
        ([new("a", parent="zzz")], r"'a' has the parent 'zzz', which does not exist"),
        ([new("a", parent="b"), new("b")], r"'a' has the parent 'b'"),
        ([new("a"), new("a")], r"already a task 'a'"),
        ([new("customer")], r"already a task 'customer'"),
        ([new("")], r"'' cannot be the id"),
        ([new("*")], r"'\*' cannot be the id"),
        ([new("1", parent="customer"), new("2", parent="1"), new("3", parent="2")], r"'3' would be 3 level"),
        ([new(str(number)) for number in range(20)], r"would make 22; the limit is 20"),
    ],
)
def test_a_wrong_batch_is_refused_whole_and_says_what_is_wrong(batch: list[NewTask], message: str) -> None:
    tasks = TaskGraph(max_depth=2, max_tasks=20)
    before = tasks.add([new("customer")])
    with pytest.raises(GraphError, match=message) as refusal:
        tasks.add([new("innocent"), *batch])
    assert refusal.value.remedy
    copy = TaskGraph()
    fold(copy, before)
    assert tasks == copy


def test_an_error_stays_short_whatever_the_author_wrote() -> None:
    ring = [new(f"{number}-{'x' * 5000}", f"{(number + 1) % 5000}-{'x' * 5000}") for number in range(5000)]
    for batch in (ring, [new("a", "y" * 100_000)], [new("z" * 100_000, "a", "y")]):
        with pytest.raises(GraphError) as refusal:
            TaskGraph().add(batch)
        assert len(str(refusal.value)) < 3000


def test_the_number_of_needs_is_bounded() -> None:
    many = int(MAX_NEEDS**0.5) + 1
    with pytest.raises(GraphError, match="more than 1000000 needs"):
        TaskGraph().add([*(new(f"a{n}") for n in range(many)), *(new(f"b{n}", "*") for n in range(many))])


# -- running ---------------------------------------------------------------------------------------------------------


def test_a_task_is_ready_when_its_own_needs_are_over_whatever_the_others_do() -> None:
    """No rounds: the fast branch goes on beside the slow one."""
    tasks = graph(new("slow"), new("fast"), new("fast-2", "fast"), new("fast-3", "fast-2"))
    tasks.start("slow")
    assert finish(tasks, "fast")[-1] == TaskReady("fast-2")
    assert finish(tasks, "fast-2")[-1] == TaskReady("fast-3")
    assert tasks.state("slow") == "running"


def test_a_task_waits_for_all_of_its_needs() -> None:
    tasks = graph(new("a"), new("b"), new("sum", "*"))
    assert TaskReady("sum") not in finish(tasks, "b")
    assert TaskReady("sum") in finish(tasks, "a")


def test_ready_is_in_the_order_of_the_index() -> None:
    tasks = graph(new("gate"), *(new(f"n{n}", *(["gate"] if n % 2 else [])) for n in range(6)))
    finish(tasks, "gate")
    assert tasks.ready() == ("n0", "n1", "n2", "n3", "n4", "n5")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_what_needs_a_task_that_is_not_ok_is_blocked_at_once_and_transitively(status: Status) -> None:
    tasks = graph(new("a"), new("other"), new("b", "a", "other"), new("c", "b"), new("free", "other"))
    tasks.start("other")
    tasks.start("a")
    events = tasks.end("a", outcome("a", status, at=7.0))
    assert [event.task for event in events if isinstance(event, TaskEnded)] == ["a", "b", "c"]
    blocked, further = tasks.outcome("b"), tasks.outcome("c")
    assert blocked and further
    assert blocked.status is further.status is Status.BLOCKED
    assert blocked.cause == f"needs 'a', which ended as {status}"
    assert further.cause == f"needs 'b', which ended as blocked because 'a' ended as {status}"
    assert blocked.ended_at == 7.0
    assert tasks.unfinished() == ("other", "free")


def test_a_task_that_allows_failure_runs_once_all_its_needs_are_over() -> None:
    tasks = graph(new("a"), new("b"), new("sum", "a", "b", allow_failed=True), new("end", "sum"))
    assert TaskReady("sum") not in finish(tasks, "a", Status.FAILED)
    assert TaskReady("sum") in finish(tasks, "b")
    finish(tasks, "sum")
    assert tasks.ready() == ("end",)


def test_a_task_added_after_its_need_failed_is_blocked_at_once() -> None:
    tasks = graph(new("a"))
    finish(tasks, "a", Status.TIMEOUT)
    tasks.add([new("c", "b"), new("b", "a"), new("d", "a", allow_failed=True)])
    assert statuses(tasks) == {"a": "timeout", "b": "blocked", "c": "blocked"}
    assert tasks.ready() == ("d",)


def test_a_task_has_exactly_one_outcome() -> None:
    tasks = graph(new("a"), new("b", "a"))
    finish(tasks, "a", Status.FAILED)
    for ended in ("a", "b"):
        with pytest.raises(ValueError, match="has its outcome already"):
            tasks.end(ended, outcome(ended))
    with pytest.raises(ValueError, match="cannot end"):
        graph(new("a")).end("a", outcome("b"))
    with pytest.raises(ValueError, match="two outcomes"):
        graph(new("a")).end_all([outcome("a"), outcome("a")])


def test_only_what_is_ready_can_start() -> None:
    tasks = graph(new("a"), new("b", "a"))
    with pytest.raises(ValueError, match="'b' cannot start: it is waiting"):
        tasks.start("b")
    assert tasks.start("a", 3) == [TaskStarted("a", 3)]
    assert tasks.epoch("a") == 3
    with pytest.raises(ValueError, match="it is running"):
        tasks.start("a")
    with pytest.raises(ValueError, match="there is no task 'x'"):
        tasks.start("x")


def test_a_cancelled_run_ends_every_task_as_cancelled_and_none_as_blocked() -> None:
    tasks = graph(new("a"), new("b", "a"), new("c", "*"))
    tasks.start("a")
    tasks.end_all([outcome(task, Status.CANCELLED) for task in tasks.unfinished()])
    assert set(statuses(tasks).values()) == {"cancelled"}
    assert tasks.ready() == tasks.unfinished() == ()


def test_of_several_ends_in_one_step_a_failure_blocks_what_an_ok_would_have_made_ready() -> None:
    tasks = graph(new("a"), new("b"), new("c", "a", "b"))
    tasks.end_all([outcome("a"), outcome("b", Status.FAILED)])
    assert statuses(tasks)["c"] == "blocked"


# -- resuming --------------------------------------------------------------------------------------------------------


def test_a_reset_task_runs_again_and_so_does_what_it_blocked() -> None:
    tasks = graph(new("ok"), new("a"), new("b", "a", "ok"), new("c", "b"))
    finish(tasks, "ok")
    finish(tasks, "a", Status.FAILED)
    events = tasks.reset({"c": 1, "b": 1, "a": 1})
    assert events == [TaskReset("a", 1), TaskReset("b", 1), TaskReset("c", 1), TaskReady("a")]
    assert tasks.epoch("a") == 1
    for task in ("a", "b", "c"):
        finish(tasks, task)
    assert set(statuses(tasks).values()) == {"ok"}


def test_a_reset_task_whose_need_stays_failed_is_blocked_again() -> None:
    tasks = graph(new("a"), new("b", "a"), new("c", "b"))
    finish(tasks, "a", Status.FAILED)
    events = tasks.reset({"b": 1, "c": 1})
    assert [type(event) for event in events] == [TaskReset, TaskReset, TaskEnded, TaskEnded]
    assert statuses(tasks) == {"a": "failed", "b": "blocked", "c": "blocked"}


def test_a_task_that_was_running_when_the_process_died_is_reset_to_ready() -> None:
    tasks = graph(new("a"))
    tasks.start("a")
    assert tasks.reset({"a": 0}) == [TaskReset("a", 0), TaskReady("a")]
    assert tasks.ready() == ("a",)


def test_what_was_ready_waits_again_when_its_need_is_reset() -> None:
    tasks = graph(new("a"), new("b", "a"))
    finish(tasks, "a")
    assert tasks.reset({"a": 1}) == [TaskReset("a", 1), TaskReady("a")]
    assert tasks.ready() == ("a",)
    assert TaskReady("b") in finish(tasks, "a")


def test_a_finished_dependent_keeps_its_outcome_when_only_its_need_is_reset() -> None:
    tasks = graph(new("a"), new("b", "a"))
    finish(tasks, "a")
    finish(tasks, "b")
    tasks.reset({"a": 1})
    finish(tasks, "a", Status.FAILED)
    assert statuses(tasks) == {"a": "failed", "b": "ok"}


# -- size and replay -------------------------------------------------------------------------------------------------


def test_a_chain_of_ten_thousand_is_blocked_without_recursion() -> None:
    count = 10_000
    tasks = graph(*(new(str(n), *([str(n - 1)] if n else [])) for n in range(count)))
    tasks.end("0", outcome("0", Status.FAILED))
    assert tasks.unfinished() == ()
    last = tasks.outcome(str(count - 1))
    assert last and "'0' ended as failed" in last.cause and len(last.cause) < 100


def test_events_survive_the_codec_and_foreign_ones_are_ignored() -> None:
    tasks = TaskGraph()
    events: list[Event] = [*tasks.add([new("a"), new("b", "a"), new("sum", "*", allow_failed=True)])]
    events += finish(tasks, "a", Status.FAILED) + tasks.reset({"a": 1, "b": 1})
    copy = TaskGraph()
    fold(copy, [decode(encode(event)) for event in events] + [SlotLeft(1, "x", 0.0)])  # type: ignore[arg-type]
    assert copy == tasks
    assert copy != graph(new("a"))


# -- properties ------------------------------------------------------------------------------------------------------


@st.composite
def dags(draw: st.DrawFn) -> list[NewTask]:
    """Random batches without a cycle, shuffled, so that needs point forward and back."""
    count = draw(st.integers(1, 12))
    batch = []
    for number in range(count):
        needs = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        batch.append(new(f"t{number}", *(f"t{need}" for need in needs), allow_failed=draw(st.booleans())))
    return draw(st.permutations(batch))


def blocked_by(batch: Iterable[NewTask], failed: set[str]) -> set[str]:
    """The transitive dependents of `failed` that do not allow it, found by brute force."""
    blocked: set[str] = set()
    while more := {
        task.id
        for task in batch
        if not task.allow_failed and task.id not in blocked and (failed | blocked) & set(task.needs)
    }:
        blocked |= more
    return blocked


@settings(max_examples=150, deadline=None)
@given(batch=dags(), data=st.data())
def test_every_task_of_a_random_graph_ends_once_and_failures_block_exactly_their_dependents(
    batch: list[NewTask], data: st.DataObject
) -> None:
    fails = data.draw(st.sets(st.sampled_from([task.id for task in batch])))
    tasks = TaskGraph()
    journal = tasks.add(batch)
    ran: set[str] = set()
    while ready := tasks.ready():
        task = data.draw(st.sampled_from(ready))
        by_id = {task.id: task for task in batch}
        for need in by_id[task].needs:
            end = tasks.outcome(need)
            assert end and (end.status is Status.OK or by_id[task].allow_failed)
        journal += finish(tasks, task, Status.FAILED if task in fails else Status.OK)
        ran.add(task)
    ends = [event.task for event in journal if isinstance(event, TaskEnded)]
    assert sorted(ends) == sorted(task.id for task in batch)
    blocked = {id for id, status in statuses(tasks).items() if status == "blocked"}
    assert blocked == blocked_by(batch, fails & ran)
    assert ran == {task.id for task in batch} - blocked
    copy = TaskGraph()
    fold(copy, journal)
    assert copy == tasks


@settings(max_examples=150, deadline=None)
@given(needs=st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefg"), max_size=3), min_size=2))
def test_a_cycle_error_names_a_real_cycle_and_there_is_none_without_an_error(
    needs: Mapping[str, list[str]],
) -> None:
    edges = {task: [need for need in more if need in needs and need != task] for task, more in needs.items()}
    try:
        TaskGraph().add([new(task, *more) for task, more in edges.items()])
    except GraphError as error:
        named = re.search(r"each other: (.*?)\. ", str(error))
        assert named
        cycle = named[1].split(" -> ")
        assert cycle[0] == cycle[-1] and len(set(cycle)) == len(cycle) - 1 >= 2
        assert all(need in edges[task] for task, need in pairwise(cycle))
    else:
        left = dict(edges)
        while free := [task for task in left if not any(need in left for need in left[task])]:
            for task in free:
                del left[task]
        assert not left


class GraphMachine(RuleBasedStateMachine):
    """Any adds, starts, ends and resets; a graph folded from the events is the same and goes on."""

    @initialize()
    def begin(self) -> None:
        self.live = TaskGraph(max_tasks=40)
        self.journal: list[Fact] = []
        self.ends: dict[str, int] = {}
        self.resets: dict[str, int] = {}

    def publish(self, events: list[Fact]) -> None:
        self.journal += events
        for event in events:
            if isinstance(event, TaskEnded):
                self.ends[event.task] = self.ends.get(event.task, 0) + 1
            elif isinstance(event, TaskReset):
                self.resets[event.task] = self.resets.get(event.task, 0) + 1

    @rule(data=st.data(), size=st.integers(1, 3))
    def add(self, data: st.DataObject, size: int) -> None:
        ids = [f"t{len(self.live) + place}" for place in range(size)]
        names = st.lists(st.sampled_from([*self.live.ids(), *ids, "*"]), max_size=3)
        batch = [new(id, *data.draw(names), allow_failed=data.draw(st.booleans())) for id in ids]
        before = len(self.live)
        try:
            self.publish(self.live.add(batch))
        except GraphError:
            assert len(self.live) == before

    @precondition(lambda self: self.live.ready())
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.publish(self.live.start(data.draw(st.sampled_from(self.live.ready()))))

    @precondition(lambda self: self.live.unfinished())
    @rule(data=st.data(), status=st.sampled_from(Status))
    def end(self, data: st.DataObject, status: Status) -> None:
        some = data.draw(st.sets(st.sampled_from(self.live.unfinished()), min_size=1, max_size=2))
        self.publish(self.live.end_all([outcome(task, status) for task in sorted(some)]))

    @precondition(lambda self: len(self.live) > 0)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(self.live.ids()), max_size=3))
        self.publish(self.live.reset({task: self.live.epoch(task) + 1 for task in some}))

    @rule()
    def restart(self) -> None:
        copy = TaskGraph(max_tasks=40)
        fold(copy, self.journal)
        assert copy == self.live
        self.live = copy

    @invariant()
    def every_task_is_where_its_needs_say(self) -> None:
        assert self.live.ready() == tuple(id for id in self.live.ids() if self.live.state(id) == "ready")
        for id in self.live.ids():
            task, end, state = self.live.task(id), self.live.outcome(id), self.live.state(id)
            assert (end is not None) == (state == "ended")
            assert 0 <= self.ends.get(id, 0) - (end is not None) <= self.resets.get(id, 0)
            needs = [self.live.outcome(need) for need in task.needs]
            over = all(needs)
            fine = task.allow_failed or not any(need and need.status is not Status.OK for need in needs)
            if state == "waiting":
                assert not over and fine
            elif state == "ready":
                assert over and fine


TestGraphMachine = GraphMachine.TestCase
TestGraphMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
