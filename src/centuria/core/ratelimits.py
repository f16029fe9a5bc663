"""What an upstream says of its limits, in headers and in the words of a refusal. Pure; believes nothing blindly.

Sources: OpenAI's guide to rate limits (`x-ratelimit-limit-requests`, ...; resets such as "6m0s", "250ms");
Moonshot's help center (`X-RateLimit-Limit`, `-Remaining`, `-Reset`), and the IETF draft of the same names
without the x; refusals as users of Moonshot (MoonshotAI/Kimi-K2#34, kimi-cc#16, #41) and of OpenAI quote them.
Anything that is no sensible number counts as not said. Nothing here raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"\s*(\d{1,15})(?:\.\d{0,9})?(?![\w.])", re.ASCII)
_PART = re.compile(
    r"(\d{1,15}(?:\.\d{1,9})?)\s?(milliseconds?|msecs?|ms|hours?|h|minutes?|mins?|m|seconds?|secs?|s|d)?", re.ASCII
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: Above this a "reset" is a point in time: seconds since 1970, above the second one milliseconds.
_EPOCH, _EPOCH_MS = 1e9, 1e12
_LONGEST = 1e9
_MOST = 10**12

_UNIT = r"(?:milliseconds?|ms|hours?|minutes?|mins?|seconds?|secs?|[smhd])?"
_AGAIN = re.compile(
    rf"(?:again|retry) (?:after|in):? ((?:\d{{1,9}}(?:\.\d{{1,9}})?\s?{_UNIT}\s?){{1,4}})", re.IGNORECASE
)
#: The first that is found names the limit; its order matters, because "TPD" may stand beside "rate limit".
_KINDS = (
    ("concurrency", re.compile(r"\bconcurren(?:cy|t)", re.IGNORECASE | re.ASCII)),
    ("daily_tokens", re.compile(r"\bTPD\b|\btokens per day", re.IGNORECASE | re.ASCII)),
    ("daily_requests", re.compile(r"\bRPD\b|\brequests? per day", re.IGNORECASE | re.ASCII)),
    ("tokens", re.compile(r"\bTPM\b|\btokens per min", re.IGNORECASE | re.ASCII)),
    ("requests", re.compile(r"\bRPM\b|\brequests? per min|\bmax request\b", re.IGNORECASE | re.ASCII)),
)
_LIMIT = re.compile(r"\blimit:? ?(\d[\d,]{0,18})", re.IGNORECASE | re.ASCII)
_MAXIMUM = re.compile(r"\b(?:concurrency|RPM|TPM|TPD|reached|request): ?(\d[\d,]{0,18})", re.IGNORECASE | re.ASCII)
_USED = re.compile(r"\b(?:used|current):? ?(\d[\d,]{0,18})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Stated:
    """One response's word on limits by the minute. `reset` (seconds) is only that of a window whose length nobody
    says (`X-RateLimit-*`), to which `window_left` belongs."""

    requests: int | None = None
    requests_left: int | None = None
    tokens: int | None = None
    tokens_left: int | None = None
    window_left: int | None = None
    reset: float | None = None

    def __bool__(self) -> bool:
        return self is not NOTHING and self != NOTHING


NOTHING = Stated()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the words of a refusal come to. `limit` names the limit ("" = unknown), `most` is its number, `left` what
    remained of it; `wait` is in seconds."""

    limit: str = ""
    most: int | None = None
    left: int | None = None
    wait: float | None = None


def read_headers(headers: Mapping[str, str], now: float) -> Stated:
    """The limits that these headers state; `now` is wall-clock time, for resets that are a point in time."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = str(name).lower().removeprefix("x-")
        if key.startswith("ratelimit-"):
            found[key.removeprefix("ratelimit-")] = str(value)[:64]
    if not found:
        return NOTHING
    requests, requests_left = _pair(found, "-requests")
    tokens, tokens_left = _pair(found, "-tokens")
    _, window_left = _pair(found, "")
    reset = read_duration(found.get("reset", ""), now)
    if window_left is None or reset is None:
        window_left = reset = None
    return Stated(requests, requests_left, tokens, tokens_left, window_left, reset)


def read_refusal(text: str) -> Refusal:
    """What the message of a 429 says beside "no"."""
    text = text[:2000]
    again = _AGAIN.search(text)
    wait = read_duration(again[1]) if again else None
    kind = next((name for name, pattern in _KINDS if pattern.search(text)), "")
    number = _LIMIT.search(text) or _MAXIMUM.search(text)
    most = _whole(number[1]) if kind and number else None
    used = _USED.search(text)
    left = None
    if most is not None and used is not None:
        left = max(0, most - (_whole(used[1]) or 0))
    return Refusal(kind, most, left, wait)


def read_duration(text: str, now: float = 0.0) -> float | None:
    """Seconds, from "6m0s", "1s", "250ms", "20", "1.5", "1 seconds", or a point in time since 1970. None: no such."""
    text = text[:64].strip().lower()
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or (part[2] is None and (at or part.end() < len(text))):
            return None
        total += float(part[1]) * _UNITS[_short(part[2] or "s")]
        at = part.end()
        while at < len(text) and text[at] == " ":
            at += 1
    if not text:
        return None
    if text.replace(".", "").isdigit() and total > _EPOCH:
        total = (total / 1000 if total > _EPOCH_MS else total) - now
    return min(max(0.0, total), _LONGEST) if math.isfinite(total) else None


def _short(unit: str) -> str:
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]


def _pair(found: Mapping[str, str], suffix: str) -> tuple[int | None, int | None]:
    """Limit and remainder; neither where they contradict each other."""
    limit, left = _count(found.get("limit" + suffix)), _count(found.get("remaining" + suffix))
    if limit == 0:
        limit = None
    if limit is not None and left is not None and left > limit:
        return None, None
    return limit, left


def _count(text: str | None) -> int | None:
    match = _NUMBER.match(text or "")
    return None if match is None or int(match[1]) > _MOST else int(match[1])


def _whole(digits: str) -> int | None:
    number = int(digits.replace(",", ""))
    return number if 0 < number <= _MOST else None
