"""Prices: one function, each token once, rounded once, and never a price that nobody knows."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tomllib
from decimal import Decimal

import pytest
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)
from hypothesis import given
from hypothesis import strategies as st

from centuria import pricelist
from centuria.core.prices import FREE, Price, PriceTable, cost, per_million, remedy, worst
from centuria.errors import ConfigurationError
from centuria.messages import DOLLAR, Usage

DAY = datetime.date(2026, 11, 20)
KIMI = Price(input=600_000, cached=100_000, output=3_000_000)
TIERED = Price(
    input=1_250_000,
    cached=125_000,
    output=10_000_000,
    tiers=((200_000, Price(input=2_500_000, cached=250_000, output=15_000_000)),),
)

rates = st.integers(0, 10**8)
flat = st.builds(
    lambda i, o, c, w: Price(input=i, output=o, cached=c, cache_write=w),
    rates,
    rates,
    st.none() | rates,
    st.none() | rates,
)
tiered = st.builds(
    lambda base, tiers: Price(
        input=base.input,
        output=base.output,
        cached=base.cached,
        cache_write=base.cache_write,
        tiers=tuple(sorted(tiers, key=lambda tier: tier[0])),
    ),
    flat,
    st.lists(st.tuples(st.integers(0, 300_000), flat), max_size=3, unique_by=lambda tier: tier[0]),
)
counts = st.integers(-5, 400_000)
usages = st.builds(Usage, counts, counts, counts, counts, counts)


def test_each_token_is_paid_once() -> None:
    usage = Usage(prompt=1000, cached=400, cache_written=100, output=50, reasoning=30)
    price = Price(input=10, cached=1, cache_write=12, output=100)
    assert cost(price, usage) == 500 * 10 + 400 * 1 + 100 * 12 + 50 * 100


def test_a_million_tokens_of_kimi_cost_what_the_list_says() -> None:
    million = 10**6
    assert cost(KIMI, Usage(prompt=million)) == 60 * DOLLAR // 100
    assert cost(KIMI, Usage(prompt=million, cached=million)) == DOLLAR // 10
    assert cost(KIMI, Usage(output=million)) == 3 * DOLLAR


def test_cached_and_written_tokens_without_a_price_cost_what_input_costs() -> None:
    price = Price(input=7, output=1)
    assert cost(price, Usage(prompt=100, cached=60, cache_written=20)) == 700


def test_the_tier_is_chosen_by_the_prompt_and_holds_for_all_of_its_tokens() -> None:
    assert cost(TIERED, Usage(prompt=200_000, output=10)) == 200_000 * 1_250_000 + 10 * 10_000_000
    assert cost(TIERED, Usage(prompt=200_001, output=10)) == 200_001 * 2_500_000 + 10 * 15_000_000


def test_the_worst_case_is_at_the_dearest_tier_that_the_request_can_reach() -> None:
    assert worst(TIERED, 200_000, 10) == 200_000 * 1_250_000 + 10 * 10_000_000
    assert worst(TIERED, 200_001, 10) == 200_001 * 2_500_000 + 10 * 15_000_000
    cheaper_above = Price(input=10, output=10, tiers=((5, Price(input=1, output=1)),))
    assert worst(cheaper_above, 6, 1) == 70


@given(tiered, usages)
def test_a_call_never_costs_more_than_its_worst_case_nor_less_than_nothing(price: Price, usage: Usage) -> None:
    assert 0 <= cost(price, usage) <= worst(price, max(0, usage.prompt), max(0, usage.output))


@given(st.decimals(0, 1000, places=6))
def test_a_price_is_exact_down_to_a_millionth_of_a_dollar_per_million_tokens(dollars: Decimal) -> None:
    assert Decimal(per_million(dollars)) == dollars * 10**6
    assert per_million("0.0000004") == 0
    assert per_million(0.6) == 600_000


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "much", True, 10**7])
def test_what_is_no_price_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="here"):
        per_million(wrong, what="here")  # type: ignore[arg-type]


def test_an_unknown_model_has_no_price_and_the_remedy_is_the_line_to_add() -> None:
    assert PriceTable().find("custom", "my-model") is None
    text = remedy("custom", 'my "own" model')
    added = tomllib.loads(text.split("\n", 1)[1].replace("..", "1.5"))
    table = pricelist.load(added["prices"])
    assert table.find("custom", 'my "own" model') == Price(input=1_500_000, output=1_500_000)


def test_overrides_win_over_the_table() -> None:
    table = pricelist.load({"kimi-k2.5": {"input": 1, "cached": 0.5, "output": "2"}, "free": FREE}, today=DAY)
    assert table.find("moonshot", "kimi-k2.5") == Price(input=10**6, cached=500_000, output=2 * 10**6)
    assert table.find("openai", "free") == FREE


@pytest.mark.parametrize(
    "wrong", [{"input": 1}, {"input": 1, "output": 2, "discount": 3}, {"input": -1, "output": 2}, 5]
)
def test_an_override_that_is_no_price_is_refused_and_names_the_model(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="kimi"):
        pricelist.load({"kimi": wrong})  # type: ignore[dict-item]


# -- the table that ships --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "model", "dollars"),
    [
        ("moonshot", "kimi-k2.5", ("0.60", "0.10", "3.00")),
        ("holysheep", "kimi-k2.5", ("0.60", None, "2.50")),
        ("holysheep", "gpt-4.1", ("2", None, "8")),
        ("holysheep", "gemini-2.5-flash", ("0.30", None, "2.50")),
        ("openai", "gpt-4.1", ("2", "0.50", "8")),
    ],
)
def test_the_table_knows(provider: str, model: str, dollars: tuple[str, str | None, str]) -> None:
    price = pricelist.load(today=DAY).find(provider, model)
    assert price is not None
    cached = None if dollars[1] is None else per_million(dollars[1])
    assert (price.input, price.cached, price.output) == (per_million(dollars[0]), cached, per_million(dollars[2]))


@pytest.mark.parametrize(
    ("model", "stated"),
    [("gpt-4.1", "8"), ("claude-sonnet-4.5", "15"), ("gemini-2.5-flash", "2.50"), ("deepseek-v3.2", "0.42")],
)
def test_no_output_of_the_gateway_is_cheaper_than_it_states(model: str, stated: str) -> None:
    price = pricelist.load(today=DAY).find("holysheep", model)
    assert price is not None
    assert price.output == per_million(stated)
    assert 0 < price.input <= price.output


def test_a_long_prompt_has_its_tier() -> None:
    price = pricelist.load(today=DAY).find("gemini", "gemini-2.5-pro")
    assert price is not None
    ((start, above),) = price.tiers
    assert start == 200_000
    assert above.input == 2 * price.input


def listed(*prices: ConditionalPrice, id: str = "m") -> ModelInfo:
    """A model of the source whose price has conditions."""
    return ModelInfo(id=id, match=ClauseEquals(id), prices=list(prices))


def by_dollars(input: str, output: str, cached: str | None = None) -> ModelPrice:
    return ModelPrice(
        input_mtok=Decimal(input), output_mtok=Decimal(output), cache_read_mtok=cached and Decimal(cached)
    )


def test_of_prices_by_the_time_of_day_the_dearest_is_taken_for_each_kind_of_token() -> None:
    night = TimeOfDateConstraint(datetime.time(0, 30, tzinfo=datetime.UTC), datetime.time(6, tzinfo=datetime.UTC))
    model = listed(
        ConditionalPrice(prices=by_dollars("0.1", "1.1", "0.09")),
        ConditionalPrice(night, prices=by_dollars("0.2", "0.9")),
    )
    # By night cached tokens have no price of their own: they cost what input costs.
    assert pricelist.price_of(model, DAY) == Price(input=200_000, output=1_100_000, cached=200_000)


def test_a_price_that_begins_tomorrow_counts_today_and_one_of_the_past_no_more() -> None:
    model = listed(
        ConditionalPrice(prices=by_dollars("9", "9")),
        ConditionalPrice(StartDateConstraint(datetime.date(2026, 10, 19)), prices=by_dollars("0.5", "2.5")),
        ConditionalPrice(StartDateConstraint(datetime.date(2026, 11, 3)), prices=by_dollars("0.4", "3.3")),
    )
    outputs = []
    for month, day in ((10, 1), (10, 25), (11, 2), (11, 3)):
        price = pricelist.price_of(model, datetime.date(2026, month, day))
        assert price is not None
        outputs.append((price.input, price.output))
    assert outputs == [(9_000_000,) * 2, (500_000, 2_500_000), (500_000, 3_300_000), (400_000, 3_300_000)]


def test_tiers_that_begin_at_different_places_are_kept() -> None:
    prices = ModelPrice(
        input_mtok=TieredPrices(Decimal(1), [Tier(100, Decimal(2))]),
        output_mtok=TieredPrices(Decimal(10), [Tier(200, Decimal(20))]),
    )
    price = pricelist.price_of(ModelInfo(id="m", match=ClauseEquals("m"), prices=prices), DAY)
    assert price is not None
    found = [(price.at(n).input, price.at(n).output) for n in (100, 101, 200, 201)]
    assert found == [(10**6, 10**7), (2 * 10**6, 10**7), (2 * 10**6, 10**7), (2 * 10**6, 2 * 10**7)]


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "gpt-99"), ("custom", "kimi-k2.5"), ("openai", "text-embedding-3-small"), ("gemini", "gemma-3")],
)
def test_what_has_no_known_price_for_text_is_unpriced_never_free(provider: str, model: str) -> None:
    assert pricelist.load(today=DAY).find(provider, model) is None


def test_a_model_on_ones_own_machine_and_one_that_is_given_away_are_free() -> None:
    table = pricelist.load(today=DAY)
    assert table.find("ollama", "llama4") == FREE
    assert table.find("openrouter", "moonshotai/kimi-k2.6:free") == FREE


def test_the_source_of_prices_is_not_imported_until_a_price_is_looked_up() -> None:
    code = (
        "import sys; from centuria import pricelist; table = pricelist.load(); "
        "table.find('moonshot', 'kimi-k2.5'); print('genai_prices' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
