"""The page, its sessions, and what keys used, described."""

from __future__ import annotations

from typing import Any

from centuria.gateway.openapi.parts import answer, body, listing, operation, query, record, ref

TAGS = {
    "usage": "What keys used and have left.",
    "page": "The web page at `/`, and signing in to it: a browser has a cookie in place of the key.",
}

_DOLLARS = {"type": "number", "minimum": 0}
_MAYBE = {"type": ["number", "null"], "description": "Dollars; null: no budget."}
_NAMES = {"type": ["array", "null"], "items": {"type": "string"}, "description": "null: all."}
_BALANCE: dict[str, Any] = {
    "budget_usd": _MAYBE,
    "spent_usd": _DOLLARS,
    "held_usd": {**_DOLLARS, "description": "What requests may have cost of which nobody knows."},
    "leased_usd": {**_DOLLARS, "description": "Set aside for requests, by the gateways that run."},
    "left_usd": _MAYBE,
}
_WHO: dict[str, Any] = {
    "id": {"type": "string"},
    "name": {"type": "string"},
    "admin": {"type": "boolean"},
    "models": _NAMES,
    "tools": _NAMES,
}
_MOMENT = {"type": "string", "pattern": r"^(\d{4}-\d{2}-\d{2}|\d{1,12}(\.\d{1,9})?)?$"}

SCHEMAS: dict[str, Any] = {
    "Balance": record(_BALANCE),
    "UsageLine": record(
        {
            "key_id": {"type": "string"},
            "key": {"type": "string", "description": "Its name."},
            "model": {"type": "string"},
            "day": {"type": "string", "description": "YYYY-MM-DD, in UTC."},
            "requests": {"type": "integer"},
            "attempts": {"type": "integer", "description": "Requests to upstreams."},
            "prompt_tokens": {"type": "integer"},
            "cached_tokens": {"type": "integer"},
            "output_tokens": {"type": "integer"},
            "cost_usd": _DOLLARS,
            "held_usd": _DOLLARS,
        }
    ),
    "HeldLeases": record(
        {
            "key_id": {"type": "string"},
            "key": {"type": "string", "description": "Its name."},
            "held_usd": {**_DOLLARS, "description": "For leases of gateways that ended without a word."},
        }
    ),
    "Usage": record(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": ref("UsageLine")},
            "held_leases": {
                "type": "array",
                "items": ref("HeldLeases"),
                "description": "Held beyond the lines, whatever days were asked for; keys with none are not there.",
            },
            "since": {"type": "number"},
            "until": {"type": ["number", "null"]},
            "all_keys": {"type": "boolean"},
            "balance": {"anyOf": [ref("Balance"), {"type": "null"}]},
        }
    ),
    "Key": record(
        {
            **_WHO,
            "rpm": {"type": ["integer", "null"]},
            "tpm": {"type": ["integer", "null"]},
            "created": {"type": "number"},
            "revoked": {"type": ["number", "null"]},
            **_BALANCE,
        }
    ),
    "Keys": listing("Key"),
    "Session": record(
        {
            "signed_in": {"type": "boolean"},
            "open": {"type": "boolean", "description": "No key was ever made, so this machine needs none."},
            "key": record(_WHO),
            "csrf_token": {
                "type": "string",
                "description": "What the page sends as `x-csrf-token` with all that changes something.",
            },
        },
        ["signed_in", "open"],
    ),
}
_HTML = {"description": "A page.", "content": {"text/html": {"schema": {"type": "string"}}}}
_KNOWN = {"description": "It is still the one of `If-None-Match`."}


def _shown(id: str, summary: str) -> dict[str, Any]:
    return {"get": operation(id, "page", summary, {200: _HTML, 304: _KNOWN}, public=True)}


PATHS: dict[str, Any] = {
    "/v1/usage": {
        "get": operation(
            "usage",
            "usage",
            "What this key used, by model and day",
            {200: answer("The usage.", ref("Usage"))},
            parameters=[
                query("since", "A day (YYYY-MM-DD) or seconds since 1970.", _MOMENT, "2026-01-31"),
                query("until", "The same; a day is included.", _MOMENT, "2026-02-01"),
                query("key", "From an admin, one key's id; all keys where it is not said.", {"type": "string"}, ""),
            ],
        )
    },
    "/v1/keys": {
        "get": operation("listKeys", "usage", "All keys, for admin keys", {200: answer("The keys.", ref("Keys"))})
    },
    "/session": {
        "get": operation(
            "session",
            "page",
            "Who is signed in, if anybody",
            {200: answer("Who.", ref("Session"))},
            public=True,
        ),
        "post": operation(
            "signIn",
            "page",
            "Sign in",
            {200: answer("Signed in.", ref("Session"), headers={"Set-Cookie": "The session."})},
            (401, 429),
            public=True,
            request=body(
                {
                    "type": "object",
                    "required": ["key"],
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": r"^[!-~]+$"},
                    },
                },
                {"a key": {"key": "ck-0123456789abcdefghijABCDEFGHIJ0123456789"}},
            ),
        ),
        "delete": operation(
            "signOut", "page", "Sign out", {204: answer("Nobody is signed in now.", None)}, public=True
        ),
    },
    "/": _shown("page", "The page"),
    "/docs": _shown("documentation", "This document, to read"),
}
