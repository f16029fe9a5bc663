"""What the gateway itself writes into a stream of chat chunks. Pure."""

from __future__ import annotations

from centuria.gateway.problems import Problem

#: The last event of a stream that is whole.
DONE = b"data: [DONE]\n\n"


def frame(data: bytes) -> bytes:
    """One event; `data` is one line."""
    return b"data: " + data + b"\n\n"


def failure(problem: Problem) -> bytes:
    """A problem as the last event of a stream: no `[DONE]` comes after it."""
    return frame(problem.body())
