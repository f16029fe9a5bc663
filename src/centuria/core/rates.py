"""Buckets that refill continuously, and windows of which an upstream says what is left. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MINUTE, DAY = 60.0, 86_400.0
#: A bucket counts as full enough within this share of its burst: waits that were computed must suffice.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What is known of an account's limits: requests and tokens by the minute, None where it is not known."""

    concurrency: int | None = None
    requests: int | None = None
    tokens: int | None = None
    daily_tokens: int | None = None


@dataclass(slots=True)
class Bucket:
    """`limit` units each `period` seconds, of which `burst` may be taken at once.

    Over any span of s seconds at most `burst + s * limit / period` units are taken, as long as none asks for
    more than the limit at once: such a one waits for a full bucket and counts as the limit, and no debt is larger
    than that, so that a limit that was read wrongly slows and never stalls. `at` None: not used yet by this process.
    """

    limit: float
    period: float
    burst: float
    level: float
    at: float | None = None

    @classmethod
    def full(cls, limit: float, period: float, share: float) -> Bucket:
        """A full bucket whose burst is this share of its limit."""
        burst = max(1.0, limit * share)
        return cls(float(limit), period, burst, burst)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.limit / self.period

    def level_at(self, now: float) -> float:
        level, at = self.level, self.at
        if at is not None and now > at:
            level += (now - at) * self.limit / self.period
        return level if level < self.burst else self.burst

    def wait(self, amount: float, now: float) -> float:
        """Seconds until this much may be taken."""
        lack = min(amount, self.burst) - self.level_at(now)
        return 0.0 if lack <= _ROUNDING * self.burst else lack / self.rate

    # Changing.

    def take(self, amount: float, now: float) -> None:
        self._set(self.level_at(now) - min(amount, self.limit), now)

    def give_back(self, taken: float, used: float, now: float) -> None:
        """Of what was taken, only this much was used."""
        self._set(self.level_at(now) + min(taken, self.limit) - min(used, self.limit), now)

    def lower(self, left: float, now: float) -> None:
        """The upstream says that no more than this is left."""
        self._set(min(self.level_at(now), left), now)

    def _set(self, level: float, now: float) -> None:
        if level > self.burst:
            level = self.burst
        self.level = level if level > -self.limit else -self.limit
        if self.at is None or now > self.at:
            self.at = now


@dataclass(slots=True)
class Window:
    """What an upstream says is left until its window ends. It is believed for `trust` seconds at most.

    Each time that a window which was waited out is followed at once by another that is empty, the trust is
    halved: a header that always says "nothing left" slows, and never stalls.
    """

    left: int | None = None
    ends: float = 0.0
    trust: float = MINUTE
    waited: bool = False

    def wait(self, now: float) -> float:
        return self.ends - now if self.left is not None and self.left < 1 and now < self.ends else 0.0

    def news(self, left: int, near: int, now: float) -> bool:
        """Whether this changes what is left, where that is near its end."""
        return left <= near and (self.left is None or now >= self.ends or left < self.left)

    def seen(self, left: int, ends: float, now: float) -> None:
        if left > 0:
            self.trust, self.waited = MINUTE, False
        elif self.waited and now >= self.ends:
            self.trust, self.waited = max(1.0, self.trust / 2), False
        running = self.left is not None and now < self.ends
        self.left = min(left, self.left) if running and self.left is not None else left
        self.ends = min(ends, now + self.trust)

    def take(self, now: float) -> None:
        if self.left is None:
            return
        if now >= self.ends:
            self.waited = self.left < 1
            self.left = None
        else:
            self.left -= 1


