"""What an upstream's refusal means: HTTP status and error body to the tree of errors. Pure; never shows a
key.

Sources: Moonshot help center `kimi-api/error-codes.md`, OpenAI's error codes, vLLM (`{"object": "error"}`),
OpenRouter (`code` in the error object is an HTTP status, also inside a 200 stream), Gemini (the error object
inside a list).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from centuria.core.retry import parse_retry_after
from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.messages import safe_text

_KEY = re.compile(
    r"(?i)\b(?:bearer\s+)?(?:sk|pk|rk|gsk|xai|hf|key|aiza|nvapi|or)[-_][a-z0-9*._-]{6,}|\bbearer\s+\S+|\bAIza[\w-]{20,}"
)
#: Controls of either set, line separators and reversals of direction: none of them belongs into one line of an error.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_SHORTEST = 6
_QUOTA = (
    "exceeded_current_quota",
    "insufficient_quota",
    "billing_hard_limit",
    "insufficient balance",
    "credit balance",
)
_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "exceeded model token limit",
    "context window",
    "context length",
    "prompt is too long",
    "maximum number of tokens allowed",
    "exceed_context_size",  # llama.cpp
    "available context size",
    "`max_new_tokens` must be",  # text-generation-inference
)
#: A 429 for what one request asks for, which no waiting helps.
_TOO_MUCH = re.compile(r"request too large|tokens must be reduced|reduce your message size")
_OVER = re.compile(r"limit:? ?(\d[\d,]{0,18})\b.{0,60}?\brequested:? ?(\d[\d,]{0,18})")
_LATER = frozenset({408, 409, 425, 429, 499})
_TYPES = {
    "rate_limit": 429,
    "engine_overloaded": 429,
    "overloaded": 503,
    "server_error": 500,
    "internal": 500,
    "unavailable": 503,
    "timeout": 504,
    "invalid_request": 400,
    "content_filter": 400,
    "authentication": 401,
    "api_key": 401,
    "permission": 403,
    "not_found": 404,
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """What an error body says: the provider's own `kind`, its text, and a status where one is written
    inside."""

    kind: str
    text: str
    status: int = 0


def error_from(status: int, headers: Mapping[str, str], body: bytes, now: float, *, secret: str = "") -> ModelError:
    """The error behind an HTTP answer that is no success. `now` is wall-clock time, `secret` the key to blot
    out."""
    text = body.decode("utf-8", "replace")
    try:
        complaint = read_complaint(json.loads(text))
    except (ValueError, RecursionError):
        complaint = None
    if complaint is None:
        web_page = text.lstrip()[:1] == "<"
        complaint = Complaint("", "it sent a web page" if web_page else text)
    return judge(status, complaint, parse_retry_after(headers, now), secret=secret)


def read_complaint(value: Any) -> Complaint | None:
    """The error object inside a parsed body or chunk, or None where there is none."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    error = value.get("error") or None
    if error is None and value.get("object") != "error" and value.get("type") != "error":
        told = value.get("message") or value.get("detail")
        if "choices" in value or not isinstance(told, str):
            return None
        error = value
    elif error is None:
        error = value
    if isinstance(error, str):
        return Complaint("", error)
    if not isinstance(error, dict):
        return Complaint("", as_text(error))
    code, type_ = error.get("code"), error.get("type")
    kind = next((item for item in (type_, code) if isinstance(item, str) and item and item != "error"), "")
    if isinstance(code, str) and code != kind:
        kind = f"{kind}:{code}" if kind else code
    status = code if isinstance(code, int) and 100 <= code <= 599 else 0
    told = error.get("message") or error.get("detail") or ""
    return Complaint(kind, told if isinstance(told, str) else as_text(told), status)


def as_text(value: Any) -> str:
    """A parsed value as JSON text; "" where it is nested so deeply that it could be read and cannot be written."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""


def judge(
    status: int,
    complaint: Complaint,
    retry_after: float | None = None,
    *,
    secret: str = "",
    partial: str = "",
) -> ModelError:
    """The error that a status and a complaint come to. Status 200: the error stood inside a stream that had
    begun."""
    inside = status == 200
    number = (complaint.status or _status_of(complaint.kind)) if inside else status
    kind = blot(complaint.kind, secret)[:100]
    words = blot(complaint.text, secret).strip()[:500] or kind or "no reason given"
    said = f"The upstream said: {words}" + ("" if words[-1] in ".!?" else ".")
    prefix = f"HTTP {status}. " if not inside else "Inside its answer. "
    # A stream that had begun was being served, whatever it says; a client error is answered before any work.
    served = inside or not 300 <= number < 500 or number in (408, 499)
    cause, remedy = _class_of(number, f"{complaint.kind} {complaint.text}".lower())
    return cause(
        prefix + said,
        status=number,
        kind=kind,
        retry_after=retry_after,
        served=served,
        partial=partial,
        remedy=remedy,
    )


def blot(text: str, secret: str = "") -> str:
    """The text without anything that is, or looks like, a key; one line."""
    return _CONTROL.sub(" ", _KEY.sub("***", safe_text(without(text, secret)[:20_000])))


def without(text: str, secret: str) -> str:
    """The text with this very key blotted out. Shorter ones are placeholders, and parts of many words."""
    return text.replace(secret, "***") if len(secret) >= _SHORTEST else text


def _status_of(kind: str) -> int:
    lowered = kind.lower()
    return next((status for word, status in _TYPES.items() if word in lowered), 500)


def _asks_too_much(words: str) -> bool:
    over = _OVER.search(words)
    more = over is not None and int(over[2].replace(",", "")) > int(over[1].replace(",", ""))
    return more or _TOO_MUCH.search(words) is not None


def _class_of(status: int, words: str) -> tuple[type[ModelError], str]:
    if status == 402 or (status in (400, 403, 429) and any(word in words for word in _QUOTA)):
        return ModelDenied, "The account's quota is spent: top it up, then resume the run."
    if status in (401, 403):
        return ModelDenied, "Check the key: it must belong to this provider and base URL."
    if status in (400, 413, 422) and any(word in words for word in _TOO_LONG):
        return ContextTooLong, "Shorten the prompt, or use a model with a longer context."
    if status == 429 and _asks_too_much(words):
        return (
            ModelRefused,
            "The account's tokens per minute are fewer than this one request asks for: shorten the prompt, or lower "
            "max_tokens.",
        )
    if status in _LATER or status >= 500:
        return ModelUnavailable, ""
    if 300 <= status < 400:
        return (
            ModelRefused,
            "Redirects are not followed, a key must not travel: set base_url to the final address.",
        )
    if status == 404:
        return (
            ModelRefused,
            "Check base_url (most end in /v1) and the model's name; `centuria doctor` tests both.",
        )
    return ModelRefused, ""
