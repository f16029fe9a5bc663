"""A run's requests to its model, through the gateway's one funnel: a `ports.Transport`.

The run tries again itself, as it counts what each attempt may have cost: the funnel makes one attempt for each request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from centuria.errors import ModelRefused, ModelUnavailable
from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.chat.checking import check, parse
from centuria.gateway.headers import USUAL_PRIORITY
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, StoreUnavailable, overloaded
from centuria.ports import HttpRequest, HttpResponse


class Answer(Protocol):
    """What the funnel gives: an upstream that has begun to answer."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncIterator[bytes]: ...


#: `Funnel.ask`. Raises `Problem`; leaving early cancels the upstream and settles.
Ask = Callable[[ChatCall], AbstractAsyncContextManager[Answer]]


class FunnelTransport:
    """One swarm's way to its `model`, for `key`. A request may take `seconds` in all, its wait for a place included."""

    def __init__(self, ask: Ask, key: Key, swarm: str, model: str, *, seconds: float) -> None:
        self._ask = ask
        self._key = key
        self._swarm = swarm
        self._model = model
        self._seconds = seconds

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """What the funnel answers, its refusals as an upstream's would be. Raises `ModelRefused` for another request
        than one for a chat completion, `ModelUnavailable` where the answer breaks off."""
        return self._send(request)

    async def aclose(self) -> None:
        """There is nothing to close: the funnel is the gateway's."""

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        if request.method != "POST" or not request.url.endswith("/chat/completions"):
            raise ModelRefused("A swarm asks for chat completions, and for nothing else.", kind="url", served=False)
        async with AsyncExitStack() as stack:
            response: HttpResponse
            try:
                response = _Answered(await stack.enter_async_context(self._ask(self._call(request))))
            except StoreUnavailable as error:
                response = _Refused(overloaded(str(error)))
            except Problem as problem:
                response = _Refused(problem)
            yield response

    def _call(self, request: HttpRequest) -> ChatCall:
        question = check(parse(request.body))
        caller = request.caller
        return ChatCall(
            request=f"{self._swarm}-{secrets.token_hex(8)}",
            key=self._key,
            models=(self._model,),
            fields=question.fields,
            deadline=asyncio.get_running_loop().time() + self._seconds,
            agent=f"{self._swarm}/{caller.key.task}" if caller is not None else self._swarm,
            priority=caller.priority if caller is not None else USUAL_PRIORITY,
            route="swarm",
            stream=question.stream,
            wants_usage=question.wants_usage,
            max_tokens=question.max_tokens,
            answers=question.answers,
            others=question.others,
            wholes=question.wholes,
            prediction=question.prediction,
            attempts=1,
            size=len(request.body),
        )


def _status_of(problem: Problem) -> int:
    """How a run has to take it. It holds the money of a request that ended with a 5xx, for it may have been served;
    and none of one that was refused as one too many, which keeps its place and spends no retry.
    """
    if problem.code == "upstream_denied":
        return 403  # asking again does not help, nor for any other agent
    if problem.status == 503 and not problem.code.startswith("upstream"):
        return 429  # nothing was sent, for want of a place or of the books
    return problem.status


class _Answered:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._headers = {name.lower(): value for name, value in answer.headers.items()}

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.chunks():
                yield chunk
        except Problem as problem:
            raise ModelUnavailable(f"The answer broke off. {problem.message}", kind="cut") from None


class _Refused:
    """A problem, as the answer of an upstream that has it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.status = _status_of(problem)

    @property
    def headers(self) -> Mapping[str, str]:
        own = {name.lower(): value for name, value in self._problem.headers.items()}
        return {"content-type": "application/json", **own}

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._problem.body()
