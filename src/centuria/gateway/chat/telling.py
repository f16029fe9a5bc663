"""What a caller is told of an upstream's trouble. Pure.

The caller's key is ours, the upstream's key is the operator's: a refusal of that one is no 401 of ours, and nothing of
what an upstream says passes without its keys blotted out.
"""

from __future__ import annotations

from centuria.core.refusals import verdict
from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused
from centuria.gateway.problems import Problem, bad_request, rate_limited, retry_after, upstream_failed

#: Seconds until an account that is set aside may be asked again, where nobody says.
_PARKED = 60.0
_TIMEOUTS = frozenset({"first_token", "silence", "total"})


def problem_for(error: ModelError) -> Problem:
    """The answer for a request whose last attempt ended with this."""
    if isinstance(error, ContextTooLong):
        return bad_request(error.message, code="context_length_exceeded", param="messages", remedy=error.remedy)
    if isinstance(error, ModelDenied):
        return _denied(error)
    if isinstance(error, ModelRefused):
        if error.status in (400, 413, 422):
            return bad_request(error.message, code=_filtered(error) or "upstream_refused")
        return upstream_failed(502, error.message)
    if error.status == 429 or error.kind in ("gate", "parked"):
        return rate_limited(error.message, error.retry_after or 1.0)
    if error.kind in _TIMEOUTS:
        return upstream_failed(504, error.message, code="upstream_timeout")
    problem = upstream_failed(502, error.message)
    if verdict(error) == "overloaded" or error.retry_after is not None:
        problem.status, problem.type = 503, "engine_overloaded_error"
        problem.headers["Retry-After"] = retry_after(error.retry_after or 1.0)
    return problem


def _denied(error: ModelDenied) -> Problem:
    """The operator must act, or time must pass."""
    if error.kind == "parked":
        return rate_limited(error.message, error.retry_after or _PARKED)
    said = "The upstream of this model refuses the gateway (its key, permission or quota): its operator has to act."
    problem = upstream_failed(502, said, code="upstream_denied")
    problem.headers["x-should-retry"] = "false"
    return problem


def _filtered(error: ModelError) -> str:
    return "content_filter" if "content_filter" in f"{error.kind} {error.message}".lower() else ""
