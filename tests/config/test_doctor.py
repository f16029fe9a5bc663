"""Findings about key, URL, model and price; and no dollar cap without a price."""

from __future__ import annotations

import pytest

from centuria import pricelist
from centuria.config import Finding, ModelChoice, NoKey, check_price, diagnose, resolve
from centuria.core.prices import Price, PriceTable
from centuria.errors import PriceMissing
from centuria.messages import DOLLAR
from centuria.settings import Endpoint, Limits

KEY = "sk-Zm9vYmFyYmF6cXV4MDEyMzQ1"
UNKNOWN = Endpoint("custom", "http://127.0.0.1:1/v1", "my-model")


@pytest.mark.parametrize("limits", [Limits(), Limits(budget=None, agent_budget=DOLLAR)])
def test_a_model_without_a_price_is_refused_under_a_cap_with_the_lines_to_add(limits: Limits) -> None:
    with pytest.raises(PriceMissing) as caught:
        check_price(UNKNOWN, limits, PriceTable())
    assert "no known price for my-model at custom" in caught.value.message
    assert '[prices."my-model"]\ninput = ' in caught.value.remedy
    assert "budget = false" in caught.value.remedy


def test_a_price_or_no_cap_lets_a_model_pass() -> None:
    check_price(UNKNOWN, Limits(budget=None), PriceTable())
    check_price(UNKNOWN, Limits(), pricelist.load({"my-model": {"input": 1, "output": 2}}))
    check_price(UNKNOWN, Limits(), PriceTable({("custom", "my-model"): Price(input=0, output=0)}))


def test_every_preset_that_names_a_model_has_a_price_for_it() -> None:
    prices = pricelist.load()
    for name in ("moonshot", "holysheep", "openai", "anthropic", "gemini", "deepseek", "openrouter"):
        found = resolve(ModelChoice(provider=name), {})
        assert isinstance(found, NoKey)
        check_price(found.endpoint, Limits(), prices)


def by_subject(findings: list[Finding]) -> dict[str, bool | None]:
    return {finding.subject: finding.ok for finding in findings}


def test_findings_tell_key_url_model_and_price() -> None:
    findings = diagnose(ModelChoice(name="gpt-4.1"), {"OPENAI_API_KEY": KEY}, prices=pricelist.load())
    assert by_subject(findings) == {"key": True, "base URL": True, "model": True, "price": True}
    assert KEY not in str(findings)


def test_a_missing_key_is_a_remark_and_a_bad_one_is_wrong() -> None:
    assert by_subject(diagnose(ModelChoice(), {}))["key"] is None
    (finding,) = diagnose(ModelChoice(), {"MOONSHOT_API_KEY": "changeme"})
    assert (finding.ok, finding.text) == (False, "MOONSHOT_API_KEY holds a placeholder, not a key.")
    assert finding.remedy


def test_a_missing_price_is_a_finding_and_no_error() -> None:
    choice = ModelChoice(name="my-model", base_url="http://127.0.0.1:1/v1")
    assert by_subject(diagnose(choice, {}, prices=PriceTable()))["price"] is False
    uncapped = diagnose(choice, {}, limits=Limits(budget=None), prices=PriceTable())
    assert by_subject(uncapped)["price"] is None


def test_a_model_whose_end_was_announced_is_remarked() -> None:
    findings = diagnose(ModelChoice(name="kimi-k2.5"), {"MOONSHOT_API_KEY": KEY})
    assert any(finding.ok is None and "kimi-k2.6" in finding.remedy for finding in findings)
