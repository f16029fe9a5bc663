"""The views of the records: calls and outcomes, for readers and for whoever asks with SQL."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from centuria.events import (
    CallClosed,
    CallOpened,
    MoneyHeld,
    MoneyReleased,
    MoneySettled,
    Notice,
    TaskEnded,
    TaskReset,
)
from centuria.journal import JournalReader, SqliteJournal
from centuria.messages import CallKey, Completion, Message, Outcome, Status, ToolResult, Usage
from tests.journal.steps import keep, rows

KEY = CallKey("a", 1, 2, 0)
DONE = Completion(Message("assistant", "hi"), Usage(100, 40, 0, 7), "stop")


def opened(attempt: int = 1, hold: int | None = 9, key: CallKey = KEY) -> CallOpened:
    return CallOpened(key, attempt, "model", "kimi-k2.5", "f00d", True, hold=hold, reserved=500)


async def test_a_call_is_one_row_from_its_opening_to_its_end(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, opened())
    with JournalReader(path) as reader:
        (row,) = reader.calls()
        assert (row.state, row.reserved, row.cost, row.closed_at, row.prompt) == ("open", 500, 0, None, None)
        closed = CallClosed(KEY, 1, "done", cost=120, usage=DONE.usage, completion=DONE)
        await keep(journal, closed, MoneySettled(9, 120))
        (row,) = reader.calls()
    assert (row.task, row.epoch, row.turn, row.position, row.attempt) == ("a", 1, 2, 0, 1)
    assert (row.call, row.name, row.fingerprint, row.rerun) == ("model", "kimi-k2.5", "f00d", 1)
    assert (row.state, row.cost, row.held, row.prompt, row.cached, row.output) == ("done", 120, 0, 100, 40, 7)
    assert (row.opened_at, row.closed_at, row.error) == (1.0, 2.0, "")


async def test_each_attempt_is_a_row_and_the_rows_add_up_to_what_was_spent_and_held(
    journal: SqliteJournal, path: Path
) -> None:
    other = CallKey("b", 0, 0, 0)
    await keep(
        journal,
        opened(1, 1),
        CallClosed(KEY, 1, "lost", error="cut"),
        MoneyHeld(1),
        opened(2, 2),
        CallClosed(KEY, 2, "failed", error="429"),  # surely not served: its reservation goes to the next attempt
        opened(3, 2),
        CallClosed(KEY, 3, "done", cost=70, usage=DONE.usage, completion=DONE),
        MoneySettled(2, 70),
        opened(1, 3, other),
        CallClosed(other, 1, "failed", error="refused"),
        MoneyReleased(3),
        opened(2, None, other),
    )
    assert rows(path, "SELECT attempt, state, cost, held FROM calls WHERE task = 'a' ORDER BY attempt") == [
        (1, "lost", 0, 500),
        (2, "failed", 0, 0),
        (3, "done", 70, 0),
    ]
    assert rows(path, "SELECT sum(cost), sum(held) FROM calls") == [(70, 500)]
    with JournalReader(path) as reader:
        assert [row.error for row in reader.calls(task="a")] == ["cut", "429", ""]
        assert reader.calls(task="b")[-1].state == "open"


async def test_the_money_of_a_loser_that_comes_late_is_counted_instead_of_held(
    journal: SqliteJournal, path: Path
) -> None:
    await keep(journal, opened(1, 1), CallClosed(KEY, 1, "lost"), MoneyHeld(1), MoneySettled(1, 42))
    assert rows(path, "SELECT cost, held FROM calls") == [(42, 0)]


async def test_a_tool_call_whose_outcome_is_unknown_is_said_to_be_unknown(journal: SqliteJournal, path: Path) -> None:
    key = CallKey("a", 0, 0, 1)
    await keep(
        journal,
        CallOpened(key, 1, "tool", "shop__order", "f", False, arguments="{}"),
        CallClosed(key, 1, "unknown", result=ToolResult("may have happened"), error="answer lost"),
    )
    assert rows(path, "SELECT call, name, rerun, state, error FROM calls") == [
        ("tool", "shop__order", 0, "unknown", "answer lost")
    ]


async def test_each_task_has_one_outcome_and_a_reset_task_has_none(journal: SqliteJournal, path: Path) -> None:
    ok = Outcome("a", Status.OK, text="long text", structured={"n": 1}, usage=Usage(10, 4, 0, 2), cost=5, ended_at=9.0)
    bad = Outcome("b", Status.FAILED, cause="no answer", held=3)
    await keep(journal, TaskEnded("a", ok), TaskEnded("b", bad))
    with JournalReader(path) as reader:
        assert reader.outcomes() == [ok, bad]
        assert rows(path, "SELECT task, status, cause, prompt, cost, held FROM outcomes ORDER BY task") == [
            ("a", "ok", "", 10, 5, 0),
            ("b", "failed", "no answer", 0, 0, 3),
        ]
        await keep(journal, TaskReset("b", 1))
        assert reader.outcomes() == [ok]
        good = Outcome("b", Status.OK, text="at last")
        await keep(journal, TaskEnded("b", good))
        assert reader.outcomes() == [ok, good]


async def test_no_text_or_number_of_an_upstream_can_break_the_views(journal: SqliteJournal, path: Path) -> None:
    key = CallKey("a\0\ud800", 0, 0, 0)
    huge = Usage(prompt=10**30, output=-(10**30))
    await keep(
        journal,
        CallOpened(key, 1, "model", "m\0\udfff", "f", True, hold=10**30, reserved=10**30),
        CallClosed(key, 1, "done", cost=10**30, usage=huge, error="\0\ud800'; DROP TABLE calls; --"),
        TaskEnded("\ud800", Outcome("\ud800", Status.OK, usage=huge, started_at=float("nan"), ended_at=float("inf"))),
    )
    assert rows(path, "SELECT task, cost, prompt, output FROM calls") == [
        ("a\ufffd\ufffd", 2**63 - 1, 2**63 - 1, -(2**63))
    ]
    assert len(list(journal.read())) == 3


async def test_a_call_that_ends_without_having_been_opened_is_still_a_row(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, CallClosed(KEY, 1, "done", cost=3))
    assert rows(path, "SELECT task, state, cost FROM calls") == [("a", "done", 3)]


async def test_records_can_be_asked_with_sql(journal: SqliteJournal, path: Path) -> None:
    await keep(journal, Notice("먼저"), Notice("y"))
    assert rows(path, "SELECT seq, kind, json_extract(event, '$.text') FROM records") == [
        (1, "notice", "먼저"),
        (2, "notice", "y"),
    ]
    assert json.loads(rows(path, "SELECT event FROM records")[0][0])["text"] == "먼저"


# -- how fast --------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_ten_thousand_calls_go_through(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = SqliteJournal.create(path, run="r", name="n")
    slots = asyncio.Semaphore(100)
    started = time.perf_counter()

    async def call(number: int) -> None:
        key = CallKey(f"t{number}", 0, 0, 0)
        async with slots:
            await keep(journal, opened(1, number, key))
            await keep(journal, CallClosed(key, 1, "done", cost=1, completion=DONE), MoneySettled(number, 1))

    async with asyncio.TaskGroup() as group:
        for number in range(3_334):
            group.create_task(call(number))
    seconds = time.perf_counter() - started
    assert journal.last_seq == 3 * 3_334
    commits = journal.commits
    await journal.aclose()
    assert rows(path, "SELECT count(*), sum(cost) FROM calls WHERE state = 'done'") == [(3_334, 3_334)]
    with capsys.disabled():
        print(f"\n10,002 records, 100 slots: {seconds:.2f} s, {commits} commits, {path.stat().st_size / 2**20:.1f} MB")
