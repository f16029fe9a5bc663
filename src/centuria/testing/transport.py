"""A provider in memory that keeps its own books: a `Transport` without sockets, for ten thousand calls on virtual time.

    provider = Provider(lambda body: Text("Hello."), faults=Faults(limited=0.3, reset=0.05), tariff=KIMI)
    client = ModelClient(transport=provider, ...)
    ...
    assert provider.charged <= ledger.spent("run") + ledger.held("run")

What befalls a request is drawn for its seed, its caller and its attempt, whatever the order of things: a test can
ask `faults.fate(..)` beforehand. Each request is an `Entry` of the books, priced by the provider's own tariff;
answers that break off are billed by a rule of its own (`Rule`).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, pairwise
from typing import Any, Literal, get_args

from centuria.errors import ModelRefused, ModelUnavailable
from centuria.messages import Pico, Usage
from centuria.ports import HttpRequest, HttpResponse
from centuria.testing.replies import Answer, chunks, counted, error, say_hello

__all__ = ["Broken", "Entry", "Fate", "Faults", "Provider", "Tariff", "as_it_pleases", "complaint"]

#: limited: 429 with `Retry-After` · failed: 500 · reset: the connection, before any answer · cut: in the middle of the
#: answer · stall: no byte more, before the headers or after some of the answer · unsaid: a whole answer, no usage
Fault = Literal["limited", "failed", "reset", "cut", "stall", "unsaid"]
#: open: being answered · refused: by its status · whole: answered · broken: by the provider · aborted: by the client
End = Literal["open", "refused", "whole", "broken", "aborted"]


# -- what befalls a request -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fate:
    """`dice` decides the rest: when, how far, for how long."""

    fault: Fault | None
    dice: random.Random = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The share of requests that each fault befalls; all the others are answered. `retry_after` is in seconds."""

    limited: float = 0.0
    failed: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    unsaid: float = 0.0
    seed: int = 1
    retry_after: tuple[float, ...] = (0.5, 1.0, 2.0)

    def fate(self, caller: str, attempt: int) -> Fate:
        """What befalls this attempt (1..) of this caller, always the same."""
        dice = random.Random(f"{self.seed}/{caller}/{attempt}")
        draw = dice.random()
        for fault in get_args(Fault):
            draw -= getattr(self, fault)
            if draw < 0:
                return Fate(fault, dice)
        return Fate(None, dice)


# -- the books ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Pico-dollars a token. Tokens of the prompt that were in the cache cost `cached` instead of `input`."""

    input: Pico
    output: Pico
    cached: Pico

    def charge(self, usage: Usage) -> Pico:
        fresh = usage.prompt - usage.cached
        return self.input * fresh + self.cached * usage.cached + self.output * usage.output


@dataclass(frozen=True, slots=True)
class Broken:
    """An answer that ended too early: what it would have used, of which `sent` output tokens left, and the `most`
    output tokens that it was allowed. `dice` is in [0, 1)."""

    usage: Usage
    sent: int
    most: int
    dice: float


#: What is billed for an answer that broke off; None: nothing.
Rule = Callable[[Broken], Usage | None]


def as_it_pleases(broken: Broken) -> Usage | None:
    """One in four is free, one is billed as far as it was sent, one as if it had been whole, and one went on for as
    long as it was allowed."""
    usage = broken.usage
    outputs = (None, broken.sent, usage.output, broken.most)
    output = outputs[int(broken.dice * len(outputs))]
    return None if output is None else Usage(usage.prompt, usage.cached, usage.cache_written, output)


@dataclass(slots=True)
class Entry:
    """One request in the books: who asked, for which time, what befell it, and what is charged for it.

    `usage` None: nothing is billed. `told`: the client was sent this usage. `at` is the loop's time.
    """

    caller: str
    attempt: int
    at: float
    fault: Fault | None
    usage: Usage | None = None
    charge: Pico = 0
    told: bool = False
    end: End = "open"


