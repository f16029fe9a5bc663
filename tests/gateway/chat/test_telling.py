"""What a caller is told of an upstream's trouble."""

from __future__ import annotations

import json

import pytest

from centuria.errors import ModelDenied, ModelError, ModelUnavailable
from centuria.gateway.chat.telling import problem_for
from centuria.model.failures import error_from

SECRET = "plain-upstream-key-7781"


def upstream_said(status: int, error: object, headers: dict[str, str] | None = None) -> ModelError:
    return error_from(status, headers or {}, json.dumps({"error": error}).encode(), 0.0, secret=SECRET)


@pytest.mark.parametrize(
    ("status", "error", "headers", "told", "code"),
    [
        (400, {"message": f"no such field {SECRET}"}, {}, 400, "upstream_refused"),
        (
            400,
            {"code": "context_length_exceeded", "message": "maximum context length"},
            {},
            400,
            "context_length_exceeded",
        ),
        (400, {"code": "content_filter", "message": "no"}, {}, 400, "content_filter"),
        (413, {"message": "large"}, {}, 400, "upstream_refused"),
        (422, {"message": "odd"}, {}, 400, "upstream_refused"),
        (404, {"message": "no model"}, {}, 502, "upstream_error"),
        (302, {"message": "elsewhere"}, {"location": "https://evil.example"}, 502, "upstream_error"),
        (401, {"message": f"Incorrect API key provided: {SECRET}"}, {}, 502, "upstream_denied"),
        (403, {"message": "no permission"}, {}, 502, "upstream_denied"),
        (402, {"message": "pay"}, {}, 502, "upstream_denied"),
        (429, {"type": "exceeded_current_quota_error", "message": "quota"}, {}, 502, "upstream_denied"),
        (429, {"message": f"slow, {SECRET}"}, {"retry-after": "7"}, 429, "rate_limit_reached_error"),
        (429, {"message": "slow"}, {"retry-after-ms": "200"}, 429, "rate_limit_reached_error"),
        (500, {"message": f"bug at {SECRET}"}, {}, 502, "upstream_error"),
        (503, {"message": "busy"}, {"retry-after": "3"}, 503, "upstream_error"),
        (529, {"type": "overloaded_error", "message": "busy"}, {}, 503, "upstream_error"),
    ],
)
def test_each_answer_of_an_upstream_becomes_one_of_ours_without_its_key(
    status: int, error: object, headers: dict[str, str], told: int, code: str
) -> None:
    problem = problem_for(upstream_said(status, error, headers))
    assert (problem.status, problem.code) == (told, code)
    shown = problem.body().decode() + json.dumps(problem.headers)
    assert SECRET not in shown
    assert "evil.example" not in shown
    if told in (429, 503):
        asked = headers.get("retry-after", "1")
        assert problem.headers["Retry-After"] == asked
    else:
        assert "Retry-After" not in problem.headers
    if code == "upstream_denied":  # ours to mend: no caller's key is wrong, and trying again does not help
        assert problem.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("kind", ["first_token", "silence", "total"])
def test_a_timeout_is_a_504(kind: str) -> None:
    problem = problem_for(ModelUnavailable("It took too long.", kind=kind))
    assert (problem.status, problem.code) == (504, "upstream_timeout")


def test_a_deployment_that_takes_nothing_for_long_is_a_429_that_says_for_how_long() -> None:
    problem = problem_for(ModelDenied("It takes nothing.", kind="parked", retry_after=301.2, served=False))
    assert problem.status == 429
    assert problem.headers["Retry-After"] == "302"


def test_a_connection_that_failed_is_a_502() -> None:
    assert problem_for(ModelUnavailable("It cannot be reached.", kind="connect", served=False)).status == 502
