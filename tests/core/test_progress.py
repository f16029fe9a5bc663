"""The fold of events: it never fails, it equals its replay, and its numbers are those of the machines that decided."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria import events as e
from centuria.codec import decode, encode
from centuria.core.measures import Sample
from centuria.core.money import Ledger
from centuria.core.progress import Progress
from centuria.core.slots import SlotTable
from centuria.messages import CallKey, Completion, Message, Outcome, Status, ToolEnd, ToolResult, Usage
from tests.views.stories import Story

TASKS = ("a", "b", "c")
SLOT_MOVES = ("ask", "leave", "limit", "expire", "crash")
MONEY_MOVES = ("reserve", "settle", "forfeit", "release", "cap")


def run_of(*facts: e.Fact, at: float = 1000.0) -> Progress:
    """The fold of facts, one a second."""
    progress = Progress()
    for number, fact in enumerate(facts):
        progress.record(e.Record(number + 1, at + number, fact))
    return progress


def test_occupancy_is_weighted_by_time_over_the_whole_run() -> None:
    def grant(ticket: int) -> e.Fact:
        return e.SlotGranted(ticket, "tool:t", ticket, "a", 0.0)

    progress = run_of(started(), e.LimitSet("tool:t", 2, "test"), grant(1), grant(2))
    ends = [
        (1007.0, e.SlotLeft(1, "tool:t", 0.0)),
        (1008.0, e.SlotLeft(2, "tool:t", 0.0)),
        (1009.0, e.LimitSet("tool:t", 0, "paused")),
        (1019.0, e.LimitSet("tool:t", 4, "again")),
        (1020.0, e.RunEnded("ok", 0)),
    ]
    for seq, (at, fact) in enumerate(ends, 5):
        progress.record(e.Record(seq, at, fact))
    row = progress.resources["tool:t"]
    occupied = row.occupancy(progress.elapsed())
    assert occupied is not None
    assert occupied.mean == pytest.approx((0.5 + 4 * 1.0 + 0.5) / 20)
    assert (occupied.p50, occupied.p99) == (0.0, 1.0)
    busy = row.occupancy(0.0)
    assert busy is not None
    assert busy.p50 == 0.5, "of the eight seconds from its first limit on, without the pause"


def test_slots_that_a_call_had_without_a_wait_are_in_use_until_it_is_closed() -> None:
    slots = ("tool:t", "server:s")
    first, second = CallKey("a", 0, 0, 1), CallKey("b", 0, 0, 1)
    progress = run_of(
        started(),
        *(e.LimitSet(name, 2, "test") for name in slots),
        e.CallOpened(first, 1, "tool", "t", "f", True, slots=slots),
        e.CallOpened(second, 1, "tool", "t", "f", True, slots=("server:s",)),
    )
    tool, server = (progress.resources[name] for name in slots)
    assert (tool.in_use, server.in_use, server.peak, server.granted) == (1, 2, 2, 2)
    progress.record(e.Record(6, 1007.0, e.CallOpened(first, 2, "tool", "t", "f", True, slots=("server:s",))))
    assert (tool.in_use, server.in_use) == (0, 2), "an attempt that another one follows has nothing any more"
    progress.record(e.Record(7, 1008.0, e.CallClosed(first, 1, "done")))
    assert server.in_use == 2
    progress.record(e.Record(8, 1009.0, e.CallClosed(first, 2, "done")))
    assert (tool.in_use, server.in_use) == (0, 1)
    assert (tool.holds.most, server.holds.most, server.waits.most) == (4.0, 4.0, 0.0)
    occupied = tool.occupancy(8.0)
    assert occupied is not None and occupied.mean == pytest.approx(0.5 * 4 / 8)
    progress.record(e.Record(9, 1010.0, e.RunResumed(0, 1, 1, 100)))
    assert server.in_use == 0, "the process that had it is gone"
    progress.record(e.Record(10, 1011.0, e.CallClosed(second, 1, "lost")))
    assert server.in_use == 0


def test_the_census_of_replicas_is_that_of_the_last_change() -> None:
    died = ("", "It died.")
    progress = run_of(e.ServerUp("s", "s", (), 4, "pool", ("", "")), e.ServerUp("s", "s", (), 2, "pool", died))
    assert (progress.servers["s"].mode, progress.servers["s"].replicas) == ("pool", died)
    progress.apply(e.ServerDown("s", "s", "It died.", "pool", ("It died.", "It died.")))
    assert progress.servers["s"].replicas == ("It died.", "It died.")


def added(*tasks: str) -> list[e.Fact]:
    return [e.TaskAdded(task, index, f"spec {task}") for index, task in enumerate(tasks)]


def started(budget: int | None = 100) -> e.Fact:
    return e.RunStarted("r", "job", "m", False, budget, 2, 2, "0")


def ended(task: str, status: Status = Status.OK, *, cost: int = 0, held: int = 0, cause: str = "") -> e.Fact:
    return e.TaskEnded(task, Outcome(task, status, cause, cost=cost, held=held))


names = st.sampled_from(TASKS)
keys = st.builds(CallKey, names, st.integers(0, 1), st.integers(0, 2), st.integers(0, 2))
numbers = st.integers(1, 6)
amounts = st.integers(0, 50)
times = st.floats(0, 100)
resources = st.sampled_from(("agents", "model:m", "tool:x__y"))
outcomes = st.builds(
    lambda task, status, cost, held: e.TaskEnded(task, Outcome(task, status, "why", cost=cost, held=held)),
    names,
    st.sampled_from(Status),
    amounts,
    amounts,
)
facts = st.one_of(
    st.builds(e.TaskAdded, names, st.integers(0, 9), st.just("s")),
    st.builds(e.TaskReady, names),
    st.builds(e.TaskStarted, names, st.integers(0, 2)),
    outcomes,
    st.builds(e.TaskReset, names, st.integers(0, 2)),
    st.builds(e.LimitSet, resources, st.integers(0, 3), st.just("why")),
    st.builds(e.SlotQueued, numbers, resources, names, st.just(0), st.just(5), times),
    st.builds(e.SlotGranted, numbers, resources, st.integers(0, 3), names, times, times),
    st.builds(e.SlotRejected, numbers, resources, names, st.just("full"), times),
    st.builds(e.SlotLeft, numbers, resources, times),
    st.builds(e.CapSet, st.just("run"), st.none(), amounts),
    st.builds(e.MoneyQueued, numbers, st.sampled_from(("run", "task:a")), amounts),
    st.builds(e.MoneyReserved, numbers, st.just("run"), amounts),
    st.builds(e.MoneyRefused, numbers, st.just("run"), amounts, amounts, st.just("run")),
    st.builds(e.MoneySettled, numbers, amounts),
    st.builds(e.MoneyHeld, numbers),
    st.builds(e.MoneyReleased, numbers),
    st.builds(
        e.CallOpened,
        keys,
        numbers,
        st.sampled_from(("model", "tool")),
        st.just("m"),
        st.just("f"),
        st.just(True),
        slots=st.sampled_from(((), ("tool:x__y",), ("tool:x__y", "server:x"))),
    ),
    st.builds(e.CallClosed, keys, numbers, st.sampled_from(("done", "failed", "lost", "unknown")), amounts),
    st.just(e.RunResumed(0, 1, 0, 100)),
    st.just(e.RunEnded("partial", 3)),
    st.just(started()),
)


def as_records(events: list[e.Fact]) -> list[e.Record]:
    return [e.Record(number + 1, 1000.0 + number / 7, fact) for number, fact in enumerate(events)]


@settings(max_examples=150, deadline=None)
@given(st.lists(facts, max_size=60))
def test_whatever_facts_come_in_whatever_order_the_fold_never_raises_and_its_sums_agree(events: list[e.Fact]) -> None:
    progress = Progress()
    for record in as_records(events):
        progress.record(record)
        rows = progress.tasks.values()
        assert sum(progress.census().values()) == progress.ended_count == sum(row.status is not None for row in rows)
        assert progress.ended_count + progress.unfinished_count == len(progress.tasks)
        assert sum(progress.states.values()) == len(progress.tasks)
        loss = sum(row.cost + row.held for row in rows if row.status not in (None, Status.OK))
        assert progress.money().loss == loss
        assert all(row.in_use >= 0 and row.waiting >= 0 for row in progress.resources.values())
        assert all(row.owing >= 0 for row in rows)
        progress.eta(record.at)
        progress.critical_path()
        list(progress.lanes())


@settings(max_examples=60, deadline=None)
@given(st.lists(facts, max_size=40), st.integers(0, 40))
def test_the_journal_folded_equals_the_live_progress(events: list[e.Fact], cut: int) -> None:
    live, replayed = Progress(), Progress()
    for record in as_records(events):
        live.record(record)
        replayed.record(e.Record(record.seq, record.at, decode(encode(record.event))))
    assert replayed == live
    if events[:cut] != events and as_records(events)[-1].event != e.PhaseStarted("work"):
        short = Progress()
        for record in as_records(events[:cut]):
            short.record(record)
        assert short != live


def test_a_whole_run_folded_from_its_journal_equals_the_live_one_and_leaves_nothing_open() -> None:
    live, replayed = Progress(), Progress()
    for record in Story(tasks=60, agents=20).tell():
        live.record(record)
        replayed.record(e.Record(record.seq, record.at, decode(encode(record.event))))
    assert replayed == live
    assert live.ended_count == 60
    assert not live.slots
    assert live.money().reserved == 0
    assert all(row.in_use == row.waiting == 0 for row in live.resources.values())
    assert all(span.end is not None for span in live.lanes())
    # What the tasks cost is what the ledger's events say, apart from the merge.
    spent = sum(row.cost for row in (*live.tasks.values(), *live.others.values()))
    assert spent == live.money().spent == sum(live.money().phases.values())
    assert sum(row.held for row in live.tasks.values()) == live.money().held > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SLOT_MOVES), st.integers(1, 30)), max_size=60))
def test_slots_in_use_and_waiting_are_those_of_the_slot_table(moves: list[tuple[str, int]]) -> None:
    table, progress, now = SlotTable(), Progress(), 0.0
    asked: set[int] = set()

    def see(events: list[e.Fact]) -> None:
        for event in events:
            progress.record(e.Record(progress.seq + 1, now, event))

    see(table.set_limit("tool:t", 2, "configured", now=now))
    for move, number in moves:
        now += 0.5
        if move == "ask" and number not in asked:
            asked.add(number)
            agent = f"agent {number % 4}"
            see(table.ask(number, "tool:t", agent, index=number, priority=5, now=now, deadline=now + 3))
        elif move == "leave":
            see(table.leave(number, now=now))
            asked.discard(number)
        elif move == "limit":
            see(table.set_limit("tool:t", number % 5, "tried", now=now))
        elif move == "expire":
            see(table.expire(now=now))
        elif move == "crash":
            table.apply(e.RunResumed(0, 0, 0, None))
            see([e.RunResumed(0, 0, 0, None)])
            asked.clear()
        row = progress.resources["tool:t"]
        assert (row.limit, row.in_use, row.waiting) == (
            table.limit("tool:t"),
            table.in_use("tool:t"),
            table.waiting("tool:t"),
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MONEY_MOVES), st.integers(0, 12)), max_size=60))
def test_money_is_that_of_the_ledger(moves: list[tuple[str, int]]) -> None:
    ledger, progress = Ledger(), Progress()

    def see(events: list[e.Fact]) -> None:
        for event in events:
            progress.record(e.Record(progress.seq + 1, 0.0, event))

    see(ledger.set_cap("run", 40))
    see(ledger.set_cap("task:a", None, parent="run"))
    for move, number in moves:
        if move == "reserve":
            see(ledger.reserve(ledger.last_hold + 1, "task:a", number))
        elif move == "cap":
            see(ledger.set_cap("run", 20 + number))
        elif number not in ledger.waiting():
            end = {"settle": lambda hold: ledger.settle(hold, 3), "forfeit": ledger.forfeit, "release": ledger.release}
            see(end[move](number))
        money = progress.money()
        assert (money.spent, money.reserved, money.held, money.cap) == (
            ledger.spent("run"),
            ledger.reserved("run"),
            ledger.held("run"),
            ledger.cap("run"),
        )
        assert progress.money_waiting == len(ledger.waiting())


def test_a_resume_takes_the_dead_process_s_tickets_and_calls_away_and_keeps_its_money() -> None:
    key = CallKey("a", 0, 0, 0)
    progress = run_of(
        started(),
        *added("a", "b"),
        e.LimitSet("agents", 2, "configured"),
        e.TaskReady("a"),
        e.TaskReady("b"),
        e.SlotGranted(1, "agents", 0, "a", 1.0),
        e.TaskStarted("a", 0),
        e.MoneyReserved(1, "task:a", 30),
        e.SlotQueued(2, "model:m", "a", 0, 5, 1.0),
        e.CallOpened(key, 1, "model", "m", "f", True, 1, 30),
        e.MoneyQueued(2, "task:b", 90),
        e.RunResumed(0, 2, 1, 100),
    )
    row = progress.tasks["a"]
    assert (row.state, row.doing, row.slot, row.started_at) == ("waiting", "waiting", None, None)
    assert progress.states == {"waiting": 2, "ready": 0, "running": 0}
    assert all(resource.in_use == resource.waiting == 0 for resource in progress.resources.values())
    assert not progress.slots
    assert progress.money_waiting == 0
    assert [span.end_state for span in progress.lanes()] == ["interrupted", "interrupted"]
    assert progress.money().reserved == 30
    progress.record(e.Record(99, 2000.0, e.CallClosed(key, 1, "lost", error="in doubt")))
    progress.record(e.Record(100, 2000.0, e.MoneyHeld(1)))
    assert (progress.money().reserved, progress.money().held, row.held) == (0, 30, 30)
    assert progress.in_doubt == 1


def test_the_time_between_a_crash_and_its_resume_is_not_counted() -> None:
    progress = Progress()
    progress.record(e.Record(1, 1000.0, started()))
    progress.record(e.Record(2, 1010.0, e.PhaseStarted("work")))
    progress.record(e.Record(3, 9000.0, e.RunResumed(0, 1, 0, None)))
    assert progress.elapsed(9005.0) == 15.0
    progress.record(e.Record(4, 9007.0, e.RunEnded("ok", 0)))
    assert progress.elapsed(99_999.0) == 17.0
    assert progress.resumes == [(1010.0, 9000.0)]


def test_a_task_that_is_reset_leaves_the_census_and_the_loss_and_keeps_what_it_cost() -> None:
    facts_ = [started(), *added("a", "b"), ended("a", Status.FAILED, cost=7, held=2), ended("b")]
    progress = run_of(*facts_)
    assert (progress.census()[Status.FAILED], progress.money().loss) == (1, 9)
    progress = run_of(*facts_, e.TaskReset("a", 1))
    assert (progress.census()[Status.FAILED], progress.money().loss) == (0, 0)
    assert (progress.tasks["a"].cost, progress.tasks["a"].state, progress.unfinished()) == (7, "waiting", ["a"])
    progress = run_of(*facts_, e.TaskReset("a", 1), e.TaskStarted("a", 1), ended("a", cost=12))
    assert (progress.census()[Status.OK], progress.tasks["a"].cost, progress.money().loss) == (2, 12, 0)


def test_what_a_task_does_is_told_in_words() -> None:
    model, tool = CallKey("a", 0, 0, 0), CallKey("a", 0, 0, 1)
    story: list[tuple[e.Fact, str]] = [
        (e.TaskAdded("a", 0, "s"), "waiting"),
        (e.TaskReady("a"), "ready"),
        (e.TaskStarted("a", 0), "between calls"),
        (e.MoneyQueued(1, "task:a", 5), "waiting for money"),
        (e.MoneyReserved(1, "task:a", 5), "between calls"),
        (e.SlotQueued(1, "model:m", "a", 0, 5, 0.0), "queued for model"),
        (e.SlotGranted(1, "model:m", 0, "a", 1.0, 1.0), "queued at the model's gate"),
        (e.CallOpened(model, 1, "model", "m", "f", True, 1, 5), "model"),
        (e.CallClosed(model, 1, "done", 3), "between calls"),
        (e.SlotQueued(2, "tool:web__search", "a", 0, 5, 0.0), "queued for web__search"),
        (e.SlotLeft(2, "tool:web__search", 1.0), "between calls"),
        (e.CallOpened(tool, 1, "tool", "web__search", "f", True), "tool web__search"),
        (e.CallOpened(CallKey("a", 0, 0, 2), 1, "tool", "web__search", "f", True), "2 tools"),
        (ended("a", Status.TIMEOUT), "timeout"),
    ]
    progress = Progress()
    for number, (fact, doing) in enumerate(story):
        progress.record(e.Record(number + 1, 0.0, fact))
        assert progress.tasks["a"].doing == doing, fact


def test_a_superseded_attempt_is_not_taken_for_the_newer_one() -> None:
    key = CallKey("a", 0, 0, 0)
    progress = run_of(
        *added("a"),
        e.CallOpened(key, 1, "model", "m", "f", True),
        e.CallOpened(key, 2, "model", "m", "f", True),
        e.CallClosed(key, 1, "lost"),
    )
    assert progress.tasks["a"].doing == "waiting" or progress.tasks["a"].calls[key].attempt == 2
    assert [(span.end_state, span.end is None) for span in progress.lanes()] == [("superseded", False), ("", True)]


def test_the_merge_is_in_no_census_and_its_money_is_told_apart() -> None:
    key = CallKey("merge:ab12", 0, 0, 0)
    progress = run_of(
        started(),
        *added("a"),
        e.CallClosed(CallKey("a", 0, 0, 0), 1, "done", 5),
        ended("a", cost=5),
        e.MoneyReserved(1, "run", 9),
        e.CallOpened(key, 1, "model", "m", "f", True, 1, 9),
        e.CallClosed(key, 1, "done", 4),
        e.MoneySettled(1, 4),
    )
    assert len(progress.tasks) == 1
    assert progress.money().phases == {"work": 5, "merge": 4}
    assert list(progress.others) == ["merge:ab12"]


def test_tokens_latency_and_results_are_counted_by_model_and_by_tool() -> None:
    model, tool = CallKey("a", 0, 0, 0), CallKey("a", 0, 0, 1)
    done = Completion(Message("assistant", "hi"), Usage(100, 40, 0, 20, 5), "stop")
    progress = run_of(
        started(),
        *added("a"),
        e.CallOpened(model, 1, "model", "m", "f", True),
        e.CallClosed(model, 1, "done", 2, done.usage, done, first_token_s=0.5, total_s=2.0),
        e.CallOpened(tool, 1, "tool", "x__y", "f", True),
        e.CallClosed(tool, 1, "done", result=ToolResult("no", ToolEnd.ERROR), total_s=1.0),
        e.CallOpened(CallKey("a", 0, 1, 0), 1, "model", "m", "f", True),
        e.CallClosed(CallKey("a", 0, 1, 0), 1, "done", 2, None, done, total_s=4.0),
    )
    assert (progress.usage.prompt, progress.usage.cached, progress.usage.output, progress.usage.missing) == (
        100,
        40,
        20,
        1,
    )
    assert (progress.models["m"].opened, progress.models["m"].ends["done"], progress.models["m"].cost) == (2, 2, 4)
    assert progress.first_token.p50 == 0.5
    assert progress.model_total.most == 4.0
    assert progress.tools["x__y"].results == {"error": 1}
    assert progress.tasks["a"].turn == 2
    assert progress.tokens_per_second(progress.at) == pytest.approx(20 / 7)
    assert progress.parallelism() == pytest.approx(3 / 7)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=200), st.sampled_from((50, 90, 99)))
def test_percentiles_are_right_within_half_a_percent(values: list[float], percent: float) -> None:
    sample = Sample()
    for value in values:
        sample.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert sample.percentile(percent) == pytest.approx(exact, rel=0.0051)
    assert sample.mean == pytest.approx(sum(values) / len(values))


def test_a_million_values_take_a_bounded_number_of_buckets() -> None:
    sample, dice = Sample(), random.Random(1)
    for _ in range(20_000):
        sample.add(math.exp(dice.uniform(-14, 20)))
    for rubbish in (math.nan, math.inf, -1.0):
        sample.add(rubbish)
    assert len(sample.buckets) < 5_000
    assert math.isfinite(sample.total)


def test_notices_and_limit_reasons_are_bounded() -> None:
    progress = run_of(*(e.Notice(f"n{number}", "warning") for number in range(1000)))
    assert len(progress.notices) == 200
    assert progress.warnings == 1000
    progress = run_of(*(e.LimitSet("model:m", number, f"r{number}") for number in range(1000)))
    reasons = progress.resources["model:m"].reasons
    assert len(reasons) <= 20
    assert reasons[0] == (0, "r0")
    assert reasons[-1] == (999, "r999")


def test_the_time_left_is_unknown_before_a_task_has_ended_and_near_the_truth_later() -> None:
    records = Story(tasks=400, agents=40, faults=0.0).tell()
    end = records[-1].at
    progress = Progress()
    marks = {len(records) * part // 10 for part in (4, 5, 6, 7, 8)}
    for number, record in enumerate(records):
        progress.record(record)
        if not progress.ended_count:
            assert progress.eta(record.at) is None
        if number in marks:
            eta = progress.eta(record.at)
            assert eta is not None
            assert 0.5 < eta / (end - record.at) < 2.0
    assert progress.eta(end) is None


def test_the_critical_path_is_the_chain_with_the_most_turns() -> None:
    def finished(task: str, steps: int) -> e.Fact:
        return e.TaskEnded(task, Outcome(task, Status.OK, steps=steps))

    progress = run_of(
        e.TaskAdded("end", 0, "s", needs=("long", "short", "gone")),
        e.TaskAdded("short", 1, "s"),
        e.TaskAdded("long", 2, "s", needs=("first",)),
        e.TaskAdded("first", 3, "s"),
        *(e.TaskStarted(task, 0) for task in ("short", "first", "long", "end")),
        finished("short", 3),
        finished("first", 2),
        finished("long", 2),
        finished("end", 1),
    )
    path = progress.critical_path()
    assert path.tasks == ("first", "long", "end")
    assert path.turns == 5
    assert path.seconds == pytest.approx(4 + 4 + 4)


def test_waits_and_calls_are_laid_into_the_slot_of_their_agent() -> None:
    key = CallKey("a", 0, 0, 1)
    progress = run_of(
        *added("a"),
        e.SlotGranted(1, "agents", 7, "a", 0.0),
        e.SlotQueued(2, "tool:x", "a", 0, 5, 1.0),
        e.SlotGranted(2, "tool:x", 0, "a", 2.0, 1.0),
        e.CallOpened(key, 1, "tool", "x", "f", True),
        e.CallClosed(key, 1, "done"),
        e.SlotLeft(2, "tool:x", 5.0),
        ended("a", Status.FAILED),
        e.SlotLeft(1, "agents", 7.0),
    )
    spans = [(span.slot, span.task, span.kind, span.start, span.end, span.end_state) for span in progress.lanes()]
    assert spans == [
        (7, "a", "agent", 1001.0, 1008.0, "failed"),
        (7, "a", "wait", 1002.0, 1003.0, "granted"),
        (7, "a", "tool", 1004.0, 1005.0, "done"),
    ]
    assert progress.resources["tool:x"].holds.most == 3.0
    assert progress.resources["tool:x"].waits.most == 1.0
