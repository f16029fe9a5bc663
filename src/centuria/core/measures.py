"""What the fold of events measures with: distributions, sums of tokens, a timeline. Pure and bounded."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from centuria.messages import Usage

#: Two values closer than this ratio may be counted as one: percentiles are right within half a percent.
_GROWTH = math.log(1.01)
_SMALLEST = 1e-6

SpanKind = Literal["agent", "model", "tool", "wait"]
SPAN_KINDS: tuple[SpanKind, ...] = ("agent", "model", "tool", "wait")


@dataclass(slots=True)
class Sample:
    """A distribution of seconds in a bounded number of buckets; count, sum, least and most are exact."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        value = value if 0.0 < value < 1e12 else 0.0  # a clock that jumped, or no number at all
        self.count += 1
        self.total += value
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value
        bucket = int(math.log(value / _SMALLEST) / _GROWTH) if value > _SMALLEST else -1
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def percentile(self, percent: float) -> float | None:
        """The nearest-rank percentile in seconds, within half a percent; None without values."""
        if not self.count:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        seen, found = 0, -1
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            found = bucket
            if seen >= rank:
                break
        middle = 0.0 if found < 0 else _SMALLEST * math.exp((found + 0.5) * _GROWTH)
        return self.most if rank >= self.count else min(max(middle, self.least), self.most)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def p50(self) -> float | None:
        return self.percentile(50)

    @property
    def p99(self) -> float | None:
        return self.percentile(99)


@dataclass(slots=True)
class Load:
    """How much of something was in use over time: shares (1 = all of it) in whole percent, weighted by seconds."""

    seconds: float = 0.0
    total: float = 0.0
    buckets: dict[int, float] = field(default_factory=dict)

    def add(self, share: float, seconds: float) -> None:
        """This much was in use for so long. More than all of it, after a limit was lowered, counts as all."""
        if not 0.0 < seconds < 1e12:  # a clock that jumped
            return
        share = 1.0 if share > 1.0 else 0.0 if share < 0.0 else share
        self.seconds += seconds
        self.total += share * seconds
        bucket = round(share * 100)
        self.buckets[bucket] = self.buckets.get(bucket, 0.0) + seconds

    def over(self, seconds: float) -> Occupancy | None:
        """The figures for so many seconds in all: in what is more than was added, nothing was in use."""
        whole = max(seconds, self.seconds)
        if whole <= 0:
            return None
        idle = whole - self.seconds
        return Occupancy(self.total / whole, self._percentile(50, idle), self._percentile(99, idle))

    def _percentile(self, percent: float, idle: float) -> float:
        """The share that was not exceeded for this part of the time."""
        enough = (self.seconds + idle) * percent / 100
        spent, found = idle, 0
        for bucket in sorted(self.buckets):
            if spent >= enough and spent > 0:
                break
            spent += self.buckets[bucket]
            found = bucket
        return found / 100


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of slots that were in service, 0 to 1, over time."""

    mean: float
    p50: float
    p99: float


@dataclass(slots=True)
class Tokens:
    """Usage, summed. `calls` answered with usage, `missing` answered without."""

    prompt: int = 0
    cached: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0
    calls: int = 0
    missing: int = 0

    def add(self, usage: Usage) -> None:
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.cache_written += usage.cache_written
        self.output += usage.output
        self.reasoning += usage.reasoning
        self.calls += 1

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the timeline. `slot` is the agent's (-1: none, as for the merge); `end` None: not over yet.

    `agent`: a task in its slot · `model`, `tool`: one attempt · `wait`: in the queue of the resource `name`.
    """

    slot: int
    task: str
    start: float
    end: float | None
    kind: SpanKind
    name: str
    end_state: str


@dataclass(slots=True)
class Timeline:
    """Spans in columns (about 40 bytes each), in the order in which they came to be known."""

    _words: dict[str, int] = field(default_factory=dict)
    _start: array[float] = field(default_factory=lambda: array("d"))
    _end: array[float] = field(default_factory=lambda: array("d"))
    _slot: array[int] = field(default_factory=lambda: array("i"))
    _task: array[int] = field(default_factory=lambda: array("i"))
    _kind: array[int] = field(default_factory=lambda: array("b"))
    _name: array[int] = field(default_factory=lambda: array("i"))
    _state: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self._start)

    def _word(self, text: str) -> int:
        return self._words.setdefault(text, len(self._words))

    def begin(self, slot: int, task: str, kind: SpanKind, name: str, start: float) -> int:
        """Add a span that is not over. Returns its number."""
        self._start.append(start)
        self._end.append(-1.0)
        self._slot.append(slot)
        self._task.append(self._word(task))
        self._kind.append(SPAN_KINDS.index(kind))
        self._name.append(self._word(name))
        self._state.append(self._word(""))
        return len(self._start) - 1

    def end(self, number: int, at: float, state: str) -> None:
        """The span is over, if it was not already."""
        if self._end[number] < 0:
            self._end[number] = max(at, self._start[number])
            self._state[number] = self._word(state)

    def __iter__(self) -> Iterator[Span]:
        words = list(self._words)
        for number, start in enumerate(self._start):
            end = self._end[number]
            yield Span(
                self._slot[number],
                words[self._task[number]],
                start,
                None if end < 0 else end,
                SPAN_KINDS[self._kind[number]],
                words[self._name[number]],
                words[self._state[number]],
            )
