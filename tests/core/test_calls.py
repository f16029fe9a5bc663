"""The effect ledger: nothing done is sent again, nothing sent is forgotten, and the books only over-count."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.codec import decode, encode
from centuria.core.calls import CallLedger, TaskTotals, canonical, content_id, fingerprint
from centuria.errors import FingerprintMismatch, JournalError
from centuria.events import CallClosed, CallOpened, Fact, MoneyHeld, TaskReady, TaskReset, fold
from centuria.messages import CallKey, Completion, Message, ToolEnd, ToolResult, Usage

MODEL = CallKey("acme", 0, 0, 0)
TOOL = CallKey("acme", 0, 0, 1)
ANSWER = Completion(Message("assistant", "It grows."), Usage(100, 20, 0, 50, 10), "stop")


def open_model(ledger: CallLedger, key: CallKey = MODEL, mark: str = "m", hold: int | None = 1) -> list[Fact]:
    return ledger.open(key, call="model", name="kimi-k2.5", fingerprint=mark, rerun=True, hold=hold, reserved=900)


def open_tool(ledger: CallLedger, key: CallKey = TOOL, *, rerun: bool = False) -> list[Fact]:
    return ledger.open(key, call="tool", name="db__add", fingerprint="t", rerun=rerun, arguments='{"n":1}')


def answer(ledger: CallLedger, key: CallKey = MODEL, attempt: int = 1, cost: int = 700) -> list[Fact]:
    return ledger.close(key, attempt, end="done", cost=cost, usage=ANSWER.usage, completion=ANSWER)


def test_a_call_that_is_done_is_replayed_and_never_sent_again() -> None:
    ledger = CallLedger()
    assert ledger.find(MODEL, "m") is None
    open_model(ledger)
    assert ledger.find(MODEL, "m") is None
    (closed,) = answer(ledger)
    assert ledger.find(MODEL, "m") == closed
    with pytest.raises(ValueError, match="done already"):
        open_model(ledger)


def test_another_call_under_the_same_key_is_an_error_that_names_the_key_never_a_silent_replay() -> None:
    ledger = CallLedger()
    open_model(ledger)
    answer(ledger)
    for wrong in (lambda: ledger.find(MODEL, "other"), lambda: open_model(ledger, mark="other")):
        with pytest.raises(FingerprintMismatch, match="acme/0/0/0"):
            wrong()
    assert ledger.fingerprint_of(MODEL) == "m"
    assert ledger.fingerprint_of(TOOL) is None


def test_a_failed_or_lost_attempt_leaves_the_call_to_be_sent_under_the_next_number() -> None:
    ledger = CallLedger()
    open_model(ledger, hold=1)
    ledger.close(MODEL, 1, end="failed", error="503")
    (second,) = open_model(ledger, hold=2)
    assert isinstance(second, CallOpened)
    assert second.attempt == 2
    ledger.close(MODEL, 2, end="lost", error="cut", partial="It gr")
    assert ledger.find(MODEL, "m") is None
    open_model(ledger, hold=3)
    answer(ledger, attempt=3)
    assert ledger.totals("acme") == TaskTotals(attempts=3, usage=ANSWER.usage, cost=700, held=900, steps=1)  # type: ignore[arg-type]


def test_an_attempt_is_closed_once() -> None:
    ledger = CallLedger()
    open_model(ledger)
    answer(ledger)
    before = ledger.snapshot()
    assert answer(ledger) == []
    assert ledger.close(MODEL, 2, end="failed", error="never opened") == []
    assert ledger.close(TOOL, 1, end="failed", error="never opened") == []
    assert ledger.snapshot() == before


def test_a_late_losers_money_is_counted_and_its_answer_dropped() -> None:
    ledger = CallLedger()
    for hold in (1, 2, 3):
        open_model(ledger, hold=hold)
    (won,) = answer(ledger, attempt=2)
    (late,) = answer(ledger, attempt=1, cost=800)
    assert isinstance(late, CallClosed)
    assert (late.end, late.completion, late.cost) == ("failed", None, 800)
    (mute,) = ledger.close(MODEL, 3, end="done", completion=ANSWER)  # no usage: its reservation is held
    assert isinstance(mute, CallClosed)
    assert (mute.end, mute.completion) == ("lost", None)
    assert ledger.find(MODEL, "m") == won
    totals = ledger.totals("acme")
    assert (totals.cost, totals.held, totals.steps, totals.attempts) == (1500, 900, 1, 3)


def test_an_answer_without_usage_is_held_at_its_reservation() -> None:
    ledger = CallLedger()
    open_model(ledger)
    ledger.close(MODEL, 1, end="done", completion=ANSWER)
    assert ledger.totals("acme").held == 900


def test_an_answer_without_content_could_not_be_replayed_and_is_refused() -> None:
    ledger = CallLedger()
    open_model(ledger)
    with pytest.raises(ValueError, match="neither or both"):
        ledger.close(MODEL, 1, end="done")


def test_after_a_crash_model_calls_are_lost_and_held_and_unsafe_tools_unknown() -> None:
    ledger = CallLedger()
    safe = CallKey("acme", 0, 0, 2)
    open_model(ledger, CallKey("beta", 0, 0, 0), hold=8)
    open_tool(ledger)
    open_tool(ledger, safe, rerun=True)
    assert [opened.key for opened in ledger.in_doubt()] == [CallKey("beta", 0, 0, 0), TOOL, safe]
    facts = ledger.resolve_in_doubt()
    assert [type(fact) for fact in facts] == [CallClosed, MoneyHeld, CallClosed, CallClosed]
    assert [fact.end for fact in facts if isinstance(fact, CallClosed)] == ["lost", "unknown", "lost"]
    assert facts[1] == MoneyHeld(8)
    assert ledger.totals("beta").held == 900
    # The unsafe tool is not sent again: the model is told. The others are sent under their next attempt.
    told = ledger.find(TOOL, "t")
    assert told is not None
    assert told.result is not None
    assert told.result.end is ToolEnd.UNKNOWN
    assert "may or may not have happened" in told.result.text
    assert ledger.find(safe, "t") is None
    assert ledger.in_doubt() == []
    assert ledger.resolve_in_doubt() == []


def test_a_policy_of_the_user_may_run_an_unknown_call_again() -> None:
    ledger = CallLedger()
    open_tool(ledger)
    ledger.resolve_in_doubt()
    (again,) = open_tool(ledger)
    assert isinstance(again, CallOpened)
    assert again.attempt == 2
    (closed,) = ledger.close(TOOL, 2, end="done", result=ToolResult("3"))
    assert ledger.find(TOOL, "t") == closed


def test_totals_span_all_epochs_and_a_reset_raises_the_epoch() -> None:
    ledger = CallLedger()
    open_model(ledger)
    answer(ledger)
    ledger.apply(TaskReset("acme", 1))
    assert ledger.epoch("acme") == 1
    again = CallKey("acme", 1, 0, 0)
    assert ledger.find(again, "m") is None
    open_model(ledger, again, hold=2)
    answer(ledger, again, cost=50)
    assert ledger.totals("acme").cost == 750
    assert ledger.epoch("nobody") == 0
    assert ledger.totals("nobody") == TaskTotals()


def test_a_conversation_that_came_to_its_end_needs_a_new_epoch_and_one_that_broke_off_goes_on() -> None:
    ledger = CallLedger()
    assert not ledger.last_key_done("acme", 0)
    open_model(ledger)
    assert not ledger.last_key_done("acme", 0)
    answer(ledger)
    assert ledger.last_key_done("acme", 0)
    later = CallKey("acme", 0, 1, 0)
    open_model(ledger, later, hold=2)
    ledger.close(later, 1, end="failed", error="503")
    assert not ledger.last_key_done("acme", 0)
    open_model(ledger, later, hold=3)
    answer(ledger, later, 2)
    assert ledger.last_key_done("acme", 0)
    # Two tools in parallel: the second is done, the first is not.
    open_tool(ledger, CallKey("acme", 0, 1, 1))
    open_tool(ledger, CallKey("acme", 0, 1, 2))
    ledger.close(CallKey("acme", 0, 1, 2), 1, end="done", result=ToolResult("1"))
    assert not ledger.last_key_done("acme", 0)
    assert not ledger.last_key_done("acme", 1)


def test_an_ended_task_leaves_its_totals_in_memory_and_nothing_more() -> None:
    ledger = CallLedger()
    open_model(ledger)
    answer(ledger)
    before, totals = ledger.snapshot(), ledger.totals("acme")
    ledger.forget("acme")
    ledger.forget("nobody")
    assert ledger.totals("acme") == totals
    assert ledger.snapshot() == before
    assert ledger.fingerprint_of(MODEL) == "m"
    with pytest.raises(JournalError, match="no longer in memory"):
        ledger.find(MODEL, "m")


keys = st.builds(CallKey, st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("open"), keys, st.booleans()),
    st.tuples(st.just("close"), st.integers(0, 30), st.sampled_from(["done", "failed", "lost", "unknown"])),
    st.tuples(st.just("reset"), st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.just("crash"), st.none(), st.none()),
)


def act(ledger: CallLedger, step: tuple[Any, Any, Any], hold: int) -> Sequence[Fact]:
    what, first, second = step
    if what == "open":
        known = ledger.find(first, f"{first}")
        if known is not None and known.end == "done":
            return []
        call: Any = "tool" if first.position else "model"
        return ledger.open(
            first, call=call, name="x", fingerprint=f"{first}", rerun=second, hold=hold, reserved=hold * 10
        )
    if what == "close":
        there = ledger.in_doubt()
        if not there:
            return []
        opened = there[first % len(there)]
        content: dict[str, Any] = {}
        if second in ("done", "unknown"):
            content = {"completion": ANSWER} if opened.call == "model" else {"result": ToolResult("1")}
        usage = ANSWER.usage if first % 2 else None
        return ledger.close(opened.key, opened.attempt, end=second, cost=first * (first % 2), usage=usage, **content)
    if what == "reset":
        event = TaskReset(first, second)
        ledger.apply(event)
        return [event]
    return ledger.resolve_in_doubt()


@settings(deadline=None)
@given(st.lists(steps, max_size=40))
def test_replay_equals_live_and_no_call_is_answered_twice(script: list[tuple[Any, Any, Any]]) -> None:
    live, journal, opened = CallLedger(), [TaskReady("a")], 0
    for number, step in enumerate(script, 1):
        journal += act(live, step, number)  # type: ignore[arg-type]
    replayed = CallLedger()
    fold(replayed, [decode(encode(fact)) for fact in journal])
    assert replayed == live
    closed = [fact for fact in journal if isinstance(fact, CallClosed)]
    opened = [fact for fact in journal if isinstance(fact, CallOpened)]
    done = [fact.key for fact in closed if fact.end == "done"]
    assert len(done) == len(set(done))
    for task in "ab":
        totals = replayed.totals(task)
        assert totals.cost == sum(fact.cost for fact in closed if fact.key.task == task)
        assert totals.attempts == sum(fact.key.task == task and fact.call == "model" for fact in opened)
    for fact in closed:
        if fact.end == "done":
            assert replayed.find(fact.key, str(fact.key)) == fact
    assert replayed.resolve_in_doubt() == live.resolve_in_doubt()


# -- fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_content_and_not_of_the_order_of_keys_or_the_kind_of_mapping() -> None:
    assert fingerprint("m", {"a": 1, "b": [1, 2]}) == fingerprint("m", {"b": (1, 2), "a": 1})
    assert len(fingerprint()) == 64
    assert fingerprint("a", "b") != fingerprint("ab") != fingerprint(["a", "b"])
    assert fingerprint(Message("user", "hi")) != fingerprint(Message("user", "hi "))
    assert fingerprint(b"body") == fingerprint(b"body")
    assert canonical({"b": "é\ud800", "a": None}) == '{"a":null,"b":"\\u00e9\\ud800"}'
    with pytest.raises(TypeError, match="canonical"):
        fingerprint(object())


def test_the_id_of_a_task_is_its_content_whatever_the_order_of_its_needs() -> None:
    row = {"Name": "Acme", "Founded": datetime.date(1950, 1, 2), "Price": Decimal("1.5")}
    one = content_id("Report on {Name}", row, ["b", "a"])
    assert one == content_id("Report on {Name}", dict(reversed(row.items())), ["a", "b"])
    assert len(one) == 16
    assert int(one, 16) >= 0
    assert one != content_id("Report on {Name}", {**row, "Name": "Beta"}, ["a", "b"])
    assert one != content_id("Report on {Name}.", row, ["a", "b"])
    assert one != content_id("Report on {Name}", row, ["a"])
