"""A run's requests to its model, through the gateway's one funnel: a `ports.Transport`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from centuria.errors import ModelRefused, ModelUnavailable
from centuria.gateway.ports import Key, Route
from centuria.gateway.problems import Problem, StoreUnavailable, overloaded
from centuria.ports import HttpRequest, HttpResponse


@dataclass(slots=True)
class ChatCall:
    """One question to the funnel. `fields` is the parsed body, `deadline` the loop's time."""

    request: str
    key: Key
    agent: str
    priority: int
    route: Route
    models: tuple[str, ...]
    fields: dict[str, Any]
    body: bytes | None
    stream: bool
    wants_usage: bool
    deadline: float
    first_attempt: int = 1


class Answer(Protocol):
    """What the funnel gives: an upstream that has begun to answer."""

    @property
    def status(self) -> int: ...

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
                response = _Refused(overloaded(str(error)), 429)
            except Problem as problem:
                response = _Refused(problem, 429 if _too_many(problem) else problem.status)
            yield response

    def _call(self, request: HttpRequest) -> ChatCall:
        fields = from_json(request.body)
        fields.pop("model", None)
        options = fields.get("stream_options") or {}
        caller = request.caller
        return ChatCall(
            request=f"{self._swarm}-{secrets.token_hex(8)}",
            key=self._key,
            agent=f"{self._swarm}/{caller.key.task}" if caller is not None else self._swarm,
            priority=caller.priority if caller is not None else 5,
            route="swarm",
            models=(self._model,),
            fields=fields,
            body=request.body,
            stream=fields.get("stream") is True,
            wants_usage=options.get("include_usage") is True,
            deadline=asyncio.get_running_loop().time() + self._seconds,
        )


def _too_many(problem: Problem) -> bool:
    """Whether nothing was sent, for want of a place or of the books. A run holds the money of a request that was lost
    with a 5xx, and none of one that was refused as one too many; that one keeps its place and spends no retry."""
    return problem.status == 503 and problem.code != "upstream_error" and "Retry-After" in problem.headers


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

    def __init__(self, problem: Problem, status: int) -> None:
        self._problem = problem
        self.status = status

    @property
    def headers(self) -> Mapping[str, str]:
        own = {name.lower(): value for name, value in self._problem.headers.items()}
        return {"content-type": "application/json", **own}

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._problem.body()
