"""The one door to a model. Every call, the planner's and the merger's too, passes it: one place for money and rate.

    found in the journal? -> [reserve -> admit -> open -> durable -> post, read -> settle] x attempts -> durable

The row and its money are on disk before a request leaves, and the answer before anyone sees it. Whatever
ends an attempt, cancellation included, ends its reservation, its row and its slot in the same tick.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from centuria.admission import Money
from centuria.core.calls import CallLedger, fingerprint
from centuria.core.money import PromptBound
from centuria.core.prices import Price, cost, worst
from centuria.core.refusals import spends_no_retry
from centuria.core.retry import RetryPolicy
from centuria.core.warmup import LEAST
from centuria.errors import BudgetExceeded, ModelError, ModelUnavailable, PriceMissing
from centuria.events import CallEnd, CallOpened, Fact, Notice, TextDelta
from centuria.messages import Completion, Pico, Usage
from centuria.model.answer import AnswerDecoder, Piece
from centuria.model.refusal import error_of
from centuria.model.wire import RequestWriter, authorization, identity
from centuria.ports import Caller, ChatRequest, HttpRequest, HttpResponse, Transport
from centuria.settings import Endpoint, Timeouts
from centuria.stream import Stream
from centuria.throttle import Admission, Patience, Throttle

#: Seconds: the wait for the end of the body after `[DONE]` (then the connection can be used again), and for
#: the usage after the answer's last token.
_LINGER, _TAIL = 0.1, 5.0


@dataclass(slots=True)
class _Question:
    """One call. `mark` is the fingerprint of its conversation."""

    request: ChatRequest
    caller: Caller
    conversation: str
    mark: str


@dataclass(slots=True)
class _Attempt:
    """One reservation and what became of it. `tokens` is the most that it may use, prompt and answer.

    `row` is None until the journal has it, `sent` once it may have left.
    """

    hold: int
    amount: Pico
    body: bytes
    max_tokens: int
    tokens: int
    decoder: AnswerDecoder
    row: CallOpened | None = None
    sent: bool = False
    began: float = 0.0
    first_token_s: float | None = None


class ModelClient:
    """Implements `ports.Model` over a transport, for the one model that `throttle` is for. `price` None: there is
    no cap to keep and every call counts as $0."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        transport: Transport,
        calls: CallLedger,
        money: Money,
        throttle: Throttle,
        price: Price | None,
        stream: Stream,
        retry: RetryPolicy,
        timeouts: Timeouts,
        dice: Callable[[], float],
        wall: Callable[[], float],
        run: str,
        warm_first: bool = True,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._calls = calls
        self._money = money
        self._throttle = throttle
        self._price = price
        self._stream = stream
        self._retry = retry
        self._timeouts = timeouts
        self._dice = dice
        self._wall = wall
        self._run = run
        # Where what is cached costs less: one call of those that begin alike goes ahead.
        self._warms = warm_first and price is not None and price.cached is not None
        self._bound = PromptBound()
        self._writer = RequestWriter(endpoint)
        self._url = endpoint.base_url.rstrip("/") + "/chat/completions"
        self._headers = {
            **endpoint.headers,
            **authorization(endpoint),
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
        }
        self._secret = endpoint.key.value if endpoint.key is not None else ""
        self._told_of_missing_usage = False
        self._told_of_overrun = False

    async def chat(self, request: ChatRequest, caller: Caller) -> Completion:
        """Answer once, retrying what can succeed. A call that the journal holds as done is answered from it.

        A refusal for a rate limit spends no retry: the call is admitted again when the upstream will have it.
        `max_tokens` is shrunk where a cap leaves less room, down to 1,024 (4,096 where the model thinks).
        Raises `ModelError` (of the last attempt), `BudgetExceeded`, `SlotRefused`, `FingerprintMismatch`,
        `PriceMissing` for another model than the one that the price is for.
        """
        if self._price is not None and request.model not in (None, self._endpoint.model):
            raise PriceMissing(
                f"There is a cap, but no price for the model {request.model}.",
                remedy=f"This client knows the price of {self._endpoint.model} alone: ask that, or set no cap.",
            )
        conversation = identity(request)
        mark = fingerprint(conversation)
        done = self._calls.find(caller.key, mark)
        if done is not None and done.completion is not None:
            return done.completion
        failures, patience = 0, Patience()
        while True:
            try:
                return await self._try(_Question(request, caller, conversation, mark), patience)
            except ModelError as error:
                if spends_no_retry(error):
                    continue
                failures += 1
                delay = self._retry.delay(failures, error, self._dice())
                if delay is None or (error.kind == "total" and error.partial):
                    raise
            await asyncio.sleep(delay)  # holding neither money nor a slot

    async def _try(self, question: _Question, patience: Patience) -> Completion:
        attempt = await self._reserve(question)
        caller, prefix = question.caller, self._prefix(attempt.body)
        try:
            async with self._throttle.admit(
                caller, tokens=attempt.tokens, patience=patience, prefix=prefix
            ) as admission:
                [attempt.row] = self._calls.open(
                    caller.key,
                    call="model",
                    name=question.request.model or self._endpoint.model,
                    fingerprint=question.mark,
                    rerun=True,
                    hold=attempt.hold,
                    reserved=attempt.amount,
                )
                self._stream.publish(attempt.row)
                await self._stream.durable()
                completion = await self._exchange(attempt, caller, admission)
                admission.succeeded(completion.usage)
        except BaseException as error:
            self._lose(attempt, error)
            raise
        self._keep(attempt, completion)
        await self._stream.durable()
        return completion

    # -- money ---------------------------------------------------------------------------------------------

    async def _reserve(self, question: _Question) -> _Attempt:
        """Reserve the worst case of this request, or of the longest answer that is affordable."""
        max_tokens = question.request.max_tokens
        floor = 4096 if self._endpoint.thinks else 1024
        while True:
            body = self._writer.write(question.request, question.conversation, max_tokens)
            amount = self._worst_case(len(body), max_tokens)
            try:
                hold = await self._money.reserve(question.caller.node, amount)
            except BudgetExceeded as error:
                max_tokens = self._affordable(error.affordable, len(body), floor, max_tokens - 1)
                if max_tokens < floor:
                    raise
            else:
                tokens = self._bound.bound(len(body)) + max_tokens
                return _Attempt(hold, amount, body, max_tokens, tokens, AnswerDecoder(secret=self._secret))

    def _prefix(self, body: bytes) -> str | None:
        """The name of what this request and those of its siblings begin with, if that is worth a warm-up: the tools
        and the system prompt, which stand before the first word of a user."""
        if not self._warms:
            return None
        end = body.find(b'{"role":"user"')
        return hashlib.sha256(body[:end]).hexdigest()[:32] if end >= 4 * LEAST else None

    def _worst_case(self, size: int, max_tokens: int) -> Pico:
        return 0 if self._price is None else worst(self._price, self._bound.bound(size), max_tokens)

    def _affordable(self, money: Pico, size: int, low: int, high: int) -> int:
        """The most output tokens between `low` and `high` that this money pays for; 0 where it pays for
        none."""
        prompt, best = self._bound.bound(size), 0
        while self._price is not None and low <= high:
            middle = (low + high) // 2
            if worst(self._price, prompt, middle) <= money:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best

    def _cost(self, usage: Usage) -> Pico:
        return 0 if self._price is None else cost(self._price, usage)

    # -- ends ----------------------------------------------------------------------------------------------

    def _keep(self, attempt: _Attempt, completion: Completion) -> None:
        """The answer is there: its row and its cost in one transaction."""
        usage = completion.usage
        paid = self._cost(usage) if usage is not None else 0
        row = self._close(attempt, end="done", cost=paid, usage=usage, completion=completion)
        if usage is not None:
            self._bound.observe(len(attempt.body), usage.prompt)
            if paid > attempt.amount and not self._told_of_overrun:
                self._told_of_overrun = True
                said = f"{self._endpoint.model} counts more tokens than max_tokens allows, or than the prompt has bytes"
                row.append(Notice(f"{said}: no cap can hold against that.", level="error"))
            self._money.settle(attempt.hold, paid, *row)
            return
        if not self._told_of_missing_usage:
            self._told_of_missing_usage = True
            said = f"{self._endpoint.model} sends no usage: what its answers cost cannot be known."
            row.append(Notice(f"{said} The whole reservation of each stays held.", level="warning"))
        self._money.forfeit(attempt.hold, *row)

    def _lose(self, attempt: _Attempt, error: BaseException) -> None:
        """There is no answer to give: end what the attempt holds, by what the upstream may bill for it."""
        if attempt.row is None:
            self._money.release(attempt.hold)
            return
        decoder = attempt.decoder
        if decoder.complete and not isinstance(error, ModelError):
            completion = _whole(decoder)
            if completion is not None:  # cancelled with the answer in hand: it is paid, so it is kept
                self._keep(attempt, completion)
                return
        why = str(error) if isinstance(error, ModelError) else f"It was given up ({type(error).__name__})."
        status = error.status if isinstance(error, ModelError) and attempt.sent else None
        usage = decoder.usage
        if not attempt.sent or (isinstance(error, ModelError) and not error.served):
            self._money.release(attempt.hold, *self._close(attempt, end="failed", error=why, status=status))
        elif usage is not None:
            paid = self._cost(usage)
            row = self._close(
                attempt, end="failed", cost=paid, usage=usage, error=why, partial=decoder.partial, status=status
            )
            self._money.settle(attempt.hold, paid, *row)
        else:
            row = self._close(attempt, end="lost", error=why, partial=decoder.partial, status=status)
            self._money.forfeit(attempt.hold, *row)

    def _close(self, attempt: _Attempt, *, end: CallEnd, **found: Any) -> list[Fact]:
        """The events that end the attempt's row."""
        assert attempt.row is not None
        took = asyncio.get_running_loop().time() - attempt.began if attempt.sent else 0.0
        return list(
            self._calls.close(
                attempt.row.key,
                attempt.row.attempt,
                end=end,
                first_token_s=attempt.first_token_s,
                total_s=took,
                **found,
            )
        )

    # -- the wire ------------------------------------------------------------------------------------------

    async def _exchange(self, attempt: _Attempt, caller: Caller, admission: Admission) -> Completion:
        """Post and read, each wait within its time-out. An answer that is whole is kept, however its stream
        ends."""
        now = asyncio.get_running_loop().time
        attempt.began, attempt.sent = now(), True
        decoder = attempt.decoder
        ends = attempt.began + self._timeouts.model_total(attempt.max_tokens)
        try:
            async with asyncio.timeout_at(min(ends, attempt.began + self._timeouts.first_token)) as clock:
                async with self._transport.send(self._request(attempt.body, caller)) as response:
                    if not 200 <= response.status < 300:
                        refusal = await error_of(response, self._wall(), secret=self._secret)
                        admission.failed(refusal, response.headers)
                        raise refusal
                    admission.accepted(response.headers)
                    await self._read(response, attempt, caller, admission, clock, ends)
        except TimeoutError:
            if not clock.expired():
                raise
            if not decoder.complete:
                raise self._too_late(attempt, total=now() >= ends) from None
        except ModelError as error:
            if not decoder.complete:
                error.partial = error.partial or decoder.partial
                raise
        return decoder.finish()

    async def _read(
        self,
        response: HttpResponse,
        attempt: _Attempt,
        caller: Caller,
        admission: Admission,
        clock: asyncio.Timeout,
        ends: float,
    ) -> None:
        now = asyncio.get_running_loop().time
        decoder, signs = attempt.decoder, 0
        async for chunk in response.chunks():
            self._show(decoder.feed(chunk), attempt, caller)
            if decoder.begun and decoder.signs != signs:
                signs = decoder.signs
                if attempt.first_token_s is None:
                    attempt.first_token_s = now() - attempt.began
                    admission.begun()
                patience = self._timeouts.silence
                if decoder.complete:
                    patience = _LINGER if decoder.done else min(_TAIL, patience)
                clock.reschedule(min(ends, now() + patience))
        self._show(decoder.close(), attempt, caller)

    def _request(self, body: bytes, caller: Caller) -> HttpRequest:
        name = hashlib.sha256(f"{self._run}\n{caller.key}".encode()).hexdigest()[:40]
        headers = {**self._headers, "Idempotency-Key": f"centuria-{name}"}
        return HttpRequest("POST", self._url, headers, body, self._timeouts.connect, caller)

    def _show(self, pieces: list[Piece], attempt: _Attempt, caller: Caller) -> None:
        """Publish what one read brought, neighbours of a kind as one delta."""
        if not pieces:
            return
        number = attempt.row.attempt if attempt.row is not None else 0
        for reasoning in (True, False):
            text = "".join(piece.text for piece in pieces if piece.reasoning is reasoning)
            if text:
                self._stream.publish(TextDelta(caller.key.task, caller.key.turn, number, text, reasoning))

    def _too_late(self, attempt: _Attempt, *, total: bool) -> ModelError:
        waits = self._timeouts
        if total:
            kind, within = "total", waits.model_total(attempt.max_tokens)
            said = f"The answer was not whole within {within:g} s."
        elif not attempt.decoder.begun:
            kind, said = "first_token", f"No token came within {waits.first_token:g} s."
        else:
            kind, said = "silence", f"The answer fell silent for {waits.silence:g} s."
        return ModelUnavailable(
            said, kind=kind, partial=attempt.decoder.partial, remedy=f"The time-out `{kind}` can be raised."
        )


def _whole(decoder: AnswerDecoder) -> Completion | None:
    try:
        return decoder.finish()
    except ModelError:
        return None
