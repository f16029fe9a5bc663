"""Headers of a request that say for whom and how a tool is called. Whatever is used of one is short, and one line."""

from __future__ import annotations

from centuria.gateway.problems import bad_request
from centuria.gateway.web import Request

MOST = 200


def header(request: Request, name: str) -> str:
    """A header's value, "" where there is none. Raises `Problem` (400)."""
    return checked(request.headers.get(name, "").strip(" \t"), name)


def checked(value: str, name: str) -> str:
    """Raises `Problem` (400) for what is too long, or no plain line."""
    if len(value) > MOST:
        raise bad_request(f"The header {name} has more than {MOST} characters.", param=name, code="invalid_header")
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value):
        raise bad_request(f"The header {name} has control characters in it.", param=name, code="invalid_header")
    return value


def agent_of(request: Request) -> str:
    """Which of the key's agents asks; "" where it does not say. Raises `Problem` (400)."""
    return header(request, "x-agent-id")


def priority_of(request: Request) -> int | None:
    """0 (first) to 9 (last), None where it is not said. Raises `Problem` (400)."""
    value = header(request, "x-priority")
    if not value:
        return None
    if len(value) != 1 or value not in "0123456789":
        raise bad_request("X-Priority is 0 (first) to 9 (last); 5 is usual.", param="x-priority", code="invalid_header")
    return int(value)
