"""A run's requests pass the funnel, and what the funnel says reads like an upstream's answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from centuria.errors import CenturiaError, ModelError, ModelRefused, ModelUnavailable
from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.problems import (
    Problem,
    StoreUnavailable,
    out_of_budget,
    overloaded,
    rate_limited,
    unavailable,
    upstream_failed,
)
from centuria.gateway.swarms.transport import FunnelTransport
from centuria.messages import CallKey
from centuria.model.failures import error_from
from centuria.ports import Caller, HttpRequest
from tests.gateway.swarms.kit import ALICE, MODEL

BODY = {
    "model": "as the run says it",
    "messages": [{"role": "user", "content": "Hello."}],
    "max_tokens": 100,
    "stream": True,
    "stream_options": {"include_usage": True},
}
CALLER = Caller(CallKey("t/1", 0, 2, 0), "run", priority=3)


class Pieces:
    """An answer in pieces; `then` is raised after them."""

    status = 200
    headers: Mapping[str, str] = {"X-Centuria-Model": MODEL}

    def __init__(self, *pieces: bytes, then: Exception | None = None) -> None:
        self._pieces = pieces
        self._then = then

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._then is not None:
            raise self._then


class FakeFunnel:
    def __init__(self, answer: Pieces | CenturiaError) -> None:
        self.answer = answer
        self.calls: list[ChatCall] = []
        self.left = 0

    @asynccontextmanager
    async def ask(self, call: ChatCall) -> AsyncIterator[Any]:
        self.calls.append(call)
        if isinstance(self.answer, CenturiaError):
            raise self.answer
        try:
            yield self.answer
        finally:
            self.left += 1


def request(url: str = "http://gateway.invalid/v1/chat/completions") -> HttpRequest:
    return HttpRequest("POST", url, {}, json.dumps(BODY).encode(), caller=CALLER)


def ask(funnel: FakeFunnel, use: Callable[[Any], Any], one: HttpRequest | None = None) -> Any:
    async def main() -> Any:
        transport = FunnelTransport(funnel.ask, ALICE, "swarm-1", MODEL, seconds=60)
        async with asyncio.timeout(10), transport.send(one or request()) as response:
            return await use(response)

    return asyncio.run(main())


async def whole(response: Any) -> tuple[int, Mapping[str, str], bytes]:
    return response.status, response.headers, b"".join([chunk async for chunk in response.chunks()])


def test_a_call_says_for_whom_it_is_and_what_it_may_use() -> None:
    funnel = FakeFunnel(Pieces(b"data: 1\n\n", b"data: 2\n\n"))
    assert ask(funnel, whole) == (200, {"x-centuria-model": MODEL}, b"data: 1\n\ndata: 2\n\n")
    (call,) = funnel.calls
    assert (call.key, call.agent, call.priority, call.route) == (ALICE, "swarm-1/t/1", 3, "swarm")
    assert (call.models, call.max_tokens, call.stream, call.wants_usage) == ((MODEL,), 100, True, True)
    assert call.request.startswith("swarm-1-")
    assert call.attempts == 1
    assert "model" not in call.fields
    assert call.fields["messages"] == BODY["messages"]
    assert funnel.left == 1


def test_what_is_no_text_is_counted_for_a_swarm_too() -> None:
    parts = [{"type": "image_url"}, {"type": "video_url"}, {"type": "text", "text": "What is it?"}]
    body = {**BODY, "messages": [{"role": "user", "content": parts}]}
    funnel = FakeFunnel(Pieces())
    ask(funnel, whole, replace(request(), body=json.dumps(body).encode()))
    assert (funnel.calls[0].others, funnel.calls[0].wholes) == (2, 1)


def test_two_requests_never_have_the_same_id() -> None:
    funnel = FakeFunnel(Pieces())
    ask(funnel, whole)
    ask(funnel, whole)
    assert len({call.request for call in funnel.calls}) == 2


def test_whoever_leaves_early_leaves_the_funnel() -> None:
    async def leave(response: Any) -> None:
        return None

    funnel = FakeFunnel(Pieces(b"data: 1\n\n"))
    ask(funnel, leave)
    assert funnel.left == 1


@pytest.mark.parametrize(
    ("problem", "status", "served", "retryable"),
    [
        (rate_limited("Too many.", 7), 429, False, True),
        (overloaded("No place.", 3), 429, False, True),
        (unavailable("The gateway is shutting down.", code="shutting_down"), 429, False, True),
        (StoreUnavailable("The disk is full."), 429, False, True),
        (out_of_budget("Spent."), 429, False, False),
        (upstream_failed(502, "It said nothing."), 502, True, True),
        (upstream_failed(504, "Too late.", code="upstream_timeout"), 504, True, True),
        (upstream_failed(502, "It refuses the gateway.", code="upstream_denied"), 403, False, False),
        (Problem(400, "invalid_request_error", "Wrong."), 400, False, False),
    ],
)
def test_a_problem_reads_like_the_answer_of_an_upstream_that_has_it(
    problem: CenturiaError, status: int, served: bool, retryable: bool
) -> None:
    """`served` is whether the run holds money for it."""
    answered, headers, body = ask(FakeFunnel(problem), whole)
    assert answered == status
    error: ModelError = error_from(answered, headers, body, 0.0)
    assert problem.message in error.message
    assert (error.served, error.retryable) == (served, retryable)
    if isinstance(problem, Problem) and "Retry-After" in problem.headers:
        assert error.retry_after == float(problem.headers["Retry-After"])


def test_an_answer_that_breaks_off_is_cut() -> None:
    funnel = FakeFunnel(Pieces(b"data: 1\n\n", then=upstream_failed(502, "It broke.")))
    with pytest.raises(ModelUnavailable, match="It broke") as caught:
        ask(funnel, whole)
    assert (caught.value.kind, caught.value.served) == ("cut", True)


def test_nothing_else_than_chat_completions_is_asked_for() -> None:
    funnel = FakeFunnel(Pieces())
    for one in (request("http://gateway.invalid/v1/models"), HttpRequest("GET", request().url, {})):
        with pytest.raises(ModelRefused):
            ask(funnel, whole, one)
    assert funnel.calls == []
