"""The gate, the pace with which it opens, and the breaker."""

from __future__ import annotations

import math

import pytest

from centuria.core.rates import RateLimits
from centuria.errors import ModelDenied, ModelUnavailable
from centuria.events import BreakerClosed, BreakerOpened, GateClosed, GateOpened
from tests.core.governing import MODEL, Desk, quota, too_many

# -- the gate ---------------------------------------------------------------------------------------------------------


def test_a_refusal_closes_the_gate_for_everyone_until_retry_after() -> None:
    desk = Desk()
    first, *_ = desk.fill()
    desk.refuse(first, too_many(retry_after=3.0))
    assert desk.admit() is None
    assert desk.wait() == 3.0
    desk.tick(2.999)
    assert desk.admit() is None
    desk.tick(0.001)
    for ticket in range(2, 6):
        desk.succeed(ticket)
    assert desk.admit() is not None


@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999, math.nan, -3.0, 7.0])
def test_jitter_only_ever_adds(dice: float) -> None:
    desk = Desk()
    desk.refuse(desk.fill()[0], too_many(retry_after=10.0), dice=dice)
    [closed] = desk.of(GateClosed)
    assert 10.0 <= closed.until <= 11.0


@pytest.mark.parametrize("retry_after", [0.0, -5.0, 1e-9, 1e300, math.inf])
def test_no_retry_after_breaks_it(retry_after: float) -> None:
    desk = Desk()
    desk.refuse(desk.fill()[0], too_many(retry_after=retry_after))
    [closed] = desk.of(GateClosed)
    assert 0 <= closed.until <= 86_400


def test_a_retry_after_that_does_not_help_is_followed_by_longer_waits() -> None:
    desk = Desk()
    waits = []
    for _ in range(12):
        desk.refuse(desk.next(), too_many(retry_after=0.0))
        waits.append(desk.of(GateClosed)[-1].until - desk.now)
    assert [round(wait, 6) for wait in waits[:6]] == [0, 0.5, 1, 2, 4, 8]
    assert waits == sorted(waits) and 15 <= max(waits) <= 60


def test_the_backoff_begins_anew_when_a_request_was_accepted() -> None:
    desk = Desk()
    waits = []
    for _ in range(4):
        desk.refuse(desk.next(), too_many(retry_after=None))
        waits.append(desk.of(GateClosed)[-1].until - desk.now)
    ticket = desk.next()
    desk.accept(ticket)
    desk.succeed(ticket)
    desk.refuse(desk.next(), too_many(retry_after=None))
    waits.append(desk.of(GateClosed)[-1].until - desk.now)
    assert [round(wait, 6) for wait in waits] == [1, 2, 4, 8, 1]


def test_a_later_refusal_of_the_burst_only_keeps_the_gate_closed_for_longer() -> None:
    desk = Desk()
    one, two, three, *_ = desk.fill()
    desk.refuse(one, too_many(retry_after=2.0))
    desk.refuse(two, too_many(retry_after=1.0))
    assert desk.wait() == 2.0
    desk.refuse(three, too_many(retry_after=9.0))
    assert desk.wait() == 9.0


def test_the_gate_opens_with_one_request_then_doubles_with_each_answer() -> None:
    desk = Desk(most=40, known=RateLimits(concurrency=40))
    first, *others = desk.fill()
    desk.refuse(first, too_many("concurrency", retry_after=1.0))
    desk.succeed(*others)
    desk.tick(1.0)
    sizes = []
    while sum(sizes) < 20:
        tickets = desk.fill()
        sizes.append(len(tickets))
        desk.tick(0.1)
        desk.accept(*tickets)
    assert sizes[:4] == [1, 2, 4, 8]


def test_an_answer_that_is_slow_to_begin_does_not_hold_up_the_opening() -> None:
    desk = Desk(most=40, known=RateLimits(concurrency=40))
    first, *others = desk.fill()
    desk.refuse(first, too_many("concurrency"))
    desk.succeed(*others)
    desk.tick(1.0)
    assert len(desk.fill()) == 1
    assert desk.wait() == 1.0
    desk.tick(1.0)
    assert len(desk.fill()) == 2


