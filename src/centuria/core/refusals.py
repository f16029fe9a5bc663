"""What the end of one request means for all others of its model, and how long they wait then. Pure."""

from __future__ import annotations

from typing import Literal

from centuria.errors import ModelDenied, ModelError, ModelRefused

Verdict = Literal["limited", "overloaded", "denied", "failed"]

#: A 403 for what one request says (OpenRouter's moderation) concerns no other request.
_FLAGGED = ("moderation", "flagged", "content_filter", "content policy", "safety")
#: Seconds to wait where nobody says how long, doubled for each closing without an answer in between.
_BACKOFF, _BACKOFF_MOST = 1.0, 60.0
#: Jitter adds at most this share of the wait, between these seconds.
_JITTER, _JITTER_LEAST, _JITTER_MOST = 0.1, 0.05, 5.0
_LONGEST = 86_400.0


def verdict(error: ModelError) -> Verdict:
    """What an error says of all requests to this model.

    limited: wait at the gate · overloaded: fewer at once · denied: nothing will succeed · failed: it concerns that
    request alone.
    """
    kind = error.kind.lower()
    if isinstance(error, ModelDenied):
        words = f"{kind} {error.message}".lower()
        return "failed" if error.status == 403 and any(word in words for word in _FLAGGED) else "denied"
    if isinstance(error, ModelRefused):
        return "failed"
    if error.status in (503, 529) or "overloaded" in kind:
        return "overloaded"
    if error.status == 429:  # inside an answer that had begun, it may have cost something
        return "overloaded" if error.served else "limited"
    return "failed"


def concerns_all(error: ModelError) -> bool:
    """Whether nothing that is sent to this model will succeed: its own refusal, or the breaker's word for it."""
    return verdict(error) == "denied"


def spends_no_retry(error: ModelError) -> bool:
    """Whether the call may simply be admitted again: an unserved 429. It waits at the gate instead."""
    return error.status == 429 and not error.served and verdict(error) in ("limited", "overloaded")


def pause(asked: float | None, closings: int, dice: float) -> float:
    """Seconds until the gate opens: what the upstream asks for, at most a day, and more where that did not help.

    `closings` counts those before this one without an answer since. Jitter only ever adds.
    """
    backoff = min(_BACKOFF * 2.0 ** min(closings, 20), _BACKOFF_MOST)
    least = backoff / 4 if closings else 0.0
    wait = backoff if asked is None else max(min(max(asked, 0.0), _LONGEST), least)
    spread = min(max(wait * _JITTER, _JITTER_LEAST), _JITTER_MOST)
    return wait + spread * (min(1.0, dice) if dice > 0 else 0.0)
