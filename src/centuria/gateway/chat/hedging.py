"""Two attempts at one answer: a second one is begun where the first takes long, and the quicker one counts.

It pays twice, so it is only done where the operator asks for it. Money, places and rows are each attempt's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
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
    won: Turn | None = None
    try:
        await asyncio.wait(tasks, timeout=after)
        other = None if tasks[0].done() else second()
        if other is not None:
            tasks.append(asyncio.create_task(other))
        while won is None:
            won = _won(tasks)
            if won is None:
                if all(task.done() for task in tasks):
                    await tasks[0]
                await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        return won
    finally:
        for task in tasks:
            task.cancel()
        if any(not task.done() for task in tasks):
            await asyncio.wait(tasks)
        for turn, task in ((0, tasks[0]), (1, tasks[-1])):
            if turn < len(tasks) and turn != won and not task.cancelled() and task.exception() is None:
                await spare(1 if turn else 0)


def _won(tasks: list[asyncio.Task[None]]) -> Turn | None:
    for turn, task in enumerate(tasks):
        if task.done() and not task.cancelled() and task.exception() is None:
            return 1 if turn else 0
    return None
