"""A swarm's facts over SSE: each exactly once and in order, from wherever its reader is, and text as it comes.

A fact is sent once it is durable, so that its number means the same after a crash. What a reader was too slow for is
read from the journal instead of being held for it; pieces of text are lost to it, and an event `gap` says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import islice
from pathlib import Path

from centuria.core.progress import Progress
from centuria.errors import JournalError
from centuria.events import Record
from centuria.gateway.swarms.records import SwarmRecord
from centuria.gateway.swarms.texts import Show, whole
from centuria.gateway.swarms.work import Work
from centuria.journal import JournalReader
from centuria.stream import Feed, Gap, Item, Stream, Subscription
from centuria.views.lines import line

#: Items that are held for one reader; facts in one piece; seconds of silence until a comment is sent.
BOUND, BATCH = 2_000, 200
HEARTBEAT = 15.0
#: Bytes of an event that is kept for the next reader.
_SMALL = 4_096
_BEAT = b": still here\n\n"
#: Milliseconds after which a browser comes back by itself.
_RETRY = b"retry: 2000\n\n"


async def live(
    work: Work, after: int, *, show: Show = whole, texts: bool = True, heartbeat: float = HEARTBEAT
) -> AsyncGenerator[bytes]:
    """The events of a swarm that works, from number `after` on, until it does not any more. Without `texts` there are
    no pieces of text."""
    yield _RETRY
    while not work.begun.is_set():
        try:
            async with asyncio.timeout(heartbeat):
                await work.begun.wait()
        except TimeoutError:
            yield _BEAT
    stream = work.stream
    if stream is not None:
        journal, written = work.run.launch.folder.journal, work.written.setdefault(show is whole, {})
        followed = follow(stream, journal, after, show=show, texts=texts, heartbeat=heartbeat, written=written)
        async with aclosing(followed) as chunks:
            async for chunk in chunks:
                yield chunk
    await work.over.wait()
    yield _end(work.record)


async def past(
    record: SwarmRecord, journal: Path, progress: Progress, after: int, *, show: Show = whole
) -> AsyncGenerator[bytes]:
    """The events of a swarm that does not work."""
    yield _RETRY
    async with aclosing(_from_journal(journal, Feed(progress), after, progress.seq, show)) as chunks:
        async for chunk, _ in chunks:
            yield chunk
    yield _end(record)


async def follow(
    stream: Stream,
    journal: Path,
    after: int,
    *,
    show: Show = whole,
    texts: bool = True,
    heartbeat: float = HEARTBEAT,
    written: dict[int, bytes] | None = None,
) -> AsyncGenerator[bytes]:
    """A stream's events after number `after`, until it closes; what is no longer there is read from its journal.

    `written` holds the newest facts as they were written for another reader with a `show` that shows them alike.
    """
    shared = {} if written is None else written
    items = stream.subscribe(bound=BOUND, deltas=texts)
    missed = stream.seq
    last = min(after, missed)
    try:
        while True:
            if missed > last:
                await stream.durable(missed)
                async with aclosing(_from_journal(journal, stream, last, missed, show)) as chunks:
                    async for chunk, _ in chunks:
                        yield chunk
                last = missed
            batch = await _some(items, heartbeat)
            if batch is None:
                return
            last = max([item.seq for item in batch if isinstance(item, Record)], default=last)
            await stream.durable(last)
            chunk = b"".join(_shared(item, stream, show, shared) for item in batch)
            if chunk or not batch:
                yield chunk or _BEAT
            if batch and isinstance(batch[-1], Gap):
                missed = batch[-1].seq
    except JournalError:
        return  # it ends the swarm too, which says why
    finally:
        stream.unsubscribe(items)


async def _some(items: Subscription, heartbeat: float) -> list[Item] | None:
    """What there is for the reader, up to the next gap; nothing after so many seconds, None at the end."""
    batch: list[Item] = []
    try:
        async with asyncio.timeout(heartbeat):
            batch.append(await anext(items))
    except TimeoutError:
        return batch
    except StopAsyncIteration:
        return None
    while items.waiting and len(batch) < BATCH and not isinstance(batch[-1], Gap):
        batch.append(await anext(items))
    return batch


async def _from_journal(
    journal: Path, feed: Feed, after: int, until: int, show: Show
) -> AsyncGenerator[tuple[bytes, int]]:
    """The facts after one number, up to another, in pieces, each with the number of its last one."""
    reader = await asyncio.to_thread(JournalReader, journal)
    try:
        records = reader.records(after=after)

        def some() -> tuple[bytes, int]:
            found = [record for record in islice(records, BATCH) if record.seq <= until]
            return b"".join(_event(record, feed, show) for record in found), found[-1].seq if found else until

        last = after
        while last < until:
            chunk, last = await _in_thread(some)
            if chunk:
                yield chunk, last
    finally:
        reader.close()


async def _in_thread(work: Callable[[], tuple[bytes, int]]) -> tuple[bytes, int]:
    """A thread's work, to its end even where nobody waits for it any more: it uses what is closed afterwards."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _shared(item: Item, feed: Feed, show: Show, written: dict[int, bytes]) -> bytes:
    """An event, written once for all readers that are with it."""
    if not isinstance(item, Record):
        return _event(item, feed, show)
    event = written.get(item.seq)
    if event is None:
        event = _event(item, feed, show)
        if len(event) <= _SMALL:
            written[item.seq] = event
            if len(written) > BOUND:
                del written[next(iter(written))]
    return event


def _event(item: Item, feed: Feed, show: Show) -> bytes:
    shown = show(item)
    if shown is None:
        return b""
    data = line(shown, feed)
    if isinstance(item, Record):
        return f"id: {item.seq}\nevent: {item.event.kind}\ndata: {data}\n".encode()
    kind = "gap" if isinstance(item, Gap) else item.kind
    return f"event: {kind}\ndata: {data}\n".encode()


def _end(record: SwarmRecord) -> bytes:
    """The last event. After an interruption its reader comes back with the number of the last fact."""
    kind = "end" if record.ended else "interrupted"
    status = record.status if record.ended else kind
    data = json.dumps({"kind": kind, "id": record.id, "status": status, "cause": record.cause})
    return f"event: {kind}\ndata: {data}\n\n".encode()
