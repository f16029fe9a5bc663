"""The limits of a provider that enforces them: requests, tokens and concurrency. Pure; the time is passed in.

As Moonshot counts: a request is charged its prompt and the `max_tokens` that it asks for, not what it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Literal

Scope = Literal["concurrency", "RPM", "TPM", "TPD"]


@dataclass(frozen=True, slots=True)
class RateLimits:
    """None: no such limit. `requests` and `tokens` are of one `window` of so many seconds.

    `kind`: "fixed" counts afresh at every multiple of the window, "bucket" refills all the time and holds one
    window's worth. `day` is the number of tokens that there are at all (TPD). `told`: how a refusal says when to
    come back. `pause` is what a refusal for concurrency says, in seconds.
    """

    requests: int | None = None
    tokens: int | None = None
    concurrency: int | None = None
    day: int | None = None
    window: float = 1.0
    kind: Literal["fixed", "bucket"] = "fixed"
    told: Literal["ms", "seconds", "none"] = "ms"
    pause: float = 0.1


@dataclass(frozen=True, slots=True)
class Overrun:
    """What was over its limit, and in how many seconds there is room again."""

    scope: Scope
    limit: int
    wait: float


class Meter:
    """Admits or refuses. A refused request is charged nothing."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self.in_flight = 0
        #: Refusals so far.
        self.refused = 0
        self._spent_today = 0
        self._requests = _Allowance(limits.requests, limits)
        self._tokens = _Allowance(limits.tokens, limits)

    def enter(self, now: float, tokens: int) -> Overrun | None:
        """None: it was admitted and charged, and `leave` must follow."""
        over = self._over(now, tokens)
        if over is not None:
            self.refused += 1
            return over
        self._requests.take(now, 1)
        self._tokens.take(now, tokens)
        self._spent_today += tokens
        self.in_flight += 1
        return None

    def leave(self) -> None:
        self.in_flight -= 1

    def _over(self, now: float, tokens: int) -> Overrun | None:
        limits = self.limits
        if limits.concurrency is not None and self.in_flight >= limits.concurrency:
            return Overrun("concurrency", limits.concurrency, limits.pause)
        if limits.day is not None and self._spent_today + tokens > limits.day:
            return Overrun("TPD", limits.day, 86_400.0)
        scopes: tuple[tuple[Scope, _Allowance, int], ...] = (
            ("RPM", self._requests, 1),
            ("TPM", self._tokens, tokens),
        )
        for scope, allowance, amount in scopes:
            wait = allowance.wait(now, amount)
            if wait > 0:
                return Overrun(scope, allowance.limit or 0, wait)
        return None


class _Allowance:
    """So much in a window."""

    def __init__(self, limit: int | None, limits: RateLimits) -> None:
        self.limit = limit
        self._window = limits.window
        self._bucket = limits.kind == "bucket"
        self._left = float(limit or 0)
        self._since: float | None = None

    def wait(self, now: float, amount: int) -> float:
        """Seconds until there is room; 0.0: now. More than fits into a window never has any."""
        if self.limit is None:
            return 0.0
        self._refill(now)
        if amount <= self._left + 1e-9:
            return 0.0
        if amount > self.limit:
            return 86_400.0
        if self._bucket:
            return (amount - self._left) * self._window / self.limit
        return (floor(now / self._window) + 1) * self._window - now

    def take(self, now: float, amount: int) -> None:
        if self.limit is not None:
            self._refill(now)
            self._left -= amount

    def _refill(self, now: float) -> None:
        assert self.limit is not None
        since, self._since = self._since, now
        if since is None:
            return
        if self._bucket:
            self._left = min(self.limit, self._left + (now - since) * self.limit / self._window)
        elif floor(now / self._window) != floor(since / self._window):
            self._left = float(self.limit)
