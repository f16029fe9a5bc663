"""Crowds of calls, what becomes of each, and the two sets of books side by side.

`CENTURIA_CHAOS_CALLS` and `CENTURIA_CHAOS_SEEDS` make longer runs of these tests.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from centuria.core.money import Ledger
from centuria.errors import ModelError
from centuria.events import CallClosed, Event
from centuria.messages import Completion, Pico
from centuria.model.direct import DirectTransport
from centuria.testing.replies import Text
from centuria.testing.transport import Entry, Fault, Faults, Provider, Tariff
from centuria.testing.upstream import FakeUpstream
from tests.model.kit import Desk, ask, caller

#: Kimi K2.5 at Moonshot, as the provider has it: the price that `tests.model.kit.PRICE` states.
KIMI = Tariff(input=600_000, cached=100_000, output=3_000_000)
RETRIES = 3


def calls(default: int = 10_000) -> int:
    return int(os.environ.get("CENTURIA_CHAOS_CALLS", default))


def seeds(default: int = 1) -> range:
    return range(1, 1 + int(os.environ.get("CENTURIA_CHAOS_SEEDS", default)))


def runs(small: int) -> list[tuple[int, int]]:
    """Seeds, and how many calls each is to make: the first all of them, and so many `small` ones a twentieth each.
    Where the number of seeds is set, each makes all calls."""
    if "CENTURIA_CHAOS_SEEDS" in os.environ:
        return [(seed, calls()) for seed in seeds()]
    return [(1, calls()), *((seed, max(100, calls() // 20)) for seed in range(2, 2 + small))]


def prompt(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def answer_to(prompt: str) -> str:
    """No two prompts have the same."""
    return f"«{prompt}» has this answer, which is nobody else's: {prompt[::-1]} \N{HONEYBEE}."


def echo(body: Mapping[str, Any]) -> Text:
    return Text(answer_to(prompt(body)), piece=60)


class Stand(Desk):
    """A desk that reads a long journal once, however much is asked of it."""

    _read: tuple[int, list[Any]] = (0, [])

    def facts(self, *kinds: type) -> list[Any]:
        if self._read[0] != self.stream.seq:
            self._read = (self.stream.seq, super().facts())
        return [fact for fact in self._read[1] if not kinds or isinstance(fact, kinds)]


@asynccontextmanager
async def stand(upstream: FakeUpstream, **more: Any) -> AsyncIterator[Stand]:
    """One over real sockets."""
    transport = DirectTransport()
    try:
        yield Stand(transport, upstream.base_url, **more)
    finally:
        await transport.aclose()


@dataclass
class Crowd:
    """`agents` that make `calls` each, one after another. What became of each call is in `ends`, by its key."""

    desk: Desk
    agents: int
    calls: int = 1
    max_tokens: int = 100
    ends: dict[str, Completion | BaseException] = field(default_factory=dict)
    busy: int = 0
    peak: int = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self.tasks = [group.create_task(self.agent(index)) for index in range(self.agents)]

    async def agent(self, index: int) -> None:
        for turn in range(self.calls):
            await self.call(index, turn)

    async def call(self, index: int, turn: int) -> None:
        who = caller(f"a{index}", turn, index=index)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        try:
            end: Completion | BaseException = await self.desk.client.chat(
                ask(str(who.key), max_tokens=self.max_tokens), who
            )
        except Exception as error:  # every way to end is an outcome
            end = error
        except asyncio.CancelledError as error:
            end = error
            raise
        finally:
            self.busy -= 1
            assert str(who.key) not in self.ends
            self.ends[str(who.key)] = end

    def assert_every_call_has_an_outcome(self) -> None:
        assert len(self.ends) == self.agents * self.calls and self.busy == 0

    def assert_every_answer_is_its_own(self) -> None:
        for key, end in self.ends.items():
            if isinstance(end, Completion):
                assert end.message.content == answer_to(key)


def story(faults: Faults, key: str) -> list[Fault | None]:
    """What a call is to meet, request for request, where four failures other than 429 end it."""
    met: list[Fault | None] = []
    while met.count(None) + met.count("unsaid") == 0 and len(failures(met)) <= RETRIES:
        met.append(faults.fate(key, len(met) + 1).fault)
    return met


def failures(met: Sequence[Fault | None]) -> list[Fault]:
    return [fault for fault in met if fault is not None and fault not in ("limited", "unsaid")]


# -- books ----------------------------------------------------------------------------------------------------------


def by_caller(books: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in books:
        found[entry.caller].append(entry)
    return found


def assert_the_books_agree(desk: Desk, provider: Provider) -> None:
    """Every attempt whose usage arrived is the provider's row, to the last pico-dollar; all that the provider charges
    is spent or held, call by call and in total; and no cap was ever passed, not even for a moment."""
    events: list[Event] = desk.facts()
    ours = Counter((str(row.key), row.usage, row.cost) for row in events if isinstance(row, CallClosed) and row.usage)
    theirs = Counter((entry.caller, entry.usage, entry.charge) for entry in provider.books if entry.told)
    assert ours == theirs
    reserved = {(row.key, row.attempt): row.reserved for row in desk.opened}
    kept: Counter[str] = Counter()
    for row in desk.closed:
        kept[str(row.key)] += row.cost + (reserved[row.key, row.attempt] if _is_held(row) else 0)
    for key, entries in by_caller(provider.books).items():
        assert sum(entry.charge for entry in entries) <= kept[key], key
    spent, held = desk.ledger.spent("run"), desk.ledger.held("run")
    assert spent == sum(entry.charge for entry in provider.books if entry.told)
    cap = desk.ledger.cap("run")
    assert cap is not None
    assert provider.charged <= spent + held == sum(kept.values()) <= cap
    assert_never_above(desk, cap)


def _is_held(row: CallClosed) -> bool:
    return row.usage is None and row.end != "failed"


def assert_never_above(desk: Desk, cap: Pico) -> None:
    """What was spent, held and reserved was within the cap after every single fact."""
    ledger = Ledger()
    for event in desk.facts():
        ledger.apply(event)
        assert ledger.spent("run") + ledger.held("run") + ledger.reserved("run") <= cap


def assert_recovered_or_failed_as_foretold(crowd: Crowd, provider: Provider) -> Counter[str]:
    """Whoever met at most three failures other than 429 has its answer, and exactly the others met a fourth. Returns
    how many of each."""
    books, counts = by_caller(provider.books), Counter[str]()
    for key, end in crowd.ends.items():
        foretold = story(provider.faults, key)
        assert [entry.fault for entry in books[key]] == foretold, (
            key,
            foretold,
            [(e.at, e.fault, e.end) for e in books[key]],
            repr(end),
        )
        lost = len(failures(foretold)) > RETRIES
        assert isinstance(end, ModelError if lost else Completion), (key, end)
        counts["lost" if lost else "recovered"] += 1
        counts["requests"] += len(foretold)
    assert counts["requests"] == provider.requests
    return counts
