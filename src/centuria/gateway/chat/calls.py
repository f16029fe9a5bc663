"""What is asked, of whom, and what it may cost at most: a call, a deployment, and the terms between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from centuria.core.money import PromptBound
from centuria.core.prices import worst
from centuria.gateway.chat.checking import LIMITS, written
from centuria.gateway.chat.lane import Lane
from centuria.gateway.headers import USUAL_PRIORITY
from centuria.gateway.ports import Key, Route
from centuria.messages import Pico
from centuria.model.wire import authorization


class Upstream:
    """A deployment and what has been learned of it: how requests to it are written, bounded and paid for."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.deployment = lane.deployment
        endpoint = lane.deployment.endpoint
        self.url = endpoint.base_url.rstrip("/") + "/chat/completions"
        self.secret = endpoint.key.value if endpoint.key is not None else ""
        self.headers = {**endpoint.headers, **authorization(endpoint), "Content-Type": "application/json"}
        self.bound = PromptBound()
        #: It refuses `stream_options`.
        self.tells_no_usage = False

    def body(self, fields: Mapping[str, Any], *, stream: bool, max_tokens: int | None, bare: bool = False) -> bytes:
        """The request's body: what the caller wrote, under the model's name there, bounded, and asking for usage,
        unless it is `bare` of `stream_options`."""
        endpoint = self.deployment.endpoint
        body = {**endpoint.sampling, **fields, "model": endpoint.model}
        for name in LIMITS:  # only under the name that is obeyed there: of the other one nobody knows
            body.pop(name, None)
        body[endpoint.limit_field] = self.deployment.max_tokens if max_tokens is None else max_tokens
        if stream:
            if bare or self.tells_no_usage:
                body.pop("stream_options", None)
            else:
                body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return written(body)


@dataclass(slots=True)
class ChatCall:
    """One request to the funnel. `models` in the order of preference; `fields` as the caller wrote them, without the
    model. `deadline` is of the loop's clock. `first_attempt` numbers the first row, `attempts` are made at most (None:
    as many as for any request)."""

    request: str
    key: Key
    models: tuple[str, ...]
    fields: Mapping[str, Any]
    deadline: float
    agent: str = ""
    priority: int = USUAL_PRIORITY
    route: Route = "chat"
    stream: bool = False
    wants_usage: bool = False
    max_tokens: int | None = None
    answers: int = 1
    others: int = 0
    wholes: int = 0
    prediction: int = 0
    first_attempt: int = 1
    attempts: int | None = None
    #: Bytes of what the caller sent.
    size: int = 0


@dataclass(slots=True)
class Terms:
    """What an attempt may use at most."""

    body: bytes
    prompt: int
    output: int
    amount: Pico

    @property
    def tokens(self) -> int:
        return self.prompt + self.output


def terms(call: ChatCall, upstream: Upstream, *, bare: bool = False) -> Terms:
    """The bound of this call at this deployment."""
    deployment = upstream.deployment
    body = upstream.body(call.fields, stream=call.stream, max_tokens=call.max_tokens, bare=bare)
    prompt = upstream.bound.bound(len(body))
    if call.others:  # a film, a recording or a file may fill the window, and more than that is no prompt
        context = deployment.endpoint.context
        pictures = (call.others - call.wholes) * deployment.image_tokens
        prompt += min(pictures + call.wholes * context, context)
    output = call.answers * (call.max_tokens or deployment.max_tokens) + call.prediction
    amount = 0 if deployment.price is None else worst(deployment.price, prompt, output)
    return Terms(body, prompt, output, amount)
