"""Centuria's own client on the rack: the very `ModelClient` that runs use, with money, a governor and a journal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
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
from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused, SlotRefused
from centuria.messages import DOLLAR, CallKey, Completion, Message, Pico, ToolCall, ToolSpec
from centuria.model.client import ModelClient
from centuria.model.http import HttpTransport
from centuria.ports import Caller, ChatRequest, Transport
from centuria.settings import Endpoint, Secret, Timeouts
from centuria.stream import Stream
from centuria.testing.journal import MemoryJournal
from centuria.testing.torture.clients import LONGEST_WAIT, MAX_TOKENS, PATIENCE, ClientResult, ErrorKind
from centuria.throttle import Throttle

#: Kimi K2.5 at Moonshot: $0.60, $0.10 and $3.00 per million tokens.
PRICE = Price(input=600_000, cached=100_000, output=3_000_000)
_CAP: Pico = 1000 * DOLLAR
_MODEL = "kimi-k2.5"


class CenturiaClient:
    """It streams always; where an answer is to be whole, the upstream sends a document although it was asked for
    a stream. `ledger` is its money, `transport` makes what it sends with."""

    def __init__(self, transport: Callable[[], Transport] = HttpTransport) -> None:
        self.ledger = Ledger()
        self._transport = transport()
        self._clients: dict[str, ModelClient] = {}
        self._numbers = count()

    async def chat(
        self,
        base_url: str,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        stream: bool,
    ) -> ClientResult:
        del stream
        client = self._clients.get(base_url) or self._clients.setdefault(base_url, self._build(base_url, key))
        number = next(self._numbers)
        request = ChatRequest(
            tuple(_message(message) for message in messages), tuple(_tool(tool) for tool in tools), MAX_TOKENS
        )
        try:
            answer = await client.chat(request, Caller(CallKey("torture", 0, number, 0), "run", number))
        except (ModelError, SlotRefused) as error:
            return ClientResult(error_kind=_kind(error), said=f"{error} {error!r}")
        return _result(answer)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def accounted(self) -> Pico:
        """All money that it knows it spent, or may have spent."""
        return self.ledger.spent("run") + self.ledger.held("run")

    def _build(self, base_url: str, key: str) -> ModelClient:
        stream = Stream(MemoryJournal(), clock=time.time, progress=Progress())
        slots, money = Slots(SlotTable(), stream), Money(self.ledger, stream)
        governor = Governor(_MODEL, most=100, known=RateLimits(concurrency=100), max_wait=LONGEST_WAIT)
        throttle = Throttle(governor, WarmUp(_MODEL), slots, stream, queue=None, dice=random.random, wall=time.time)
        throttle.begin()
        money.set_cap("run", _CAP)
        return ModelClient(
            endpoint=Endpoint("fake", base_url, _MODEL, Secret(key)),
            transport=self._transport,
            calls=CallLedger(),
            money=money,
            throttle=throttle,
            price=PRICE,
            stream=stream,
            retry=RetryPolicy(delays=(0.01, 0.02, 0.04), max_wait=LONGEST_WAIT),
            timeouts=Timeouts(connect=5.0, first_token=PATIENCE, silence=PATIENCE, total=10.0),
            dice=random.random,
            wall=time.time,
            run="torture",
        )


def _kind(error: ModelError | SlotRefused) -> ErrorKind:
    match error:
        case ModelDenied() if error.kind == "parked":
            return "unavailable"  # nobody but time can act
        case ModelDenied():
            return "denied"
        case ContextTooLong():
            return "too_long"
        case ModelRefused():
            return "refused"
        case _:
            return "unavailable"


def _result(answer: Completion) -> ClientResult:
    message = answer.message
    return ClientResult(message.content, message.tool_calls, answer.usage, reasoning=message.reasoning)


def _message(message: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    return Message(
        message["role"],
        message.get("content") or "",
        message.get("reasoning_content"),
        calls,
        message.get("tool_call_id"),
    )


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool["function"]
    return ToolSpec(function["name"], function["description"], function["parameters"])
