"""Governor: whether a request to one (key, model) may be sent now, and if not, for how long and why. Pure.

Who owns what. The governor decides the *number* of requests in flight (`LimitSet` of `model:NAME`), the rates,
the gate and the breaker. The slot table holds the queue for that number, with its priorities and fairness;
whoever has a slot then asks here, in the order of the grants, and is admitted once.

- Concurrency: see `aimd`. A refusal halves it once for each burst: what was admitted before the gate closed is one.
- Rates: a request is charged when it is admitted, with all that it may use, and refunded when it ends.
- Gate and pace: see `gate`.
- Breaker: see `breaker`.

What was learned are facts: the limit, what an upstream states and refuses, gate, pace, breaker. What is in flight is
not: it is counted here alone, no one else acts on it, and it ends with the process. So a governor that a journal was
folded into, restarted (`RunResumed`), equals the live one at that moment, restarted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from centuria.core.aimd import Aimd
from centuria.core.breaker import Breaker
from centuria.core.gate import Gate
from centuria.core.ratelimits import Refusal, Stated, read_refusal
from centuria.core.rates import DAY, RateLimits, Rates
from centuria.core.refusals import pause, spends_no_retry, verdict
from centuria.errors import ModelDenied, ModelError
from centuria.events import (
    BreakerClosed,
    BreakerOpened,
    Event,
    Fact,
    GateClosed,
    GateOpened,
    LimitSet,
    RateLimitsSeen,
    RequestRefused,
    RunResumed,
)

#: What is left of a bucket is worth an event from this share of its burst on.
_MATERIAL = 0.05


@dataclass(frozen=True, slots=True)
class Delay:
    """Why nothing may be sent now. `seconds` is infinite where only another request's end can change that."""

    seconds: float
    reason: str


@dataclass(slots=True)
class _Sent:
    tokens: int
    burst: int
    accepted: bool = False


