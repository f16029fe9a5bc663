"""HTTP statuses and error bodies, `Retry-After`, and limits that are enforced."""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

from centuria.testing.replies import HttpError, Late, Raw, Reply, as_json
from centuria.testing.torture.row import OK, Forbidden, Row, Step, answered, both, failed
from centuria.testing.upstream import RateLimits

HTML = {"content-type": "text/html"}
PAGE = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
#: The key of every row; some upstreams repeat it.
KEY = "sk-torture-0123456789abcdefghij"
LIMIT = "reached max organization {}, please try again after 1 seconds"

_PASSING = (
    (408, "request_timeout", "Timed out."),
    (409, "conflict", "Try again."),
    (425, "too_early", "Too early."),
    (429, "engine_overloaded_error", "The engine is currently overloaded, please try again later"),
    (429, "rate_limit_reached_error", LIMIT.format("concurrency: 1")),
    (429, "rate_limit_reached_error", LIMIT.format("RPM: 500")),
    (429, "rate_limit_reached_error", LIMIT.format("TPM: 500000")),
    (499, "client_closed_request", "Client closed request"),
    (500, "server_error", "The server had an error."),
    (500, "unexpected_output", "invalid state transition"),
    (502, "bad_gateway", "Upstream failed."),
    (503, "server_unavailable", "Unavailable."),
    (504, "timeout", "Timed out."),
    (529, "overloaded_error", "Overloaded"),
)
_FINAL: tuple[tuple[int, str, str, str], ...] = (
    (400, "invalid_request_error", "messages: field required", "refused"),
    (400, "content_filter", "The request was rejected because it was considered high risk", "refused"),
    (400, "invalid_request_error", "Invalid request: Your request exceeded model token limit: 262144", "too_long"),
    (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens.", "too_long"),
    (400, "exceed_context_size_error", "the request exceeds the available context size", "too_long"),
    (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "too_long"),
    (400, "invalid_request_error", "reasoning_content is missing in assistant tool call message at index 2", "refused"),
    (401, "invalid_authentication_error", "Invalid Authentication", "denied"),
    (401, "incorrect_api_key_error", "Incorrect API key provided", "denied"),
    (402, "insufficient_balance", "Insufficient Balance", "denied"),
    (403, "permission_denied_error", "The API you are accessing is not open", "denied"),
    (404, "resource_not_found_error", "Not found the model kimi-k9 or Permission denied", "refused"),
    (405, "method_not_allowed", "Use POST.", "refused"),
    (413, "request_too_large", "Request exceeds the maximum size", "refused"),
    (422, "unprocessable_entity", "Input should be a valid string", "refused"),
    (429, "exceeded_current_quota_error", "You exceeded your current token quota: 0, please check", "denied"),
    (429, "insufficient_quota", "You exceeded your current quota, please check your plan", "denied"),
)


def _passing() -> list[Row]:
    rows = [
        both(f"{status} {type_}: {said}"[:70], 0, answered(requests=2), HttpError(status, type_, said), OK)
        for status, type_, said in _PASSING
    ]
    rows += [
        both(f"{status} as a web page", 0, answered(requests=2), HttpError(status, headers=HTML, body=PAGE), OK)
        for status in (500, 502, 503, 520)
    ]
    for status in (429, 500, 503):
        rows.append(both(f"{status} with an empty body", 0, answered(requests=2), HttpError(status, body=b""), OK))
    endless = Raw((b'{"error":',), 503, content_type="application/json", end=False)
    rows += [
        both("503 whose JSON breaks off", 0, answered(requests=2), HttpError(503, body=b'{"error":{"mess'), OK),
        both("503 whose body never ends", 36, answered(requests=2), endless, OK),
        both("500 with a body of 4 MB", 0, answered(requests=2), HttpError(500, body=b"x" * 4_000_000), OK),
        both("503 three times", 0, answered(requests=4), *[HttpError(503)] * 3, OK),
        both("503 for ever", 0, failed("unavailable", requests=(2, 6)), HttpError(503)),
        both("429 for ever", 31, failed("unavailable", requests=(2, 40)), HttpError(429, "rate_limit_reached_error")),
    ]
    return rows


_SHAPES: tuple[tuple[str, int, Any, str], ...] = (
    ("vLLM's error object", 400, {"object": "error", "message": "no", "type": "BadRequestError"}, "refused"),
    ("FastAPI's list of details", 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "refused"),
    ("an error that is a string", 401, {"error": "bad key"}, "denied"),
    ("an error inside a list", 400, [{"error": {"code": 400, "message": "no", "status": "INVALID"}}], "refused"),
    ("an error that is null", 404, {"error": None}, "refused"),
    ("a message and no error", 403, {"message": "Forbidden"}, "denied"),
    ("a number", 400, 17, "refused"),
)


def _final() -> list[Row]:
    rows = [
        both(f"{status} {type_}: {said}"[:70], 32, failed(kind), HttpError(status, type_, said))  # type: ignore[arg-type]
        for status, type_, said, kind in _FINAL
    ]
    for name, status, value, kind in _SHAPES:
        body = as_json(value)
        rows.append(both(f"{status} as {name}", 32, failed(kind), HttpError(status, body=body)))  # type: ignore[arg-type]
    page = HttpError(403, headers=HTML, body=PAGE)
    leak = HttpError(401, "incorrect_api_key_error", f"Incorrect API key provided: {KEY}")
    page_leak = HttpError(500, headers=HTML, body=f"<p>Authorization: Bearer {KEY}</p>".encode())
    echo = HttpError(500, message=f"Failed: Authorization: Bearer {KEY}")
    rows += [
        both("400 with an empty body", 32, failed("refused"), HttpError(400, body=b"")),
        both("401 with an empty body", 32, failed("denied"), HttpError(401, body=b"")),
        both("403 as a web page", 32, failed("denied"), page),
        both("404 as a web page", 32, failed("refused"), HttpError(404, headers=HTML, body=PAGE)),
        both("401 that repeats the key", 54, failed("denied"), leak),
        both("500 that repeats the key", 54, failed("unavailable", requests=(2, 6)), echo),
        both("500 as a web page that shows the key", 54, failed("unavailable", requests=(2, 6)), page_leak),
        both(
            "307 to another host",
            54,
            failed("refused", "unavailable", "denied", requests=(1, 100)),
            _away,
            forbids=(_KEY_AWAY,),
        ),
        both("307 without an address", 32, failed("refused", "unavailable", requests=(1, 4)), HttpError(307)),
    ]
    return rows


def _away(base_url: str) -> Reply:
    """To the same server under another name: another host, as far as a key is concerned."""
    return HttpError(307, headers={"location": base_url.replace("127.0.0.1", "localhost") + "/elsewhere"})


_KEY_AWAY = Forbidden(
    "the key travels to another host",
    lambda requests: any(KEY in str(seen.headers) for seen in requests if "elsewhere" in seen.path),
)


def _refusals(headers: dict[str, str], *, status: int = 429) -> tuple[Step, ...]:
    return HttpError(status, "rate_limit_reached_error", "Later.", headers), OK


def _dated(form: str) -> Step:
    def refuse(_: str) -> Reply:
        when = time.gmtime(time.time() + 2)
        return HttpError(429, "rate_limit_reached_error", "Later.", {"retry-after": time.strftime(form, when)})

    return refuse


def _waits() -> list[Row]:
    fine = answered(requests=2)
    rows = [
        both(
            f"Retry-After: {value!r} on {status}",
            30,
            answered(requests=2, waits=waits),
            *_refusals({name: value}, status=status),
        )
        for name, value, status, waits in (
            ("retry-after", "1", 429, 1.0),
            ("retry-after", "1", 503, 1.0),
            ("retry-after", "0.3", 429, 0.3),
            ("retry-after", "0", 429, 0.0),
            ("Retry-After-Ms", "250", 429, 0.25),
            ("retry-after-ms", "250.5", 503, 0.25),
            ("RETRY-AFTER", " 1 ", 429, 1.0),
        )
    ]
    for name, form in (
        ("an IMF date", "%a, %d %b %Y %H:%M:%S GMT"),
        ("an RFC 850 date", "%A, %d-%b-%y %H:%M:%S GMT"),
        ("an asctime date", "%a %b %e %H:%M:%S %Y"),
    ):
        rows.append(both(f"Retry-After: {name}", 30, answered(requests=2, waits=0.9), _dated(form), OK))
    past = formatdate(0, usegmt=True)
    rows += [
        both(f"Retry-After: {value!r}", 30, fine, *_refusals({"retry-after": value}))
        for value in (
            "",
            "-5",
            "soon",
            "NaN",
            "inf",
            "1e1",
            "0x10",
            "1, 2",
            "\xbc",
            past,
            "Wed, 99 Foo 2026 25:61:61 GMT",
        )
    ]
    both_headers = {"retry-after": "4", "retry-after-ms": "200"}
    asked = (1, 2)  # parked until it is told off, or given up at once
    rows += [
        both(
            "retry-after-ms beside a longer Retry-After", 30, answered(requests=2, waits=0.2), *_refusals(both_headers)
        ),
        both("retry-after-ms: '-100'", 30, fine, *_refusals({"retry-after-ms": "-100"})),
        both("Retry-After: a year", 30, failed("unavailable", requests=asked), *_refusals({"retry-after": "31536000"})),
        both(
            "Retry-After: 30 digits", 30, failed("unavailable", requests=asked), *_refusals({"retry-after": "9" * 30})
        ),
        both(
            "Retry-After on a spent quota is no reason to wait",
            32,
            failed("denied"),
            HttpError(429, "exceeded_current_quota_error", "Quota.", {"retry-after": "1"}),
        ),
        both(
            "Retry-After on a 400 is no reason to wait",
            32,
            failed("refused"),
            HttpError(400, "invalid_request_error", "No.", {"retry-after": "1"}),
        ),
    ]
    return rows


def _limited() -> list[Row]:
    def crowd(name: str, size: int, most: int, limits: RateLimits, step: Step = OK) -> Row:
        return both(name, 31, answered(requests=(size, most)), step, crowd=size, limits=limits)

    day = RateLimits(day=1, told="seconds")
    return [
        crowd("8 calls against 3 at once", 8, 24, RateLimits(concurrency=3), Late(OK, 0.02)),
        crowd("10 calls against 4 in a window", 10, 30, RateLimits(requests=4, window=0.5)),
        crowd("6 calls against 2 in a window, told in seconds", 6, 20, RateLimits(requests=2, told="seconds")),
        crowd("8 calls against a bucket of 5", 8, 24, RateLimits(requests=5, window=0.5, kind="bucket")),
        crowd("8 calls against 9,000 tokens in a window", 8, 24, RateLimits(tokens=9000, window=0.5)),
        both("the tokens of the day are spent", 31, failed("unavailable", "denied", requests=(1, 2)), OK, limits=day),
    ]


def statuses() -> Sequence[Row]:
    return [*_passing(), *_final(), *_waits(), *_limited()]
