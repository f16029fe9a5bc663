"""The bytes of an answer's head, and the answers that the server gives by itself. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: What a value may hold.
_PRINTABLE = bytes(byte for byte in range(256) if (byte >= 0x20 and byte != 0x7F) or byte == 0x09)
#: Headers that are the server's to write.
_FRAMING = frozenset({b"connection: ", b"content-length: ", b"transfer-encoding: "})


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int | None, bool]:
    """What an application says as lines, the length that it says its body has, and whether it wants the connection
    closed. How the body is framed is the server's to say. Raises `ValueError` where no head can hold it."""
    lines = [status_line(status)]
    length, closes = None, False
    for name, value in headers:
        begin = _begin(name)
        if begin not in _FRAMING:
            lines.append(begin + value)
        elif begin == b"connection: ":
            closes = closes or b"close" in value.lower()
        elif begin == b"content-length: ":
            if not value.isdigit() or length not in (None, int(value)):
                raise ValueError("the length of an answer is a number, and one alone")
            length = int(value)
    lines.append(b"")
    head = b"\r\n".join(lines)
    if head.translate(None, _PRINTABLE) != b"\r\n" * (len(lines) - 1):
        raise ValueError("a header of an answer holds a control character")
    return head, length, closes


def status_line(status: int) -> bytes:
    """Without its end."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status


_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}".encode() for status in HTTPStatus}


@lru_cache(1_000)
def _begin(name: bytes) -> bytes:
    """A header's line as far as its value."""
    if not _NAME.fullmatch(name):
        raise ValueError("a header of an answer has a name that is none")
    return name.lower() + b": "


def _refusal(status: int, code: str, message: str, *more: str, type: str = "invalid_request_error") -> bytes:
    error = {"message": message, "type": type, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    lines = ("content-type: application/json", f"content-length: {len(body)}", *more, "connection: close", "", "")
    return b"\r\n".join((status_line(status), *(line.encode() for line in lines))) + body


NOT_HTTP = _refusal(400, "invalid_http", "The request is not valid HTTP/1.1.")
TOO_LARGE = _refusal(431, "headers_too_large", "The headers are too large.")
TOO_SLOW = _refusal(408, "request_timeout", "The request did not come on in time.")
FULL = _refusal(503, "too_many_connections", "Too many connections are open.", "retry-after: 1")
FAILED = _refusal(500, "internal_error", "The gateway failed.", type="server_error")
