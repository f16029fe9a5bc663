"""When to try again: only what can succeed, never in lockstep, never against `Retry-After`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.retry import RetryPolicy, parse_retry_after
from centuria.errors import (
    CenturiaError,
    ContextTooLong,
    ModelDenied,
    ModelRefused,
    ModelUnavailable,
    OutcomeUnknown,
    ToolUnavailable,
)

POLICY = RetryPolicy()
NOW = datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC).timestamp()


def test_the_waits_are_one_two_and_four_seconds_and_then_it_stops() -> None:
    error = ModelUnavailable("down")
    assert [POLICY.delay(failures, error, 0.0) for failures in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, None]


@pytest.mark.parametrize("kind", [ModelRefused, ContextTooLong, ModelDenied, OutcomeUnknown, CenturiaError])
def test_what_can_never_succeed_is_not_tried_again(kind: type[CenturiaError]) -> None:
    assert POLICY.delay(1, kind("no"), 0.0) is None


@given(st.integers(1, 3), st.floats(0, 1, exclude_max=True))
def test_jitter_only_ever_adds_a_quarter_at_most(failures: int, dice: float) -> None:
    least = POLICY.delays[failures - 1]
    wait = POLICY.delay(failures, ModelUnavailable("down"), dice)
    assert wait is not None
    assert least <= wait <= least * 1.25


def test_two_that_were_told_the_same_do_not_come_back_at_the_same_moment() -> None:
    error = ModelUnavailable("busy", retry_after=20.0)
    early, late = POLICY.delay(1, error, 0.0), POLICY.delay(1, error, 0.9)
    assert early == 20.0
    assert late is not None
    assert 20.0 < late <= 20.25


def test_retry_after_is_a_least_wait_and_one_above_the_longest_means_stop() -> None:
    assert POLICY.delay(3, ToolUnavailable("down", retry_after=1.0), 0.0) == 4.0
    assert POLICY.delay(3, ToolUnavailable("down", retry_after=300.0), 0.9) == 300.0
    assert POLICY.delay(1, ToolUnavailable("down", retry_after=300.1), 0.0) is None


@given(
    st.integers(-5, 10),
    st.none() | st.floats(),
    st.floats(),
    st.lists(st.floats(0, 1000), max_size=4).map(tuple),
)
def test_a_wait_is_never_negative_nor_endless_whatever_is_passed(
    failures: int, retry_after: float | None, dice: float, delays: tuple[float, ...]
) -> None:
    wait = RetryPolicy(delays).delay(failures, ModelUnavailable("x", retry_after=retry_after), dice)
    assert wait is None or 0 <= wait <= 300
    if wait is not None and retry_after is not None and math.isfinite(retry_after):
        assert wait >= retry_after


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"RETRY-AFTER": "0"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 7.0),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:37 GMT"}, 7.0),
        ({"retry-after": "Sun Nov  6 08:49:37 1994"}, 7.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0.0),
        ({"retry-after": "9" * 30}, 1e9),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "Sun, 31 Feb 1994 08:49:37 GMT"}, None),
        ({"retry-after": "Sun, 06 Foo 1994 08:49:37 GMT"}, None),
        ({"retry-after": "06 Nov 1994"}, None),
    ],
)
def test_retry_after_is_read_in_every_legal_form_and_rubbish_is_none(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert parse_retry_after(headers, NOW) == seconds


def test_a_two_digit_year_is_the_one_that_is_not_more_than_fifty_years_ahead() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    year = datetime(2027, 1, 1, tzinfo=UTC).timestamp() - now
    assert parse_retry_after({"retry-after": "Friday, 01-Jan-27 00:00:00 GMT"}, now) == year
    assert parse_retry_after({"retry-after": "Friday, 01-Jan-94 00:00:00 GMT"}, now) == 0.0


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.floats(0, 4e9))
def test_any_http_date_is_read(when: datetime, now: float) -> None:
    when = when.replace(microsecond=0, tzinfo=UTC)
    least = max(0.0, when.timestamp() - now)
    assert parse_retry_after({"retry-after": format_datetime(when, usegmt=True)}, now) == min(least, 1e9)


@given(st.dictionaries(st.sampled_from(["retry-after", "Retry-After-Ms"]), st.text(max_size=40)), st.floats())
def test_reading_never_raises_and_never_gives_a_negative_wait(headers: dict[str, str], now: float) -> None:
    wait = parse_retry_after(headers, now)
    assert wait is None or 0 <= wait <= 1e9
