"""Numbers and untrusted text as people read them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.messages import DOLLAR
from centuria.views.words import clean, clean_text, counted, dollars, seconds, short

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\u202ereversed\r\n\ttab\x9b5m\ud800 [bold]x[/bold] <script>"


@given(st.text(st.characters(categories=None), max_size=300), st.integers(5, 100))
def test_cleaned_text_is_one_bounded_line_without_anything_that_steers_a_terminal(text: str, most: int) -> None:
    shown = clean(text, most)
    assert len(shown) <= most
    assert all(unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert "\n" not in shown


def test_cleaned_text_keeps_what_can_be_read_and_says_where_it_was_cut() -> None:
    assert clean(EVIL) == "]0;owned [2J [31mred reversed tab 5m [bold]x[/bold] <script>"
    assert clean("Zürich 東京 – ok") == "Zürich 東京 – ok"
    assert clean("x" * 100, 10) == "x" * 9 + "…"
    assert clean("x" + " " * 5000 + "y", 10).endswith("…")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (5 * DOLLAR, "$5.00"),
        (1234 * DOLLAR + DOLLAR // 2, "$1,234.50"),
        (DOLLAR - 1, "$1.00"),
        (DOLLAR // 8, "$0.125"),
        (DOLLAR // 1000, "$0.001000"),
        (1, "<$0.000001"),
        (-2 * DOLLAR, "-$2.00"),
    ],
)
def test_money_is_never_shown_as_nothing_when_it_is_something(amount: int, text: str) -> None:
    assert dollars(amount) == text


def test_times_and_counts_are_short() -> None:
    assert [seconds(value) for value in (None, 0.0, 0.42, 0.9996, 1.94, 9.96, 59.6, 185, 7440)] == [
        "–",
        "0 ms",
        "420 ms",
        "1.0 s",
        "1.9 s",
        "10 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 04 min",
    ]
    assert [short(number) for number in (0, 950, 999.9, 12_300, 999_960, 4_500_000, 250_000_000)] == [
        "0",
        "950",
        "1.0k",
        "12.3k",
        "1.0M",
        "4.5M",
        "250M",
    ]
    assert counted(1, "task") == "1 task"
    assert counted(1200, "task") == "1,200 tasks"


def test_a_text_of_many_lines_keeps_its_lines_and_nothing_that_steers_a_terminal() -> None:
    assert clean_text("a\n\tb\x1b[2J\u202e\u200b\r c\u00a0d") == "a\n\tb[2J c\u00a0d"
