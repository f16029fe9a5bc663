"""How many parts a body may have, looked at before it is read as JSON. Pure."""

from __future__ import annotations

from centuria.gateway.problems import bad_request

#: Objects and lists of one body. Each takes some 70 bytes for as long as its request waits, of two that are sent; and
#: making them takes the processor, from everybody. No prompt that fits into a model's context comes near it.
MOST_PARTS = 500_000


def check_parts(body: bytes) -> None:
    """Raises `Problem` (400)."""
    if len(body) > MOST_PARTS and body.count(b"[") + body.count(b"{") > MOST_PARTS:
        raise bad_request(f"The body has more than {MOST_PARTS:,} objects and lists.", code="too_many_parts")
