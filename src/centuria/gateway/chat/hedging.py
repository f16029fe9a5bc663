"""Two attempts at one answer: a second one is begun where the first takes long, and the quicker one counts.

It pays twice, so it is only done where the operator asks for it. Money, places and rows are each attempt's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal

Turn = Literal[0, 1]


async def race(
    first: Coroutine[Any, Any, None],
    *,
    after: float,
    second: Callable[[], Coroutine[Any, Any, None] | None],
    spare: Callable[[Turn], Awaitable[None]],
) -> Turn:
    """Which of both ended well, sooner. The other one is cancelled, and over, when this returns.

    `second` is begun `after` seconds (None: there is none). `spare` is awaited for one that ended well and is not
    wanted. Raises the first one's error where neither ends well.
    """
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(first)]
    try:
        won = await _winner(tasks, after, second)
        await _stop(tasks)
        await _spare([turn for turn in _well(tasks) if turn != won], spare)
    except BaseException:
        try:
            await _stop(tasks)
        finally:
            await _spare(_well(tasks), spare)  # nobody gets what the winner has either
        raise
    return won


async def _winner(
    tasks: list[asyncio.Task[None]], after: float, second: Callable[[], Coroutine[Any, Any, None] | None]
) -> Turn:
    await asyncio.wait(tasks, timeout=after)
    other = None if tasks[0].done() else second()
    if other is not None:
        tasks.append(asyncio.create_task(other))
    while not (well := _well(tasks)):
        if all(task.done() for task in tasks):
            await tasks[0]  # raises
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    return well[0]


def _well(tasks: Sequence[asyncio.Task[None]]) -> list[Turn]:
    """Those that ended well."""
    turns: tuple[Turn, Turn] = (0, 1)
    return [
        turn
        for turn, task in zip(turns, tasks, strict=False)
        if task.done() and not task.cancelled() and task.exception() is None
    ]


async def _stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel them, and return when they are over; so does a cancellation of ours meanwhile, which they are passed."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in left:
                task.cancel()
    if cancelled is not None:
        raise cancelled


async def _spare(turns: Sequence[Turn], spare: Callable[[Turn], Awaitable[None]]) -> None:
    """Each of them, whatever befalls the one before."""
    if turns:
        try:
            await spare(turns[0])
        finally:
            await _spare(turns[1:], spare)
