"""Everything that a model client stands on, built for one test, and the questions asked of it afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from centuria.admission import Money, Slots
from centuria.core.calls import CallLedger
from centuria.core.governor import Governor
from centuria.core.money import Ledger
from centuria.core.prices import Price
from centuria.core.progress import Progress
from centuria.core.rates import RateLimits
from centuria.core.retry import RetryPolicy
from centuria.core.slots import SlotTable
from centuria.core.warmup import WarmUp
from centuria.events import CallClosed, CallOpened, Event, Notice, TextDelta, fold
from centuria.messages import DOLLAR, CallKey, Message, Pico
from centuria.model.client import ModelClient
from centuria.model.direct import DirectTransport
from centuria.model.wire import RequestWriter, identity
from centuria.ports import Caller, ChatRequest, Transport
from centuria.settings import Endpoint, Secret, Timeouts
from centuria.stream import Item, Stream, Subscription
from centuria.testing.journal import MemoryJournal
from centuria.testing.upstream import FakeUpstream
from centuria.throttle import Throttle

#: Kimi K2.5 at Moonshot: $0.60, $0.10 and $3.00 per million tokens.
PRICE = Price(input=600_000, cached=100_000, output=3_000_000)
KEY = "sk-verysecret0123456789"
QUICK = RetryPolicy(delays=(0.001, 0.001, 0.001))


class Desk:
    def __init__(
        self,
        transport: Transport,
        base_url: str = "http://upstream.test/v1",
        *,
        cap: Pico | None = 5 * DOLLAR,
        price: Price | None = PRICE,
        limit: int = 100,
        retry: RetryPolicy = QUICK,
        timeouts: Timeouts | None = None,
        journal: MemoryJournal | None = None,
        thinks: bool = False,
    ) -> None:
        self.transport = transport
        self.journal = journal or MemoryJournal()
        self.stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress())
        self.calls = CallLedger()
        self.table = SlotTable()
        self.slots = Slots(self.table, self.stream)
        self.governor = Governor("kimi-k2.5", most=limit, known=RateLimits(concurrency=limit))
        self.throttle = Throttle(
            self.governor,
            WarmUp("kimi-k2.5"),
            self.slots,
            self.stream,
            queue=(timeouts or Timeouts()).queue,
            dice=random.Random(1).random,
            wall=lambda: 0.0,
        )
        self.throttle.begin()
        self.ledger = Ledger()
        self.money = Money(self.ledger, self.stream)
        self.money.set_cap("run", cap)
        self.reader: Subscription = self.stream.subscribe()
        self.client = ModelClient(
            endpoint=Endpoint("fake", base_url, "kimi-k2.5", Secret(KEY), thinks=thinks),
            transport=transport,
            calls=self.calls,
            money=self.money,
            throttle=self.throttle,
            price=price,
            stream=self.stream,
            retry=retry,
            timeouts=timeouts or Timeouts(),
            dice=random.Random(1).random,
            wall=lambda: 0.0,
            run="run-1",
        )

    def facts(self, *kinds: type) -> list[Any]:
        return [record.event for record in self.journal.read() if not kinds or isinstance(record.event, kinds)]

    @property
    def closed(self) -> list[CallClosed]:
        return self.facts(CallClosed)

    @property
    def opened(self) -> list[CallOpened]:
        return self.facts(CallOpened)

    @property
    def notices(self) -> list[Notice]:
        return self.facts(Notice)

    async def until(self, holds: Callable[[Item], bool]) -> None:
        """Wait for something of the stream, from now on. Raises `TimeoutError`."""
        reader = self.stream.subscribe()
        try:
            async with asyncio.timeout(5):
                async for item in reader:
                    if holds(item):
                        return
        finally:
            self.stream.unsubscribe(reader)

    async def deltas(self) -> list[TextDelta]:
        self.stream.close()
        return [item async for item in self.reader if isinstance(item, TextDelta)]

    def assert_nothing_is_left_open(self) -> None:
        """No hold, no waiter, no slot and no call; every opened call was closed once; the journal tells it
        all."""
        assert self.ledger.open_holds() == () and self.ledger.waiting() == ()
        assert self.ledger.reserved("run") == 0 and self.ledger.overrun("run") == 0
        assert self.calls.in_doubt() == []
        assert self.table.in_use("model:kimi-k2.5") == 0 and self.table.waiting("model:kimi-k2.5") == 0
        assert {(row.key, row.attempt) for row in self.opened} == {(row.key, row.attempt) for row in self.closed}
        assert len(self.opened) == len(self.closed)
        spent = sum(row.cost for row in self.closed)
        assert self.ledger.spent("run") == spent
        events: list[Event] = self.facts()
        for live, fresh in ((self.ledger, Ledger()), (self.calls, CallLedger())):
            fold(fresh, events)
            assert fresh == live


@asynccontextmanager
async def desk(upstream: FakeUpstream, **more: Any) -> AsyncIterator[Desk]:
    transport = DirectTransport()
    try:
        yield Desk(transport, upstream.base_url, **more)
    finally:
        await transport.aclose()


def ask(text: str = "Hi", *, max_tokens: int = 2000, **more: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), max_tokens=max_tokens, **more)


def body_of(endpoint: Endpoint, request: ChatRequest, max_tokens: int = 100) -> bytes:
    """What is sent for it."""
    return RequestWriter(endpoint).write(request, identity(request), max_tokens)


def caller(task: str = "t", turn: int = 0, *, node: str = "run", index: int = 0) -> Caller:
    return Caller(CallKey(task, 0, turn, 0), node, index)