class Provider:
    """Implements `ports.Transport`, for chat completions. `script` gives the answer to a parsed body, within its
    `max_tokens`.

    `latency` (to the first byte) and `gap` (between writes) are seconds, drawn between two bounds. A write is one
    event of the stream, or `grain` bytes, wherever that cuts. `tokenise` counts a prompt's tokens. A request whose
    history is not valid (`complaint`) is refused with a 400, as providers do.

    `requests` is how many came, `attempts` counts them by caller, `in_flight` and `peak` are those that are being
    answered, `open` the responses that no client has left yet, `aborted` those that were left too early.
    """

    def __init__(
        self,
        script: Callable[[dict[str, Any]], Answer] = say_hello,
        *,
        faults: Faults | None = None,
        tariff: Tariff | None = None,
        latency: tuple[float, float] = (0.2, 2.0),
        gap: tuple[float, float] = (0.0, 0.0),
        grain: int | None = None,
        rule: Rule = as_it_pleases,
        tokenise: Callable[[bytes], int] = lambda body: len(body) // 3,
    ) -> None:
        self.script = script
        self.faults = faults or Faults()
        self.tariff = tariff or Tariff(input=0, output=0, cached=0)
        self.latency = latency
        self.gap = gap
        self.grain = grain
        self.rule = rule
        self.tokenise = tokenise
        self.books: list[Entry] = []
        self.attempts: Counter[str] = Counter()
        #: Why requests were refused with a 400.
        self.complaints: list[str] = []
        self.in_flight = 0
        self.peak = 0
        self.open = 0
        self.aborted = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._ids = count(1)
        self._closed = False

    @property
    def requests(self) -> int:
        return len(self.books)

    @property
    def charged(self) -> Pico:
        """What all requests so far cost."""
        return sum(entry.charge for entry in self.books)

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Raises `ModelUnavailable` (kind "cut") for a reset, `ModelRefused` (kind "closed") after `aclose`."""
        return self._send(request)

    async def aclose(self) -> None:
        self._closed = True
        for waiter in tuple(self._waiters):
            if not waiter.done():
                waiter.set_exception(ModelUnavailable("The connection was closed.", kind="cut"))

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        if self._closed:
            raise ModelRefused("The transport is closed.", kind="closed", served=False)
        sale = self._receive(request)
        self.open += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            yield await self._answer(sale)
        finally:
            self.open -= 1
            self.aborted += sale.left()

    def _receive(self, request: HttpRequest) -> _Sale:
        caller = str(request.caller.key) if request.caller else request.headers.get("Idempotency-Key", "")
        self.attempts[caller] += 1
        fate = self.faults.fate(caller, self.attempts[caller])
        entry = Entry(caller, self.attempts[caller], asyncio.get_running_loop().time(), fate.fault)
        self.books.append(entry)
        return _Sale(self, entry, fate, request.body, next(self._ids))

    async def _answer(self, sale: _Sale) -> HttpResponse:
        dice = sale.dice
        if sale.wrong:
            self.complaints.append(sale.wrong)
            return sale.refusal(400, "invalid_request_error", sale.wrong)
        await self.wait(dice.uniform(*self.latency))
        match sale.entry.fault:
            case "limited":
                seconds = dice.choice(self.faults.retry_after)
                return sale.refusal(429, "rate_limit_reached_error", "Too many requests.", seconds)
            case "failed":
                return sale.refusal(500, "server_error", "The server had an error.")
            case "reset":
                sale.broke()
                raise ModelUnavailable("The connection was reset.", kind="cut")
            case "stall" if dice.random() < 0.5:
                await self.wait(None)
        return _Stream(sale, {"content-type": "text/event-stream"}, sale.writes())

    async def wait(self, seconds: float | None) -> None:
        """Sleep, None for ever. Raises `ModelUnavailable` when the transport is closed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _wake, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