@dataclass(slots=True)
class Rates:
    """The buckets of one account: `buckets` holds those whose limit is known, by name.

    `share` of a minute's limit may go at once. Limits that were configured are only ever lowered by what an
    upstream says.
    """

    known: RateLimits
    share: float
    buckets: dict[str, Bucket] = field(default_factory=dict)
    window: Window = field(default_factory=Window)

    def __post_init__(self) -> None:
        for name in ("requests", "tokens", "daily_tokens"):
            limit = getattr(self.known, name)
            if limit is not None:
                self._put(name, limit)

    @property
    def calm(self) -> bool:
        """Whether nothing is known that could make anyone wait."""
        return self.window.left is None and not self.buckets

    def wait(self, tokens: int, now: float) -> tuple[float, str]:
        """Seconds until a request of this many tokens may go, and what it waits for."""
        if self.calm:
            return 0.0, ""
        waits = [(self.window.wait(now), "the upstream's window of requests")]
        for name, bucket in self.buckets.items():
            waits.append((bucket.wait(_amount(name, tokens), now), _named(name, bucket)))
        return max(waits)

    def limits(self) -> dict[str, int]:
        """The limits that are known, by name."""
        return {name: int(bucket.limit) for name, bucket in self.buckets.items()}

    def news(self, name: str, limit: int | None, left: int | None, share: float, now: float) -> bool:
        """Whether this limit is another than the one that is known, or clearly less is left than was thought."""
        bucket = self.buckets.get(name)
        if limit is not None and (bucket is None or self._lowest(name, limit) != int(bucket.limit)):
            return True
        return bucket is not None and left is not None and left < bucket.level_at(now) - max(1, share * bucket.burst)

    # Changing.

    def take(self, tokens: int, now: float) -> None:
        self.window.take(now)
        for name, bucket in self.buckets.items():
            bucket.take(_amount(name, tokens), now)

    def try_take(self, tokens: int, now: float) -> bool:
        """Take this much, if it may go now. Of the buckets alone: what an upstream says of its window is not asked."""
        for name, bucket in self.buckets.items():
            if bucket.level_at(now) < min(_amount(name, tokens), bucket.burst):
                return False
        self.take(tokens, now)
        return True

    def give_back(self, taken: int, used: int, now: float) -> None:
        """A request has used that many of its tokens. That it was a request stays counted: upstreams do so."""
        for name, bucket in self.buckets.items():
            if name != "requests":
                bucket.give_back(taken, used, now)

    def seen(self, name: str, limit: int | None, left: int | None, now: float) -> None:
        if limit is not None:
            limit = self._lowest(name, limit)
            old = self.buckets.get(name)
            if old is None or int(old.limit) != limit:
                self._put(name, limit)
                if old is not None:
                    self.buckets[name].lower(old.level_at(now), now)
        if left is not None and name in self.buckets:
            self.buckets[name].lower(left, now)

    def restart(self) -> None:
        """Another process, whose clock is another. What the one before used of its last minute is not known, so it
        counts as all of it, and rises from `anchor` on; of a day the upstream has to say what is left."""
        self.window = Window()
        for bucket in self.buckets.values():
            bucket.at = None
            bucket.level = bucket.burst if bucket.period == DAY else 0.0

    def anchor(self, now: float) -> None:
        for bucket in self.buckets.values():
            bucket.at = now if bucket.at is None else bucket.at

    def _lowest(self, name: str, limit: int) -> int:
        own: int | None = getattr(self.known, name)
        return limit if own is None else min(own, limit)

    def _put(self, name: str, limit: int) -> None:
        daily = name == "daily_tokens"
        self.buckets[name] = Bucket.full(limit, DAY if daily else MINUTE, 1.0 if daily else self.share)


def _amount(name: str, tokens: int) -> int:
    return 1 if name == "requests" else tokens


def _named(name: str, bucket: Bucket) -> str:
    what = name.removeprefix("daily_")
    return f"{bucket.limit:,.0f} {what} a {'day' if bucket.period == DAY else 'minute'}"


def rate_that_worked(times: Iterable[float], until: float, asked: float) -> float:
    """Requests a second that an upstream took before it refused at `until` and asked for `asked` seconds.

    `times` are those of the requests that were not refused. The wait that is asked for is about as long as the
    window that is counted; longer spans are looked at as well, so that a lull before the refusal does not
    count as the rate. At least one request in the time that is asked for.
    """
    spans = (min(max(asked, 1.0), MINUTE), 10.0, MINUTE)
    recent = [until - at for at in times if 0 <= until - at < MINUTE]
    best = max(sum(1 for ago in recent if ago < span) / span for span in spans)
    return max(best, 1 / spans[0])
