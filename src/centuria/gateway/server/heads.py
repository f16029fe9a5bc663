"""The bytes of an answer's head, and the answers that the server gives by itself. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Answers that have no body by their status.
BODILESS = frozenset({204, 304})

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Head(NamedTuple):
    """The status line and headers of an answer but for what says how it ends. `length` is what it says of its body;
    `closes`: it wants the connection closed."""

    lines: bytes
    length: int | None
    closes: bool


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """What an application says becomes lines. How the body is framed, and whether the connection is kept, is the
    server's to say. Raises `ValueError` where no head can hold it."""
    lines = [status_line(status)]
    values: list[bytes] = []
    length, closes = None, False
    for given, value in headers:
        name = _lower(given)
        if name == b"connection":
            closes = closes or b"close" in value.lower()
        elif name == b"content-length":
            if not value.isdigit() or length not in (None, int(value)):
                raise ValueError("the length of an answer is a number, and one alone")
            length = int(value)
        elif name != b"transfer-encoding":
            lines.append(b"%b: %b\r\n" % (name, value))
            values.append(value)
    if _CONTROL.search(b"".join(values)):
        raise ValueError("a header of an answer holds a control character")
    return Head(b"".join(lines), length, closes)


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def _line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


_STATUS_LINES = {status.value: _line(status.value) for status in HTTPStatus}


@lru_cache(1_000)
def _lower(name: bytes) -> bytes:
    if not _NAME.fullmatch(name):
        raise ValueError("a header of an answer has a name that is none")
    return name.lower()


def _refusal(status: int, code: str, message: str, *more: str, type: str = "invalid_request_error") -> bytes:
    error = {"message": message, "type": type, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    lines = ("content-type: application/json", f"content-length: {len(body)}", *more, "connection: close", "", "")
    return _line(status) + "\r\n".join(lines).encode() + body


NOT_HTTP = _refusal(400, "invalid_http", "The request is not valid HTTP/1.1.")
TOO_LARGE = _refusal(431, "headers_too_large", "The headers are too large.")
TOO_SLOW = _refusal(408, "request_timeout", "The request did not come on in time.")
FULL = _refusal(503, "too_many_connections", "Too many connections are open.", "retry-after: 1")
FAILED = _refusal(500, "internal_error", "The gateway failed.", type="server_error")
