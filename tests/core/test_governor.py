"""The governor's decisions one by one: concurrency, rates, gate, pace, breaker, and what it learns."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from centuria.core.aimd import STEP
from centuria.core.governor import Governor
from centuria.core.ratelimits import Stated
from centuria.core.rates import RateLimits
from centuria.core.refusals import verdict
from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.events import (
    BreakerClosed,
    BreakerOpened,
    Fact,
    GateClosed,
    GateOpened,
    LimitSet,
    RateLimitsSeen,
    RequestRefused,
    RunResumed,
    fold,
)

MODEL = "kimi-k2.5"
NONE = Stated()
#: Moonshot's tiers 0 and 2.
TIER_0 = RateLimits(concurrency=1, requests=3, tokens=500_000, daily_tokens=1_500_000)
TIER_2 = RateLimits(concurrency=100, requests=500, tokens=3_000_000)


class Desk:
    """A governor and its clock."""

    def __init__(self, *, most: int = 100, known: RateLimits | None = None, **more: Any) -> None:
        self.governor = Governor(MODEL, most=most, known=known, **more)
        self.now = 0.0
        self.tickets = 0
        self.facts: list[Fact] = []
        self.keep(self.governor.begin(now=0.0))

    def keep(self, facts: list[Fact]) -> list[Fact]:
        self.facts += facts
        return facts

    def admit(self, tokens: int = 100) -> int | None:
        """The ticket, or None where it has to wait."""
        self.tickets += 1
        self.keep(self.governor.admit(self.tickets, tokens, now=self.now))
        return self.tickets if self.governor.is_admitted(self.tickets) else None

    def fill(self, tokens: int = 100) -> list[int]:
        """As many as go now."""
        tickets: list[int] = []
        while (ticket := self.admit(tokens)) is not None:
            tickets.append(ticket)
        return tickets

    def wave(self, tokens: int = 100) -> list[int]:
        """As many as go before another one ends, each as soon as it may."""
        tickets = self.fill(tokens)
        while math.isfinite(self.wait(tokens)):
            self.tick(self.wait(tokens))
            tickets += self.fill(tokens)
        return tickets

    def next(self, tokens: int = 100) -> int:
        """The ticket of the next request, as soon as it goes."""
        for _ in range(20):
            if (ticket := self.admit(tokens)) is not None:
                return ticket
            assert math.isfinite(self.wait(tokens))
            self.tick(max(self.wait(tokens), 0.001))
        raise AssertionError("nothing goes")

    def accept(self, *tickets: int) -> None:
        for ticket in tickets:
            self.keep(self.governor.accepted(ticket, NONE, now=self.now))

    def succeed(self, *tickets: int, tokens: int | None = None) -> list[Fact]:
        return [
            fact
            for ticket in tickets
            for fact in self.keep(self.governor.succeeded(ticket, tokens, NONE, now=self.now))
        ]

    def refuse(self, ticket: int, error: ModelError | None = None, *, dice: float = 0.0) -> list[Fact]:
        error = error or too_many()
        return self.keep(self.governor.refused(ticket, error, NONE, now=self.now, dice=dice))

    def wait(self, tokens: int = 100) -> float:
        delay = self.governor.delay(tokens, self.now)
        return 0.0 if delay is None else delay.seconds

    def tick(self, seconds: float) -> None:
        self.now += seconds

    def of(self, *kinds: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kinds)]


def too_many(said: str = "Too many requests.", retry_after: float | None = 1.0) -> ModelError:
    return ModelUnavailable(said, status=429, kind="rate_limit_reached_error", retry_after=retry_after, served=False)


def quota(retry_after: float | None = None) -> ModelError:
    return ModelDenied("The quota is spent.", status=429, kind="exceeded_current_quota_error", retry_after=retry_after)


# -- concurrency ---------------------------------------------------------------------------------------------------


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


# -- the gate ------------------------------------------------------------------------------------------------------


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


# -- the pace ------------------------------------------------------------------------------------------------------


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


# -- rates ---------------------------------------------------------------------------------------------------------


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


# -- the breaker ---------------------------------------------------------------------------------------------------


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


# -- verdicts, replay ----------------------------------------------------------------------------------------------


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
