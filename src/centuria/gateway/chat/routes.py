"""`POST /v1/chat/completions`, `GET /v1/models`: what every OpenAI client asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from centuria.core.prices import Price
from centuria.gateway.chat.calls import ChatCall, Upstream
from centuria.gateway.chat.checking import Question, check, parse
from centuria.gateway.chat.funnel import Funnel
from centuria.gateway.headers import USUAL_PRIORITY, agent_of, priority_of
from centuria.gateway.problems import bad_request, model_not_found
from centuria.gateway.settings import Caps
from centuria.gateway.web import Reply, Request, Route, Streaming

#: Answers a request with `mcp_tools`: the tool loop.
WithTools = Callable[[Request, Question, ChatCall], Awaitable[Reply | Streaming]]


class ChatRoutes:
    """`with_tools` answers requests that bring `mcp_tools`; without it there are none."""

    def __init__(self, funnel: Funnel, caps: Caps, with_tools: WithTools | None = None) -> None:
        self._funnel = funnel
        self._caps = caps
        self._with_tools = with_tools

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/chat/completions", self.complete),
            Route("GET", "/v1/models", self.models),
            Route("GET", "/v1/models/{model}", self.model),
        ]

    async def complete(self, request: Request) -> Reply | Streaming:
        """One answer, whole or as a stream."""
        question = check(parse(request.body))
        call = call_of(request, question, self._funnel.now() + self._caps.request)
        if question.mcp_tools is not None:
            if self._with_tools is None:
                raise bad_request("This gateway has no tools.", param="mcp_tools")
            return await self._with_tools(request, question, call)
        answer = await self._funnel.open(call)
        try:
            if call.stream:
                return Streaming(answer.chunks(), answer.status, answer.headers, end=answer.end)
            return Reply(answer.body, answer.status, answer.headers, end=answer.end)
        except BaseException:
            await answer.end()
            raise

    async def models(self, request: Request) -> Reply:
        """The models that this key may use."""
        visible = self._funnel.visible(request.key)
        return Reply.of({"object": "list", "data": [_model(name, each) for name, each in visible.items()]})

    async def model(self, request: Request) -> Reply:
        """One of them."""
        name, visible = request.parts["model"], self._funnel.visible(request.key)
        if name not in visible:
            raise model_not_found(name, visible)
        return Reply.of(_model(name, visible[name]))


def call_of(request: Request, question: Question, deadline: float) -> ChatCall:
    """The request as the funnel takes it, to be answered until `deadline` (the loop's clock).

    Raises `Problem` (400) for headers that cannot be.
    """
    priority = priority_of(request.headers)
    return ChatCall(
        request=request.id,
        key=request.key,
        models=question.models,
        fields=question.fields,
        deadline=deadline,
        agent=agent_of(request.headers),
        priority=USUAL_PRIORITY if priority is None else priority,
        stream=question.stream,
        wants_usage=question.wants_usage,
        max_tokens=question.max_tokens,
        answers=question.answers,
        others=question.others,
        wholes=question.wholes,
        prediction=question.prediction,
        size=len(request.body),
    )


def _model(name: str, upstreams: Sequence[Upstream]) -> dict[str, Any]:
    first = upstreams[0].deployment
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": first.endpoint.provider,
        "context_length": first.endpoint.context,
        "max_output": first.max_tokens,
        "pricing": _pricing(first.price),
        "deployments": len(upstreams),
    }


def _pricing(price: Price | None) -> Mapping[str, float] | None:
    """Dollars per million tokens."""
    if price is None:
        return None
    told = {"input": price.input / 10**6, "output": price.output / 10**6}
    if price.cached is not None:
        told["cached"] = price.cached / 10**6
    return told
