"""An upstream's answer that is no success, read as the error that it is: within bounds of size and time."""

from __future__ import annotations

import asyncio

from centuria.errors import ModelError, ModelUnavailable
from centuria.model.failures import error_from
from centuria.ports import HttpResponse

#: Bytes and seconds that the body of an error may have.
_BODY, _SECONDS = 65_536, 5.0


async def error_of(response: HttpResponse, now: float, *, secret: str) -> ModelError:
    """The error behind this response. `now` is seconds since 1970; `secret` is blotted out of its words."""
    body = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in response.chunks():
                body += chunk
                if len(body) >= _BODY:
                    break
    except (TimeoutError, ModelUnavailable):
        pass  # the status alone says enough
    return error_from(response.status, response.headers, bytes(body[:_BODY]), now, secret=secret)
