"""The queue of what may begin: priorities that change, tasks that are held back, none taken twice."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from centuria.core.graph import NewTask, TaskGraph
from centuria.core.ready import ReadyQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("priority"), st.integers(0, 7), st.integers(0, 9)),
        st.tuples(st.just("take"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("release"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@example([("take", 1, 0), ("priority", 0, 0), ("take", 0, 0)])  # held back, moved, and taken before the release
@given(STEPS)
def test_each_task_is_taken_once_and_always_the_first_of_those_that_are_not_held(
    steps: list[tuple[str, int, int]],
) -> None:
    graph = TaskGraph()
    graph.add([NewTask(f"t{n}", "s") for n in range(8)])
    queue, waiting, held = ReadyQueue(graph), set(graph.ids()), set[str]()
    queue.put(graph.ready())

    def order(task: str) -> tuple[int, int]:
        return graph.task(task).priority, graph.task(task).index

    for what, number, priority in [*steps, ("release", 0, 0), *[("take", 0, 0)] * 8]:
        task = f"t{number}"
        if what == "priority":
            if graph.set_priority(task, priority) and task in waiting:
                queue.put([task])
                held.discard(task)
        elif what == "release":
            queue.release()
            held.clear()
        else:
            stopped = {f"t{n}" for n in range(number)}  # held back from now on, until a release
            free = [one for one in waiting if one not in stopped and one not in held]
            taken = queue.take(stopped.__contains__)
            assert taken == min(free, key=order, default=None)
            before = [one for one in waiting & stopped if taken is None or order(one) < order(taken)]
            held |= set(before)
            waiting.discard(taken or "")
    assert not waiting


def test_a_task_that_ended_meanwhile_is_passed_over() -> None:
    from centuria.messages import Outcome, Status

    graph = TaskGraph()
    graph.add([NewTask("a", "s"), NewTask("b", "s")])
    queue = ReadyQueue(graph)
    queue.put(graph.ready())
    graph.end("a", Outcome("a", Status.CANCELLED))
    assert (queue.take(), queue.take()) == ("b", None)