class Governor:
    """One (key, model). `most` requests are in flight at most; `known` is what the account's tier allows.

    `why` is the reason of the first limit, where the default one would not be it. `share` of a minute's limit may be
    used at once. `max_wait` is how long a call waits at the gate in all, in seconds: what takes longer is parked, not
    waited for. Times are of any clock that never goes back; `dice` is in [0, 1).
    """

    def __init__(
        self,
        model: str,
        *,
        most: int,
        known: RateLimits | None = None,
        why: str = "",
        share: float = 0.5,
        max_wait: float = 300.0,
    ) -> None:
        known = known or RateLimits()
        self.model = model
        self.resource = f"model:{model}"
        self.max_wait = max_wait
        self._aimd = Aimd(max(1, most), known.concurrency, why=why)
        self._burst = 0
        self._sent: dict[int, _Sent] = {}
        self._rates = Rates(known, share)
        self._gate = Gate()
        self._breaker = Breaker()
        #: A journal was folded in, and no time of this process is known yet.
        self._resumed = False

    # -- may it be sent? -----------------------------------------------------------------------------------

    def begin(self, *, now: float) -> list[Fact]:
        """The first limit of the resource, with its reason. Once in each process, before anything is admitted.

        After a resume it is the limit that was learned, and the gate opens as after a refusal: with care.
        """
        facts = self._all(LimitSet(self.resource, self.concurrency, self._aimd.first()))
        return facts + self._all(GateOpened(self.model, now)) if self._resumed else facts

    def denial(self, tokens: int, now: float) -> ModelDenied | None:
        """Why nothing like this will be sent within `max_wait`: the breaker is open, or the upstream asks for
        longer."""
        if self._is_calm():
            return None
        breaker = self._breaker
        if breaker.stops(now):
            return ModelDenied(breaker.cause, kind="breaker", retry_after=breaker.left(now), served=False)
        seconds, reason = max(self._gate.wait(now), self._rates.wait(tokens, now))
        if seconds <= self.max_wait:
            return None
        return ModelDenied(
            f"{self.model} takes nothing for {seconds:,.0f} s: {reason}.",
            kind="parked",
            retry_after=seconds,
            served=False,
            remedy="Resume the run after that time.",
        )

    def delay(self, tokens: int, now: float) -> Delay | None:
        """How long a request of this many tokens has to wait; None: not at all."""
        if not self._is_calm() or self._aimd.testing:
            if self._breaker.stops(now):
                return Delay(math.inf, self._breaker.cause)
            seconds, reason = max(self._gate.wait(now), self._rates.wait(tokens, now), self._aimd.wait(now))
            if seconds > 0:
                return Delay(seconds, reason)
        full = len(self._sent) >= self.concurrency
        return Delay(math.inf, f"{len(self._sent)} are in flight, the limit is {self.concurrency}") if full else None

    def admit(self, ticket: int, tokens: int, *, now: float) -> list[Fact]:
        """Let a request through if it may go now (`is_admitted` tells), and open the gate if its time has come.

        `tokens` are the prompt's bound and the longest answer. Raises `ValueError` for a ticket that is in flight.
        """
        if ticket in self._sent:
            raise ValueError(f"ticket {ticket} was admitted already")
        facts = self._all(*self._gate.opening(self.model, now))
        if self.delay(tokens, now) is None:
            self._admitted(ticket, max(0, tokens), now)
        return facts

    def _is_calm(self) -> bool:
        """Whether nothing but the number in flight can keep a request back."""
        return not self._breaker.is_open and self._gate.calm and self._rates.calm

    # -- how did it go? ------------------------------------------------------------------------------------

    def accepted(self, ticket: int, stated: Stated, *, now: float) -> list[Fact]:
        """The upstream began to answer."""
        sent = self._sent.get(ticket)
        if sent is None:
            return []
        facts = self._learn(stated, now)
        matters = self._aimd.testing or self._gate.closings or ticket in self._gate.unanswered
        if matters and sent.burst == self._burst and not sent.accepted:
            sent.accepted = True
            self._aimd.accepted += 1
            self._gate.accepted(ticket, self.concurrency)
            facts += self._limit(self._aimd.grown())
        return facts

    def succeeded(self, ticket: int, tokens: int | None, stated: Stated, *, now: float) -> list[Fact]:
        """The answer is there, and used this many tokens (None: not said, so all that were charged)."""
        sent = self._sent.get(ticket)
        if sent is None:
            return []
        facts = self.accepted(ticket, stated, now=now)
        facts += self._answered_probe(ticket, now)
        self._ended(ticket, sent.tokens if tokens is None else max(0, tokens), now)
        if sent.burst == self._burst:
            self._aimd.answered()
        return facts + self._limit(self._aimd.grown())

    def refused(self, ticket: int, error: ModelError, stated: Stated, *, now: float, dice: float) -> list[Fact]:
        """There is no answer. What follows for the others depends on `verdict(error)`."""
        sent = self._sent.get(ticket)
        if sent is None:
            return []
        facts = self._learn(stated, now)
        match verdict(error):
            case "denied":
                probe_at = None if error.retry_after is None else now + min(error.retry_after, DAY)
                self._ended(ticket, 0, now)
                return facts + self._all(BreakerOpened(self.model, now, str(error), probe_at))
            case "failed":
                self._ended(ticket, sent.tokens if error.served else 0, now)
                return facts
            case "limited":
                return facts + self._limited(ticket, sent, error, now, dice)
            case "overloaded":
                return facts + self._overloaded(ticket, sent, error, now, dice)

    def abandoned(self, ticket: int, *, now: float) -> None:
        """It was given up: what it used is not known."""
        sent = self._sent.get(ticket)
        if sent is not None:
            self._ended(ticket, sent.tokens, now)

    def _limited(self, ticket: int, sent: _Sent, error: ModelError, now: float, dice: float) -> list[Fact]:
        facts = self._answered_probe(ticket, now)
        self._ended(ticket, 0, now)
        self._gate.refused(ticket)
        facts += self._all(RequestRefused(self.model, "limited", now))
        said = read_refusal(error.message)
        asked = said.wait if error.retry_after is None else error.retry_after
        why = f"HTTP 429 ({said.limit or error.kind or 'too many requests'})"
        why += f", it asks for {asked:g} s" if asked is not None else ", it does not say for how long"
        if sent.burst != self._burst:
            return facts + self._hold_longer(asked, why, now)
        before = (self._aimd.stated, self._rates.limits())
        facts += self._learn_refusal(said, now)
        explained = before != (self._aimd.stated, self._rates.limits()) or said.limit == "concurrency"
        until = now + pause(asked, self._gate.closings, dice)
        facts += self._all(GateClosed(self.model, now, until, why, congestion=True, paced=not explained))
        return facts + self._limit(self._aimd.lowered(why))

    def _overloaded(self, ticket: int, sent: _Sent, error: ModelError, now: float, dice: float) -> list[Fact]:
        facts = self._answered_probe(ticket, now)
        self._ended(ticket, sent.tokens if error.served else 0, now)
        facts += self._all(RequestRefused(self.model, "overloaded", now))
        why = f"HTTP {error.status} ({error.kind or 'overloaded'})"
        if sent.burst != self._burst:
            return facts + self._hold_longer(error.retry_after, why, now)
        # What spends no retry has to wait here; a 503 has the delays of its retries.
        waits = error.retry_after is not None or spends_no_retry(error)
        until = now + pause(error.retry_after, self._gate.closings, dice) if waits else now
        facts += self._all(GateClosed(self.model, now, until, why, congestion=True))
        return facts + self._limit(self._aimd.lowered(why))

    def _hold_longer(self, asked: float | None, why: str, now: float) -> list[Fact]:
        """A late refusal of a burst that has been counted: only its own time is kept."""
        until = now + min(asked or 0.0, DAY)
        open_at = now if self._gate.until is None else self._gate.until
        return self._all(GateClosed(self.model, now, until, why, congestion=False)) if until > open_at else []

    def _limit(self, change: tuple[int, str] | None) -> list[Fact]:
        return [] if change is None else self._all(LimitSet(self.resource, *change))

    def _answered_probe(self, ticket: int, now: float) -> list[Fact]:
        """An answer to the probe, even a refusal for a rate or for load, says that key and quota are fine again."""
        return self._all(BreakerClosed(self.model, now)) if self._breaker.probe == ticket else []

    # -- learning ------------------------------------------------------------------------------------------

    def _learn(self, stated: Stated, now: float) -> list[Fact]:
        """A fact, where these headers say something new that matters."""
        if not stated:
            return []
        window_left = stated.window_left
        if window_left is not None and not self._rates.window.news(window_left, max(10, self.concurrency), now):
            window_left = None
        news = (
            self._rates.news("requests", stated.requests, stated.requests_left, _MATERIAL, now)
            or self._rates.news("tokens", stated.tokens, stated.tokens_left, _MATERIAL, now)
            or window_left is not None
        )
        if not news:
            return []
        return self._all(
            RateLimitsSeen(
                self.model,
                now,
                requests=stated.requests,
                requests_left=stated.requests_left,
                tokens=stated.tokens,
                tokens_left=stated.tokens_left,
                window_left=window_left,
                window_ends=None if window_left is None or stated.reset is None else now + stated.reset,
            )
        )

    def _learn_refusal(self, said: Refusal, now: float) -> list[Fact]:
        """A limit that a refusal names is used up, whatever we had thought; its number may be news."""
        left = 0 if said.left is None else said.left
        match said.limit:
            case "concurrency" if said.most is not None:
                return self._all(RateLimitsSeen(self.model, now, concurrency=said.most))
            case "requests":
                return self._all(RateLimitsSeen(self.model, now, requests=said.most, requests_left=0))
            case "tokens":
                return self._all(RateLimitsSeen(self.model, now, tokens=said.most, tokens_left=left))
            case "daily_tokens":
                return self._all(RateLimitsSeen(self.model, now, daily_tokens=said.most, daily_left=left))
            case _:
                return []

    # -- in flight: known to this process alone -------------------------------------------------------------

    def _admitted(self, ticket: int, tokens: int, now: float) -> None:
        self._sent[ticket] = _Sent(tokens, self._burst)
        self._rates.take(tokens, now)
        self._gate.admitted(ticket, now, self.concurrency)
        self._aimd.admitted(len(self._sent), now)
        self._breaker.admitted(ticket)

    def _ended(self, ticket: int, tokens: int, now: float) -> None:
        """`tokens` is what the rates are charged for it in the end."""
        sent = self._sent.pop(ticket)
        self._aimd.accepted -= sent.accepted
        self._rates.give_back(sent.tokens, tokens, now)
        self._gate.ended(ticket)
        self._breaker.ended(ticket)

    # -- facts ---------------------------------------------------------------------------------------------

    def _all(self, *facts: Fact) -> list[Fact]:
        for fact in facts:
            self.apply(fact)
        return list(facts)

    def apply(self, event: Event) -> None:
        """The only place where what was learned changes."""
        if isinstance(event, RunResumed):
            self._restart()
        elif isinstance(event, LimitSet):
            if event.resource == self.resource:
                self._aimd.set(event.limit)
        elif getattr(event, "model", None) == self.model:
            self._apply_own(event)

    def _apply_own(self, event: Event) -> None:
        match event:
            case RateLimitsSeen():
                self._seen(event)
            case GateClosed():
                self._gate.close(event)
                if event.congestion:
                    self._burst += 1
                    self._aimd.refused()
            case GateOpened():
                self._gate.open(event)
                self._rates.anchor(event.at)
                self._resumed = False
            case BreakerOpened():
                self._breaker.open(event.cause, event.probe_at)
            case BreakerClosed():
                self._breaker.close()
            case _:
                pass

    def _seen(self, event: RateLimitsSeen) -> None:
        if event.concurrency is not None:
            self._aimd.stated = event.concurrency
        self._rates.seen("requests", event.requests, event.requests_left, event.at)
        self._rates.seen("tokens", event.tokens, event.tokens_left, event.at)
        self._rates.seen("daily_tokens", event.daily_tokens, event.daily_left, event.at)
        if event.window_left is not None and event.window_ends is not None:
            self._rates.window.seen(event.window_left, event.window_ends, event.at)

    def _restart(self) -> None:
        """A resumed run is a new process, with a new clock; whoever resumed it has seen to the key and the quota."""
        self._sent.clear()
        self._gate.restart()
        self._rates.restart()
        self._aimd.restart(refused=self._burst > 0)
        self._breaker.close()
        self._resumed = True

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many may be in flight."""
        return self._aimd.limit

    def in_flight(self) -> int:
        return len(self._sent)

    def is_admitted(self, ticket: int) -> bool:
        return ticket in self._sent

    def closed_until(self) -> float | None:
        """When the gate may open, None while it is open."""
        return self._gate.until

    def snapshot(self) -> dict[str, Any]:
        """All state that decides what happens next; parts of it are the live ones."""
        return {
            "aimd": self._aimd,
            "burst": self._burst,
            "sent": self._sent,
            "rates": self._rates,
            "gate": self._gate,
            "breaker": self._breaker,
            "resumed": self._resumed,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Governor) and self.model == other.model and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]
