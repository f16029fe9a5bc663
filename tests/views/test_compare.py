"""The views of a comparison: whole, self-contained, and deaf to whatever labels, causes and models may be called."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from centuria.core.comparison import Agreement, Answers, Candidate, Proportion, Row, Table, row_of
from centuria.core.progress import Progress
from centuria.views.board import board_lines
from centuria.views.compare import as_csv, as_html, as_json, as_markdown, as_text, f1, outcomes, share
from centuria.views.words import clean
from tests.views.stories import Story, fold
from tests.views.test_report import Page

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "a | b \\ `c` *d* <e> [f](g)",
    "two\nlines\r\nand a\ttab",
    "\u202egnp.exe\u2066",
    'quotes " and , commas',
    "x" * 500,
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "{{DATA}}{{STYLE}}",
]


def row(label: str = "one", **more: object) -> Row:
    candidate = Candidate(label, "run-1", "run-1", "custom", "m", "http://127.0.0.1/v1")
    return replace(row_of(candidate, Progress(), Answers()), **more)  # type: ignore[arg-type]


def table(*rows: Row, name: str = "job") -> Table:
    return Table(name, rows[0].candidate.label if rows else "", 10**12, rows)


def test_a_share_is_told_with_its_numbers_and_interval() -> None:
    assert share(Proportion(19, 20)) == "95.0 % (19 of 20) [76.4–99.1]"
    assert share(Proportion()) == "–"


def test_f1_is_told_with_how_many_conversations_it_is_of() -> None:
    assert f1(Agreement(tp=10, fp=1, tn=9)) == "0.952 (n = 20)"
    assert f1(Agreement(tn=3)) == "– (n = 3)" and f1(Agreement()) == "– (n = 0)"


def test_outcomes_add_up() -> None:
    assert outcomes(row(census={"ok": 3, "timeout": 1}, unfinished=2)) == "3 ok, 1 timeout, 2 unfinished of 6"
    assert outcomes(row()) == "–"


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_model_is_called_steers_a_terminal_or_breaks_a_table(text: str) -> None:
    found = table(row(text, cause=text), row("two"), name=text)
    for line in as_text(found).splitlines():
        assert all(char.isprintable() for char in line)
    lines = [line for line in as_markdown(found).splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert next(csv.DictReader(io.StringIO(as_csv(found), newline="")))["label"] == text
    assert json.loads(json.dumps(as_json(found)))["models"][0]["cause"] == text


@pytest.mark.parametrize("text", HOSTILE)
def test_the_page_is_whole_and_fetches_nothing_whatever_it_holds(text: str) -> None:
    html = as_html(table(row(text, cause=text), row("two"), name=text))
    page = Page(html)
    assert len(page.scripts) == 2 and page.scripts[0][0]["type"] == "application/json"
    data = json.loads(page.scripts[0][1])
    assert data["models"][0]["label"] == clean(text, 40)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?https?:|@import|url\(""", html)
    assert "default-src 'none'" in html and "prefers-color-scheme: dark" in html and "--paper" in html


def test_a_comparison_of_nothing_is_still_a_page_and_a_table() -> None:
    for made in (as_text, as_markdown, as_csv, as_html):
        assert made(table())


def test_the_board_has_a_line_for_each_run_whatever_it_does() -> None:
    halfway = fold(Story().tell(), 0.5)
    lines = board_lines({"a": None, "bb\x1b[2J": halfway, "c": fold(Story().tell())}, now=halfway.at)
    assert lines[0].startswith("a") and lines[0].endswith("waiting")
    assert "running" in lines[1] and "\x1b" not in lines[1]
    assert "partial: 9" in lines[2] and "of 100" in lines[2]
