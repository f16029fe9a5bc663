"""The rows of attempts on their way to the store: many in one transaction, kept here for as long as the store fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from centuria.gateway.ports import AttemptRow, Store
from centuria.gateway.problems import StoreUnavailable
from centuria.messages import Pico

_log = logging.getLogger("centuria.gateway")
_T = TypeVar("_T")

#: Rows that may wait for the store before `check` refuses.
MOST_PENDING = 10_000
#: Rows in one transaction.
_GROUP = 1_000
#: Seconds between two transactions, for what is settled meanwhile: in groups of hundreds a row costs a third of what it
#: costs in one of ten. Whatever a crash takes of them, the lease holds.
GATHER = 0.1
#: Seconds between two tries of a store that fails.
RETRY = 1.0


class RowWriter:
    """`add` never waits; `run` is a task of the owner's. `wall` is seconds since 1970."""

    def __init__(self, store: Store, *, gateway: str, wall: Callable[[], float]) -> None:
        self._store = store
        self._gateway = gateway
        self._wall = wall
        self._pending: deque[AttemptRow] = deque()
        self._added = 0
        self._written = 0
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: StoreUnavailable | None = None
        #: Seconds since 1970: since when rows cannot be written. None: they can.
        self.failing_since: float | None = None

    def check(self) -> None:
        """Raises `StoreUnavailable` while the last write failed, or too much waits."""
        if self._failure is not None:
            raise StoreUnavailable(self._failure.message, remedy=self._failure.remedy)
        if len(self._pending) >= MOST_PENDING:
            raise StoreUnavailable("The gateway's store cannot keep up: too much waits to be written.")

    def add(self, row: AttemptRow) -> None:
        self._pending.append(row)
        self._added += 1
        self._wake.set()

    async def flush(self) -> None:
        """Return when all that was added so far is durable, however long the store fails."""
        if self._written >= self._added:
            return
        flushed = asyncio.get_running_loop().create_future()
        self._flushes.append((self._added, flushed))
        self._hurry.set()
        await flushed

    @property
    def pending(self) -> int:
        """Rows that are not durable yet."""
        return len(self._pending)

    def unpaid(self) -> Pico:
        """What the pending rows cost and hold."""
        return sum([row.cost + row.held for row in self._pending])

    async def run(self) -> None:
        """Write, until cancelled."""
        while True:
            await self._wake.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self._hurry.wait()
            self._wake.clear()
            rows = list(islice(self._pending, _GROUP))
            try:
                await answered(self._store.write(self._gateway, rows))
            except Exception as error:
                # Whatever it was: the rows are what was paid, and stay until they are durable.
                self._failed(error)
                await asyncio.sleep(RETRY)
            else:
                self._wrote(len(rows))
            if self._pending:
                self._wake.set()

    def _failed(self, error: Exception) -> None:
        failure = told(error)
        if self._failure is None:
            self.failing_since = self._wall()
            _log.warning("rows cannot be written, new requests are refused: %s", failure)
        self._failure = failure

    def _wrote(self, number: int) -> None:
        for _ in range(number):
            self._pending.popleft()
        self._written += number
        if self._failure is not None:
            self._failure = self.failing_since = None
            _log.warning("rows can be written again")
        left = []
        for target, flushed in self._flushes:
            if self._written < target:
                left.append((target, flushed))
            elif not flushed.done():
                flushed.set_result(None)
        self._flushes = left
        if not left:
            self._hurry.clear()


async def answered(asked: Awaitable[_T]) -> _T:
    """What the store answers. Where it gives up by itself, that is its fault, and no end of whoever asked."""
    try:
        return await asked
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StoreUnavailable("The gateway's store gave up.") from None


def told(error: Exception) -> StoreUnavailable:
    """What a store raised, as its callers are told. Anything unexpected is logged whole."""
    if isinstance(error, StoreUnavailable):
        return error
    _log.error("the store failed", exc_info=error)
    return StoreUnavailable(f"The gateway's store failed: {type(error).__name__}.")
