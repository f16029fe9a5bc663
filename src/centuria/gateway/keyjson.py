"""Keys and their money as JSON values, for the page, the API and the command: dollars, seconds since 1970. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from centuria.gateway.ports import Balance, Key, UsageLine
from centuria.messages import DOLLAR, Pico


def key_fields(key: Key) -> dict[str, Any]:
    """Who a key is and what it may use; nothing that it is known by. None: no limit, or all."""
    return {
        "id": key.id,
        "name": key.name,
        "admin": key.admin,
        "models": None if key.models is None else sorted(key.models),
        "tools": None if key.tools is None else sorted(key.tools),
    }


def balance_fields(key: Key, balance: Balance) -> dict[str, Any]:
    """`left_usd` is what no gateway has leased, spent or held; None without a budget."""
    taken = balance.spent + balance.held + balance.leased
    return {
        "budget_usd": None if key.budget is None else in_dollars(key.budget),
        "spent_usd": in_dollars(balance.spent),
        "held_usd": in_dollars(balance.held),
        "leased_usd": in_dollars(balance.leased),
        "left_usd": None if key.budget is None else in_dollars(max(0, key.budget - taken)),
    }


def all_fields(key: Key, balance: Balance) -> dict[str, Any]:
    """All that an admin may know of a key."""
    own = {"rpm": key.rpm, "tpm": key.tpm, "created": key.created, "revoked": key.revoked}
    return {**key_fields(key), **own, **balance_fields(key, balance)}


def held_leases(keys: Iterable[tuple[Key, Balance]], lines: Iterable[UsageLine]) -> dict[str, Pico]:
    """What is held of keys, by their ids, for leases of gateways that ended without a word: what a key holds and none
    of its attempts does. `lines` are all that these keys ever used."""
    held = {key.id: balance.held for key, balance in keys}
    for line in lines:
        if line.key in held:
            held[line.key] -= line.held
    # An attempt that was written between reading the one and the other may be in the lines alone.
    return {key: amount for key, amount in held.items() if amount > 0}


def exactly(amount: Pico) -> str:
    """Dollars with all their decimals, never in powers of ten."""
    return f"{'-' * (amount < 0)}{abs(amount) // DOLLAR}.{abs(amount) % DOLLAR:012d}"


def in_dollars(amount: Pico) -> float:
    return amount / DOLLAR
