"""`mcp_tools` in a chat request: the gateway adds the tools, runs what the model calls, and answers with the end.

    ask the funnel -> the model calls tools -> run them side by side -> ask again with their results -> ... -> a message

Each turn is a request of its own to the funnel, with rows of its own under the one request id. What a tool says is a
message of the role `tool` and nothing else, however it reads. A function of the caller's own is its to run: a turn that
calls one is the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from centuria.core.arguments import BadArguments, parse_arguments
from centuria.errors import CenturiaError
from centuria.gateway.chat.checking import written
from centuria.gateway.headers import ATTEMPTS, COST, cost_told, priority_of
from centuria.gateway.problems import Problem, bad_request, unavailable, upstream_failed
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.sse import failure
from centuria.gateway.tools.offers import Offer, Offers, name_of
from centuria.gateway.tools.service import ToolService
from centuria.gateway.tools.turn import StreamedTurn, Turn, WholeTurn, shortened
from centuria.gateway.web import Reply, Request, Streaming
from centuria.messages import Message, Pico, ToolCall, safe_text
from centuria.model.wire import written_message

#: Turns of one request, and tool calls in all of them together.
STEPS, CALLS = 16, 128
#: Characters of one result that the model sees.
RESULT_CHARS = 20_000


class Ask(Protocol):
    """The funnel's `ask`: gives an answer that has begun well."""

    def __call__(self, call: Any) -> AbstractAsyncContextManager[Any]: ...


class Question(Protocol):
    """A checked request, as far as the loop needs it."""

    @property
    def mcp_tools(self) -> Sequence[str] | None: ...


@dataclass(slots=True)
class _Talk:
    """One request on its way. `call` is the funnel's, for the next turn; `ran` counts tool calls."""

    request: Request
    call: Any
    offers: Mapping[str, Offer]
    messages: list[Any]
    priority: int | None
    step: int = 0
    ran: int = 0
    attempts: int = 0
    cost: Pico = 0
    usage: dict[str, Any] | None = None
    told: dict[str, str] = field(default_factory=dict)
    #: Bytes of what the caller sent, and of what was added to it.
    size: int = 0

    def __post_init__(self) -> None:
        self.size = self.call.size + len(written({"tools": [offer.function for offer in self.offers.values()]}))

    def add(self, messages: Sequence[Any]) -> None:
        """What the model and its tools said in a turn."""
        self.messages = [*self.messages, *messages]  # a call that was made stays what it was
        self.size += len(written({"messages": messages}))

    def next_call(self, *, stream: bool) -> Any:
        """The funnel's call for the next turn. In the last one the model is to answer in words."""
        fields = {**self.call.fields, "messages": self.messages}
        functions = [*(fields.get("tools") or ()), *(offer.function for offer in self.offers.values())]
        if functions:
            fields["tools"] = functions
        if self.offers and self.step:
            # What forces a call in the first turn would force one in each.
            fields.pop("tool_choice", None)
            if self.step == STEPS - 1:
                fields["tool_choice"] = "none"
        self.step += 1
        return replace(
            self.call,
            fields=fields,
            stream=stream,
            wants_usage=stream or self.call.wants_usage,
            first_attempt=self.call.first_attempt + self.attempts,
            size=self.size,
        )

    def ended(self, turn: Turn, answer: Any) -> None:
        """A turn is over: what it took."""
        self.attempts += answer.attempts
        self.cost += answer.cost
        self.usage = added(self.usage, turn.usage)
        self.told = dict(answer.headers)

    @property
    def headers(self) -> dict[str, str]:
        """What is said of all turns together, in the words in which it is said of one."""
        told = {**self.told, ATTEMPTS: str(self.attempts), "x-centuria-turns": str(self.step)}
        if COST in told:
            told[COST] = cost_told(self.cost)
        return told

    def is_last(self, turn: Turn) -> bool:
        """Whether this turn is the answer: no calls, calls of the caller's own functions, or the last that may be."""
        calls = turn.calls
        own = {offer.function["function"]["name"] for offer in self.offers.values()}
        theirs = {name_of(function) for function in self.call.fields.get("tools") or ()}
        return not calls or any(call.name in theirs - own for call in calls) or not self.offers

    @property
    def spent(self) -> bool:
        return self.step >= STEPS


