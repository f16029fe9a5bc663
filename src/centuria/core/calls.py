"""The effect ledger: one row before each model or tool call and one after it. Pure.

A call that is done is never sent again: `find` gives its answer. A call in doubt was opened and never closed,
because the process ended; `resolve_in_doubt` closes it so that the books can only over-count.

    open attempt 1 .. n  ->  done      there is an answer, replayed from now on
                             failed    surely over, without an answer: the next attempt may go
                             lost      may have been served: its reservation stays held, the next attempt may go
                             unknown   a tool call that may have happened: replayed as such, never sent again
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any

from centuria.errors import FingerprintMismatch, JournalError
from centuria.events import CallClosed, CallEnd, CallKind, CallOpened, Event, Fact, MoneyHeld, MoneyReleased, TaskReset
from centuria.messages import CallKey, Completion, Pico, ToolEnd, ToolResult, Usage

_IN_DOUBT = "The program ended before the answer came."
_MAY_HAVE_HAPPENED = (
    "Unknown outcome: this call was sent, and the program ended before the answer came. It may or may not "
    "have happened. It was not sent again. Check what it would have changed before you call it again."
)
_ANSWERED: frozenset[CallEnd] = frozenset({"done", "unknown"})


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII. Raises `TypeError` if it has none."""
    return _canonical(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value, key=canonical)
    if isinstance(value, bytes):
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    if isinstance(value, date | time | Decimal):  # what TOML and CSV rows hold; a datetime is a date
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON.")


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain).encode


