"""How many at once: additive increase, multiplicative decrease. Pure.

A limit that is known is where it starts. One that is not starts at 5 and doubles for each window until the first
refusal; from then on it rises by one for each window. A window is as many answers as the limit, counted while
the limit was used up: what was never tried is not learned. While it doubles it need not wait for whole answers,
as refusals come before them: it is enough that as many as the limit are being answered at once. It then rises by
20 at most, because the next burst of refusals is as large as that step; and what it lets go is spread over a
quarter of a second, so that the first refusal comes before all of it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from centuria.core.rates import Bucket

START, STEP = 5, 20
#: While it doubles: so many may start within no time, and this many times the limit in a second. A wave that is
#: spread meets its first refusal before all of it is sent.
_AT_ONCE, _SPREAD = 5, 4
_LEARNED = "learned before the run was resumed"


@dataclass(slots=True)
class Aimd:
    """`limit` is between 1 and `most`; `known` is where it starts; `stated` is what the upstream says is the most.

    `why` is the reason of the limit where it starts, if it is none of those that follow from the numbers.
    """

    most: int
    known: int | None = None
    stated: int | None = None
    why: str = ""
    limit: int = field(init=False)
    doubling: bool = field(init=False)
    full: bool = False
    answers: int = 0
    #: In flight, and not refused.
    accepted: int = 0
    spread: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self._start()
        self.doubling = self.known is None
        self.spread = Bucket(_SPREAD * self.limit, 1.0, _AT_ONCE, _AT_ONCE)

    def wait(self, now: float) -> tuple[float, str]:
        """Seconds until one more may start, and why."""
        if not self.testing:
            return 0.0, ""
        return self.spread.wait(1, now), "the account's limits are being found out"

    def _start(self) -> int:
        return min(self.most, max(1, START if self.known is None else self.known))

    def first(self) -> str:
        """The reason of the limit that a process starts with."""
        if self.limit != self._start():
            return _LEARNED
        if self.why:
            return self.why
        if self.limit == self.most:
            return f"limits.concurrency = {self.most}"
        if self.known is None and not self.doubling:  # it came down to where it once began
            return _LEARNED
        if self.known is None:
            return f"the account's limits are not known: {START} at first, doubling until it is refused"
        return f"the account's concurrency is {self.known}"

    def grown(self) -> tuple[int, str] | None:
        """The next limit and its reason, when a window is full."""
        ceiling = self.most if self.stated is None else min(self.most, self.stated)
        if not self.full or self.limit >= ceiling:
            return None
        if self.answers >= self.limit:
            more = self.limit if self.doubling else 1
            return min(ceiling, self.limit + more), f"{self.answers} answers without a refusal"
        if self.doubling and self.accepted >= self.limit:
            return min(ceiling, self.limit + min(self.limit, STEP)), f"{self.accepted} at once without a refusal"
        return None

    @property
    def testing(self) -> bool:
        """Whether it matters now that a request was accepted."""
        return self.doubling and self.limit < self.most

    def lowered(self, why: str) -> tuple[int, str] | None:
        """Half as many, or what the upstream says is the most where we were above that; None where that is as it is."""
        if self.stated is not None and self.stated < self.limit:
            return max(1, self.stated), f"{why}; it states a concurrency of {self.stated}"
        return (self.limit // 2, why) if self.limit > 1 else None

    # Changing.

    def set(self, limit: int) -> None:
        self.limit, self.answers, self.full = limit, 0, False
        self.spread.limit = _SPREAD * limit

    def restart(self, *, refused: bool) -> None:
        """Another process, perhaps with another `most`. What was learned by a refusal stays."""
        learned = self.limit if refused else max(self.limit, self._start())
        self.set(min(learned, self.most))
        self.accepted = 0
        self.spread.level, self.spread.at = _AT_ONCE, None

    def admitted(self, in_flight: int, at: float) -> None:
        self.full = self.full or in_flight >= self.limit
        if self.testing:
            self.spread.take(1, at)
            # Quick answers never add up to the limit: what kept them back was the spread.
            self.full = self.full or self.spread.level < 1

    def answered(self) -> None:
        self.answers += self.full

    def refused(self) -> None:
        self.doubling, self.answers, self.full = False, 0, False
