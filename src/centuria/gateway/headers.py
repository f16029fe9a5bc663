"""Headers of a request that say for whom, how urgently and under which key of the caller's own. Each that is used is
short, and one plain line. And what an answer says of itself in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from centuria.gateway.problems import Problem, bad_request
from centuria.messages import DOLLAR, Pico

#: Characters of one of them.
MOST = 200
#: The priority of a request that says none; 0 is first, 9 is last.
USUAL_PRIORITY = 5
#: What an answer says of itself: requests to upstreams that it took, and dollars.
ATTEMPTS, COST = "x-centuria-attempts", "x-centuria-cost-usd"
AGENT, PRIORITY, IDEMPOTENCY_KEY = "X-Agent-Id", "X-Priority", "Idempotency-Key"


def agent_of(headers: Mapping[str, str]) -> str:
    """Which of the key's agents asks; "" where it does not say. Raises `Problem` (400)."""
    return value_of(headers, AGENT)


def priority_of(headers: Mapping[str, str]) -> int | None:
    """0 (first) to 9 (last), None where it is not said. Raises `Problem` (400)."""
    value = value_of(headers, PRIORITY)
    if not value:
        return None
    if len(value) != 1 or value not in "0123456789":
        raise _refused(PRIORITY, f"must be a number from 0 (first) to 9 (last); {USUAL_PRIORITY} is usual")
    return int(value)


def idempotency_key_of(headers: Mapping[str, str]) -> str | None:
    """The caller's own key for what it asks, None where there is none. Raises `Problem` (400), for an empty one too:
    whoever sends that believes in a protection that it would not have."""
    if IDEMPOTENCY_KEY.lower() not in headers:
        return None
    value = value_of(headers, IDEMPOTENCY_KEY)
    if not value:
        raise _refused(IDEMPOTENCY_KEY, f"must have 1 to {MOST} characters")
    return value


def cost_told(cost: Pico) -> str:
    """What `COST` says."""
    return f"{cost / DOLLAR:.9f}"


def digest_of_asked(asked: Any) -> str:
    """What tells one request under an `Idempotency-Key` from another, however its JSON is spaced and ordered."""
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def value_of(headers: Mapping[str, str], name: str) -> str:
    """One header, "" where there is none. Raises `Problem` (400) for what is too long, or no plain line."""
    value = headers.get(name.lower(), "").strip(" \t")
    if not value:
        return ""
    if len(value) > MOST:
        raise _refused(name, f"has more than {MOST} characters")
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value):
        raise _refused(name, "has control characters in it")
    return value


def _refused(name: str, why: str) -> Problem:
    return bad_request(f"The header `{name}` {why}.", param=name, code="invalid_header")
