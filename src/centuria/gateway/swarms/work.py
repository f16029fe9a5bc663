"""One swarm at work: its run, and what its owner may do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from centuria.core.progress import Progress
from centuria.core.tallies import AGENTS
from centuria.errors import CenturiaError, ConfigurationError, JournalError, first_of
from centuria.events import Notice
from centuria.gateway.problems import Problem, bad_request, conflict, not_found
from centuria.gateway.swarms.records import SwarmRecord
from centuria.messages import Status
from centuria.run import Run
from centuria.stream import Stream

_STOPPING = "The gateway stops; the swarm goes on from here when it is back."


class Work:
    """`record` is what its document says; `begun` is set once there is a stream, `over` once nothing more happens."""

    def __init__(self, record: SwarmRecord, run: Run) -> None:
        self.record = record
        self.run = run
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.interrupted = False
        #: The newest facts as events, by number, whole ones and brief ones: several readers have the same ones.
        self.written: dict[bool, dict[int, bytes]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def stream(self) -> Stream | None:
        return self.run.stream

    @property
    def progress(self) -> Progress | None:
        return None if self.run.stream is None else self.run.stream.progress

    async def perform(self, now: Callable[[], float]) -> None:
        """The run, to its end or to its interruption. Raises what ended it where that is not the run's own end."""
        self._task = asyncio.current_task()
        try:
            if self.interrupted:
                return
            report = await self.run.execute(begun=lambda stream: self.begun.set())
            self._conclude(report.status, report.cause, now())
        except Exception as caught:  # it is told to its owner, and to the log
            self._conclude("failed", _cause(first_of(caught)), now())
            raise
        finally:
            self.over.set()
            for event in (self.begun, self.run.ready):  # nobody waits for what will not be
                event.set()

    def _conclude(self, status: str, cause: str, at: float) -> None:
        self.record = concluded(self.record, self.progress, status, cause, at)

    def interrupt(self, *, again: bool = False) -> None:
        """Stop in order, without an outcome for what has none: the next start goes on from here."""
        if (self.interrupted and not again) or self.over.is_set():
            return
        self.interrupted = True
        if not again and self.stream is not None and self.record.status == "running":
            try:
                self.stream.publish(Notice(_STOPPING))
            except JournalError:
                pass  # then there is nothing to go on with but what is kept
        if self._task is not None:
            self._task.cancel()

    # -- steering: each raises `Problem` where it cannot be done ------------------------------------------------------

    def cancel(self, agent: str | None, cause: str) -> None:
        with self._steered(agent):
            self.run.cancel(agent, cause=cause)

    def pause(self, agent: str | None) -> None:
        with self._steered(agent):
            self.run.pause(agent)

    def go_on(self, agent: str | None) -> None:
        with self._steered(agent):
            self.run.go_on(agent)

    def retry(self, agent: str) -> None:
        with self._steered(agent):
            self.run.retry(agent)

    def set_priority(self, agent: str, priority: int) -> None:
        with self._steered(agent):
            self.run.set_priority(agent, priority)

    def set_limit(self, resource: str, limit: int) -> None:
        # Whoever asks over HTTP has no command to resume it with.
        remedy = "How many work at once (`max_agents`) is fixed at the start: spawn another swarm to have more."
        with self._steered(None, otherwise=400, remedy=remedy if resource == AGENTS else None):
            self.run.set_limit(resource, limit, reason="set by its owner")

    @contextmanager
    def _steered(self, agent: str | None, otherwise: int = 409, remedy: str | None = None) -> Any:
        if self.over.is_set():
            raise not_running(self.record)
        if agent is not None and (self.progress is None or agent not in self.progress.tasks):
            raise not_found("The swarm has no such agent.")
        try:
            yield
        except ConfigurationError as error:
            if otherwise == 400 and self.begun.is_set():
                raise bad_request(error.message, remedy=remedy or error.remedy) from None
            raise conflict(error.message, remedy=error.remedy) from None


def _cause(error: BaseException) -> str:
    """What its owner is told. Where files cannot be written or read the operator must act, who finds in the log which
    these are."""
    if isinstance(error, JournalError | ConfigurationError):
        return "what it does can no longer be kept"
    if isinstance(error, CenturiaError):
        return str(error)
    return f"an error in the gateway ended it ({type(error).__name__})"


def concluded(record: SwarmRecord, progress: Progress | None, status: str, cause: str, at: float) -> SwarmRecord:
    """A swarm's record at its end."""
    if progress is None:
        return replace(record, status=status, cause=cause, ended_at=at)
    money = progress.money()
    return replace(
        record,
        status=status,
        cause=cause,
        ended_at=at,
        cost=money.spent,
        held=money.held,
        tasks=len(progress.tasks),
        ok=progress.census()[Status.OK],
    )


def not_running(record: SwarmRecord) -> Problem:
    status = record.status if record.ended else "interrupted"
    return conflict(
        f"The swarm does not run: its status is {status!r}.",
        code="swarm_not_running",
        remedy="Read its result, or spawn another."
        if record.ended
        else "It goes on when the gateway that it ran in is back.",
    )
