"""One attempt: one request to one deployment, from its reservation to its row."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from centuria.core.prices import cost
from centuria.errors import BudgetExceeded, ModelError, ModelRefused, ModelUnavailable
from centuria.gateway.books import Books, Reservation
from centuria.gateway.chat.calls import ChatCall, Upstream, terms
from centuria.gateway.chat.deadlines import Deadlines, Wait
from centuria.gateway.chat.lane import Place
from centuria.gateway.chat.relay import StreamRelay, as_stream, whole_usage
from centuria.gateway.chat.telling import problem_for
from centuria.gateway.ports import AttemptEnd, AttemptRow
from centuria.gateway.problems import out_of_budget, shutting_down
from centuria.gateway.sse import DONE, failure
from centuria.messages import Pico, Usage
from centuria.model.refusal import error_of
from centuria.ports import HttpRequest, HttpResponse, Transport
from centuria.settings import Timeouts

#: Bytes of a whole answer.
_BODY_CAP = 64 * 2**20
#: Seconds for what follows a finished answer, and for the end after `[DONE]`.
_TAIL, _LINGER = 5.0, 0.5
#: Of an attempt whose answer does not stream: fed with nothing, by anybody.
_NO_RELAY = StreamRelay(keep_usage=False)
_NO_USAGE = Usage()


@dataclass(slots=True)
class Surroundings:
    """What all attempts of a funnel have in common. `ended` is told each row, `live` are those that have not ended."""

    books: Books
    transport: Transport
    timeouts: Timeouts
    deadlines: Deadlines
    wall: Callable[[], float]
    ended: Callable[[AttemptRow], None]
    live: set[Attempt] = field(default_factory=set)


class Attempt:
    """`begin` it, read it, `end` it, whatever happened. `number` is its row's."""

    # How each begins.
    sent = False
    status = 0
    body = b""
    queued = 0.0
    usage: Usage | None = None
    cost: Pico = 0
    #: Tokens that the key's limits were charged with.
    charged = 0
    _reservation: Reservation | None = None
    _place: Place | None = None
    _exchange: Any = None
    _reader: AsyncIterator[bytes] | None = None
    _first = b""
    _at = _began = 0.0
    _first_token: float | None = None
    _ends = math.inf
    _wait: Wait | None = None
    _aborted = _whole = False

    def __init__(
        self, call: ChatCall, model: str, upstream: Upstream, number: int, around: Surroundings, *, bare: bool
    ) -> None:
        self.call = call
        self.model = model
        self.upstream = upstream
        self.number = number
        self.terms = terms(call, upstream, bare=bare)
        self._around = around
        self._now = upstream.lane.now
        self._relay = StreamRelay(keep_usage=call.wants_usage, secret=upstream.secret) if call.stream else _NO_RELAY

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def begin(self, *, patience: float) -> None:
        """Reserve, wait for a place, send, and read to the first event, or to the end of a whole answer.

        Raises `ModelError`, `StoreUnavailable`, `Problem`; the attempt has ended then.
        """
        self._around.live.add(self)
        try:
            place = await self._admit(patience)
            await self._send(place)
        except BaseException as error:
            await self.end(error)
            raise

    async def _admit(self, patience: float) -> Place:
        """Money first, then a place."""
        call, terms = self.call, self.terms
        deadline = self._now() + patience
        try:
            self._reservation = await self._around.books.reserve(call.key, terms.amount, patience=patience)
        except BudgetExceeded as error:
            raise out_of_budget(error.message, error.remedy) from None
        self._place = place = self.upstream.lane.enter(
            call.key.id, call.agent, priority=call.priority, tokens=terms.tokens, deadline=deadline
        )
        await place.__aenter__()
        self.queued = place.queued
        return place

    async def _send(self, place: Place) -> None:
        call, around, upstream = self.call, self._around, self.upstream
        timeouts = around.timeouts
        self._at, self._began, self.sent = around.wall(), self._now(), True
        self._ends = min(call.deadline, self._began + timeouts.model_total(self.terms.output))
        exchange = around.transport.send(
            HttpRequest("POST", upstream.url, upstream.headers, self.terms.body, timeouts.connect)
        )
        # Whole answers come when they are finished, and not before.
        with self._within(timeouts.first_token if call.stream else math.inf):
            response = await exchange.__aenter__()
            self._exchange = exchange
            self.status = response.status
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            place.accepted(response.headers)
            self._reader = response.chunks()
            if not call.stream:
                await self._read_whole()
            elif response.headers.get("content-type", "").startswith("application/json"):
                await self._read_whole()
                self._first = as_stream(self.body, keep_usage=call.wants_usage)
            else:
                await self._read_first()
        self._first_token = self._now() - self._began

    async def _read_whole(self) -> None:
        assert self._reader is not None
        parts: list[bytes] = []
        size = 0
        async for chunk in self._reader:
            parts.append(chunk)
            size += len(chunk)
            if size > _BODY_CAP:
                raise ModelRefused(f"The answer is larger than {_BODY_CAP} bytes.", kind="too_large")
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.usage, error = whole_usage(self.body, secret=self.upstream.secret)
        if error is not None:
            raise error
        self._whole = True

    async def _read_first(self) -> None:
        """Up to the first event: until then another attempt can take the place of this one."""
        assert self._reader is not None
        async for chunk in self._reader:
            self._first += self._relay.feed(chunk)
            self._check_error()
            if self._relay.done:
                break
            if self._relay.begun:
                return
        self._first += self._relay.close()
        self._check_error()
        if not self._relay.begun:
            raise ModelUnavailable("The upstream's answer ended before it began.", kind="empty")

    def _check_error(self) -> None:
        if self._relay.error is not None:
            raise self._relay.error

    async def _refusal(self, response: HttpResponse) -> ModelError:
        error = await error_of(response, self._around.wall(), secret=self.upstream.secret)
        assert self._place is not None
        self._place.failed(error, response.headers)
        return error

    # -- reading ------------------------------------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes for the caller, as they come. What breaks is told in an error event, after which nothing comes."""
        if self._first:
            yield self._first
        if self._whole:
            return
        try:
            self._check_error()
            while not self._relay.done:
                chunk = await self._next()
                data = self._relay.feed(chunk) if chunk is not None else self._relay.close()
                if data:
                    yield data
                self._check_error()
                if chunk is None:
                    break
            if not self._relay.complete and not self._relay.done:
                raise ModelUnavailable("The upstream's answer broke off.", kind="cut")
            if self._relay.done:
                await self._drain()
            else:
                yield DONE
            self._whole = True
        except ModelError as error:
            if self._relay.complete and not self._aborted:  # all of the answer is there
                self._whole = True
                yield DONE
                return
            self._lose(error)
            yield failure(shutting_down() if self._aborted else problem_for(error))

    async def _next(self) -> bytes | None:
        assert self._reader is not None
        seconds = self._around.timeouts.silence if not self._relay.complete else _TAIL
        with self._within(seconds):
            async for chunk in self._reader:
                return chunk
        return None

    async def _drain(self) -> None:
        """Read the end of the body after `[DONE]`, so that the connection can be used again."""
        assert self._reader is not None
        try:
            with self._within(_LINGER):
                async for _ in self._reader:
                    pass
        except ModelError:
            pass

    def paid(self) -> Pico:
        """What a whole answer costs; of a stream what it has cost, at its end."""
        if self.usage is not None and not self.cost:
            self.cost = self._cost(self.usage)
        return self.cost

    def abort(self) -> None:
        """The gateway ends: whoever reads is told so at once."""
        self._aborted = True
        if self._wait is not None:
            self._wait.end()

    def _within(self, seconds: float) -> Wait:
        """A wait of this attempt, so long at most, and not beyond its end."""
        if self._aborted:
            raise self._late()
        self._wait = self._around.deadlines.until(min(self._ends, self._now() + seconds), self._late)
        return self._wait

    def _late(self) -> ModelError:
        if self._aborted:
            return ModelUnavailable("The gateway is shutting down.", kind="shutdown")
        if self._now() >= self._ends:
            return ModelUnavailable("The answer was not whole in time.", kind="total")
        if self._first_token is None:
            return ModelUnavailable(
                f"No token came within {self._around.timeouts.first_token:g} s.", kind="first_token"
            )
        return ModelUnavailable(f"The answer fell silent for {self._around.timeouts.silence:g} s.", kind="silence")

    # -- ending -------------------------------------------------------------------------------------------------------

    async def end(self, error: BaseException | None = None) -> None:
        """Settle, give the place back, and let go of the upstream: whole answers keep the connection, others close it.
        Doing it again does nothing."""
        self._around.live.discard(self)
        self._settle(error)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.__aexit__(None, None, None)

    def _settle(self, error: BaseException | None) -> None:
        """Synchronous, and once: the row, the money, the place."""
        if error is None and (self._whole or self._relay.done):
            self._keep()
        elif isinstance(error, ModelError):
            self._lose(error)
        else:
            self._give_up(error)

    def _keep(self) -> None:
        self.usage = self.usage or self._relay.usage
        if self._place is not None:
            self._place.succeeded(self.usage)
        if self.usage is not None:
            self._observe(self.usage)
            self._close("done", cost=self.paid())
        else:
            self._close("done", held=self.terms.amount)

    def _observe(self, usage: Usage) -> None:
        """Learn from words alone: what a picture takes is no template's, and more than fits is no count. It would be
        reserved for every later request of every key."""
        if not self.call.others and usage.prompt <= self.upstream.deployment.endpoint.context:
            self.upstream.bound.observe(len(self.terms.body), usage.prompt)

    def _lose(self, error: ModelError) -> None:
        if self._place is not None:
            self._place.failed(error)
        usage = self.usage or self._relay.usage
        if not self.sent:
            self._release()
        elif not error.served:
            self._close("failed", error=str(error))
        elif usage is not None:
            self.usage = usage
            self._close("failed", cost=self._cost(usage), error=str(error))
        else:
            self._close("lost", held=self.terms.amount, error=str(error))

    def _give_up(self, error: BaseException | None) -> None:
        """Nobody reads it any more, or it never began."""
        if self._place is not None:
            self._place.leave()
        usage = self.usage or self._relay.usage
        if not self.sent:
            self._release()
        elif usage is not None:
            self.usage = usage
            self._close("done" if self._relay.complete else "client_closed", cost=self._cost(usage))
        else:
            # What was relayed is paid for; what else the upstream may bill is held.
            relayed = self._relayed()
            paid = min(self._cost(relayed), self.terms.amount) if self._relay.events else 0
            end: AttemptEnd = "lost" if self._aborted else "client_closed"
            self._close(end, cost=paid, held=self.terms.amount - paid)

    def _relayed(self) -> Usage:
        """At least so much, as far as we saw: a token for each event, four bytes of a prompt to a token."""
        return Usage(prompt=len(self.terms.body) // 4, output=self._relay.events)

    def _cost(self, usage: Usage) -> Pico:
        price = self.upstream.deployment.price
        return 0 if price is None else cost(price, usage)

    def _release(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            self._around.books.release(reservation)

    def _close(self, end: AttemptEnd, *, cost: Pico = 0, held: Pico = 0, error: str = "") -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return
        self.cost = cost
        call, usage = self.call, self.usage or _NO_USAGE
        row = AttemptRow(
            request=call.request,
            attempt=self.number,
            at=self._at,
            key=call.key.id,
            model=self.model,
            deployment=self.upstream.deployment.name,
            route=call.route,
            end=end,
            agent=call.agent,
            status=self.status,
            streamed=call.stream,
            prompt=usage.prompt,
            cached=usage.cached,
            cache_written=usage.cache_written,
            output=usage.output,
            reasoning=usage.reasoning,
            cost=cost,
            held=held,
            queued_ms=1000 * self.queued,
            first_token_ms=None if self._first_token is None else 1000 * self._first_token,
            total_ms=1000 * (self._now() - self._began),
            error=error[:500],
        )
        self._around.books.settle(reservation, row)
        self._around.ended(row)
