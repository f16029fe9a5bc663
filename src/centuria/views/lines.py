"""The stream as JSON lines: every fact and every piece of text, tagged with the run, the agent and its parent.

A line of a fact has its number `seq` and its time `at` (seconds since 1970), each name once; `clock`, where there is
one, is the same moment by the clock of `deadline`, `until` and `probe_at`, whose zero is any. Pieces of text have no
number and no time, and `attempt` says which try they are of: a newer one supersedes an older. A reader that is too slow
gets `{"kind": "gap", "seq": N}`: the facts up to N are in the journal.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import fields
from functools import cache
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
        written = encode(event)
        if not _twice(event.__class__):
            return f"{json.dumps(tags)[:-1]}, {written[1:].decode()}\n"
        own = json.loads(written)
        if "at" in own:
            own["clock"] = own.pop("at")
        return json.dumps({**tags, **own, **tags}) + "\n"
    if isinstance(item, TextDelta):
        told = {"turn": item.turn, "attempt": item.attempt, "text": item.text, "reasoning": item.reasoning}
        return json.dumps({**tags, **_agent(item.task, feed), "kind": item.kind, **told}) + "\n"
    return json.dumps({**tags, "kind": "gap", "seq": item.seq}) + "\n"


_TAGS = frozenset({"run", "seq", "at", "agent", "parent"})


@cache
def _twice(fact: Any) -> bool:
    """Whether facts of this class have fields of their own by the names of tags."""
    return not _TAGS.isdisjoint(field.name for field in fields(fact))


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
