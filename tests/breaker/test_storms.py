"""One call that is always refused is its own trouble."""

from __future__ import annotations

import asyncio

import pytest

from centuria.core.rates import RateLimits
from centuria.ports import Caller
from centuria.testing import clock
from centuria.throttle import Patience
from tests.model.limited import Crowd, Upstream, too_many


class WithOneRefused(Crowd):
    """Agent 0 is refused whenever it asks, in words that say nothing; `done_at` is when the last of the others was."""

    asked_again = 3.0
    done_at = 0.0

    async def request(self, caller: Caller, patience: Patience) -> None:
        if caller.index:
            await super().request(caller, patience)
            self.done_at = asyncio.get_running_loop().time()
            return
        async with self.throttle.admit(caller, tokens=self.tokens, patience=patience):
            await asyncio.sleep(0.05)
            raise too_many("too many requests", self.asked_again)


@pytest.mark.parametrize("asked_again", [0.0, 3.0, 20.0])
def test_a_call_that_is_refused_whenever_it_comes_does_not_keep_the_gate_closed_for_the_others(
    asked_again: float,
) -> None:
    crowd = WithOneRefused(Upstream(), known=RateLimits(concurrency=50))
    crowd.asked_again = asked_again
    clock.run(crowd.run(100, calls=5))
    assert crowd.results["ok"] == 495
    assert crowd.done_at < 60 + 20 * asked_again
    assert {str(error.kind) for error in crowd.errors} == {"gate"}  # type: ignore[attr-defined]
    crowd.assert_nothing_is_left()
