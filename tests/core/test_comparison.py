"""What a comparison measures: intervals, F1, and tool calls judged from the events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.comparison import (
    Accuracy,
    Agreement,
    Answers,
    Candidate,
    Proportion,
    Table,
    agreement,
    row_of,
    wilson,
    with_agreement,
)
from centuria.core.progress import Progress
from centuria.events import CallClosed, CallOpened, Event, MoneyReserved, MoneySettled, RunEnded, RunStarted, TaskAdded
from centuria.messages import CallKey, Completion, Fault, Message, ToolCall, ToolEnd, ToolResult

# -- a run's events, written by hand ---------------------------------------------------------------------------------

Call = tuple[str, Fault]


@dataclass(frozen=True)
class Turn:
    """One answer: its calls, each with what is wrong with it, and its finish. `seen` of the calls are looked at."""

    calls: tuple[Call, ...] = ()
    finish: str = ""
    seen: int | None = None


def turn(*calls: str | Call, finish: str = "", seen: int | None = None) -> Turn:
    return Turn(tuple((one, "") if isinstance(one, str) else one for one in calls), finish, seen)


def events(task: str, *turns: Turn, epoch: int = 0) -> list[Event]:
    """The events of one conversation."""
    made: list[Event] = []
    for number, one in enumerate(turns):
        key = CallKey(task, epoch, number, 0)
        made.append(CallOpened(key, 1, "model", "m", f"{task}:{number}", True))
        asked = tuple(ToolCall(str(place), name, "{}") for place, (name, _) in enumerate(one.calls))
        finish = one.finish or ("tool_calls" if asked else "stop")
        completion = Completion(Message("assistant", "", tool_calls=asked), None, finish)
        made.append(CallClosed(key, 1, "done", completion=completion, total_s=1.0))
        for place, (name, fault) in enumerate(one.calls[: one.seen], 1):
            made += tool(replace(key, position=place), name, fault)
    return made


def tool(key: CallKey, name: str, fault: Fault = "", end: ToolEnd = ToolEnd.OK) -> list[Event]:
    result = ToolResult("", ToolEnd.REFUSED if fault else end, fault=fault)
    return [CallOpened(key, 1, "tool", name, "f", True), CallClosed(key, 1, "done", result=result)]


def fold(*made: Sequence[Event]) -> Answers:
    answers = Answers()
    for part in made:
        for event in part:
            answers.apply(event)
    return answers


def judged(*turns: Turn) -> tuple[int, int, int]:
    """Right at first, right after one repair, attempts."""
    found = fold(events("t", *turns)).accuracy()
    assert found.first.total == found.repaired.total
    return found.first.good, found.repaired.good, found.first.total


BAD: Call = ("a", "schema")
BROKEN: Call = ("a", "json")
MISSING: Call = ("nothing", "unknown_tool")


# -- tool calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "counted"),
    [
        pytest.param([turn()], (0, 0, 0), id="an answer without calls is no attempt"),
        pytest.param([turn("a"), turn()], (1, 1, 1), id="a right call"),
        pytest.param([turn("a", "b"), turn("b")], (2, 2, 2), id="each answer with calls is one attempt"),
        pytest.param([turn("b", BAD), turn()], (0, 0, 1), id="one wrong call makes the answer wrong"),
        pytest.param([turn(BAD), turn("a")], (0, 1, 1), id="the next call of the tool repairs it"),
        pytest.param([turn(BAD), turn("b"), turn("a")], (1, 2, 2), id="the next call of the tool need not be the next"),
        pytest.param([turn(BAD), turn(BROKEN), turn("a")], (0, 0, 1), id="only one repair counts, and none is a first"),
        pytest.param(
            [turn(BAD), turn("a"), turn("a")], (1, 2, 2), id="after the repair the next call is a first again"
        ),
        pytest.param([turn(BAD), turn("a", "b")], (1, 2, 2), id="what comes beside a repair is judged apart"),
        pytest.param(
            [turn(BAD), turn("a", ("b", "json"))], (0, 1, 2), id="and it may be wrong while the repair is right"
        ),
        pytest.param(
            [turn(BAD, ("b", "schema")), turn("a"), turn("b")], (0, 1, 1), id="all wrong calls must be repaired"
        ),
        pytest.param([turn(BAD, ("b", "schema")), turn("a", ("b", "schema"))], (0, 0, 1), id="half a repair is none"),
        pytest.param(
            [turn(MISSING), turn("a")], (0, 1, 1), id="a name that is not there is repaired by the next answer"
        ),
        pytest.param([turn(MISSING), turn(), turn("a")], (0, 1, 1), id="an answer without calls repairs nothing yet"),
        pytest.param([turn(MISSING), turn("b", BAD)], (0, 0, 1), id="and only if all of that is right"),
        pytest.param([turn(MISSING, BAD), turn("a")], (0, 1, 1), id="both kinds at once"),
        pytest.param(
            [turn(("call_tool", "json")), turn("a")], (0, 1, 1), id="a broken call_tool by the call of a tool"
        ),
        pytest.param([turn("a", finish="length"), turn("a")], (1, 1, 1), id="what was cut off is no attempt"),
        pytest.param([turn(BAD, finish="length"), turn("a"), turn("a")], (1, 1, 1), id="nor is its repair"),
    ],
)
def test_attempts_and_repairs(turns: list[Turn], counted: tuple[int, int, int]) -> None:
    assert judged(*turns) == counted


def test_faults_are_counted_by_call_and_what_was_cut_off_by_answer() -> None:
    found = fold(events("t", turn(BAD, MISSING, "b"), turn("a", BROKEN), turn(finish="length"), turn())).accuracy()
    assert found.calls == 5 and found.faults == {"schema": 1, "unknown_tool": 1, "json": 1}
    assert found.truncated == Proportion(1, 4)


@pytest.mark.parametrize("end", [ToolEnd.ERROR, ToolEnd.TIMEOUT, ToolEnd.UNAVAILABLE, ToolEnd.UNKNOWN, ToolEnd.REFUSED])
def test_what_a_tool_makes_of_a_valid_call_is_no_fault_of_the_model(end: ToolEnd) -> None:
    key = CallKey("t", 0, 0, 0)
    [opened, closed] = events("t", turn("a", seen=0))
    found = fold([opened, closed], tool(replace(key, position=1), "a", end=end)).accuracy()
    assert found.first == Proportion(1, 1)


def test_a_call_that_was_sent_and_lost_was_valid_and_its_second_try_counts_no_more() -> None:
    key = CallKey("t", 0, 0, 1)
    lost = [CallOpened(key, 1, "tool", "a", "f", True), CallClosed(key, 1, "lost", error="gone")]
    again = [CallOpened(key, 2, "tool", "a", "f", True), CallClosed(key, 2, "done", result=ToolResult(""))]
    found = fold(events("t", turn("a", seen=0)), lost, again).accuracy()
    assert found.first == Proportion(1, 1) and found.calls == 1


def test_calls_that_nobody_looked_at_are_said_and_judge_nothing() -> None:
    assert fold(events("t", turn("a", "b", seen=1))).accuracy() == Accuracy(truncated=Proportion(0, 1), unjudged=1)
    skipped = fold(events("t", turn("a", seen=0), turn())).accuracy()
    assert (skipped.unjudged, skipped.first.total) == (1, 0)


def test_of_more_calls_than_are_run_those_that_were_run_are_judged() -> None:
    found = fold(events("t", turn("a", "b", BAD, seen=2), turn())).accuracy()
    assert (found.first, found.calls, found.unjudged) == (Proportion(1, 1), 2, 0)


def test_a_conversation_that_begins_afresh_repairs_nothing_of_the_one_before() -> None:
    found = fold(events("t", turn(BAD)), events("t", turn("a"), epoch=1)).accuracy()
    assert (found.first, found.repaired) == (Proportion(1, 2), Proportion(1, 2))


def test_requests_are_counted_by_the_status_that_failed_them_and_what_we_gave_up_is_not() -> None:
    key = CallKey("t", 0, 0, 0)
    failed: list[Event] = [CallClosed(key, n, "failed", status=status) for n, status in enumerate((429, 429, 500, 404))]
    failed += [CallClosed(key, 9, "lost", status=0), CallClosed(key, 10, "lost")]
    found = fold(failed, events("t", turn()))
    assert found.attempts == {"429": 2, "5xx": 1, "4xx": 1, "no answer": 1, "answered": 1}


# -- against a slow count of the same rules ---------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
faults = st.sampled_from(["", "", "json", "schema"])
call = st.one_of(st.tuples(names, faults), st.just(("x", "unknown_tool")))
turns = st.lists(
    st.builds(Turn, st.lists(call, max_size=4).map(tuple), st.sampled_from(["", "", "", "length"])), max_size=8
)


def last_wrong(before: Sequence[Turn], name: str) -> bool:
    """Whether the last of these answers that calls the tool called it wrongly."""
    mine = [[fault for called, fault in one.calls if called == name] for one in before]
    last = next((one for one in reversed(mine) if one), [])
    return any(fault in ("json", "schema") for fault in last)


def repaired(after: Sequence[Turn], name: str, fault: Fault) -> bool:
    """Whether the next answer that can repair this call does."""
    if fault == "unknown_tool":
        return bool(after) and not any(wrong for _, wrong in after[0].calls)
    mine = [[wrong for called, wrong in one.calls if called == name] for one in after]
    first = next((one for one in mine if one), None)
    return first is not None and not any(first)


def slow(conversation: Sequence[Turn]) -> tuple[int, int, int]:
    """The rules of `core.comparison`, read off the whole conversation: look back for what a call repairs, and forward
    for what repairs it."""
    answers = [one for one in conversation if one.calls]
    good = mended = total = 0
    for index, one in enumerate(answers):
        if one.finish == "length" or (index and any(fault == "unknown_tool" for _, fault in answers[index - 1].calls)):
            continue
        fresh = [(name, fault) for name, fault in one.calls if not last_wrong(answers[:index], name)]
        wrong = [(name, fault) for name, fault in fresh if fault]
        total += bool(fresh)
        good += bool(fresh) and not wrong
        mended += bool(fresh) and all(repaired(answers[index + 1 :], name, fault) for name, fault in wrong)
    return good, mended, total


@given(turns)
def test_the_fold_counts_what_a_look_at_the_whole_conversation_counts(conversation: list[Turn]) -> None:
    assert judged(*conversation) == slow(conversation)


@given(st.data(), st.lists(turns, min_size=1, max_size=4))
def test_how_conversations_interleave_changes_nothing(data: st.DataObject, conversations: list[list[Turn]]) -> None:
    parts = [events(f"t{number}", *one) for number, one in enumerate(conversations)]
    apart = fold(*parts)
    left = [list(part) for part in parts]
    mixed: list[Event] = []
    while any(left):
        mixed.append(data.draw(st.sampled_from([part for part in left if part])).pop(0))
    together = fold(mixed)
    assert together.accuracy() == apart.accuracy() and together.triggers == apart.triggers


@given(turns, st.integers(0, 100))
def test_a_journal_that_ends_anywhere_is_folded_and_counts_no_more_than_all_of_it(made: list[Turn], cut: int) -> None:
    whole = events("t", *made)
    some, all_of_it = fold(whole[:cut]).accuracy(), fold(whole).accuracy()
    assert some.first.good <= some.repaired.good <= some.first.total <= all_of_it.first.total
    assert some.calls <= all_of_it.calls and sum(some.faults.values()) <= some.calls


# -- intervals and agreement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "total", "low", "high"), [(123, 125, 94.4, 99.6), (1968, 2000, 97.8, 98.9), (0, 10, 0.0, 27.8)]
)
def test_the_wilson_interval_of_known_proportions(good: int, total: int, low: float, high: float) -> None:
    found = wilson(good, total)
    assert found is not None
    assert tuple(round(100 * end, 1) for end in found) == (low, high)


@given(st.integers(1, 10**6).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_an_interval_holds_its_share_lies_within_0_and_1_and_mirrors(counted: tuple[int, int]) -> None:
    good, total = counted
    found, mirrored = wilson(good, total), wilson(total - good, total)
    assert found is not None and mirrored is not None
    assert 0.0 <= found[0] <= good / total <= found[1] <= 1.0 and found[0] < found[1]
    assert found[0] == pytest.approx(1 - mirrored[1], abs=1e-12)
    more = wilson(good * 4, total * 4)
    assert more is not None and more[1] - more[0] < found[1] - found[0]


def test_of_nothing_there_is_no_share_and_no_interval() -> None:
    assert (wilson(0, 0), Proportion().share, Proportion().interval) == (None, None, None)


keys = st.builds(CallKey, st.sampled_from("ab"), st.just(0), st.integers(0, 3), st.just(0))
triggers = st.dictionaries(st.tuples(keys, st.sampled_from("xy")), st.booleans())


@given(triggers, triggers)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(mine: Any, theirs: Any) -> None:
    found = agreement(mine, theirs)
    assert found.pairs == len(mine.keys() & theirs.keys())
    if found.tp:
        precision, recall = found.tp / (found.tp + found.fp), found.tp / (found.tp + found.fn)
        assert found.f1 == pytest.approx(2 * precision * recall / (precision + recall))
    else:
        assert found.f1 == (0.0 if found.fp + found.fn else None)
    back = agreement(theirs, mine)
    assert (back.tp, back.fp, back.fn, back.tn) == (found.tp, found.fn, found.fp, found.tn)


@given(triggers)
def test_a_model_agrees_with_itself(mine: Any) -> None:
    found = agreement(mine, mine)
    assert (found.fp, found.fn) == (0, 0) and found.f1 in (1.0, None)


def test_only_answers_to_the_same_words_are_compared() -> None:
    mine, theirs = fold(events("t", turn("a"), turn())), fold(events("t", turn("a"), turn("a")))
    assert agreement(mine.triggers, theirs.triggers) == Agreement(tp=1, fn=1)
    other = {(key, "said otherwise"): called for (key, _), called in theirs.triggers.items()}
    assert agreement(mine.triggers, other) == Agreement()


# -- rows ------------------------------------------------------------------------------------------------------------

ONE = Candidate("one", "run-1", "run-1", "custom", "m", "http://127.0.0.1/v1")
STARTED = RunStarted("run-1", "job", "m", False, None, 1, 1, "0")


def progress(*made: Event) -> Progress:
    found = Progress()
    for event in made:
        found.apply(event)
    return found


@pytest.mark.parametrize(
    ("made", "candidate", "status", "code"),
    [
        ((), ONE, "not begun", 1),
        ((STARTED,), ONE, "broken off", 1),
        ((STARTED, RunEnded("ok", 0)), ONE, "ok", 0),
        ((STARTED, RunEnded("budget", 3)), ONE, "budget", 3),
        ((), replace(ONE, error="no such server", exit_code=2), "failed", 2),
        ((), replace(ONE, error="interrupted", exit_code=130), "cancelled", 130),
    ],
)
def test_the_status_of_a_model_is_that_of_its_run_or_why_there_is_none(
    made: tuple[Event, ...], candidate: Candidate, status: str, code: int
) -> None:
    row = row_of(candidate, progress(*made), Answers())
    assert (row.status, row.exit_code, row.cause) == (status, code, candidate.error)


def test_the_money_of_a_killed_run_that_was_reserved_counts_as_held_and_a_rehearsals_not_at_all() -> None:
    made = (STARTED, MoneyReserved(1, "run", 5), MoneyReserved(2, "run", 7), MoneySettled(1, 3))
    row = row_of(ONE, progress(*made), Answers())
    assert (row.spent, row.held) == (3, 7)
    rehearsed = replace(row, candidate=replace(ONE, rehearsal=True))
    assert Table("t", "one", 100, (row, rehearsed)).spent == 10


def test_a_row_has_its_census_and_what_is_unfinished() -> None:
    row = row_of(ONE, progress(STARTED, TaskAdded("a", 0, "s"), TaskAdded("b", 1, "s")), Answers())
    assert (row.tasks, row.ok, row.unfinished, row.census) == (2, 0, 2, {})


def test_the_exit_code_of_a_table_is_the_worst_and_the_reference_agrees_with_nobody() -> None:
    rows = [
        row_of(replace(ONE, label=name, error=name, exit_code=code), Progress(), Answers())
        for name, code in (("a", 1), ("b", 3), ("c", 2))
    ]
    made = with_agreement(rows, {}, "b")
    assert Table("t", "b", None, made).exit_code == 3
    assert [row.agreement for row in made] == [Agreement(), None, Agreement()]
