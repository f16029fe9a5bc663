"""What the gateway has done and does, for Prometheus (text format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from centuria.gateway.ports import AttemptRow
from centuria.messages import DOLLAR, Pico

#: Upper bounds of the buckets of times, in seconds.
_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Sample = tuple[str, dict[str, str], float]


class Tally:
    """Adds up what has ended. `record` costs a microsecond or two: it is on every request's way."""

    def __init__(self) -> None:
        self._ends: Counter[tuple[str, str]] = Counter()
        self._models: dict[str, _Used] = {}
        self._waits = _Histogram()
        self._first = _Histogram()
        self._total = _Histogram()

    def record(self, row: AttemptRow) -> None:
        """An attempt has ended."""
        self._ends[row.model, row.end] += 1
        used = self._models.get(row.model)
        if used is None:
            used = self._models[row.model] = _Used()
        used.prompt += row.prompt
        used.cached += row.cached
        used.output += row.output
        used.cost += row.cost
        used.held += row.held
        self._waits.add(row.queued_ms / 1000)
        self._total.add(row.total_ms / 1000)
        if row.first_token_ms is not None:
            self._first.add(row.first_token_ms / 1000)

    def lines(self, gauges: Iterable[Sample]) -> Iterator[str]:
        """All of it, with these momentary values beside it."""
        yield from _family(
            "attempts_total",
            "counter",
            "Requests to upstreams that ended, by how.",
            (({"model": model, "end": end}, value) for (model, end), value in self._ends.items()),
        )
        yield from _family(
            "tokens_total",
            "counter",
            "Tokens that upstreams counted.",
            (
                ({"model": model, "kind": kind}, value)
                for model, used in self._models.items()
                for kind, value in (("prompt", used.prompt), ("cached", used.cached), ("output", used.output))
            ),
        )
        yield from _family(
            "dollars_total",
            "counter",
            "What was paid, and what is held for lost attempts.",
            (
                ({"model": model, "kind": kind}, value / DOLLAR)
                for model, used in self._models.items()
                for kind, value in (("cost", used.cost), ("held", used.held))
            ),
        )
        yield from self._waits.lines("queue_seconds", "How long a request waited for its place.")
        yield from self._first.lines("first_token_seconds", "From the request to its first event, or its whole answer.")
        yield from self._total.lines("attempt_seconds", "From the request to the end of the attempt.")
        seen: set[str] = set()
        for name, labels, value in gauges:
            if name not in seen:
                seen.add(name)
                yield f"# TYPE centuria_{name} gauge\n"
            yield _sample(name, labels, value)


@dataclass(slots=True)
class _Used:
    """What one model's attempts took, in tokens and pico-dollars."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    cost: Pico = 0
    held: Pico = 0


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._sum += seconds
        self._counts[bisect_left(_BUCKETS, seconds)] += 1

    def lines(self, name: str, text: str) -> Iterator[str]:
        yield f"# HELP centuria_{name} {text}\n# TYPE centuria_{name} histogram\n"
        total = 0
        for bound, count in zip((*_BUCKETS, None), self._counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", {"le": "+Inf" if bound is None else f"{bound:g}"}, total)
        yield _sample(f"{name}_sum", {}, self._sum)
        yield _sample(f"{name}_count", {}, total)


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP centuria_{name} {text}\n# TYPE centuria_{name} {kind}\n"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"centuria_{name}{{{told}}} {value:.15g}\n" if told else f"centuria_{name} {value:.15g}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
