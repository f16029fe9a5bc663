"""Which deployment is asked next: what was not tried yet, in the order of the models that were named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from centuria.errors import ModelError
from centuria.gateway.chat.calls import ChatCall, Upstream
from centuria.gateway.problems import model_not_found, unpriced


@dataclass(slots=True)
class Choice:
    """A deployment that may answer a call. `place` is that of its model among the preferred ones; `error` is the last
    one, where asking again can help. `bare`: it is asked without `stream_options`, which it seems to refuse."""

    upstream: Upstream
    model: str
    place: int
    tried: int = 0
    out: bool = False
    error: ModelError | None = None
    bare: bool = False


def choices_of(call: ChatCall, known: Mapping[str, Sequence[Upstream]]) -> list[Choice]:
    """Every deployment of the models that were named. Raises `Problem`: one that is unknown or not for this key, or one
    without a price."""
    choices: list[Choice] = []
    key = call.key
    for place, model in enumerate(call.models):
        if model not in known or not key.may_use(model):
            raise model_not_found(model, key.visible(known))
        choices += [Choice(upstream, model, place) for upstream in known[model]]
    if key.budget is None:
        return choices
    priced = [choice for choice in choices if choice.upstream.deployment.price is not None]
    if not priced:
        raise unpriced(call.models[0])
    return priced


def next_of(choices: Sequence[Choice], call: ChatCall, now: float) -> Choice | None:
    """Whom to ask now: who denies nothing, was tried least, is of the first model, and of one model the least loaded.
    None: nobody is left."""
    there = [choice for choice in choices if not choice.out]
    if len(there) < 2:
        return there[0] if there else None

    def order(choice: Choice) -> tuple[bool, int, int, bool, float]:
        lane = choice.upstream.lane
        tokens = tokens_of(call, choice.upstream)
        waits = lane.governor.delay(tokens, now) is not None
        return lane.denial(tokens) is not None, choice.tried, choice.place, waits, lane.load()

    return min(there, key=order)


def tokens_of(call: ChatCall, upstream: Upstream) -> int:
    """A bound without writing the body: for rates and for choosing, where a few tokens do not matter."""
    return call.size + call.answers * (call.max_tokens or upstream.deployment.max_tokens)