def test_what_asks_for_longer_than_a_call_may_wait_is_parked_with_its_reason() -> None:
    desk = Desk()
    desk.refuse(desk.fill()[0], too_many(retry_after=3600.0))
    denial = desk.governor.denial(100, desk.now)
    assert denial is not None
    assert (denial.kind, denial.retryable, denial.retry_after) == ("parked", False, 3600.0)
    assert "3,600 s" in str(denial) and "429" in str(denial) and "Resume" in denial.remedy
    desk.tick(3301)
    assert desk.governor.denial(100, desk.now) is None


# -- the pace ---------------------------------------------------------------------------------------------------------


def test_the_pace_is_the_rate_that_worked_where_no_limit_explains_the_refusal() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=100))
    tickets = desk.fill()
    for ticket in tickets[20:]:
        desk.refuse(ticket)
    desk.succeed(*tickets[:20])
    desk.tick(1.0)
    desk.admit()
    [opened] = desk.of(GateOpened)
    assert opened.pace == pytest.approx(0.85 * 20)


def test_a_lull_before_the_refusal_is_not_taken_for_the_rate() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=100))
    desk.succeed(*desk.fill())
    desk.tick(8.0)
    ticket = desk.admit()
    assert ticket is not None
    desk.refuse(ticket)
    desk.tick(1.0)
    desk.admit()
    assert desk.of(GateOpened)[-1].pace == pytest.approx(0.85 * 10)


def test_requests_that_wait_for_the_pace_raise_it_and_others_do_not() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=100))
    tickets = desk.fill()
    for ticket in tickets[10:]:
        desk.refuse(ticket)
    desk.succeed(*tickets[:10])
    desk.tick(1.0)
    pace = desk.governor._gate
    for _ in range(3):
        desk.succeed(desk.admit() or 0)
        desk.tick(5.0)
    assert pace.pace is not None
    idle = pace.pace.limit
    for _ in range(100):
        while (ticket := desk.admit()) is None:
            desk.tick(desk.wait())
        desk.succeed(ticket)
    assert idle <= 0.85 * 10 + 0.2
    assert pace.pace.limit > idle + 5


# -- the breaker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 402, 429])
def test_a_denial_ends_all_sending_at_once(status: int) -> None:
    desk = Desk()
    first, *_ = desk.fill()
    desk.refuse(first, ModelDenied("Denied.", status=status, remedy="Top it up."))
    desk.tick(1e9)
    denial = desk.governor.denial(100, desk.now)
    assert denial is not None and str(denial) == "Denied. Top it up." and not denial.retryable
    assert desk.admit() is None
    assert desk.of(BreakerOpened) == [BreakerOpened(MODEL, 0.0, "Denied. Top it up.", None)]


def test_one_probe_goes_after_the_time_that_was_stated() -> None:
    desk = Desk()
    first, *others = desk.fill()
    desk.succeed(*others)
    desk.refuse(first, quota(60.0))
    desk.tick(59.9)
    assert desk.admit() is None
    desk.tick(0.1)
    probe = desk.admit()
    assert probe is not None
    assert desk.admit() is None and desk.governor.denial(1, desk.now) is not None
    desk.succeed(probe)
    assert len(desk.of(BreakerClosed)) == 1
    assert desk.admit() is not None and desk.governor.denial(1, desk.now) is None


def test_a_probe_that_is_denied_opens_the_breaker_for_good() -> None:
    desk = Desk()
    desk.refuse(desk.fill()[0], quota(60.0))
    for ticket in range(2, 6):
        desk.succeed(ticket)
    desk.tick(60.0)
    desk.refuse(desk.admit() or 0, quota())
    desk.tick(1e9)
    assert desk.admit() is None


def test_a_probe_that_was_lost_may_be_sent_again() -> None:
    desk = Desk()
    first, *others = desk.fill()
    desk.succeed(*others)
    desk.refuse(first, quota(60.0))
    desk.tick(60.0)
    desk.refuse(desk.admit() or 0, ModelUnavailable("x", kind="connect", served=False))
    assert desk.admit() is not None


def test_a_probe_that_meets_a_rate_limit_closes_the_breaker() -> None:
    desk = Desk()
    first, *others = desk.fill()
    desk.succeed(*others)
    desk.refuse(first, quota(60.0))
    desk.tick(60.0)
    desk.refuse(desk.admit() or 0, too_many())
    assert len(desk.of(BreakerClosed)) == 1 and desk.wait() == 1.0
