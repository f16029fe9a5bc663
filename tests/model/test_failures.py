import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ContextTooLong, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.model.failures import error_from

KEY = "sk-verysecret0123456789"


def error(status: int, body: Any, **headers: str) -> ModelError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from(status, headers, data, 0.0, secret=KEY)


def told(type_: str, message: str = "No.", **more: Any) -> dict[str, Any]:
    return {"error": {"type": type_, "message": message, **more}}


@pytest.mark.parametrize(
    ("status", "body", "cls", "served"),
    [
        (400, told("invalid_request_error"), ModelRefused, False),
        (400, told("content_filter"), ModelRefused, False),
        (401, told("invalid_authentication_error"), ModelDenied, False),
        (402, told("insufficient_balance"), ModelDenied, False),
        (403, told("permission_denied_error"), ModelDenied, False),
        (404, told("resource_not_found_error"), ModelRefused, False),
        (408, told("timeout"), ModelUnavailable, True),
        (409, told("conflict"), ModelUnavailable, False),
        (413, told("too_large"), ModelRefused, False),
        (422, {"detail": "bad"}, ModelRefused, False),
        (425, told("too_early"), ModelUnavailable, False),
        (429, told("engine_overloaded_error"), ModelUnavailable, False),
        (429, told("rate_limit_reached_error"), ModelUnavailable, False),
        (429, told("exceeded_current_quota_error"), ModelDenied, False),
        (429, told("insufficient_quota", code="insufficient_quota"), ModelDenied, False),
        (500, told("server_error"), ModelUnavailable, True),
        (502, b"<html>Bad gateway</html>", ModelUnavailable, True),
        (503, b"", ModelUnavailable, True),
        (529, told("overloaded_error"), ModelUnavailable, True),
        (301, b"", ModelRefused, False),
    ],
)
def test_each_status_is_the_error_of_whoever_must_act(
    status: int, body: Any, cls: type[ModelError], served: bool
) -> None:
    found = error(status, body)
    assert type(found) is cls and found.status == status and found.served is served


@pytest.mark.parametrize(
    "body",
    [
        told("invalid_request_error", "This model's maximum context length is 8192 tokens.", code=None),
        told("invalid_request_error", "Too long.", code="context_length_exceeded"),
        told("invalid_request_error", "Invalid request: Your request exceeded model token limit: 262144"),
        {"object": "error", "message": "The prompt exceeds the model's context window", "code": 400},
        [told("INVALID_ARGUMENT", "The input token count exceeds the maximum number of tokens allowed")],
    ],
)
def test_a_prompt_that_is_too_long_is_told_apart(body: Any) -> None:
    assert type(error(400, body)) is ContextTooLong


def test_retry_after_comes_along() -> None:
    assert error(429, told("rate_limit_reached_error"), **{"retry-after": "7"}).retry_after == 7
    assert error(429, told("x"), **{"retry-after": "-3"}).retry_after is None
    assert error(429, told("x"), **{"retry-after": "Thu, 01 Jan 1970 00:00:09 GMT"}).retry_after == 9


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        "Incorrect API key provided: sk-proj-Ab*****wxyz.",
        "header was Bearer abcdef0123456789",
        "key AIzaSyA0123456789abcdefghijklmn is wrong",
    ],
)
def test_no_error_shows_a_key(text: str) -> None:
    for body in (told("invalid_authentication_error", text), text.encode(), told(text)):
        found = error(401, body)
        shown = f"{found} {found.kind} {found.remedy} {found!r}"
        assert "***" in shown
        assert not any(part in shown for part in (KEY, "Ab**", "abcdef0123456789", "AIzaSy"))


def test_a_key_of_any_form_is_blotted_out() -> None:
    found = error_from(401, {}, b'{"error": "No such key: 5f4dcc3b5aa7"}', 0.0, secret="5f4dcc3b5aa7")
    assert found.message == "HTTP 401. The upstream said: No such key: ***."


@given(st.integers(300, 599), st.binary(max_size=200))
def test_any_body_is_some_error_in_one_line_of_bounded_size(status: int, body: bytes) -> None:
    found = error_from(status, {}, body, 0.0)
    assert isinstance(found, ModelError) and "\n" not in found.message and len(found.message) < 700
    found.message.encode()