def fingerprint(*parts: Any) -> str:
    """SHA-256, in hex, of the canonical JSON of the parts: what a call is, for telling it from another."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def content_id(template: str, row: Mapping[str, Any], needs: Iterable[str]) -> str:
    """The id of a task that was given none: 16 hex digits of its content. `needs` are a set."""
    return fingerprint(template, row, sorted(set(needs)))[:16]


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """All calls of a task, earlier runs and epochs included.

    `attempts` are model requests sent, `steps` those of them that were answered; `cost` and `held` in pico-dollars.
    """

    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: Pico = 0
    held: Pico = 0
    steps: int = 0


@dataclass(slots=True)
class _Row:
    """All attempts of one call. `answer` is what is replayed, None where there is none, or where it was forgotten;
    `answered` is what stays of it: attempt, end and cost."""

    fingerprint: str
    attempts: int = 0
    open: dict[int, CallOpened] = field(default_factory=dict)
    answer: CallClosed | None = None
    answered: tuple[int, CallEnd, Pico] | None = None

    @property
    def done(self) -> bool:
        return self.answered is not None and self.answered[1] == "done"


@dataclass(slots=True)
class _Task:
    epoch: int = 0
    totals: TaskTotals = field(default_factory=TaskTotals)
    rows: dict[CallKey, _Row] = field(default_factory=dict)
    #: What the newest model call had said before its attempts were lost.
    partial: str = ""


class CallLedger:
    """What was sent, what came of it, and what is to be replayed.

    A machine over `CallOpened`, `CallClosed` and `TaskReset`.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def find(self, key: CallKey, fingerprint: str) -> CallClosed | None:
        """The answer to be replayed: a closure that is done or unknown. None: the call is to be sent.

        Raises `FingerprintMismatch` where another call was opened under this key, `JournalError` where the
        answer was forgotten.
        """
        row = self._row(key)
        if row is None:
            return None
        self._check(key, row, fingerprint)
        if row.answered is not None and row.answer is None:
            raise JournalError(f"The answer of call {key} is no longer in memory.", remedy="Resume the run.")
        return row.answer

    def open(
        self,
        key: CallKey,
        *,
        call: CallKind,
        name: str,
        fingerprint: str,
        rerun: bool,
        hold: int | None = None,
        reserved: Pico = 0,
        arguments: str = "",
        slots: tuple[str, ...] = (),
    ) -> list[CallOpened]:
        """`CallOpened` with the number of the next attempt; to be journaled before anything is sent.

        Raises `FingerprintMismatch`, and `ValueError` for a call that is done: it would be paid twice.
        """
        row = self._row(key)
        if row is not None:
            self._check(key, row, fingerprint)
            if row.done:
                raise ValueError(f"Call {key} is done already: replay its answer.")
        event = CallOpened(
            key=key,
            attempt=row.attempts + 1 if row else 1,
            call=call,
            name=name,
            fingerprint=fingerprint,
            rerun=rerun,
            hold=hold,
            reserved=reserved,
            arguments=arguments,
            slots=slots,
        )
        self.apply(event)
        return [event]

    def close(
        self,
        key: CallKey,
        attempt: int,
        *,
        end: CallEnd,
        cost: Pico = 0,
        usage: Usage | None = None,
        completion: Completion | None = None,
        result: ToolResult | None = None,
        error: str = "",
        partial: str = "",
        first_token_s: float | None = None,
        total_s: float = 0.0,
        status: int | None = None,
    ) -> list[Fact]:
        """`CallClosed`, once for each attempt; closing again gives `[]`.

        An answer that comes when another attempt is done already is dropped and its money kept: it ends as
        failed, or as lost where its usage is not known. Raises `ValueError` for an answer without content: it
        could not be replayed.
        """
        row = self._row(key)
        if row is None or attempt not in row.open:
            return []
        if end in _ANSWERED and (completion is None) == (result is None):
            raise ValueError(f"Call {key} ended as {end} with neither or both of completion and result.")
        if row.done and end in _ANSWERED:
            end = "failed" if usage is not None or row.open[attempt].hold is None else "lost"
            completion, result = None, None
            error = "Too late: another attempt of this call was answered first."
        event = CallClosed(
            key=key,
            attempt=attempt,
            end=end,
            cost=cost,
            usage=usage,
            completion=completion,
            result=result,
            error=error,
            partial=partial,
            first_token_s=first_token_s,
            total_s=total_s,
            status=status,
        )
        self.apply(event)
        return [event]

    def in_doubt(self) -> list[CallOpened]:
        """The attempts that were opened and not closed: in flight now, or in doubt after a crash."""
        rows = (row for task in self._tasks.values() for row in task.rows.values() if row.open)
        return [opened for row in rows for opened in row.open.values()]

    def resolve_in_doubt(self, *, billed: bool = True) -> list[Fact]:
        """After a crash: close every call in doubt, and hold its money for ever; give it back where nobody bills it.

        Model calls and tools that are safe to run again are lost, so their next attempt may go; other tools
        are unknown, which the model is told. The caller folds the `MoneyHeld` facts into the `Ledger`.
        """
        facts: list[Fact] = []
        for opened in self.in_doubt():
            if opened.call == "model" or opened.rerun:
                end: CallEnd = "lost" if billed else "failed"
                facts += self.close(opened.key, opened.attempt, end=end, error=_IN_DOUBT)
            else:
                result = ToolResult(_MAY_HAVE_HAPPENED, ToolEnd.UNKNOWN)
                facts += self.close(opened.key, opened.attempt, end="unknown", result=result)
            if opened.hold is not None:
                facts.append(MoneyHeld(opened.hold) if billed else MoneyReleased(opened.hold))
        return facts

    def forget(self, task: str) -> None:
        """Drop the contents of an ended task's answers from memory; keys and totals stay."""
        known = self._tasks.get(task)
        if known is not None:
            known.partial = ""
        for row in known.rows.values() if known else ():
            row.answer = None

    # -- facts --------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        if isinstance(event, CallOpened):
            self._opened(event)
        elif isinstance(event, CallClosed):
            self._closed(event)
        elif isinstance(event, TaskReset):
            task = self._task(event.task)
            task.epoch = max(task.epoch, event.epoch)

    def _opened(self, event: CallOpened) -> None:
        key = event.key
        task = self._task(key.task)
        task.epoch = max(task.epoch, key.epoch)
        row = task.rows.get(key)
        if row is None:
            row = task.rows[key] = _Row(event.fingerprint)
        row.attempts = max(row.attempts, event.attempt)
        row.open[event.attempt] = event
        if event.call == "model":
            old = task.totals
            task.totals = TaskTotals(old.attempts + 1, old.usage, old.cost, old.held, old.steps)

    def _closed(self, event: CallClosed) -> None:
        task = self._tasks.get(event.key.task)
        row = task.rows.get(event.key) if task else None
        opened = row.open.pop(event.attempt, None) if row else None
        if task is None or row is None or opened is None:
            return
        if event.end in _ANSWERED and not row.done:
            row.answer, row.answered = event, (event.attempt, event.end, event.cost)
        if opened.call == "model":
            task.partial = "" if event.end == "done" else event.partial or task.partial
        if opened.call == "tool" and opened.hold is None and not event.cost and event.usage is None:
            return  # it adds nothing
        # Served, or maybe served, and nobody said at what cost: its reservation stays held.
        held = event.end != "failed" and event.usage is None and event.cost == 0 and opened.hold is not None
        task.totals = TaskTotals(
            attempts=task.totals.attempts,
            usage=_sum(task.totals.usage, event.usage),
            cost=task.totals.cost + event.cost,
            held=task.totals.held + (opened.reserved if held else 0),
            steps=task.totals.steps + (opened.call == "model" and event.end == "done"),
        )

    # -- queries ------------------------------------------------------------------------------------------------------

    def fingerprint_of(self, key: CallKey) -> str | None:
        """The fingerprint that a call was first opened with, or None if it never was."""
        row = self._row(key)
        return row.fingerprint if row else None

    def answered(self, key: CallKey) -> bool:
        """Whether a call has an answer that will be replayed."""
        row = self._row(key)
        return row is not None and row.answer is not None

    def totals(self, task: str) -> TaskTotals:
        known = self._tasks.get(task)
        return known.totals if known else TaskTotals()

    def partial(self, task: str) -> str:
        """What the newest model call of a task had said so far, if it was lost; "" once it is answered."""
        known = self._tasks.get(task)
        return known.partial if known else ""

    def epoch(self, task: str) -> int:
        """The epoch that the task runs under: the highest one seen, 0 at first."""
        known = self._tasks.get(task)
        return known.epoch if known else 0

    def last_key_done(self, task: str, epoch: int) -> bool:
        """Whether every call of the newest turn of this epoch is done.

        Then a rerun under the same epoch replays the whole conversation and ends as it ended: if that was no
        good end, it must begin a new epoch.
        """
        known = self._tasks.get(task)
        rows = {key: row for key, row in known.rows.items() if key.epoch == epoch} if known else {}
        newest = max((key.turn for key in rows), default=None)
        return newest is not None and all(row.done for key, row in rows.items() if key.turn == newest)

    def snapshot(self) -> dict[str, Any]:
        """All of the state, comparable, but for contents, which may have been forgotten."""
        return {
            name: (
                task.epoch,
                task.totals,
                {
                    key: (
                        row.fingerprint,
                        row.attempts,
                        dict(row.open),
                        row.answered,
                    )
                    for key, row in task.rows.items()
                },
            )
            for name, task in self._tasks.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallLedger) and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]

    def _task(self, name: str) -> _Task:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = _Task()
        return task

    def _row(self, key: CallKey) -> _Row | None:
        task = self._tasks.get(key.task)
        return task.rows.get(key) if task else None

    @staticmethod
    def _check(key: CallKey, row: _Row, fingerprint: str) -> None:
        if row.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"The journal holds another call under {key}.",
                remedy="The job, its tools or the program changed: run this task afresh, in a new epoch.",
            )


def _sum(total: Usage, more: Usage | None) -> Usage:
    if more is None:
        return total
    return Usage(
        prompt=total.prompt + more.prompt,
        cached=total.cached + more.cached,
        cache_written=total.cache_written + more.cache_written,
        output=total.output + more.output,
        reasoning=total.reasoning + more.reasoning,
    )
