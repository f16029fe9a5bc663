"""The governor under any sequence of requests and refusals: limits hold, nothing waits for ever, and a journal, folded
and restarted, equals what is live, restarted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from centuria.core.governor import Governor
from centuria.core.ratelimits import Stated
from centuria.core.rates import RateLimits
from centuria.errors import ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.events import (
    BreakerClosed,
    BreakerOpened,
    Fact,
    GateClosed,
    GateOpened,
    LimitSet,
    RunResumed,
    TaskReady,
    fold,
)

MODEL = "m"
RPM, TPM = 60, 12_000
SHARE = 0.5

waits = st.one_of(
    st.none(), st.sampled_from([0.0, 0.25, 1.0, 7.0, 60.0, 299.0, 4000.0, 1e9]), st.floats(0, 100, allow_nan=False)
)
words = st.sampled_from(
    [
        "too many requests",
        "request reached max organization concurrency: 3, please try again after 1 seconds",
        "request reached organization max RPM: 30, please try again after 1 seconds",
        "request reached project TPM rate limit, current: 900, limit: 6000",
        "tokens per min (TPM): Limit 999999999999, Used 1, Requested 385. Please try again in 644ms.",
        "limit: 0, limit: -4, TPM",
    ]
)
numbers = st.one_of(st.none(), st.sampled_from([0, 1, 5, 59, 60, 61, 5000, 10**12]))
stated = st.builds(
    Stated,
    requests=st.one_of(st.none(), st.sampled_from([1, 30, 60, 10**12])),
    requests_left=numbers,
    tokens=st.one_of(st.none(), st.sampled_from([1, 6000, 12_000, 10**12])),
    tokens_left=numbers,
    window_left=numbers,
    reset=st.sampled_from([0.0, 1.0, 30.0, 1e9]),
)


def limited(text: str, wait: float | None) -> ModelError:
    return ModelUnavailable(text, status=429, kind="rate_limit_reached_error", retry_after=wait, served=False)


def rebuilt(settings_of: Governor, facts: Sequence[Fact]) -> Governor:
    fresh = make(settings_of)
    fold(fresh, [*facts, TaskReady("x"), GateClosed("another", 0.0, 1e9, "not mine", True)])
    return fresh


def make(like: Governor) -> Governor:
    return Governor(MODEL, most=like._aimd.most, known=like._rates.known, share=SHARE)


@settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
class GovernorMachine(RuleBasedStateMachine):
    @initialize(
        most=st.sampled_from([40, 4, 1]),
        concurrency=st.sampled_from([None, 3, 100, 1]),
        rates=st.booleans(),
    )
    def begin(self, most: int, concurrency: int | None, rates: bool) -> None:
        known = RateLimits(concurrency, RPM, TPM) if rates else RateLimits(concurrency)
        self.live = Governor(MODEL, most=most, known=known, share=SHARE)
        self.most, self.rates = most, rates
        self.now, self.ticket = 100.0, 0
        self.flying: dict[int, int] = {}
        self.journal: list[Fact] = []
        #: (time, units): charged above zero, given back below it.
        self.requests: list[tuple[float, float]] = []
        self.tokens: list[tuple[float, float]] = []
        self.closed: float | None = None
        self.broken: BreakerOpened | None = None
        self.probe: int | None = None
        self.keep(self.live.begin(now=self.now))

    # -- what holds for every fact

    def keep(self, facts: list[Fact]) -> None:
        for fact in facts:
            self.check(fact)
        self.journal += facts

    def went(self, ticket: int, tokens: int) -> None:
        """A request was admitted."""
        assert self.closed is None, "it passed a closed gate"
        assert len(self.flying) < self.live.concurrency, "it passed the limit"
        if self.broken is not None:
            assert self.broken.probe_at is not None and self.now >= self.broken.probe_at
            assert self.probe is None, "a second probe"
            self.probe = ticket
        self.flying[ticket] = tokens
        self.requests.append((self.now, 1))
        self.tokens.append((self.now, tokens))

    def over(self, ticket: int, tokens: int | None, facts: list[Fact]) -> None:
        """A request has ended, and this is what it is charged for (None: all that it was)."""
        charged = self.flying.pop(ticket)
        self.tokens.append((self.now, 0 if tokens is None else tokens - charged))
        if self.probe == ticket:
            self.probe = None
        self.keep(facts)

    def check(self, fact: Fact) -> None:
        match fact:
            case LimitSet(resource, limit):
                assert resource == "model:m"
                assert 1 <= limit <= self.most
            case GateClosed(_, _, until):
                self.closed = max(until, self.closed or until)
            case GateOpened(_, at):
                assert self.closed is not None and at >= self.closed, "the gate opened too early"
                self.closed = None
            case BreakerOpened():
                self.broken, self.probe = fact, None
            case BreakerClosed():
                self.broken = None
            case _:
                pass

    # -- what may happen

    @rule(seconds=st.one_of(st.sampled_from([0.001, 0.3, 1.0, 20.0, 300.0]), st.floats(0, 90)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(tokens=st.integers(0, int(TPM * SHARE)), several=st.integers(1, 6))
    def admit(self, tokens: int, several: int) -> None:
        for _ in range(several):
            self.ticket += 1
            blocked = self.live.delay(tokens, self.now)
            facts = self.live.admit(self.ticket, tokens, now=self.now)
            self.keep(facts)
            admitted = self.live.is_admitted(self.ticket)
            if admitted:
                self.went(self.ticket, tokens)
            if blocked is None and not any(isinstance(fact, GateOpened) for fact in facts):
                assert admitted
            assert not (admitted and self.broken is None and self.live.denial(0, self.now))

    @rule(several=st.integers(1, 12), tokens=st.integers(0, 500))
    def send(self, several: int, tokens: int) -> None:
        """As a crowd does: one after another, each as soon as it may."""
        for _ in range(several):
            delay = self.live.delay(tokens, self.now)
            if delay is not None and not delay.seconds <= 90:
                return
            self.now += 0.0 if delay is None else delay.seconds
            self.admit(tokens, 1)

    @precondition(lambda self: self.flying)
    @rule(used=st.integers(0, 500))
    def answer_all(self, used: int) -> None:
        for ticket in sorted(self.flying):
            tokens = min(used, self.flying[ticket])
            self.keep(self.live.accepted(ticket, Stated(), now=self.now))
            self.over(ticket, tokens, self.live.succeeded(ticket, tokens, Stated(), now=self.now))

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.flying)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), said=stated)
    def accept(self, data: st.DataObject, said: Stated) -> None:
        if not self.rates:  # with the rates that were configured, those are checked to the letter
            self.keep(self.live.accepted(self.pick(data), said, now=self.now))
        else:
            self.keep(self.live.accepted(self.pick(data), Stated(), now=self.now))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), share=st.one_of(st.none(), st.floats(0, 1)))
    def succeed(self, data: st.DataObject, share: float | None) -> None:
        ticket = self.pick(data)
        used = None if share is None else int(self.flying[ticket] * share)
        self.over(ticket, used, self.live.succeeded(ticket, used, Stated(), now=self.now))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), text=words, wait=waits, dice=st.floats(0, 1, exclude_max=True), all_of_them=st.booleans())
    def limit(self, data: st.DataObject, text: str, wait: float | None, dice: float, all_of_them: bool) -> None:
        before, bursts = self.live.concurrency, self.live._burst
        tickets = sorted(self.flying) if all_of_them else [self.pick(data)]
        for ticket in tickets:
            sent = self.live._sent[ticket].burst
            facts = self.live.refused(ticket, limited(text, wait), Stated(), now=self.now, dice=dice)
            closing = next((fact for fact in facts if isinstance(fact, GateClosed)), None)
            if wait is not None and sent == bursts:
                assert self.live.closed_until() is not None
            if closing is not None and closing.congestion and wait is not None:
                assert closing.until >= self.now + min(wait, 86_400.0), "jitter took something away"
            self.over(ticket, 0, facts)
        assert self.live._burst <= bursts + 1, "one burst was counted twice"
        assert self.live.concurrency >= max(1, min(before // 2, self.live._aimd.stated or before))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), wait=waits, status=st.sampled_from([500, 503, 529, 429, 0]))
    def fail(self, data: st.DataObject, wait: float | None, status: int) -> None:
        error = ModelUnavailable("x", status=status, kind="", retry_after=wait, served=status != 0)
        ticket = self.pick(data)
        facts = self.live.refused(ticket, error, Stated(), now=self.now, dice=0.5)
        self.over(ticket, None if error.served else 0, facts)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        ticket, error = self.pick(data), ModelRefused("x", status=400)
        facts = self.live.refused(ticket, error, Stated(), now=self.now, dice=0.5)
        self.over(ticket, None if error.served else 0, facts)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), wait=waits)
    def deny(self, data: st.DataObject, wait: float | None) -> None:
        error = ModelDenied("The quota is spent.", status=429, retry_after=wait, served=False)
        ticket = self.pick(data)
        facts = self.live.refused(ticket, error, Stated(), now=self.now, dice=0.5)
        assert any(isinstance(fact, BreakerOpened) for fact in facts)
        self.over(ticket, 0, facts)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        ticket = self.pick(data)
        for _ in range(2):
            self.live.abandoned(ticket, now=self.now)
        self.over(ticket, None, self.live.accepted(ticket, Stated(), now=self.now))

    @rule(back=st.booleans())
    def resume(self, back: bool) -> None:
        fact = RunResumed(0, 0, 0, None)
        self.live.apply(fact)
        self.journal.append(fact)
        self.flying.clear()
        self.closed = self.broken = self.probe = None
        self.requests.clear()
        self.tokens.clear()
        self.now = 1.0 if back else self.now
        self.closed = self.now  # a resumed run opens its gate anew
        self.keep(self.live.begin(now=self.now))

    # -- what always holds

    @invariant()
    def in_flight(self) -> None:
        assert self.live.in_flight() == len(self.flying)
        assert 1 <= self.live.concurrency <= self.most

    @invariant()
    def no_rate_is_passed_in_any_window(self) -> None:
        if not self.rates:
            return
        for charges, limit in ((self.requests, RPM), (self.tokens, TPM)):
            # The largest net charge of any window, above what was refilled in it: a maximum drawdown.
            level = lowest = 0.0
            before = charges[0][0] if charges else 0.0
            for at, units in charges:
                level -= (at - before) * limit / 60
                lowest = min(lowest, level)
                level += units
                before = at
                assert level - lowest <= limit * SHARE * (1 + 1e-4) + 1e-6

    @invariant()
    def whoever_goes_on_from_the_journal_knows_what_was_learned(self) -> None:
        resumed = RunResumed(0, 0, 0, None)
        again, live = rebuilt(self.live, self.journal), deepcopy(self.live)
        assert again.concurrency == live.concurrency and again.closed_until() == live.closed_until()
        fold(again, [resumed])
        fold(live, [resumed])
        assert again == live

    def teardown(self) -> None:
        """Whatever happened: when those in flight are gone, the next one goes after a bounded time."""
        if not hasattr(self, "live"):
            return
        for ticket in sorted(self.flying):
            self.live.abandoned(ticket, now=self.now)
            self.over(ticket, None, [])
        if self.broken is not None:
            if self.broken.probe_at is None:
                assert self.live.denial(0, self.now + 1e9) is not None
                self.live.admit(-1, 0, now=self.now + 1e9)
                assert not self.live.is_admitted(-1)
                return
            self.now = max(self.now, self.broken.probe_at)
        for _ in range(10):
            self.ticket += 1
            self.keep(self.live.admit(self.ticket, int(TPM * SHARE), now=self.now))
            if self.live.is_admitted(self.ticket):
                return
            delay = self.live.delay(int(TPM * SHARE), self.now)
            if delay is not None:
                assert math.isfinite(delay.seconds) and delay.seconds <= 86_400 * 1.1
                self.now += max(delay.seconds, 0.001)
        raise AssertionError(f"nothing goes: {self.live.delay(100, self.now)}")


TestGovernorMachine = GovernorMachine.TestCase
