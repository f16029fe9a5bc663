"""Rows: CSV, JSON Lines, JSON and lists; choosing among them; every malformed file refused by line."""

from __future__ import annotations

import csv
import io
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.config import Choice, read_rows, rows_from
from centuria.config.rows import MOST_ROWS, choose
from centuria.errors import JobError


def read(folder: Path, name: str, content: str | bytes) -> Any:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_rows(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "Name,Note\r\nApple,x\r\n"),
        ("a.csv", b"\xef\xbb\xbfName,Note\nApple,x\n"),
        ("a.csv", "\n\nName , Note\nApple,x\n\n"),
        ("a.csv", '"Name","Note"\n"Apple","x"'),
        ("a.csv", "Name;Note\nApple;x\n"),
        ("a.tsv", "Name\tNote\nApple\tx\n"),
        ("a.jsonl", '{"Name": "Apple", "Note": "x"}\n\n'),
        ("a.json", '[{"Name": "Apple", "Note": "x"}]'),
    ],
)
def test_the_same_rows_come_from_every_format(tmp_path: Path, name: str, content: str | bytes) -> None:
    table = read(tmp_path, name, content)
    assert table.columns == ("Name", "Note")
    assert table.rows == ({"Name": "Apple", "Note": "x"},)


def test_quoted_line_breaks_commas_and_quotes_stay_in_their_cell(tmp_path: Path) -> None:
    table = read(tmp_path, "a.csv", 'Name,Note\n"A, ""B""","one\ntwo"\nC,d\n')
    assert table.rows[0] == {"Name": 'A, "B"', "Note": "one\ntwo"}
    assert table.places == ("line 3", "line 4")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "", "a.csv is empty."),
        ("a.csv", "\n \n", "a.csv is empty."),
        ("a.csv", "Name,Note\n", "a.csv has a header but no rows."),
        ("a.csv", "Name,Name\na,b\n", "a.csv: two columns are called `Name`."),
        ("a.csv", "Name,\na,b\n", "a.csv: column 2 has no name."),
        ("a.csv", "Name,Note\na,b\nc\n", "a.csv has 1 cells in line 3, but 2 columns."),
        ("a.csv", "Name,Note\na,b,c\n", "a.csv has 3 cells in line 2, but 2 columns."),
        ("a.csv", 'Name,Note\n"a,b\n', "a.csv cannot be read at line 2: unexpected end of data."),
        ("a.csv", 'Name,Note\n"a"x,b\n', "a.csv cannot be read at line 2: "),
        ("a.csv", "Name\n" + "x" * 200_000, "a.csv cannot be read at line 2: field larger"),
        ("a.csv", b"Name\ncaf\xe9\n", "The file of rows a.csv is not UTF-8: line 2 holds the byte 0xe9."),
        ("a.csv", "Name\nx\n".encode("utf-16"), "The file of rows a.csv is UTF-16, not UTF-8."),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl, line 2, is not JSON: "),
        ("a.jsonl", '{"a": 1}\n[1]\n', "a.jsonl, line 2, is not an object."),
        ("a.jsonl", '{"a": NaN}\n', "a.jsonl, line 1, is not JSON: NaN is not a JSON value."),
        ("a.jsonl", '{"a": 1e999}\n', "a.jsonl, line 1, is not JSON: 1e999 is too large for a number."),
        ("a.jsonl", '{"a": "\\ud800"}\n', "a.jsonl, line 1, holds text that is not valid Unicode"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1, is nested too deeply."),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", "a.jsonl, line 1, is not JSON: "),
        ("a.jsonl", "\n", "a.jsonl is empty."),
        ("a.jsonl", "{}\n{}\n", "a.jsonl has no columns."),
        ("a.json", '{"a": 1}', "a.json is not a list of objects."),
        ("a.json", "[1]", "a.json, item 1, is not an object."),
    ],
)
def test_a_malformed_file_of_rows_is_refused_by_line(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    with pytest.raises(JobError) as caught:
        read(tmp_path, name, content)
    assert sentence in caught.value.message
    assert caught.value.remedy


def test_objects_with_different_keys_get_the_same_columns(tmp_path: Path) -> None:
    table = read(tmp_path, "a.jsonl", '{"a": 1, "b": null}\n{"c": [1, {"d": 2}]}\n')
    assert table.columns == ("a", "b", "c")
    assert table.rows == ({"a": 1, "b": "", "c": ""}, {"a": "", "b": "", "c": [1, {"d": 2}]})


def test_a_row_without_a_required_value_is_left_out_with_its_reason() -> None:
    table = rows_from([{"Cap": "3", "N": "a"}, {"Cap": " ", "N": "b"}, {"Cap": None, "N": ""}])
    chosen = choose(table, Choice(require=("Cap", "N")))
    assert chosen.rows == (0,)
    assert chosen.left_out == ((1, "no Cap"), (2, "no Cap, no N"))


def test_rows_are_ordered_as_numbers_only_if_all_are_numbers_and_empty_ones_come_last() -> None:
    caps = rows_from([{"Cap": cap} for cap in ("9", "", "10", "1e3", "9")])
    assert choose(caps, Choice(order_by="-Cap")).rows == (3, 2, 0, 4, 1)
    assert choose(caps, Choice(order_by="Cap")).rows == (0, 4, 2, 3, 1)
    words = rows_from([{"Cap": cap} for cap in ("9", "b", "10")])
    assert choose(words, Choice(order_by="Cap")).rows == (2, 0, 1)


def test_where_picks_rows_without_counting_the_others_as_left_out() -> None:
    table = rows_from([{"S": "Banks", "n": 1}, {"S": "Oil", "n": 2}, {"S": "Gas", "n": 2}])
    assert choose(table, Choice(where={"S": ("Oil", "Gas")})).rows == (1, 2)
    assert choose(table, Choice(where={"n": (2,), "S": ("Gas",)})).rows == (2,)
    assert choose(table, Choice(where={"n": ("1",)})).left_out == ()


def test_the_limit_is_taken_after_the_order() -> None:
    table = rows_from([{"n": n} for n in range(20)])
    assert choose(table, Choice(order_by="-n", limit=3)).rows == (19, 18, 17)


@pytest.mark.parametrize("choice", [Choice(require=("Nme",)), Choice(where={"Nme": ("x",)}), Choice(order_by="-Nme")])
def test_a_choice_by_a_column_that_is_not_there_names_the_nearest(choice: Choice) -> None:
    with pytest.raises(JobError) as caught:
        choose(rows_from([{"Name": "a"}]), choice)
    assert caught.value.remedy == "Did you mean `Name`?"


def test_a_choice_that_leaves_no_row_is_refused() -> None:
    table = rows_from([{"Name": ""}])
    with pytest.raises(JobError, match="leaves no row: all 1 that were chosen lack a required value"):
        choose(table, Choice(require=("Name",)))
    with pytest.raises(JobError, match="leaves no row: `where` matches none"):
        choose(table, Choice(where={"Name": ("x",)}))


def test_ten_thousand_rows_are_a_job_and_one_more_is_not() -> None:
    table = rows_from([{"n": n} for n in range(MOST_ROWS + 1)])
    with pytest.raises(JobError, match="gives 10,001 rows; a job has at most 10,000"):
        choose(table, Choice())
    assert len(choose(table, Choice(limit=MOST_ROWS)).rows) == 10_000


@pytest.mark.parametrize("row", [{"d": date(2026, 1, 1)}, {"x": float("nan")}, {"s": {1, 2}}, {1: "a"}, "text"])
def test_a_row_that_is_not_plain_data_is_refused_by_number(row: Any) -> None:
    with pytest.raises(JobError, match="Row 2") as caught:
        rows_from([{"a": "b"}, row])
    assert caught.value.remedy


@given(
    cells=st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=3, max_size=3), min_size=1
    )
)
@settings(max_examples=60, deadline=None)
def test_what_a_csv_writer_wrote_is_read_back_cell_by_cell(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[str]]
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["a", "b", "c"], *cells])
    table = read(tmp_path_factory.mktemp("csv"), "a.csv", text.getvalue())
    assert [list(row.values()) for row in table.rows] == cells
