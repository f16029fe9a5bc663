"""The stream as JSON lines: every fact and every piece of text, tagged with the run, the agent and its parent.

A line of a fact has its number `seq` and its time `at` (seconds since 1970); pieces of text have neither, and `attempt`
says which try they are of: a newer one supersedes an older. A reader that is too slow gets `{"kind": "gap", "seq": N}`:
the facts up to N are in the journal.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import IO, Any

from centuria.codec import encode
from centuria.events import Record, TextDelta
from centuria.stream import Feed, Item, Subscription

#: Lines that are written at once.
_BATCH = 500


async def lines(feed: Feed, file: IO[str], *, subscription: Subscription | None = None) -> None:
    """Write the stream until it ends, as fast as `file` takes it: nobody else waits for it.

    Once the file takes nothing more (its reader has gone) the rest goes nowhere.
    """
    items = subscription or feed.subscribe()
    writer = _Writer(file)
    batch: list[str] = []
    async for item in items:
        batch.append(line(item, feed))
        if len(batch) >= _BATCH or not items.waiting:
            if not await writer.write("".join(batch)):
                feed.unsubscribe(items)
                return
            batch.clear()


def line(item: Item, feed: Feed) -> str:
    """One item as a line of JSON."""
    tags: dict[str, Any] = {"run": feed.progress.run}
    if isinstance(item, Record):
        event: Any = item.event
        task = getattr(event, "task", None) or getattr(event, "agent", None) or _task_of(event)
        tags |= {"seq": item.seq, "at": item.at, **_agent(task, feed)}
        return f"{json.dumps(tags)[:-1]}, {encode(event)[1:].decode()}\n"
    if isinstance(item, TextDelta):
        told = {"turn": item.turn, "attempt": item.attempt, "text": item.text, "reasoning": item.reasoning}
        return json.dumps({**tags, **_agent(item.task, feed), "kind": item.kind, **told}) + "\n"
    return json.dumps({**tags, "kind": "gap", "seq": item.seq}) + "\n"


def _task_of(event: Any) -> str | None:
    key = getattr(event, "key", None)
    return None if key is None else str(key.task)


def _agent(task: str | None, feed: Feed) -> dict[str, Any]:
    if not task:
        return {}
    row = feed.progress.tasks.get(task)
    return {"agent": task, "parent": None if row is None else row.parent}


class _Writer:
    """Writes to a file from threads that nobody has to wait for at the end of the program."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    async def write(self, text: str) -> bool:
        """Write and flush; False once the file takes nothing more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def tell(taken: bool) -> None:
            if not done.done():
                done.set_result(taken)

        def work() -> None:
            try:
                self._file.write(text)
                self._file.flush()
                taken = True
            except (OSError, ValueError):
                taken = False
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, taken)

        threading.Thread(target=work, name="lines", daemon=True).start()
        return await done
