"""A governor and its clock, and the errors that it is told of."""

from __future__ import annotations

import math
from typing import Any

from centuria.core.governor import Governor
from centuria.core.ratelimits import Stated
from centuria.core.rates import RateLimits
from centuria.errors import ModelDenied, ModelError, ModelUnavailable
from centuria.events import Fact

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