class ToolLoop:
    """Answers chat requests that bring `mcp_tools`. `ask` is the funnel's, `wall` seconds since 1970."""

    def __init__(
        self, service: ToolService, ask: Ask, settings: GatewaySettings, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self._service = service
        self._ask = ask
        self._offers = Offers(service, settings)

    async def __call__(self, request: Request, question: Question, call: Any) -> Reply | Streaming:
        """Raises `Problem`, `StoreUnavailable`."""
        if call.answers > 1:
            raise bad_request("`n` is 1 where the gateway runs the tools.", param="n")
        beside = call.fields.get("tools") or ()
        names = question.mcp_tools or ()
        offers = await self._offers.of(request.key, call.agent, names, call.models, beside)
        talk = _Talk(request, call, offers, list(call.fields["messages"]), priority_of(request.headers))
        if not call.stream:
            return await self._whole(talk)
        events = self._streamed(talk)
        first = await anext(events)
        return Streaming(_resumed(first, events), 200, talk.told, end=events.aclose)

    # -- whole --------------------------------------------------------------------------------------------------------

    async def _whole(self, talk: _Talk) -> Reply:
        try:
            async with asyncio.timeout_at(talk.call.deadline):
                while True:
                    async with self._ask(talk.next_call(stream=False)) as answer:
                        turn = WholeTurn(answer.body)
                        status = answer.status
                    talk.ended(turn, answer)
                    if talk.is_last(turn):
                        return Reply(turn.document(talk.usage), status, talk.headers)
                    if talk.spent:
                        return Reply(turn.document(talk.usage, cut=True), status, talk.headers)
                    talk.add(await self._results(talk, turn))
        except TimeoutError:
            raise _too_long() from None

    # -- streamed -----------------------------------------------------------------------------------------------------

    async def _streamed(self, talk: _Talk) -> AsyncGenerator[bytes, None]:
        """The events of the answer: what the model says, as it says it, and at the end why it ended.

        No time-out spans a `yield`: whoever reads this is not to be cancelled in its stead.
        """
        opened = False
        id, created = f"chatcmpl-{talk.request.id}", int(self._wall())
        try:
            while True:
                turn = StreamedTurn(opened=opened, id=id, created=created)
                async with aclosing(self._said(talk, turn)) as events:
                    async for event in events:
                        opened = True
                        yield event
                if turn.error is not None:
                    yield turn.error
                    return
                if talk.is_last(turn) or talk.spent:
                    break
                talk.add(await self._results_in_time(talk, turn))
                if (pause := turn.between()) is not None:
                    yield pause
        except CenturiaError as error:
            if not opened:
                raise  # nothing was sent: it is an answer of its own
            yield failure(error if isinstance(error, Problem) else unavailable(str(error)))
            return
        usage = talk.usage if talk.call.wants_usage else None
        for event in turn.ending(usage, cut=not talk.is_last(turn)):
            yield event

    async def _said(self, talk: _Talk, turn: StreamedTurn) -> AsyncGenerator[bytes, None]:
        """What one turn says, as it says it."""
        async with self._ask(talk.next_call(stream=True)) as answer, aclosing(answer.chunks()) as chunks:
            talk.told = talk.told or dict(answer.headers)
            while turn.error is None and (data := await _next(chunks, talk.call.deadline)) is not None:
                for event in turn.feed(data):
                    yield event
        for event in turn.close():
            yield event
        talk.ended(turn, answer)

    async def _results_in_time(self, talk: _Talk, turn: Turn) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout_at(talk.call.deadline):
                return await self._results(talk, turn)
        except TimeoutError:
            raise _too_long() from None

    # -- tools --------------------------------------------------------------------------------------------------------

    async def _results(self, talk: _Talk, turn: Turn) -> list[dict[str, Any]]:
        """The model's message with its calls, and a message for each of their results, in their order."""
        calls = _distinct(turn.calls)
        room = max(0, CALLS - talk.ran)
        talk.ran += len(calls)
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._result(talk, call) if place < room else _no_more())
                for place, call in enumerate(calls)
            ]
        message = Message("assistant", turn.text, turn.reasoning, calls)
        results = [
            Message("tool", task.result(), tool_call_id=call.id) for call, task in zip(calls, running, strict=True)
        ]
        return [written_message(each) for each in (message, *results)]

    async def _result(self, talk: _Talk, call: ToolCall) -> str:
        """What the model is told of one call: the tool's own words, or why there are none."""
        offer, key = talk.offers.get(call.name), talk.request.key
        if offer is None:
            names = [each.function["function"]["name"] for each in talk.offers.values()]
            return f"{call.name[:64]} was not called: there is no such tool. You may call: {', '.join(names[:20])}."
        try:
            arguments = parse_arguments(call.arguments)
            done = await self._service.invoke(key, talk.call.agent, offer.called, arguments, priority=talk.priority)
        except BadArguments as error:
            return f"{call.name} was not called. {error} Correct the arguments and call it again."
        except Problem as problem:
            return safe_text(str(problem))
        except CenturiaError as error:
            return safe_text(f"{call.name} was not called. {error}")
        return shortened(safe_text(done.result.text), RESULT_CHARS)


async def _no_more() -> str:
    return f"It was not called: one request may make {CALLS} tool calls. Answer with what you have."


async def _next(chunks: AsyncIterator[bytes], deadline: float) -> bytes | None:
    """The next bytes, None at the end. Raises `Problem` where the deadline passes first."""
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(chunks)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise _too_long() from None


async def _resumed(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await events.aclose()


def _too_long() -> Problem:
    return upstream_failed(504, "The request took longer than it may, with its tool calls.", code="request_timeout")


def _distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of a turn, each with an id of its own: their results go back under it."""
    seen: set[str] = set()
    found = []
    for place, call in enumerate(calls):
        id = call.id if call.id and call.id not in seen else f"call_{place}_{len(seen)}"
        seen.add(id)
        found.append(replace(call, id=id))
    return tuple(found)


def added(sum_so_far: dict[str, Any] | None, usage: Any) -> dict[str, Any] | None:
    """Usage of several answers, each number of it added up."""
    if not isinstance(usage, Mapping):
        return sum_so_far
    total = dict(sum_so_far or {})
    for name, value in usage.items():
        if isinstance(value, Mapping):
            total[name] = added(total.get(name), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            before = total.get(name)
            total[name] = value + (before if isinstance(before, int | float) else 0)
        else:
            total.setdefault(name, value)
    return total
