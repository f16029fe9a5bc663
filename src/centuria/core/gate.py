"""The gate before one model: closed by a refusal, opened with care. Pure.

Open, it lets everything through. A refusal closes it for everyone until the upstream's `Retry-After`. When it
opens again, two bounds keep the crowd that waited from arriving at once:

- the ramp: at first one request may be without an answer, and one more for each that is accepted (so they
  double with each round trip). One that was not refused within `ANSWER` seconds counts as accepted, so that a
  slow first token stalls nobody.
- the pace: requests a second, where no limit that is known explains the refusal. It begins at a share of the
  rate that worked, and grows slowly while requests wait for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from centuria.core.rates import MINUTE, Bucket, rate_that_worked
from centuria.events import GateClosed, GateOpened

_CALM = (0.0, "")
#: Seconds within which a refusal would have come.
ANSWER = 1.0
#: A pace starts at this share of the rate that worked. Each request that waited for it adds so many a second: it
#: grows by 10 % a second while it is a first guess, by 2 % once it was corrected.
_SHARE, _FAST, _SLOW = 0.85, 0.1, 0.02
#: Admissions that are remembered.
_RECENT = 10_000


@dataclass(slots=True)
class Gate:
    """`until`: when it may open, None while it is open. `closings` counts since the last accepted request."""

    until: float | None = None
    reason: str = ""
    closings: int = 0
    ramp: int | None = None
    pace: Bucket | None = None
    #: The pace with which the gate last opened; in this process it grows while requests wait for it.
    measured: float | None = None
    #: The pace was measured once, perhaps in a lull or a first short burst.
    guess: bool = False
    #: Since the gate last opened: admitted and not yet accepted, in order of time.
    unanswered: dict[int, float] = field(default_factory=dict)
    #: Admitted within the last minute and not refused. Of a plain dict whose first ones go, finding the first would
    #: take ever longer.
    recent: OrderedDict[int, float] = field(default_factory=OrderedDict)
    #: The closing at which the pace is to be measured: when, and the seconds that were asked for.
    measure: tuple[float, float] | None = None

    @property
    def calm(self) -> bool:
        """Whether everything passes."""
        return self.until is None and self.pace is None and self.ramp is None

    def wait(self, now: float) -> tuple[float, str]:
        """Seconds until one request may pass, and why."""
        if self.calm:
            return _CALM
        if self.until is not None and now < self.until:
            return self.until - now, self.reason
        waits = [(0.0, "")]
        if self.pace is not None:
            waits.append((self.pace.wait(1, now), f"{self.pace.limit:.3g} requests a second, the rate that worked"))
        if self.ramp is not None:
            young = [at for at in self.unanswered.values() if now - at < ANSWER]
            if len(young) >= self.ramp + len(self.unanswered) - len(young):
                waits.append((young[0] + ANSWER - now, "the first answers since the gate opened"))
        return max(waits)

    def opening(self, model: str, now: float) -> list[GateOpened]:
        """The fact that the wait is over, if it is."""
        if self.until is None or now < self.until:
            return []
        pace = None
        if self.measure is not None:
            closed_at, asked = self.measure
            pace = rate_that_worked(self.recent.values(), closed_at, asked)
            pace = _SHARE * (pace if self.pace is None else min(pace, self.pace.limit))
        return [GateOpened(model, now, pace)]

    # Changing.

    def close(self, event: GateClosed) -> None:
        if self.until is None or event.until > self.until:
            self.until, self.reason = event.until, event.reason
        if event.congestion:
            self.closings += 1
            self.measure = (event.at, event.until - event.at) if event.paced else None

    def open(self, event: GateOpened) -> None:
        self.until, self.reason, self.measure = None, "", None
        self.ramp = 1
        self.unanswered.clear()
        if self.pace is not None and self.pace.at is None:
            self.pace.at = event.at
        if event.pace is not None:
            self.guess = self.pace is None
            self.measured = event.pace
            self.pace = _paced(event.pace, event.at)

    def admitted(self, ticket: int, at: float, concurrency: int) -> None:
        recent = self.recent
        while recent and (len(recent) >= _RECENT or at - recent[next(iter(recent))] >= MINUTE):
            recent.popitem(last=False)
        recent[ticket] = at
        if self.pace is not None:
            if self.pace.level_at(at) < self.pace.burst - 0.5:
                self.pace.limit += _FAST if self.guess else _SLOW
            self.pace.take(1, at)
        if self.ramp is not None:
            for old in [old for old, sent in self.unanswered.items() if at - sent >= ANSWER]:
                self._answered(old, concurrency)
        if self.ramp is not None:
            self.unanswered[ticket] = at

    def accepted(self, ticket: int, concurrency: int) -> None:
        self.closings = 0
        self._answered(ticket, concurrency)

    def ended(self, ticket: int) -> None:
        self.unanswered.pop(ticket, None)

    def refused(self, ticket: int) -> None:
        """It does not count among those that worked."""
        self.recent.pop(ticket, None)

    def restart(self) -> None:
        """Another process, whose clock is another."""
        self.until, self.reason, self.measure, self.ramp = None, "", None, None
        self.closings = 0
        self.unanswered.clear()
        self.recent.clear()
        self.pace = None if self.measured is None else _paced(self.measured, None)

    def _answered(self, ticket: int, concurrency: int) -> None:
        if self.unanswered.pop(ticket, None) is None or self.ramp is None:
            return
        self.ramp += 1
        if self.ramp >= concurrency:
            self.ramp = None
            self.unanswered.clear()


def _paced(pace: float, at: float | None) -> Bucket:
    return Bucket(pace, 1.0, max(2.0, pace / 20), 1.0, at)
