"""Upstreams with rate limits of every kind, on virtual time, and a crowd that calls them through a throttle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from centuria.admission import Slots
from centuria.core.governor import Governor
from centuria.core.progress import Progress
from centuria.core.rates import RateLimits
from centuria.core.slots import SlotTable
from centuria.core.warmup import WarmUp
from centuria.errors import ModelError, ModelUnavailable
from centuria.events import Event, LimitSet, RunResumed, fold
from centuria.messages import CallKey, Usage
from centuria.ports import Caller
from centuria.stream import Stream
from centuria.testing.journal import MemoryJournal
from centuria.throttle import Patience, Throttle, spends_no_retry

MODEL = "kimi-k2.5"
RESOURCE = f"model:{MODEL}"
RESUMED = RunResumed(0, 0, 0, None)


# -- limits: each says None, or why not --------------------------------------------------------------------------


class FixedWindow:
    """So many requests in each window of the wall clock."""

    def __init__(self, limit: int, seconds: float = 1.0, phase: float = 0.0) -> None:
        self.limit, self.seconds, self.phase = limit, seconds, phase
        self.counts: Counter[int] = Counter()

    def refuse(self, now: float, tokens: int, in_flight: int) -> str | None:
        window = int((now + self.phase) // self.seconds)
        if self.counts[window] >= self.limit:
            return "rate limit"
        self.counts[window] += 1
        return None


class SlidingWindow:
    """So many requests within any span of this length; `strict`: the refused ones count too."""

    def __init__(self, limit: int, seconds: float = 1.0, *, strict: bool = False) -> None:
        self.limit, self.seconds, self.strict = limit, seconds, strict
        self.times: deque[float] = deque()

    def refuse(self, now: float, tokens: int, in_flight: int) -> str | None:
        while self.times and now - self.times[0] >= self.seconds:
            self.times.popleft()
        refused = len(self.times) >= self.limit
        if not refused or self.strict:
            self.times.append(now)
        return "rate limit" if refused else None


class TokenBucket:
    """`rate` requests a second, `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst, self.level, self.at = rate, burst, burst, 0.0

    def refuse(self, now: float, tokens: int, in_flight: int) -> str | None:
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < 1 - 1e-9:
            return "rate limit"
        self.level -= 1
        return None


class Concurrency:
    def __init__(self, limit: int, *, says: bool = False) -> None:
        self.limit, self.says = limit, says

    def refuse(self, now: float, tokens: int, in_flight: int) -> str | None:
        if in_flight < self.limit:
            return None
        if self.says:
            return f"request reached max organization concurrency: {self.limit}, please try again after 1 seconds"
        return "too many at once"


class TokensPerMinute:
    """Prompt and longest answer, in fixed minutes, without a refund: as strict as can be."""

    def __init__(self, limit: int, *, says: bool = False) -> None:
        self.limit, self.says = limit, says
        self.counts: Counter[int] = Counter()

    def refuse(self, now: float, tokens: int, in_flight: int) -> str | None:
        minute = int(now // 60)
        if self.counts[minute] + tokens > self.limit:
            current = self.counts[minute]
            said = f"request reached project TPM rate limit, current: {current}, limit: {self.limit}"
            return said if self.says else "rate limit"
        self.counts[minute] += tokens
        return None


Limit = FixedWindow | SlidingWindow | TokenBucket | Concurrency | TokensPerMinute


# -- the upstream ------------------------------------------------------------------------------------------------


@dataclass
class Upstream:
    """Refuses after `trip` seconds, answers after `latency` more. `retry_after(now)` is its header, None for none."""

    limits: tuple[Limit, ...] = ()
    trip: Callable[[], float] = lambda: 0.05
    latency: Callable[[], float] = lambda: 0.4
    retry_after: Callable[[float], float | None] = lambda now: 1.0
    headers: Callable[[float], Mapping[str, str]] = lambda now: {}
    fail: Callable[[int], ModelError | None] = lambda number: None
    usage: Usage | None = field(default_factory=lambda: Usage(prompt=1000, output=500))
    arrivals: list[float] = field(default_factory=list)
    refused: int = 0
    in_flight: int = 0
    peak: int = 0

    async def accept(self, tokens: int) -> Mapping[str, str]:
        """Take the request or refuse it; its answer then takes `answer()`. Leaving is `leave()`."""
        now = asyncio.get_running_loop().time()
        self.arrivals.append(now)
        error = self.fail(len(self.arrivals))
        why = (
            None
            if error
            else next((no for limit in self.limits if (no := limit.refuse(now, tokens, self.in_flight))), None)
        )
        if error is None and why is None:
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.trip())
        if error is not None:
            raise error
        if why is not None:
            self.refused += 1
            raise too_many(why, self.retry_after(asyncio.get_running_loop().time()))
        return self.headers(asyncio.get_running_loop().time())

    async def answer(self) -> Usage | None:
        await asyncio.sleep(self.latency())
        return self.usage

    def in_any(self, seconds: float) -> int:
        """The most arrivals within any span of this length."""
        most, start = 0, 0
        for end, at in enumerate(self.arrivals):
            while at - self.arrivals[start] >= seconds:
                start += 1
            most = max(most, end - start + 1)
        return most


def too_many(
    why: str = "rate limit", retry_after: float | None = 1.0, *, kind: str = "rate_limit_reached_error"
) -> ModelError:
    said = f"HTTP 429. The upstream said: {why}."
    return ModelUnavailable(said, status=429, kind=kind, retry_after=retry_after, served=False)


# -- the crowd ---------------------------------------------------------------------------------------------------


class Crowd:
    """Agents, a throttle and an upstream. `results` says how each call ended: "ok" or the error's name."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        most: int = 100,
        known: RateLimits | None = None,
        seed: int = 1,
        tokens: int = 2000,
        prefix: str | None = None,
        **more: float,
    ) -> None:
        self.upstream = upstream
        self.dice = random.Random(seed)
        self.tokens = tokens
        self.prefix = prefix
        self.journal = MemoryJournal()
        self.stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress())
        self.table = SlotTable()
        self.slots = Slots(self.table, self.stream)
        self.fresh = lambda: Governor(MODEL, most=most, known=known, **more)
        self.governor = self.fresh()
        self.warmup = WarmUp(MODEL)
        self.throttle = Throttle(
            self.governor,
            self.warmup,
            self.slots,
            self.stream,
            queue=3600.0,
            dice=self.dice.random,
            wall=lambda: 1_700_000_000.0 + asyncio.get_running_loop().time(),
        )
        #: Each request that was admitted: its ticket, and the number of the last record before it.
        self.admitted: list[tuple[int, int]] = []
        self.results: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.failed_at: list[float] = []
        self.retries = 0
        self.ended_at = 0.0

    def events(self, *kinds: type) -> list[Event]:
        return [record.event for record in self.journal.read() if not kinds or isinstance(record.event, kinds)]

    def limits(self) -> list[int]:
        return [event.limit for event in self.events(LimitSet) if isinstance(event, LimitSet)]

    async def run(self, agents: int = 100, calls: int = 1, *, think: Callable[[], float] | None = None) -> None:
        self.throttle.begin()
        async with asyncio.TaskGroup() as group:
            for index in range(agents):
                group.create_task(self.agent(index, calls, think))
        self.ended_at = asyncio.get_running_loop().time()

    async def agent(self, index: int, calls: int, think: Callable[[], float] | None) -> None:
        for turn in range(calls):
            if think is not None:
                await asyncio.sleep(think())
            await self.call(Caller(CallKey(f"a{index}", 0, turn, 0), "run", index))

    async def call(self, caller: Caller) -> None:
        """What the model client does."""
        patience, failures = Patience(), 0
        while True:
            try:
                await self.request(caller, patience)
            except ModelError as error:
                if spends_no_retry(error):
                    continue
                failures += 1
                if not error.retryable or failures > 3:
                    self.results[type(error).__name__] += 1
                    self.errors.append(error)
                    self.failed_at.append(asyncio.get_running_loop().time())
                    return
                self.retries += 1
                await asyncio.sleep(2.0 ** (failures - 1) * (1 + self.dice.random() / 4))
            else:
                self.results["ok"] += 1
                return

    async def request(self, caller: Caller, patience: Patience) -> None:
        async with self.throttle.admit(caller, tokens=self.tokens, patience=patience, prefix=self.prefix) as admission:
            self.admitted.append((admission.ticket, self.stream.seq))
            headers = await self.upstream.accept(self.tokens)
            try:
                admission.accepted(headers)
                admission.begun()
                usage = await self.upstream.answer()
            finally:
                self.upstream.in_flight -= 1
            admission.succeeded(usage, headers)

    def assert_nothing_is_left(self) -> None:
        """No slot, no request in flight, no waiter; and whoever folds the journal and goes on has this governor."""
        assert self.table.in_use(RESOURCE) == 0 and self.table.waiting(RESOURCE) == 0
        assert self.governor.in_flight() == 0
        assert self.upstream.in_flight == 0
        assert not self.throttle._waiting and not self.throttle._cold
        events = self.events()
        governor, warmup, table = self.fresh(), WarmUp(MODEL), SlotTable()
        for machine in (governor, warmup, table):
            fold(machine, events)
        assert warmup == self.warmup
        assert table == self.table
        assert table.limit(RESOURCE) == governor.concurrency == self.governor.concurrency
        live = deepcopy(self.governor)
        fold(governor, [RESUMED])
        fold(live, [RESUMED])
        assert governor == live
