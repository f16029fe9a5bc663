"""Requests and tokens by the minute and day: configured, or learned from headers and refusals."""

from __future__ import annotations

import pytest

from centuria.core.ratelimits import Stated
from centuria.core.rates import RateLimits
from centuria.errors import ModelUnavailable
from centuria.events import GateClosed, RateLimitsSeen
from tests.core.governing import NONE, TIER_0, Desk, too_many

# -- rates ------------------------------------------------------------------------------------------------------------


def test_tokens_are_charged_with_the_longest_answer_and_refunded_with_the_real_one() -> None:
    desk = Desk(most=1000, known=RateLimits(1000, None, 3_000_000))
    tickets = desk.fill(33_000)
    assert len(tickets) == 45  # half a minute's worth at once
    assert desk.wait(33_000) == pytest.approx((46 * 33_000 - 1_500_000) / 50_000)
    desk.succeed(*tickets, tokens=5_000)
    assert len(desk.fill(33_000)) >= 30


def test_requests_are_not_refunded() -> None:
    desk = Desk(most=100, known=RateLimits(100, 60))
    desk.succeed(*desk.fill())
    assert desk.admit() is None
    assert desk.wait() == pytest.approx(1.0)


def test_refused_requests_give_all_their_tokens_back_and_lost_ones_none() -> None:
    desk = Desk(most=10, known=RateLimits(10, None, 120_000))
    ticket = desk.admit(60_000)
    assert ticket is not None
    assert desk.wait(60_000) == pytest.approx(30.0)
    desk.refuse(ticket, ModelUnavailable("x", kind="connect", served=False))
    assert desk.wait(60_000) == 0
    lost = desk.admit(60_000)
    assert lost is not None
    desk.governor.abandoned(lost, now=desk.now)
    assert desk.wait(60_000) == pytest.approx(30.0)


def test_a_request_above_the_burst_goes_when_the_bucket_is_full() -> None:
    desk = Desk(most=10, known=RateLimits(10, None, 60_000))
    assert desk.admit(50_000) is not None
    assert desk.wait(50_000) == pytest.approx(50.0)
    desk.tick(50.0)
    assert desk.admit(10**9) is not None  # counts as a minute's worth: the upstream has to say no
    assert desk.wait(100) < 61


def test_a_spent_day_parks_what_would_have_to_wait_for_longer_than_a_call_may() -> None:
    desk = Desk(most=10, known=TIER_0)
    for _ in range(6):
        ticket = desk.admit(250_000)
        assert ticket is not None
        desk.keep(desk.governor.succeeded(ticket, 250_000, NONE, now=desk.now))
        desk.tick(60.0)
    denial = desk.governor.denial(250_000, desk.now)
    assert denial is not None and "1,500,000 tokens a day" in str(denial)


def test_headers_teach_limits_that_were_not_configured() -> None:
    desk = Desk(most=1000, known=RateLimits(1000))
    ticket = desk.admit()
    assert ticket is not None
    said = Stated(requests=60, requests_left=3, tokens=60_000, tokens_left=50_000)
    [seen, *_] = desk.keep(desk.governor.accepted(ticket, said, now=desk.now))
    assert isinstance(seen, RateLimitsSeen) and (seen.requests, seen.tokens) == (60, 60_000)
    assert len(desk.fill()) == 3


def test_headers_never_raise_what_was_configured() -> None:
    desk = Desk(most=1000, known=RateLimits(1000, 60))
    ticket = desk.admit()
    assert ticket is not None
    desk.keep(desk.governor.accepted(ticket, Stated(requests=100_000, requests_left=99_999), now=desk.now))
    assert len(desk.fill()) == 29


def test_headers_that_say_nothing_new_are_no_events() -> None:
    desk = Desk(most=1000, known=RateLimits(1000, 600))
    tickets = desk.fill()[:3]
    said = Stated(requests=600, requests_left=500)
    assert all(desk.governor.accepted(ticket, said, now=desk.now) == [] for ticket in tickets)


def test_a_window_of_which_nothing_is_left_is_waited_out() -> None:
    desk = Desk(most=100, known=RateLimits(100))
    ticket = desk.admit()
    assert ticket is not None
    desk.keep(desk.governor.accepted(ticket, Stated(window_left=2, reset=7.0), now=desk.now))
    assert len(desk.fill()) == 2
    assert desk.wait() == 7.0
    desk.tick(7.0)
    assert desk.admit() is not None


def test_a_header_that_always_says_nothing_is_left_slows_and_never_stalls() -> None:
    desk = Desk(most=100, known=RateLimits(100))
    waits = []
    for _ in range(12):
        ticket = desk.admit()
        assert ticket is not None
        desk.keep(desk.governor.succeeded(ticket, None, Stated(window_left=0, reset=1e9), now=desk.now))
        waits.append(desk.wait())
        desk.tick(waits[-1])
    assert waits[0] == 60.0
    assert waits[-1] == 1.0
    assert waits == sorted(waits, reverse=True)


def test_moonshots_words_teach_the_rate_that_its_retry_after_hides() -> None:
    """Tier 0 answers "max RPM: 3, please try again after 1 seconds": a second later it would refuse again."""
    desk = Desk()
    first, *others = desk.fill()
    desk.succeed(*others)
    desk.refuse(first, too_many("request reached organization max RPM: 3, please try again after 1 seconds", None))
    desk.tick(1.0)
    assert desk.admit() is None
    assert 18 < desk.wait() <= 20
    assert desk.of(GateClosed)[0].paced is False


def test_a_limit_that_is_known_already_and_refused_all_the_same_is_paced() -> None:
    desk = Desk(most=10, known=RateLimits(10, 600))
    desk.refuse(desk.fill()[0], too_many("max RPM: 600"))
    assert desk.of(GateClosed)[0].paced is True
