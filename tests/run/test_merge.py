"""Merging: tables that spreadsheets can be trusted with, and nothing dropped without a word."""

from __future__ import annotations

import csv
import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from centuria import merge
from centuria.core.merge_tree import Part, fits, groups
from centuria.messages import Outcome, Status
from centuria.settings import Job, LeftOut, Merge, Task

SCHEMA = {"type": "object", "properties": {"name": {}, "cap": {}, "report": {}}}


def results(outcomes: list[Outcome], **how: object) -> merge.Results:
    tasks = tuple(Task(outcome.task, "", "", label=f"Firm {outcome.task}") for outcome in outcomes)
    job = Job("j", tasks, left_out=(LeftOut("Z", "Zeta", "no Market Cap"),), merge=Merge("table", **how))  # type: ignore[arg-type]
    return merge.Results(job, tasks, {outcome.task: outcome for outcome in outcomes})


def ok(task: str, **structured: object) -> Outcome:
    return Outcome(task, Status.OK, text="text of " + task, structured=structured or None)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_table_has_a_row_for_each_ok_task_and_the_columns_of_the_schema_without_the_long_text() -> None:
    table = read(
        merge.to_csv(results([ok("A", name="Alpha", cap=1.5, report="long"), ok("B")], schema=SCHEMA, text="report"))
    )
    assert table == [{"id": "A", "name": "Alpha", "cap": "1.5"}, {"id": "B", "name": "", "cap": ""}]


@given(st.text(max_size=30))
def test_no_text_from_a_model_becomes_a_formula_or_breaks_the_table(text: str) -> None:
    table = read(merge.to_csv(results([ok("A", name=text.replace("\x00", ""), cap=-3)], schema=SCHEMA)))
    assert len(table) == 1
    assert not table[0]["name"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert table[0]["cap"] == "-3"


def test_one_failed_of_a_hundred_leaves_ninety_nine_results_and_names_the_failure() -> None:
    outcomes = [ok(f"T{n:02}") for n in range(99)] + [Outcome("bad", Status.FAILED, "the model went away")]
    text = merge.concatenate(results(outcomes))
    assert all(f"text of T{n:02}" in text for n in range(99))
    assert "- Firm bad: failed (the model went away)" in text


def test_a_summary_can_name_the_rows_that_were_left_out() -> None:
    there = merge.variables(results([ok("A", name="Alpha")], schema=SCHEMA))
    assert there["left_out"] == "no Market Cap: Zeta (Z)"
    assert (there["count"], there["left_out_count"]) == (1, 1)


def test_a_summary_whose_table_is_too_long_for_the_window_says_how_many_rows_it_leaves_out() -> None:
    given_ = results([ok(f"T{n:03}", name=f"Firm {n}") for n in range(500)], schema=SCHEMA, summary="Sum up: {table}")
    messages, left_out = merge.summary_messages(given_, room=4_000)
    assert 0 < left_out < 500
    assert len(messages[1].content.encode()) <= 4_000
    assert messages[1].content.count("Firm") == 500 - left_out
    assert merge.summary_messages(given_, room=1_000_000)[1] == 0


PARTS = st.lists(st.builds(Part, st.text(max_size=20), st.text(max_size=3_000)), max_size=40)


@given(PARTS, st.integers(1_500, 6_000))
def test_every_byte_of_every_part_is_in_exactly_one_group_and_each_group_fits(parts: list[Part], room: int) -> None:
    made = groups(parts, room)
    for group in made:
        assert fits(group, room)
    together = "".join(part.text for group in made for part in group)
    assert together == "".join(part.text.encode("utf-8", "replace").decode() for part in parts)
    for one, following in pairwise(made):
        assert not fits([*one, following[0]], room)
