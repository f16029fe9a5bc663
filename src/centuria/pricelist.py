"""The price table that ships with the package: `genai-prices`, and the rows that it lacks. Nothing is ever fetched.

Where a price depends on the date or the time of day, the dearest that can hold now or within the next day is
taken, for each kind of token: a budget must hold whenever the call is made. Prices of audio, images, searches
and special service tiers are left out: no such request is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from centuria.core.prices import FREE, Price, PriceTable, per_million
from centuria.errors import ConfigurationError
from centuria.messages import Pico

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

#: Our names of providers, and theirs.
_PROVIDERS = {
    "moonshot": "moonshotai",
    "gemini": "google",
    "openai": "openai",
    "anthropic": "anthropic",
    "deepseek": "deepseek",
    "openrouter": "openrouter",
}


def _row(input: str, output: str, cached: str | None = None) -> Price:
    return Price(
        input=per_million(input),
        output=per_million(output),
        cached=None if cached is None else per_million(cached),
    )


#: Moonshot's page of prices, as archived on 26 March 2026; HolySheep's as its own article states them.
_ROWS = {
    ("moonshot", "kimi-k2.5"): _row("0.60", "3.00", "0.10"),
    ("holysheep", "kimi-k2.5"): _row("0.60", "2.50"),
}

#: HolySheep states one number for each of these. Where the maker's output price is that very number, prompt
#: tokens cost what the maker takes for them, without its discount for cached ones; else it holds for both.
_HOLYSHEEP = {
    "gpt-4.1": ("openai", "8"),
    "claude-sonnet-4.5": ("anthropic", "15"),
    "gemini-2.5-flash": ("google", "2.50"),
    "deepseek-v3.2": ("deepseek", "0.42"),
}

_FIELDS = {"input", "output", "cached", "cache_write"}
#: Their names of the kinds of tokens that a conversation in text has, without `_mtok`.
_MTOK = ("input", "output", "cache_read", "cache_write")


def load(overrides: Mapping[str, Price | Mapping[str, Any]] | None = None, *, today: date | None = None) -> PriceTable:
    """The table. Its source is only read when a price is looked up for the first time (0.3 s).

    `overrides` are by model: a `Price`, or `input` and `output` (and `cached`, `cache_write`) in dollars per
    million tokens. Raises `ConfigurationError` where one of them is no price.
    """
    made = {model: _override(model, price) for model, price in (overrides or {}).items()}
    day = today or datetime.now(UTC).date()
    return PriceTable(_ROWS, overrides=made, look_up=cache(lambda provider, model: _find(provider, model, day)))


def _override(model: str, price: Price | Mapping[str, Any]) -> Price:
    if isinstance(price, Price):
        return price
    what = f'[prices."{model}"]'
    if not isinstance(price, Mapping) or set(price) - _FIELDS or not {"input", "output"} <= set(price):
        raise ConfigurationError(
            f"{what} needs input and output, and may have cached and cache_write, and nothing else.",
            remedy="Write each in dollars per million tokens.",
        )
    rates = {name: per_million(value, what=f"{what} {name}") for name, value in price.items()}
    return Price(
        input=rates["input"],
        output=rates["output"],
        cached=rates.get("cached"),
        cache_write=rates.get("cache_write"),
    )


def _find(provider: str, model: str, day: date) -> Price | None:
    if provider == "ollama":
        return FREE
    if provider == "holysheep" and model in _HOLYSHEEP:
        return _holysheep(*_HOLYSHEEP[model], model, day)
    if provider not in _PROVIDERS:
        return None
    found = _model(_PROVIDERS[provider], model.removeprefix("models/"))
    return price_of(found, day) if found is not None else None


def _holysheep(maker: str, number: str, model: str, day: date) -> Price:
    stated = per_million(number)
    found = _model(maker, model)
    price = price_of(found, day) if found is not None else None
    if price is None or price.output != stated:
        return Price(input=stated, output=stated)
    tiers = tuple((start, _without_discount(tier)) for start, tier in price.tiers)
    return Price(input=price.input, output=stated, cache_write=price.cache_write, tiers=tiers)


def _without_discount(price: Price) -> Price:
    return Price(input=price.input, output=price.output, cache_write=price.cache_write)


@cache
def _providers() -> Mapping[str, Provider]:
    from genai_prices.data import providers

    return {provider.id: provider for provider in providers}


def _model(provider: str, model: str) -> ModelInfo | None:
    known = _providers()
    house = known.get(provider)
    found = house.find_model(model, all_providers=list(known.values())) if house is not None else None
    # The table matches beginnings: kimi-k2.55 would cost what kimi-k2.5 does. A cap rests on no such guess.
    return found if found is not None and _is_named(found.id, model) else None


def _is_named(known: str, model: str) -> bool:
    """Whether a model goes by this name: the name itself, or with a date, an edition or a maker beside it."""
    names = (model, model.rpartition("/")[2])
    return any(re.match(rf"{re.escape(known.rpartition('/')[2])}(?![A-Za-z0-9.])", name, re.I) for name in names) or (
        known.lower().startswith(model.lower())
    )


def price_of(model: ModelInfo, day: date) -> Price | None:
    """The dearest price that can hold from this day to the next, or None where text has no price."""
    from genai_prices.types import ModelPrice

    prices = [model.prices] if isinstance(model.prices, ModelPrice) else _possible(model, day)
    if model.id.endswith(":free") and not any(vars(price) for price in prices):
        return FREE
    if not prices or any(price.input_mtok is None or price.output_mtok is None for price in prices):
        return None
    starts = sorted({start for price in prices for start in _starts(price)})
    tiers = tuple((start, _dearest(prices, start + 1)) for start in starts)
    base = _dearest(prices, 0)
    return Price(input=base.input, output=base.output, cached=base.cached, cache_write=base.cache_write, tiers=tiers)


def _possible(model: ModelInfo, day: date) -> list[ModelPrice]:
    """The prices that hold at some moment of two days: later entries win wherever their condition is met."""
    assert isinstance(model.prices, list)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    found: list[ModelPrice] = []
    for half_hours in range(96 if model.prices else 0):
        price = model.get_prices(start + timedelta(minutes=30 * half_hours))
        if not any(price is other for other in found):
            found.append(price)
    return found


def _starts(price: ModelPrice) -> Iterable[int]:
    from genai_prices.types import TieredPrices

    for name in _MTOK:
        value = getattr(price, f"{name}_mtok")
        if isinstance(value, TieredPrices):
            yield from (tier.start for tier in value.tiers)


def _dearest(prices: Iterable[ModelPrice], prompt_tokens: int) -> Price:
    """For each kind of token the dearest of these; what has no price of its own costs what input costs."""
    rows = [{name: _value(getattr(price, f"{name}_mtok"), prompt_tokens) for name in _MTOK} for price in prices]

    def top(name: str) -> Pico | None:
        if all(row[name] is None for row in rows):
            return None
        values = (row["input"] if row[name] is None else row[name] for row in rows)
        return max(per_million(value) for value in values if value is not None)

    return Price(
        input=top("input") or 0,
        output=top("output") or 0,
        cached=top("cache_read"),
        cache_write=top("cache_write"),
    )


def _value(price: Any, prompt_tokens: int) -> Decimal | None:
    from genai_prices.types import TieredPrices

    if isinstance(price, TieredPrices):
        value: Decimal = price.base
        for tier in price.tiers:
            if prompt_tokens > tier.start:
                value = tier.price
        return value
    return price if isinstance(price, Decimal) else None
