"""Waiting for what gives no event: another program's pace, or what goes on behind a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds between two looks.
_PAUSE = 0.005


async def until(holds: Callable[[], object], within: float = 60.0) -> None:
    """Look again and again until something holds. Raises `TimeoutError` after `within` seconds."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE)
