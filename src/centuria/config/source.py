"""The job as it was written, for the run's folder: plain JSON, and nothing in it that could be a key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from centuria.config.urls import owner_of
from centuria.errors import JobError

MASK = "***"
_ONLY_REFERENCES = re.compile(r"(?:[A-Za-z]+ )?(?:\$\{[^}]*\})+")
_KEY = re.compile(r"(?:sk|pk|rk|ghp|gho|xox[a-z]|glpat|key|token)[-_][A-Za-z0-9_\-]{12,}|eyJ[A-Za-z0-9_\-]{20,}.*")
#: What an argument after it, or behind its `=`, is.
_SECRET_FLAG = re.compile(r"--?(?:[\w-]*[-_])?(?:token|key|secret|password|passwd|pwd|pat|auth|authorization)")
_SECRET_KEYS = frozenset({"env", "headers", "client_secret", "agent_headers"})
_IN_URL = re.compile(r"(https?://)[^/@\s]*@|(\?)[^\s#]*")


def without_secrets(raw: Mapping[str, Any], *, file: str) -> dict[str, Any]:
    """A copy in which `client_secret` and values of `env` and of headers are masked, unless they refer to variables.

    Raises `JobError` for what JSON cannot hold.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(raw, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise JobError(
            f"{file or 'The job'} holds a value that cannot be kept: a date, nan, inf, or too deep a nest.",
            remedy="Put dates into quotes, and use finite numbers.",
        ) from None
    masked: dict[str, Any] = {key: _masked(value, secret=False) for key, value in plain.items()}
    return masked


def _masked(value: Any, *, secret: bool) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, secret=secret or key in _SECRET_KEYS) for key, item in value.items()}
    if isinstance(value, list):
        flagged = [False, *(isinstance(item, str) and _SECRET_FLAG.fullmatch(item) is not None for item in value)]
        return [_masked(item, secret=secret or after) for item, after in zip(value, flagged, strict=False)]
    if not isinstance(value, str):
        return value
    flag, equals, _ = value.partition("=")
    if equals and _SECRET_FLAG.fullmatch(flag):
        return f"{flag}={MASK}"
    if secret:
        return value if _ONLY_REFERENCES.fullmatch(value) else MASK
    if owner_of(value) is not None or _KEY.fullmatch(value):
        return MASK
    if value.startswith(("http://", "https://")):
        return _IN_URL.sub(lambda found: f"{found[1] or found[2]}{MASK}" + ("@" if found[1] else ""), value)
    return value
