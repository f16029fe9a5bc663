"""Prices in integer pico-dollars, and the one pricing function. Pure.

One pico-dollar a token is 1e-6 dollars per million tokens: prices are rounded to that once, when they are
made (`per_million`), and everything after it is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from centuria.errors import ConfigurationError
from centuria.messages import Pico, Usage

#: Dearer than a million dollars per million tokens is a slip of the pen.
_DEAREST = 10**6


def per_million(dollars: Decimal | float | str, *, what: str = "a price") -> Pico:
    """Pico-dollars a token from dollars per million tokens.

    Raises `ConfigurationError`, naming `what`, for anything but a number from 0 to a million.
    """
    try:
        value = Decimal(str(dollars))
    except InvalidOperation:
        value = Decimal("NaN")
    if isinstance(dollars, bool) or not value.is_finite() or not 0 <= value <= _DEAREST:
        raise ConfigurationError(
            f"{what} is {dollars!r}, which is not a price.",
            remedy="Write dollars per million tokens, like 0.60.",
        )
    return int((value * 10**6).quantize(Decimal(1), rounding=ROUND_HALF_UP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Pico-dollars a token. `cached` and `cache_write` None: such tokens cost what input costs.

    `tiers`, in rising order, replace the whole price: `(start, price)` holds for all tokens of a request with
    more than `start` prompt tokens.
    """

    input: Pico
    output: Pico
    cached: Pico | None = None
    cache_write: Pico | None = None
    tiers: tuple[tuple[int, Price], ...] = ()

    def at(self, prompt_tokens: int) -> Price:
        """The price of a request with so many prompt tokens."""
        price = self
        for start, tier in self.tiers:
            if prompt_tokens > start:
                price = tier
        return price

    def dearest_input(self) -> Pico:
        """The most that a prompt token can cost, whatever the cache does with it."""
        return max(self.input, self.cached or 0, self.cache_write or 0)


#: What costs nothing: a model on one's own machine.
FREE = Price(input=0, output=0)


def cost(price: Price, usage: Usage) -> Pico:
    """What a call cost: each token once, at the tier that its prompt reached. Reasoning tokens are output.

    Impossible counts (more cached than there are, below zero) are cut to what is possible.
    """
    price = price.at(usage.prompt)
    prompt = max(0, usage.prompt)
    cached = min(max(0, usage.cached), prompt)
    written = min(max(0, usage.cache_written), prompt - cached)
    return (
        (prompt - cached - written) * price.input
        + cached * (price.input if price.cached is None else price.cached)
        + written * (price.input if price.cache_write is None else price.cache_write)
        + max(0, usage.output) * price.output
    )


def worst(price: Price, prompt_tokens: int, max_output: int) -> Pico:
    """The most that a call can cost with at most so many tokens, at the dearest tier that it can reach."""
    reachable = [price, *(tier for start, tier in price.tiers if prompt_tokens > start)]
    return max(prompt_tokens * tier.dearest_input() + max_output * tier.output for tier in reachable)


def remedy(provider: str, model: str) -> str:
    """What to write into the job file so that a model without a known price can run under a dollar cap."""
    return (
        f"Add what {model} costs at {provider} to the job file, or take the budget away:\n"
        f"[prices.{json.dumps(model, ensure_ascii=False)}]\n"
        "input = ..  # dollars per million tokens\n"
        "output = .."
    )


class PriceTable:
    """Prices by provider and model. `overrides` hold for a model at every provider and win; then `rows`, then
    `look_up`.

    A model that is unknown has no price: that is None, never 0.
    """

    def __init__(
        self,
        rows: Mapping[tuple[str, str], Price] | None = None,
        *,
        overrides: Mapping[str, Price] | None = None,
        look_up: Callable[[str, str], Price | None] | None = None,
    ) -> None:
        self._rows = dict(rows or {})
        self._overrides = dict(overrides or {})
        self._look_up = look_up

    def find(self, provider: str, model: str) -> Price | None:
        """The price of a model at a provider, or None where none is known."""
        price = self._overrides.get(model) or self._rows.get((provider, model))
        if price is None and self._look_up is not None:
            price = self._look_up(provider, model)
        return price
