"""What can be told before anything is sent: key, base URL, model and price, as plain findings. Nothing is probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from centuria.config.accounts import account_limits
from centuria.config.presets import BY_NAME, ENDED, SUCCESSORS, family
from centuria.config.providers import ModelChoice, NoKey, resolve
from centuria.core.prices import PriceTable
from centuria.core.prices import remedy as price_line
from centuria.errors import ConfigurationError, PriceMissing, ProviderError
from centuria.messages import DOLLAR
from centuria.settings import Endpoint, Limits


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `centuria doctor`. `ok` None: a remark, nothing is wrong for sure."""

    subject: str
    ok: bool | None
    text: str
    remedy: str = ""


def check_price(endpoint: Endpoint, limits: Limits, prices: PriceTable) -> None:
    """Refuse a dollar cap, of the run or of an agent, on a model without a price: it could not hold.

    Raises `PriceMissing` with the lines to add.
    """
    caps = [cap for cap in (limits.budget, limits.agent_budget) if cap is not None]
    if caps and prices.find(endpoint.provider, endpoint.model) is None:
        raise PriceMissing(
            f"There is a cap of ${caps[0] / DOLLAR:g}, but no known price for {endpoint.model} at "
            f"{endpoint.provider}, so the cap could not hold.",
            remedy=f"{price_line(endpoint.provider, endpoint.model)}\n"
            "(No cap: budget = false in [limits], or --budget none.)",
        )


def diagnose(
    choice: ModelChoice,
    env: Mapping[str, str],
    *,
    limits: Limits | None = None,
    prices: PriceTable | None = None,
) -> list[Finding]:
    """Findings on the key, the base URL, the model and, if a table is given, its price. Never raises, never sends."""
    try:
        resolved = resolve(choice, env)
    except ProviderError as error:
        return [Finding("provider", False, error.message, error.remedy)]
    endpoint = resolved.endpoint if isinstance(resolved, NoKey) else resolved
    findings = [
        _key(resolved),
        Finding("base URL", True, f"{endpoint.base_url} ({BY_NAME[endpoint.provider].title})"),
        *_model(endpoint, choice),
    ]
    try:
        account_limits(limits or Limits(), endpoint.provider)
    except ProviderError as error:
        findings.append(Finding("limits", False, error.message, error.remedy))
    if prices is not None:
        findings.append(_price(endpoint, limits or Limits(), prices))
    return findings


def _key(resolved: Endpoint | NoKey) -> Finding:
    if isinstance(resolved, NoKey):
        return Finding("key", None, f"{resolved.text} Runs are rehearsals.", resolved.remedy)
    if resolved.key is None:
        return Finding("key", True, "None is needed here.")
    return Finding("key", True, f"There is one for {BY_NAME[resolved.provider].title}.")


def _model(endpoint: Endpoint, choice: ModelChoice) -> list[Finding]:
    thinks = ", thinks before it answers" if endpoint.thinks else ""
    known = choice.context is not None or family(endpoint.model) is not None
    guess = "" if known else " (assumed: set `context` in [model] if it is another)"
    window = f"{endpoint.context:,} tokens of context{guess}"
    findings = [Finding("model", True, f"{endpoint.model}: {window}{thinks}.")]
    for (provider, begins), text in ENDED.items():
        if provider == endpoint.provider and endpoint.model.startswith(begins):
            findings.append(Finding("model", None, text, f"If it is refused, use {SUCCESSORS[begins]}."))
    if endpoint.provider == "ollama" and choice.context is None:
        findings.append(
            Finding(
                "model",
                None,
                "Ollama cuts prompts to its own window, which is small unless it is told otherwise.",
                f"Start it with OLLAMA_CONTEXT_LENGTH={endpoint.context}.",
            )
        )
    return findings


def _price(endpoint: Endpoint, limits: Limits, prices: PriceTable) -> Finding:
    try:
        check_price(endpoint, limits, prices)
    except ConfigurationError as error:
        return Finding("price", False, error.message, error.remedy)
    price: Any = prices.find(endpoint.provider, endpoint.model)
    if price is None:
        return Finding("price", None, "None is known: calls are reported as unpriced.", "Add a [prices] table.")
    parts = [("input", price.input), ("cached", price.cached), ("output", price.output)]
    # A pico-dollar a token is a millionth of a dollar per million tokens.
    said = ", ".join(f"{name} ${value / 10**6:,.2f}" for name, value in parts if value is not None)
    return Finding("price", True, f"Per million tokens: {said}.")
