"""The breaker of one model: a denied key, permission or quota ends all sending. Pure.

Where the denial says for how long, one probe goes after that time: its answer closes the breaker, another denial opens
it anew, and a probe that came to nothing may be sent again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """`cause` says why nothing is sent while it is open; `probe_at` None: nothing is ever probed."""

    is_open: bool = False
    cause: str = ""
    probe_at: float | None = None
    #: The ticket of the probe that is in flight.
    probe: int | None = None

    def stops(self, now: float) -> bool:
        """Whether nothing may be sent now, not even a probe."""
        return self.is_open and (self.probe is not None or self.probe_at is None or now < self.probe_at)

    def left(self, now: float) -> float | None:
        """Seconds until the probe; None: there is none."""
        return None if self.probe_at is None else max(0.0, self.probe_at - now)

    # Changing.

    def open(self, cause: str, probe_at: float | None) -> None:
        self.is_open, self.cause, self.probe_at, self.probe = True, cause, probe_at, None

    def close(self) -> None:
        self.is_open, self.cause, self.probe_at, self.probe = False, "", None, None

    def admitted(self, ticket: int) -> None:
        if self.is_open:
            self.probe = ticket

    def ended(self, ticket: int) -> None:
        if self.probe == ticket:
            self.probe = None
