"""Headers that go with one agent's calls alone, over a session that all agents share.

They are known to the code that a call runs through, whatever task of the transport sends it: the SDK hands the context
of who sends on to what sends, as asyncio does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from centuria.core.templates import fill, fits_header
from centuria.errors import JobError, ToolUnavailable

_NONE: Mapping[str, str] = {}
_headers: ContextVar[Mapping[str, str]] = ContextVar("headers of the agent whose call this is", default=_NONE)


def agents_headers() -> Mapping[str, str]:
    """The headers of the agent for whom this code runs now; to be sent with its `tools/call` and with nothing else."""
    return _headers.get()


@contextmanager
def on_behalf(templates: Mapping[str, str], row: Mapping[str, Any]) -> Iterator[None]:
    """Run with the headers that these templates make of an agent's row.

    Raises `ToolUnavailable` where they cannot be made, or would be no headers: nothing may be sent as somebody else.
    """
    made: dict[str, str] = {}
    for name, template in templates.items():
        try:
            made[name.lower()] = value = fill(template, row)
        except JobError as error:
            raise ToolUnavailable(f"The header {name} of this agent cannot be made: {error.message}") from None
        if not fits_header(value):
            raise ToolUnavailable(f"The header {name} of this agent would be empty, or no line of plain characters.")
    token = _headers.set(made)
    try:
        yield
    finally:
        _headers.reset(token)
