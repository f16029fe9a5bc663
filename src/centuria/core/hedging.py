"""Whether a slow call is sent a second time (the first answer counts, the other is cancelled). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from centuria.messages import Pico


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """Hedge what is slower than `percentile` of this run's calls, for at most `share` of the budget in all.

    `enough` calls must have been answered before their times say anything. `floor` is in seconds: below it a
    second request gains nothing.
    """

    share: float = 0.05
    percentile: float = 95.0
    enough: int = 20
    floor: float = 2.0

    def after(
        self,
        *,
        answered: int,
        slow: float | None,
        spent: Pico,
        worst: Pico,
        budget: Pico | None,
    ) -> float | None:
        """Seconds after which a running call is to be hedged, None: not at all.

        `slow` is `percentile` of the seconds that this run's `answered` calls took; `spent` is what hedges have
        cost and hold so far, `worst` what one more may cost. Without a budget there is no share of it: None.
        """
        if answered < self.enough or slow is None or not math.isfinite(slow) or budget is None:
            return None
        if worst < 0 or spent + worst > budget * self.share:
            return None
        return max(self.floor, slow)
