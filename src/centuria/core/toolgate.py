"""How many calls one tool server is sent at once: its limit, less where it refuses calls as too many. Pure.

A refusal (HTTP 429) closes the gate for everyone until the server's `Retry-After`, and halves the limit, once for each
burst: what was sent before the gate closed is one. When it opens, one call goes ahead; the number grows, at first
twofold, each time that many were answered, or `ANSWER` seconds went without a refusal, up to the limit. From then on a
window of as many answers as the limit, with the limit used up and no shorter than the last pause, raises it by one.

It decides the slots of `server:SLUG` and nothing else: 0 while the gate is closed. So all who wait are in the one queue
of the slot table, in its order, and nobody holds a slot of a server that takes nothing. (The model's governor knows
rates and tokens too, which tool servers do not tell.) A resumed run begins anew: a refusal is soon repeated where it
still holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from centuria.core.refusals import pause
from centuria.events import Fact, GateClosed, GateOpened, LimitSet

#: Seconds within which a refusal would have come.
ANSWER = 0.5
#: A remote server whose limit is higher than this is sent no more at first.
START = 10
#: A window takes as long as the last pause, between these seconds.
_WINDOW_LEAST, _WINDOW_MOST = 1.0, 30.0
#: An extension of a pause by less is not worth a fact.
_MATERIAL = 0.1


@dataclass(slots=True)
class ToolGate:
    """The gate of one server, which takes `most` calls at once as far as is known; `why` says how that is known.

    `careful`: it is remote, and may turn out to take fewer. Times are any clock that never goes back, in seconds.
    """

    resource: str
    most: int
    why: str
    careful: bool = False
    limit: int = field(init=False)
    by_hand: bool = field(init=False, default=False)
    until: float | None = field(init=False, default=None)
    reason: str = field(init=False, default="")
    _limit_why: str = field(init=False)
    _ramp: int | None = field(init=False, default=None)
    _step_at: float | None = field(init=False, default=None)
    _closings: int = field(init=False, default=0)
    _burst: int = field(init=False, default=0)
    _sent: dict[int, int] = field(init=False, default_factory=dict)
    _answers: int = field(init=False, default=0)
    _full: bool = field(init=False, default=False)
    _window: tuple[float, float] = field(init=False, default=(0.0, _WINDOW_LEAST))

    def __post_init__(self) -> None:
        self.limit, self._limit_why = self.most, self.why
        self._ramp = START if self.careful and self.most > START else None

    @property
    def slots(self) -> int:
        """How many may be sent at once now."""
        if self.until is not None:
            return 0
        return self.limit if self._ramp is None else min(self._ramp, self.limit)

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    def begin(self) -> list[Fact]:
        """The first limit."""
        why = self.why if self._ramp is None else f"{self.slots} at first, then up to {self.limit} ({self.why})"
        return [LimitSet(self.resource, self.slots, why)]

    # -- from outside -------------------------------------------------------------------------------------------------

    def set_most(self, most: int, why: str, *, by_hand: bool = False) -> list[Fact]:
        """Another limit: replicas came or went; or, `by_hand`, somebody knows better than what was found out."""
        before, whole = self.slots, self.limit >= self.most
        self.most, self.why = most, why
        self.limit = most if by_hand or whole else min(self.limit, most)
        if by_hand:
            self.by_hand = True
            self._ramp = self._step_at = None
        if by_hand or self.limit == most:
            self._limit_why = why
        return [] if self.slots == before else [LimitSet(self.resource, self.slots, why)]

    def denial(self, now: float, max_wait: float) -> str:
        """Why nothing will be sent within `max_wait` seconds; "" if that is not so."""
        if self.until is None or self.until - now <= max_wait:
            return ""
        return f"it takes nothing for {self.until - now:,.0f} s: {self.reason}"

    # -- calls --------------------------------------------------------------------------------------------------------

    def sent(self, ticket: int, *, now: float) -> None:
        """A call is sent."""
        self._sent[ticket] = self._burst
        if len(self._sent) >= self.slots:
            self._full = True
            if self._ramp is not None and self._step_at is None:
                self._step_at = now + ANSWER

    def answered(self, ticket: int, *, now: float) -> list[Fact]:
        """The server took it, whatever came of it."""
        if self._sent.pop(ticket, None) != self._burst or self.until is not None:
            return []  # it was sent before the last refusal, and tells nothing new
        self._closings = 0
        self._answers += 1
        if self._ramp is not None:
            return self._step(now) if self._answers >= self._ramp else []
        began, least = self._window
        if not self._full or self.limit >= self.most or self._answers < self.limit or now - began < least:
            return []
        self.limit += 1
        self._limit_why = self.why if self.limit == self.most else f"{self._answers} answers without a refusal"
        self._begin_window(now)
        return [LimitSet(self.resource, self.slots, self._limit_why)]

    def dropped(self, ticket: int) -> None:
        """It ended in a way that tells nothing of the limit; harmless for one that has ended."""
        self._sent.pop(ticket, None)

    def refused(self, ticket: int, asked: float | None, what: str, *, now: float, dice: float) -> list[Fact]:
        """The server did not take it: too many. `asked`: the seconds it said; `dice`, in [0, 1), only ever adds."""
        burst = self._sent.pop(ticket, None)
        if burst is None:
            return []
        first, was_open = burst == self._burst, self.until is None
        until = now + pause(asked, self._closings, dice)
        facts: list[Fact] = []
        if first:
            had = max(1, self.limit if self._ramp is None else min(self._ramp, self.limit))
            self.limit = max(1, had // 2)
            self._limit_why = f"{what}: half of {had}"
            self._burst += 1
            self._closings += 1
            self._window = (now, min(max(until - now, _WINDOW_LEAST), _WINDOW_MOST))
            self._ramp = self._step_at = None
        known = self.until
        if known is None or until > known:
            self.until, self.reason = until, what
        if first or known is None or until > known + _MATERIAL:
            facts.append(GateClosed(self.resource, now, self.until or until, what, first))
        if was_open:
            text = f"{what}: nothing is sent for {until - now:.3g} s, then {self.limit} at once"
            facts.append(LimitSet(self.resource, 0, text))
        return facts

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """When `tick` has something to do."""
        return self._step_at if self.until is None else self.until

    def tick(self, *, now: float) -> list[Fact]:
        """What time alone changes: the gate opens, or the next few may follow."""
        if self.until is not None:
            if now < self.until:
                return []
            self.until, self.reason = None, ""
            self._ramp = 1 if self.limit > 1 else None
            self._begin_window(now)
            why = f"one goes ahead, then up to {self.limit}" if self._ramp else self._limit_why
            return [GateOpened(self.resource, now), LimitSet(self.resource, self.slots, why)]
        return self._step(now) if self._step_at is not None and now >= self._step_at else []

    def _step(self, now: float) -> list[Fact]:
        """More by as many as are taken, or by half as many beyond `START`: the next burst of refusals is that large."""
        assert self._ramp is not None
        taken = self._ramp
        self._ramp += taken if taken < START else taken // 2
        if self._ramp >= self.limit:
            self._ramp = None
        self._begin_window(now)
        why = self._limit_why if self._ramp is None else f"{taken} at once without a refusal"
        return [LimitSet(self.resource, self.slots, why)]

    def _begin_window(self, now: float) -> None:
        self._answers, self._full, self._step_at = 0, False, None
        self._window = (now, self._window[1])
