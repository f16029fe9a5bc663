"""Part of the fold of events: what each model's upstream lets us send, and why. It reports and decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from centuria import events as e


@dataclass(slots=True)
class UpstreamRow:
    """One model. `closed_until` is seconds since 1970, None while the gate is open; `reason` says why it closed last.

    `refusals` counts requests refused as too many, by why; `closings` the bursts of them that lowered the limit;
    `closed` is for how many seconds the gate was closed. `pace` is in requests a second, None: none. `breaker` is why
    nothing is sent, "" while it is. `requests`, `tokens` and `daily_tokens` are limits that the upstream stated, by the
    minute and day.
    """

    model: str
    refusals: Counter[str] = field(default_factory=Counter)
    closed_until: float | None = None
    closed_at: float | None = None
    closed: float = 0.0
    reason: str = ""
    closings: int = 0
    pace: float | None = None
    breaker: str = ""
    requests: int | None = None
    tokens: int | None = None
    daily_tokens: int | None = None

    @property
    def refused(self) -> int:
        """How many requests it refused because they were too many."""
        return self.refusals.total()


@dataclass(slots=True)
class UpstreamTally:
    """The rows by model."""

    rows: dict[str, UpstreamRow] = field(default_factory=dict)

    def _row(self, model: str) -> UpstreamRow:
        row = self.rows.get(model)
        if row is None:
            row = self.rows[model] = UpstreamRow(model)
        return row

    def refused(self, event: e.RequestRefused, at: float) -> None:
        self._row(event.model).refusals[event.why] += 1

    def seen(self, event: e.RateLimitsSeen, at: float) -> None:
        row = self._row(event.model)
        row.requests = row.requests if event.requests is None else event.requests
        row.tokens = row.tokens if event.tokens is None else event.tokens
        row.daily_tokens = row.daily_tokens if event.daily_tokens is None else event.daily_tokens

    def gate_closed(self, event: e.GateClosed, at: float) -> None:
        row = self._row(event.model)
        row.closings += event.congestion
        until = at + max(0.0, event.until - event.at)
        if row.closed_until is None:
            row.closed_at = at
        if row.closed_until is None or until > row.closed_until:
            row.closed_until, row.reason = until, event.reason

    def gate_opened(self, event: e.GateOpened, at: float) -> None:
        row = self._row(event.model)
        self._open(row, at)
        row.pace = row.pace if event.pace is None else event.pace

    def breaker_opened(self, event: e.BreakerOpened, at: float) -> None:
        self._row(event.model).breaker = event.cause

    def breaker_closed(self, event: e.BreakerClosed, at: float) -> None:
        self._row(event.model).breaker = ""

    def vanish(self, at: float) -> None:
        """The process is gone, and so is what kept it from sending."""
        for row in self.rows.values():
            row.breaker = ""
            self._open(row, at)

    @staticmethod
    def _open(row: UpstreamRow, at: float) -> None:
        if row.closed_at is not None:
            row.closed += max(0.0, at - row.closed_at)
        row.closed_at = row.closed_until = None
