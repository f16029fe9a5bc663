"""Critical steps by the formula of the report, against values computed by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from centuria.core.rows import TaskRow
from centuria.core.steps import steps_of


def row(task: str, steps: int, parent: str | None = None, asked_in: int = 0, *needs: str, depth: int = 0) -> TaskRow:
    return TaskRow(
        task, steps=steps, parent=parent, asked_in=asked_in, needs=needs, depth=depth or int(parent is not None)
    )


def of(*rows: TaskRow) -> tuple[int, int]:
    found = steps_of({row.task: row for row in rows})
    return found.critical, found.serial


def test_a_parallel_group_counts_as_its_longest_member() -> None:
    # Stage 1: 1 + max(3, 5, 2); stage 2: 1 + max(4); the last turn: 1.
    rows = [row("a", 3, "main", 0), row("b", 5, "main", 0), row("c", 2, "main", 0), row("d", 4, "main", 1)]
    assert of(row("main", 3), *rows) == (3 + 5 + 4, 3 + 3 + 5 + 2 + 4)


def test_tasks_of_one_turn_that_need_each_other_come_one_after_the_other() -> None:
    rows = [row("a", 2, "main", 1), row("b", 3, "main", 1, "a"), row("c", 4, "main", 1)]
    assert of(row("main", 2), *rows) == (2 + 5, 11)


def test_what_was_needed_from_an_earlier_turn_is_not_counted_twice() -> None:
    assert of(row("main", 2), row("a", 2, "main", 0), row("b", 3, "main", 1, "a")) == (2 + 2 + 3, 7)


def test_children_of_children_count_in_the_stage_of_their_own_parent() -> None:
    rows = [
        row("a", 2, "main", 0),
        row("aa", 7, "a", 0, depth=2),
        row("ab", 1, "a", 1, depth=2),
        row("b", 9, "main", 0),
    ]
    assert of(row("main", 1), *rows) == (1 + (2 + 7 + 1), 20)


def test_a_job_of_rows_is_one_stage() -> None:
    assert of(*(row(f"t{n}", 2) for n in range(100))) == (2, 200)
    assert steps_of({f"t{n}": row(f"t{n}", 2) for n in range(100)}).parallelism == 100


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_critical_steps_are_never_more_than_all_of_them(made: list[tuple[int, int, int]]) -> None:
    rows: dict[str, TaskRow] = {"t0": row("t0", 1)}
    for number, (parent, steps, turn) in enumerate(made, 1):
        above = rows[f"t{parent % number}"]
        rows[f"t{number}"] = row(f"t{number}", steps, above.task, turn, depth=above.depth + 1)
    found = steps_of(rows)
    assert max(one.steps for one in rows.values()) <= found.critical <= found.serial
