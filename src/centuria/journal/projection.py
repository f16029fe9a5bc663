"""The tables that readers and SQL users see: what each record changes in them. Pure; the writer runs it."""

from __future__ import annotations

from collections.abc import Iterator

from centuria.events import (
    CallClosed,
    CallOpened,
    Event,
    MoneyHeld,
    MoneyReleased,
    MoneySettled,
    Record,
    TaskEnded,
    TaskReset,
)
from centuria.messages import safe_text

Value = str | int | float | None
Statement = tuple[str, tuple[Value, ...]]

_OPEN = """
INSERT INTO calls (task, epoch, turn, position, attempt, call, name, fingerprint, rerun, state, hold,
reserved, opened_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?)
ON CONFLICT DO UPDATE SET call = excluded.call, name = excluded.name, fingerprint = excluded.fingerprint,
rerun = excluded.rerun, hold = excluded.hold, reserved = excluded.reserved, opened_at = excluded.opened_at"""
_CLOSE = """
INSERT INTO calls (task, epoch, turn, position, attempt, state, cost, prompt, cached, output, closed_at,
error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET state = excluded.state, cost = excluded.cost, prompt = excluded.prompt,
cached = excluded.cached, output = excluded.output, closed_at = excluded.closed_at, error = excluded.error"""
# Attempts that surely cost nothing may hand their reservation on: the last row under it is the one that is paid.
_PAID = "WHERE rowid = (SELECT max(rowid) FROM calls WHERE hold = ?)"
_SETTLE = f"UPDATE calls SET cost = ?, held = 0 {_PAID}"  # noqa: S608
_HOLD = f"UPDATE calls SET cost = 0, held = reserved {_PAID}"  # noqa: S608
_RELEASE = f"UPDATE calls SET cost = 0, held = 0 {_PAID}"  # noqa: S608
_END = """
INSERT OR REPLACE INTO outcomes (task, status, cause, cut_short, steps, attempts, repairs, prompt, cached,
output, cost, held, started_at, ended_at, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_RESET = "DELETE FROM outcomes WHERE task = ?"

_LARGEST = 2**63 - 1


def project(record: Record) -> Iterator[Statement]:
    """What brings the derived tables up to this record. Nothing that a record holds can make it fail."""
    for sql, values in _statements(record.event, record):
        yield sql, tuple(_bound(value) for value in values)


def _statements(event: Event, record: Record) -> Iterator[Statement]:
    match event:
        case CallOpened(key=key):
            place = (key.task, key.epoch, key.turn, key.position, event.attempt)
            yield (
                _OPEN,
                (
                    *place,
                    event.call,
                    event.name,
                    event.fingerprint,
                    event.rerun,
                    event.hold,
                    event.reserved,
                    record.at,
                ),
            )
        case CallClosed(key=key):
            place = (key.task, key.epoch, key.turn, key.position, event.attempt)
            usage = event.usage
            tokens = (usage.prompt, usage.cached, usage.output) if usage else (None, None, None)
            yield _CLOSE, (*place, event.end, event.cost, *tokens, record.at, event.error)
        case MoneySettled():
            yield _SETTLE, (event.cost, event.hold)
        case MoneyHeld():
            yield _HOLD, (event.hold,)
        case MoneyReleased():
            yield _RELEASE, (event.hold,)
        case TaskEnded(outcome=end):
            counts = (end.cut_short, end.steps, end.attempts, end.repairs)
            tokens = (end.usage.prompt, end.usage.cached, end.usage.output)
            spent = (end.cost, end.held, end.started_at, end.ended_at, record.seq)
            yield _END, (event.task, end.status.value, end.cause, *counts, *tokens, *spent)
        case TaskReset():
            yield _RESET, (event.task,)


def _bound(value: Value) -> Value:
    """What SQLite can hold: 64-bit integers, and text without lone surrogates or NUL (where readers would stop)."""
    if isinstance(value, str):
        return safe_text(value).replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, int):
        return max(-_LARGEST, min(_LARGEST, value))
    return value
