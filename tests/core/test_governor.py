"""How many at once, what an error says of all others, and what a resumed run goes on with."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from centuria.core.aimd import STEP
from centuria.core.governor import Governor
from centuria.core.rates import RateLimits
from centuria.core.refusals import verdict
from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.events import GateClosed, GateOpened, LimitSet, RequestRefused, RunResumed, fold
from tests.core.governing import MODEL, TIER_2, Desk, quota, too_many

# -- concurrency ------------------------------------------------------------------------------------------------------


def test_it_starts_at_the_tiers_concurrency_and_says_why() -> None:
    desk = Desk(most=400, known=TIER_2)
    assert desk.of(LimitSet) == [LimitSet("model:kimi-k2.5", 100, "the account's concurrency is 100")]


def test_a_configured_maximum_holds_over_the_tier() -> None:
    desk = Desk(most=7, known=TIER_2)
    assert desk.of(LimitSet) == [LimitSet("model:kimi-k2.5", 7, "limits.concurrency = 7")]
    assert len(desk.fill()) == 7


def test_an_unknown_limit_starts_at_five_and_doubles_for_each_window_of_answers() -> None:
    desk = Desk(most=60)
    limits = [desk.governor.concurrency]
    while desk.governor.concurrency < 60:
        tickets = desk.wave()
        assert len(tickets) == desk.governor.concurrency
        desk.succeed(*tickets)
        limits.append(desk.governor.concurrency)
    assert limits == [5, 10, 20, 40, 60]


def test_while_it_doubles_a_window_that_is_being_answered_is_enough() -> None:
    desk = Desk(most=100)
    limits = [desk.governor.concurrency]
    while desk.governor.concurrency < 100:
        desk.accept(*desk.wave())
        limits.append(desk.governor.concurrency)
    assert limits == [5, 10, 20, 40, 60, 80, 100]
    assert max(after - before for before, after in pairwise(limits)) <= STEP


def test_a_limit_that_was_never_used_up_is_not_raised() -> None:
    desk = Desk()
    for _ in range(50):
        desk.succeed(desk.next())
        desk.tick(0.1)
    assert desk.governor.concurrency == 5


def test_answers_of_a_lull_are_no_part_of_the_window_that_follows() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=8))
    for _ in range(20):
        desk.succeed(desk.next())
    first, *others = desk.fill()
    desk.succeed(first)
    assert desk.governor.concurrency == 8
    desk.succeed(*others)
    assert desk.governor.concurrency == 9


def test_answers_that_are_too_quick_to_be_many_at_once_raise_it_too() -> None:
    desk = Desk()
    while desk.governor.concurrency < 100 and desk.now < 10:
        desk.succeed(desk.next())
    assert desk.governor.concurrency == 100 and desk.now < 3


def test_while_it_doubles_a_wave_is_spread_so_that_few_of_it_meet_the_first_refusal() -> None:
    desk = Desk(most=100)
    while desk.governor.concurrency < 40:
        desk.succeed(*desk.wave())
    began = desk.now
    sent = desk.fill()
    assert len(sent) <= 5
    desk.tick(0.05)
    sent += desk.fill()
    assert len(sent) <= 5 + 0.05 * 4 * 40, "what a refusal after 50 ms finds in flight"
    sent += desk.wave()
    assert len(sent) == 40 and desk.now - began < 0.3, "about a quarter of a second for the whole wave"


def test_a_limit_that_is_stated_is_not_spread() -> None:
    assert len(Desk(most=100, known=TIER_2).fill()) == 100


def test_a_refusal_halves_it_once_for_the_whole_burst() -> None:
    desk = Desk(most=40, known=RateLimits(concurrency=40))
    tickets = desk.fill()
    for ticket in tickets[:30]:
        desk.refuse(ticket)
    assert [fact.limit for fact in desk.of(LimitSet)] == [40, 20]
    assert len([fact for fact in desk.of(GateClosed) if fact.congestion]) == 1
    desk.tick(1.5)
    desk.refuse(tickets[31])  # late, but of the same burst
    assert desk.governor.concurrency == 20


def test_answers_to_what_was_sent_before_the_refusal_do_not_raise_the_new_limit() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=8))
    first, *others = desk.fill()
    desk.refuse(first, too_many("concurrency"))
    desk.tick(1.1)
    desk.succeed(*others[:4])
    new = desk.admit()
    assert new is not None and desk.governor.in_flight() == 4  # the limit is used up again
    desk.succeed(*others[4:])
    desk.succeed(new)
    assert desk.governor.concurrency == 4


def test_a_second_burst_halves_it_again_and_never_below_one() -> None:
    desk = Desk(most=4, known=RateLimits(concurrency=4))
    for expected in (2, 1, 1):
        ticket = desk.admit()
        assert ticket is not None
        desk.refuse(ticket)
        assert desk.governor.concurrency == expected
        desk.tick(60)


def test_after_the_first_refusal_it_rises_by_one_a_window() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=8))
    desk.refuse(desk.fill()[0])
    for ticket in range(2, 9):
        desk.succeed(ticket)
    desk.tick(1.1)
    limits = []
    for _ in range(400):
        ticket = desk.admit()
        if ticket is None:
            desk.tick(max(desk.wait(), 0.01) if math.isfinite(desk.wait()) else 0.01)
            flying = sorted(desk.governor._sent)
            desk.accept(*flying)
            if len(flying) >= desk.governor.concurrency:
                desk.succeed(*flying)
                limits.append(desk.governor.concurrency)
    assert limits == sorted(limits)
    assert limits[0] in (4, 5)
    assert all(after - before <= 1 for before, after in pairwise(limits))
    assert limits[-1] > 8


def test_a_concurrency_that_a_refusal_states_is_obeyed_and_never_passed_again() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=100))
    tickets = desk.fill()
    desk.refuse(
        tickets[0], too_many("request reached max organization concurrency: 30, please try again after 1 seconds")
    )
    assert desk.governor.concurrency == 30
    assert "30" in desk.of(LimitSet)[-1].reason
    for ticket in tickets[1:]:
        desk.succeed(ticket)
    desk.tick(2)
    for _ in range(300):
        desk.succeed(*desk.fill())
        desk.tick(1.0)
    assert desk.governor.concurrency == 30


def test_an_overload_lowers_it_too_and_opens_again_with_one_request() -> None:
    desk = Desk(most=40, known=RateLimits(concurrency=40))
    tickets = desk.fill()
    for ticket in tickets:
        error = ModelUnavailable("x", status=429, kind="engine_overloaded_error", served=False)
        assert verdict(error) == "overloaded"
        desk.refuse(ticket, error)
    assert desk.governor.concurrency == 20
    assert desk.wait() == 1.0, "it spends no retry, so it waits here"
    desk.tick(1.0)
    assert len(desk.fill()) == 1


def test_an_overload_that_spends_a_retry_waits_for_nothing_else() -> None:
    desk = Desk(most=40, known=RateLimits(concurrency=40))
    first, *others = desk.fill()
    desk.refuse(first, ModelUnavailable("x", status=503, kind="server_unavailable"))
    assert desk.governor.concurrency == 20
    assert desk.wait() == math.inf, "for nothing but those in flight"
    desk.succeed(*others)
    assert desk.admit() is not None


# -- verdicts, replay -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (too_many(), "limited"),
        (ModelUnavailable("x", status=429, served=True), "overloaded"),  # inside an answer: it may have cost something
        (ModelUnavailable("x", status=503), "overloaded"),
        (ModelUnavailable("x", status=529), "overloaded"),
        (ModelUnavailable("x", status=500, kind="overloaded_error"), "overloaded"),
        (ModelUnavailable("x", status=500), "failed"),
        (ModelUnavailable("x", kind="first_token"), "failed"),
        (ModelRefused("x", status=400), "failed"),
        (ContextTooLong("x", status=400), "failed"),
        (ModelDenied("x", status=401), "denied"),
        (ModelDenied("x", status=403), "denied"),
        (quota(), "denied"),
        (ModelDenied("HTTP 403. Your input was flagged by moderation.", status=403), "failed"),
        (ModelDenied("The prompt was flagged.", status=401), "denied"),
    ],
)
def test_what_an_error_says_of_all_others(error: ModelError, expected: str) -> None:
    assert verdict(error) == expected


def test_ends_are_told_once() -> None:
    desk = Desk()
    ticket = desk.admit()
    assert ticket is not None
    desk.succeed(ticket)
    assert desk.succeed(ticket) == [] and desk.refuse(ticket) == []
    desk.governor.abandoned(ticket, now=0.0)
    assert desk.governor.in_flight() == 0
    with pytest.raises(ValueError, match="admitted already"):
        desk.governor.admit(desk.admit() or 0, 1, now=0.0)


def test_in_calm_a_request_is_no_fact_and_a_refusal_is_one() -> None:
    desk = Desk(most=10, known=RateLimits(10, 500, 3_000_000))
    ticket = desk.admit()
    assert ticket is not None
    desk.accept(ticket)
    desk.succeed(ticket)
    assert desk.facts[1:] == []
    desk.refuse(desk.admit() or 0)
    assert desk.of(RequestRefused) == [RequestRefused(MODEL, "limited", 0.0)]


def test_a_resumed_run_goes_on_with_what_was_learned_on_its_own_clock() -> None:
    desk = Desk(most=100)
    desk.now = 1e6
    desk.accept(*desk.wave())
    desk.refuse(desk.wave()[0], too_many("request reached organization max RPM: 60", 30.0))
    again = Governor(MODEL, most=100)
    fold(again, [*desk.facts, RunResumed(0, 0, 0, None)])
    facts = again.begin(now=2.0)
    assert desk.governor.concurrency == 5, "ten, halved"
    assert facts == [LimitSet("model:kimi-k2.5", 5, "learned before the run was resumed"), GateOpened(MODEL, 2.0, None)]
    assert again.in_flight() == 0
    assert again.delay(1, 2.0) is not None  # the minute's requests were spent
    assert again.delay(1, 3.001) is None


def test_a_resumed_run_keeps_to_its_new_limits() -> None:
    calm, hurt = Desk(most=100, known=RateLimits(concurrency=100)), Desk(most=100, known=RateLimits(concurrency=100))
    calm.succeed(*calm.fill())
    hurt.refuse(hurt.fill()[0], too_many())
    for desk, most, limit in ((calm, 7, 7), (calm, 500, 500), (hurt, 7, 7), (hurt, 500, 50)):
        again = Governor(MODEL, most=most, known=RateLimits(concurrency=most))
        fold(again, [*desk.facts, RunResumed(0, 0, 0, None)])
        assert again.concurrency == limit


def test_a_pace_goes_on_after_a_resume_on_the_new_clock() -> None:
    desk = Desk(most=100, known=RateLimits(concurrency=100))
    desk.now = 1e6
    tickets = desk.fill()
    for ticket in tickets[10:]:
        desk.refuse(ticket)
    desk.succeed(*tickets[:10])
    desk.succeed(desk.next())
    again = Desk(most=100, known=RateLimits(concurrency=100))
    again.governor = Governor(MODEL, most=100, known=RateLimits(concurrency=100))
    fold(again.governor, [*desk.facts, RunResumed(0, 0, 0, None)])
    again.keep(again.governor.begin(now=3.0))
    again.now = 3.0
    for _ in range(20):
        again.succeed(again.next())
    assert 4.5 < again.now < 3.0 + 20 / 8


def test_a_restart_forgets_exactly_what_no_fact_tells() -> None:
    """The journal of a run that learned all there is to learn, folded and restarted, is the live one, restarted."""
    limits = RateLimits(concurrency=100, tokens=600_000)
    desk = Desk(most=100, known=limits)
    tickets = desk.fill()
    for ticket in tickets[10:]:
        desk.refuse(ticket)
    desk.succeed(*tickets[:10])
    for _ in range(5):  # at the pace, which grows
        desk.succeed(desk.next(), tokens=50)
    first, second = desk.next(), desk.next()
    desk.refuse(second)
    desk.accept(desk.next())  # so it waits less long after the next refusal
    desk.succeed(first)
    again = Governor(MODEL, most=100, known=limits)
    fold(again, desk.facts)
    assert again != desk.governor and again.concurrency == desk.governor.concurrency
    for governor in (again, desk.governor):
        fold(governor, [RunResumed(0, 0, 0, None)])
    assert again == desk.governor and again.snapshot()["gate"].pace is not None