class _Sale:
    """One request on its way through the provider: what it is answered, and what is written into its entry."""

    def __init__(self, provider: Provider, entry: Entry, fate: Fate, body: bytes, number: int) -> None:
        self.provider = provider
        self.entry = entry
        self.dice = fate.dice
        self.over = False
        self._body: dict[str, Any] = json.loads(body)
        self._most = int(self._body.get("max_tokens") or self._body["max_completion_tokens"])
        self._id = f"chatcmpl-{number}"
        self._sent = 0
        self.wrong = complaint(self._body["messages"])
        if not self.wrong:
            self._answer = provider.script(self._body)
            self._usage = self._count(provider.tokenise(body))
        #: Bytes after which the answer is whole, and after which its usage is known.
        self._whole_at, self._told_at = 0, 0.0

    def _count(self, prompt: int) -> Usage:
        """The usage of the whole answer: as it is stated, or counted."""
        usage = counted(self._answer, prompt)
        if usage is self._answer.usage:
            return usage
        if usage.output > self._most:
            raise ValueError(f"The script answers {usage.output} tokens where {self._most} are allowed.")
        return replace(usage, cached=int(prompt * self.dice.random()))

    def writes(self) -> list[bytes]:
        """The body in the pieces in which it will be written; without its end where it is to break off."""
        answer, fault = self._answer, self.entry.fault
        if fault == "unsaid":
            answer = replace(answer, usage=None)
        events = [b"data: " + part + b"\n\n" for part in chunks(answer, self._body, self._usage, self._id)]
        told = answer.usage is not None and answer.report != "none"
        whole = len(events) - (told and answer.report == "top")
        self._whole_at = sum(map(len, events[:whole]))
        self._told_at = sum(map(len, events)) if told else math.inf
        # The last event of the answer says that it is whole: no fault comes after it.
        before = sum(map(len, events[: whole - 1]))
        events.append(b"data: [DONE]\n\n")
        body, grain = b"".join(events), self.provider.grain
        size = int(before * self.dice.random()) if fault in ("cut", "stall") else len(body)
        starts = range(0, size, grain) if grain else accumulate(map(len, events[:-1]), initial=0)
        cuts = [*(start for start in starts if start < size), size]
        return [body[start:end] for start, end in pairwise(cuts)]

    def wrote(self, size: int) -> None:
        self._sent += size
        if self._sent >= self._whole_at and not self.over:
            self._end("whole", self._usage)
        self.entry.told = self.entry.told or self._sent >= self._told_at

    def refusal(self, status: int, kind: str, message: str, retry_after: float | None = None) -> HttpResponse:
        usage = self._broken() if status >= 500 else None
        self._end("refused", usage)
        headers = {"content-type": "application/json"}
        if retry_after is not None:
            whole = retry_after == int(retry_after)
            headers |= {"retry-after": f"{retry_after:g}"} if whole else {"retry-after-ms": f"{retry_after * 1000:g}"}
        return _Stream(self, headers, [error(kind, message)], status)

    def broke(self) -> None:
        """The provider's own side broke it off."""
        if not self.over:
            self._end("broken", self._broken())

    def left(self) -> bool:
        """The client is gone; whether it went too early."""
        if self.over:
            return False
        self._end("aborted", None if self.entry.fault == "limited" else self._broken())
        return True

    def _broken(self) -> Usage | None:
        sent = math.ceil(self._usage.output * self._sent / self._whole_at) if self._whole_at else 0
        return self.provider.rule(Broken(self._usage, sent, self._most, self.dice.random()))

    def _end(self, end: End, usage: Usage | None) -> None:
        self.over = True
        self.provider.in_flight -= 1
        self.entry.end, self.entry.usage = end, usage
        self.entry.charge = 0 if usage is None else self.provider.tariff.charge(usage)


class _Stream:
    """What the client reads."""

    def __init__(self, sale: _Sale, headers: Mapping[str, str], writes: Sequence[bytes], status: int = 200) -> None:
        self.status = status
        self.headers = headers
        self._sale = sale
        self._writes = iter(writes)
        self._pause = 0.0

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        sale, provider = self._sale, self._sale.provider
        piece = next(self._writes, None)
        if piece is not None:
            if self._pause:
                await provider.wait(self._pause)
            self._pause = sale.dice.uniform(*provider.gap) if provider.gap[1] else 0.0
            if self.status == 200:
                sale.wrote(len(piece))
            return piece
        if self.status == 200 and sale.entry.fault == "stall":
            await provider.wait(None)
        if self.status == 200 and sale.entry.fault == "cut":
            sale.broke()
            raise ModelUnavailable("The connection broke off.", kind="cut")
        raise StopAsyncIteration


def complaint(messages: Sequence[Mapping[str, Any]]) -> str:
    """Why a provider would refuse this history; "" where it is valid: each tool call has exactly one result, right
    after the message that asked for it and in its order, and each result has its call."""
    expected: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if not expected or message.get("tool_call_id") != expected.pop(0):
                return f"messages[{place}] is the result of no tool call before it"
            continue
        if expected:
            return f"an assistant message with tool_calls must be followed by the results of {expected}"
        if message["role"] == "assistant":
            expected = [str(call["id"]) for call in message.get("tool_calls", ())]
    return f"an assistant message with tool_calls must be followed by the results of {expected}" if expected else ""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
