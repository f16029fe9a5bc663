"""A key's requests and tokens by the minute: who has to wait waits in a fair queue by agent, and is refused only where
its turn would not come in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

from centuria.core.fairqueue import FairQueue
from centuria.core.rates import RateLimits, Rates
from centuria.gateway.ports import Key
from centuria.gateway.problems import rate_limited
from centuria.gateway.settings import Caps

_TICK = 0.001
#: Of a minute's limit so much may go at once.
_SHARE = 0.5
#: Keys whose use is kept in any case.
_KEPT = 256


@dataclass(slots=True)
class _Waiter:
    tokens: int
    woken: asyncio.Future[None]


class _Meter:
    """One key's limits."""

    def __init__(self, key: Key, caps: Caps, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.measure(key)
        self.queue = FairQueue(most=caps.waiting, most_each=caps.waiting)
        self.waiters: dict[int, _Waiter] = {}
        self.timer: asyncio.TimerHandle | None = None

    def measure(self, key: Key) -> None:
        """These are the key's limits, from now on."""
        self.limits = (key.rpm, key.tpm)
        self.rates = Rates(RateLimits(requests=key.rpm, tokens=key.tpm), _SHARE)
        #: What is told of each: names of headers, and the limit, which stays.
        self._told = [
            (f"x-ratelimit-remaining-{name}", f"x-ratelimit-reset-{name}", bucket)
            for name, bucket in self.rates.buckets.items()
        ]
        self._limits = {
            f"x-ratelimit-limit-{name}": str(int(bucket.limit)) for name, bucket in self.rates.buckets.items()
        }

    def headers(self, now: float) -> dict[str, str]:
        """What is left, as OpenAI's headers say it."""
        found = self._limits.copy()
        for remaining, reset, bucket in self._told:
            left = int(bucket.level_at(now))
            if left < 0:
                left = 0
            found[remaining] = str(left)
            found[reset] = f"{(bucket.burst - left) * 60 / bucket.limit:.3f}s"
        return found

    def is_full(self, now: float) -> bool:
        """Whether nobody waits and nothing is used: a new one would say the same."""
        return not self.waiters and all(each.level_at(now) >= each.burst for each in self.rates.buckets.values())

    def wait(self, tokens: int, now: float) -> float:
        """Seconds until a request that comes now would have its turn, behind all that wait."""
        seconds = 0.0
        for name, bucket in self.rates.buckets.items():
            each = name == "requests"
            ahead = sum(1 if each else min(waiter.tokens, bucket.limit) for waiter in self.waiters.values())
            own = min(1 if each else tokens, bucket.burst)
            seconds = max(seconds, (ahead + own - bucket.level_at(now)) / bucket.rate)
        return seconds

    def pump(self) -> None:
        now = self._loop.time()
        self.stop()
        while (ticket := self.queue.first()) is not None:
            waiter = self.waiters[ticket]
            seconds = self.rates.wait(waiter.tokens, now)[0]
            if seconds > 0:
                self.timer = self._loop.call_later(max(seconds, _TICK), self.pump)
                return
            self.queue.pop()
            del self.waiters[ticket]
            if not waiter.woken.done():
                self.rates.take(waiter.tokens, now)
                waiter.woken.set_result(None)

    def stop(self) -> None:
        """No timer is left."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class KeyRates:
    """The limits of all keys."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._meters: dict[str, _Meter] = {}
        #: So many are kept before those that say nothing are looked for.
        self._most = _KEPT
        self._tickets = count(1)

    async def admit(self, key: Key, agent: str, *, priority: int, tokens: int, deadline: float) -> None:
        """Return when a request of this many tokens may go. Raises `Problem` (429, with when that would be)."""
        if key.rpm is None and key.tpm is None:
            return
        meter = self._meter(key)
        now = self._now()
        if not meter.waiters and meter.rates.try_take(tokens, now):
            return
        seconds = meter.wait(tokens, now)
        ticket = next(self._tickets)
        if now + seconds > deadline or not meter.queue.add(ticket, agent, "", priority=priority, now=now):
            raise rate_limited(_said(key), seconds)
        waiter = meter.waiters[ticket] = _Waiter(tokens, self._loop.create_future())
        try:
            meter.pump()
            async with asyncio.timeout_at(deadline):
                await waiter.woken
        except BaseException as error:
            meter.waiters.pop(ticket, None)
            meter.queue.remove(ticket)
            if waiter.woken.done() and not waiter.woken.cancelled():
                self.give_back(key, tokens, 0)
            meter.pump()
            if isinstance(error, TimeoutError):
                raise rate_limited(_said(key), meter.wait(tokens, self._now())) from None
            raise

    def give_back(self, key: Key, taken: int, used: int) -> None:
        """A request has used that many of the tokens that it was admitted with."""
        meter = self._meters.get(key.id)
        if meter is not None:
            meter.rates.give_back(taken, used, self._now())
            if meter.waiters:
                meter.pump()

    def headers(self, key: Key) -> dict[str, str]:
        """What is left, as OpenAI's headers say it."""
        meter = self._meters.get(key.id)
        return {} if meter is None else meter.headers(self._now())

    def known(self) -> int:
        """Keys of which it is kept what they used."""
        return len(self._meters)

    def close(self) -> None:
        for meter in self._meters.values():
            meter.stop()

    def _meter(self, key: Key) -> _Meter:
        meter = self._meters.get(key.id)
        if meter is None:
            if len(self._meters) >= self._most:
                self._forget()
            meter = self._meters[key.id] = _Meter(key, self._caps, self._loop)
        elif meter.limits != (key.rpm, key.tpm):
            meter.measure(key)
            meter.pump()
        return meter

    def _forget(self) -> None:
        """Keys that have not asked for a minute or two, which may be there no more."""
        now = self._now()
        self._meters = {id: meter for id, meter in self._meters.items() if not meter.is_full(now)}
        self._most = max(_KEPT, 2 * len(self._meters))


def _said(key: Key) -> str:
    parts = [f"{key.rpm:,} requests"] if key.rpm is not None else []
    parts += [f"{key.tpm:,} tokens"] if key.tpm is not None else []
    return f"This key may send {' and '.join(parts)} a minute, and its turn would not come in time."
