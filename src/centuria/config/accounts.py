"""What a provider lets an account send: by its tier, and by what the user says of it."""

from __future__ import annotations

from collections.abc import Mapping

from centuria.core.rates import RateLimits
from centuria.errors import ProviderError
from centuria.settings import Limits

#: By provider and tier. platform.moonshot.ai/docs/pricing/limits: for each account, all its keys and models together;
#: tokens are charged as prompt + the longest answer that was asked for.
TIERS: Mapping[str, Mapping[int, RateLimits]] = {
    "moonshot": {
        0: RateLimits(concurrency=1, requests=3, tokens=500_000, daily_tokens=1_500_000),
        1: RateLimits(concurrency=50, requests=200, tokens=2_000_000),
        2: RateLimits(concurrency=100, requests=500, tokens=3_000_000),
        3: RateLimits(concurrency=200, requests=5_000, tokens=3_000_000),
        4: RateLimits(concurrency=400, requests=5_000, tokens=4_000_000),
        5: RateLimits(concurrency=1_000, requests=10_000, tokens=5_000_000),
    },
}


def account_limits(limits: Limits, provider: str) -> RateLimits:
    """What is known of the account: its tier's limits, each replaced by what is written beside it.

    Raises `ProviderError` for a tier that the provider does not have.
    """
    tier = RateLimits()
    if limits.tier is not None:
        tiers = TIERS.get(provider, {})
        if limits.tier not in tiers:
            known = f"It has the tiers 0 to {max(tiers)}." if tiers else "Write rpm, tpm and tpd instead."
            raise ProviderError(f"[limits] tier = {limits.tier} is not known of {provider}.", remedy=known)
        tier = tiers[limits.tier]
    return RateLimits(
        concurrency=tier.concurrency,
        requests=tier.requests if limits.rpm is None else limits.rpm,
        tokens=tier.tokens if limits.tpm is None else limits.tpm,
        daily_tokens=tier.daily_tokens if limits.tpd is None else limits.tpd,
    )


def as_markdown() -> str:
    """The table of tiers in `docs/providers.md`."""
    head = "| `provider` | `tier` | at once | requests a minute | tokens a minute | tokens a day |"
    lines = [head, "|---|---|---|---|---|---|"]
    for provider, tiers in TIERS.items():
        for tier, known in tiers.items():
            numbers = (known.concurrency, known.requests, known.tokens, known.daily_tokens)
            cells = " | ".join("no limit" if number is None else f"{number:,}" for number in numbers)
            lines.append(f"| `{provider}` | {tier} | {cells} |")
    return "\n".join(lines)
