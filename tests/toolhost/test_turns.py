"""Turns of tool calls: sessions for one agent, servers that refuse what is too much, limits that change."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.events import CallOpened, GateClosed, GateOpened, LimitSet, SlotGranted, SlotQueued
from centuria.messages import CallKey, ToolCall, ToolEnd
from centuria.ports import Caller, LeaseTerms, ServerState
from centuria.settings import Timeouts
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal
from centuria.testing.tools import LocalTool
from tests.toolhost.test_scheduler import ANY, Bench, Failing, takes

NEW = "The session with s is a new one"


def now() -> float:
    return asyncio.get_running_loop().time()


# -- leases ----------------------------------------------------------------------------------------------------------


def leasing(sessions: int = 1, *, seconds: float = 1.0, idle: float = 60.0, limit: int = 1, **options: Any) -> Bench:
    """A server `s` whose one tool takes so long, with sessions to lease."""
    terms = {"slug": "s", "lease": LeaseTerms(limit, idle), "limit": limit * sessions}
    return Bench({"t": LocalTool(takes(seconds), ANY, terms)}, sessions={"s": sessions}, **options)


@virtual_clock
async def test_agents_have_sessions_to_themselves_until_they_end_and_others_wait_in_order() -> None:
    bench = leasing(2)

    async def agent(name: str) -> Sequence[str]:
        results = [await bench.call("s__t", agent=name, position=turn) for turn in (1, 2)]
        bench.scheduler.release(name)
        return [result.text for result in results]

    texts = await asyncio.gather(*(agent(f"a{n}") for n in range(6)))
    assert texts == [["done", "done"]] * 6
    assert now() == 6
    assert Counter(session for _, session in bench.host.used) == dict.fromkeys({s for _, s in bench.host.used}, 1)
    order = [event.agent for event in bench.events() if isinstance(event, SlotGranted) and "lease" in event.resource]
    assert order == [f"a{n}" for n in range(6)]
    waits = [event for event in bench.events() if isinstance(event, SlotQueued) and event.resource == "lease:s"]
    assert len(waits) == 4
    assert bench.slots.table.limit("lease:s") == 2
    assert bench.idle()


@virtual_clock
async def test_a_waiting_agent_holds_no_slot_of_the_tool_and_its_clock_does_not_run() -> None:
    bench = leasing(1, seconds=25, timeouts=Timeouts(tool=30))
    first = asyncio.create_task(bench.call("s__t", agent="a"))
    await asyncio.sleep(1)
    second = asyncio.create_task(bench.call("s__t", agent="b"))
    await asyncio.sleep(1)
    assert bench.slots.table.waiting("lease:s") == 1
    assert bench.slots.table.waiting("tool:s__t") == bench.slots.table.waiting("server:s") == 0
    await first
    bench.scheduler.release("a")
    assert (await second).end is ToolEnd.OK


@virtual_clock
async def test_calls_that_one_agent_makes_together_share_its_session_one_at_a_time() -> None:
    bench = leasing(3)
    results = await asyncio.gather(*(bench.call("s__t", agent="a", position=n) for n in range(1, 5)))
    assert {result.text for result in results} == {"done"}
    assert (bench.host.most["s"], now()) == (1, 4)
    assert bench.slots.table.in_use("lease:s") == 1
    bench.scheduler.release("a")
    assert bench.idle()


@virtual_clock
async def test_a_session_that_is_not_called_goes_to_one_that_waits_and_its_agent_is_told() -> None:
    bench = leasing(1, idle=60)
    assert (await bench.call("s__t", agent="a")).text == "done"
    await asyncio.sleep(100)
    assert (await bench.call("s__t", agent="a", position=2)).text == "done", "nobody waited: it kept it"
    began = now()
    assert (await bench.call("s__t", agent="b")).text == "done"
    assert now() - began == 61
    again = asyncio.create_task(bench.call("s__t", agent="a", position=3))
    await asyncio.sleep(1)
    bench.scheduler.release("b")
    result = await again
    assert NEW in result.text
    assert result.text.endswith("done")
    assert (await bench.call("s__t", agent="a", position=4)).text == "done", "it is said once"
    bench.scheduler.release("a")
    assert bench.idle()


@virtual_clock
async def test_two_agents_that_each_wait_for_what_the_other_holds_go_on() -> None:
    tools = {
        name: LocalTool(takes(1), ANY, {"slug": name, "lease": LeaseTerms(1, 60), "limit": 1}) for name in ("x", "y")
    }
    bench = Bench(tools, sessions={"x": 1, "y": 1})

    async def agent(name: str, *slugs: str) -> list[ToolEnd]:
        ends = []
        for turn, slug in enumerate(slugs, 1):
            ends.append((await bench.call(f"{slug}__{slug}", agent=name, position=turn)).end)
        bench.scheduler.release(name)
        return ends

    ends = await asyncio.gather(agent("a", "x", "y"), agent("b", "y", "x"))
    assert ends == [[ToolEnd.OK] * 2] * 2
    assert now() < 130
    assert bench.idle()


@virtual_clock
async def test_an_agent_that_waits_for_a_session_can_be_cancelled_or_run_out_of_time() -> None:
    bench = leasing(1, timeouts=Timeouts(queue=10))
    await bench.call("s__t", agent="a")
    cancelled = asyncio.create_task(bench.call("s__t", agent="b"))
    await asyncio.sleep(1)
    cancelled.cancel()
    late = await bench.call("s__t", agent="c")
    assert cancelled.cancelled()
    assert late.end is ToolEnd.UNAVAILABLE
    assert "lease:s came free within 10 s" in late.text
    bench.scheduler.release("a")
    assert (await bench.call("s__t", agent="d")).end is ToolEnd.OK
    bench.scheduler.release("d")
    for agent in "bc":
        bench.scheduler.release(agent)
    assert bench.idle()


@virtual_clock
async def test_a_session_that_died_is_told_of_at_the_next_call_and_a_lost_call_is_not_repeated() -> None:
    tool = Failing(OutcomeUnknown("The server went away."))
    bench = Bench({"t": LocalTool(tool, ANY, {"slug": "s", "lease": LeaseTerms()})}, sessions={"s": 1})
    lost = await bench.call("s__t")
    assert lost.end is ToolEnd.UNKNOWN
    assert "may or may not have happened" in lost.text
    bench.host.renew("s", 0)
    result = await bench.call("s__t", position=2)
    assert NEW in result.text
    assert result.text.endswith("at last")
    assert len(tool.at) == 2


@virtual_clock
async def test_a_resumed_agent_is_told_that_its_session_is_a_new_one() -> None:
    bench = leasing(1)
    await bench.call("s__t")
    later = leasing(1, journal=MemoryJournal(bench.journal.read()))
    assert (await later.call("s__t")).text == "done"
    assert later.host.calls == []
    assert NEW in (await later.call("s__t", position=2)).text


@virtual_clock
async def test_sessions_that_are_down_are_not_counted_and_come_back() -> None:
    bench = leasing(3)
    for replicas in (("", "It died.", "It died."), ("It died.",) * 3, ("", "", "")):
        up = "" in replicas
        bench.scheduler.server_changed(ServerState("s", "s", up=up, limit=3, mode="leased", replicas=replicas))
    limits = [event.limit for event in bench.events() if isinstance(event, LimitSet) and event.resource == "lease:s"]
    assert limits == [3, 1, 3]


@virtual_clock
async def test_no_session_at_all_is_tried_again_and_then_said() -> None:
    bench = leasing(1)
    bench.host.down["s"] = "It does not start."
    result = await bench.call("s__t")
    assert result.end is ToolEnd.UNAVAILABLE
    assert "It does not start." in result.text
    assert now() == 7
    bench.scheduler.release("a")
    assert bench.idle()


# -- servers that refuse what is too much ----------------------------------------------------------------------------


class Limited:
    """A server that takes `at_once` calls, or `a_second`, and refuses all others with a `Retry-After`."""

    def __init__(self, *, at_once: int = 10**6, a_second: int = 10**6, after: float | None = 1.0, takes: float = 0.1):
        self.at_once, self.a_second, self.after, self.takes = at_once, a_second, after, takes
        self.running = self.calls = 0
        self.refusals: list[float] = []
        self.starts: list[float] = []

    async def __call__(self, **_: Any) -> str:
        self.calls += 1
        await asyncio.sleep(0.02)  # the way there
        recent = sum(now() - start < 1 for start in self.starts)
        if self.running >= self.at_once or recent >= self.a_second:
            self.refusals.append(now())
            raise ToolUnavailable("The server s refused for now: HTTP 429.", retry_after=self.after, throttled=True)
        self.starts.append(now())
        self.running += 1
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.running -= 1
        return "done"


@pytest.mark.parametrize("limit", [10, 20, 30, 100])
@pytest.mark.parametrize(
    "server",
    [
        {"at_once": 10},
        {"at_once": 10, "takes": 3.0},
        {"at_once": 10, "after": None},
        {"a_second": 10},
        {"a_second": 10, "takes": 2.0},
    ],
    ids=str,
)
def test_a_hundred_agents_against_a_limit_of_ten_all_succeed_with_less_than_a_third_too_many(
    server: dict[str, Any], limit: int
) -> None:
    @virtual_clock
    async def check() -> None:
        tool = Limited(**server)
        tools = {"t": LocalTool(tool, ANY, {"slug": "s", "limit": limit})}
        bench = Bench(tools, remote=frozenset({"s"}))
        results = await asyncio.gather(*(bench.call("s__t", agent=f"a{n}", index=n) for n in range(100)))
        assert {result.end for result in results} == {ToolEnd.OK}
        assert tool.calls < 130
        ideal = 100 / min(tool.at_once / tool.takes, tool.a_second)
        assert now() < 60 + 4 * ideal
        assert bench.idle()
        bench.scheduler.close()

    check()


@virtual_clock
async def test_a_refusal_spends_no_retry_holds_no_slot_and_everyone_waits_as_long_as_it_says() -> None:
    tool = Failing(*(ToolUnavailable("HTTP 429", retry_after=10, throttled=True) for _ in range(6)))
    tools = {"t": LocalTool(tool, ANY, {"slug": "s", "limit": 1}), "u": LocalTool(takes(1), ANY, {"slug": "s"})}
    bench = Bench(tools)
    refused = asyncio.create_task(bench.call("s__t"))
    await asyncio.sleep(1)
    other = asyncio.create_task(bench.call("s__u", agent="b"))
    await asyncio.sleep(1)
    assert bench.slots.table.limit("server:s") == bench.slots.table.in_use("server:s") == 0
    assert len(bench.host.calls) == 1
    assert (await refused).text == "at last"
    assert (await other).text == "done"
    assert len(tool.at) == 7
    assert bench.rows()[:4] == ["open", "failed", "open", "failed"]
    assert all(later - before >= 10 for before, later in zip(tool.at, tool.at[1:], strict=False))
    closings = [event for event in bench.events() if isinstance(event, GateClosed)]
    assert {event.model for event in closings} == {"server:s"}
    assert sum(isinstance(event, GateOpened) for event in bench.events()) == len(closings)
    reasons = [event.reason for event in bench.events() if isinstance(event, LimitSet) and event.limit == 0]
    assert all("HTTP 429" in reason for reason in reasons)


@virtual_clock
async def test_a_call_that_was_refused_keeps_its_place_before_all_that_were_never_sent() -> None:
    tool = Failing(ToolUnavailable("HTTP 429", retry_after=5, throttled=True))

    async def slow(**_: Any) -> str:
        await asyncio.sleep(0.1)
        return await tool()

    tools = {name: LocalTool(slow, ANY, {"slug": "s", "limit": 1}) for name in ("t", "u")}
    bench = Bench(tools)
    calls = [("s__t", "refused"), ("s__t", "b"), ("s__u", "c"), ("s__u", "d")]
    await asyncio.gather(*(bench.call(name, agent=agent) for name, agent in calls))
    callers = [caller.key.task for caller in bench.host.callers if caller is not None]
    assert callers[:2] == ["refused", "refused"]
    assert sorted(callers[2:]) == ["b", "c", "d"]
    assert bench.idle()


@virtual_clock
async def test_a_server_that_refuses_for_ever_is_given_up_after_max_wait() -> None:
    tool = Limited(at_once=0, after=7)
    bench = Bench({"t": LocalTool(tool, ANY, {"slug": "s", "limit": 5})})
    results = await asyncio.gather(*(bench.call("s__t", agent=f"a{n}") for n in range(3)))
    assert {result.end for result in results} == {ToolEnd.UNAVAILABLE}
    assert "as one too many" in results[0].text
    assert now() < 600
    assert tool.calls < 120
    assert bench.idle()
    bench.scheduler.close()


@virtual_clock
async def test_who_would_wait_for_longer_than_max_wait_is_told_at_once() -> None:
    tool = Limited(at_once=1, after=3600, takes=5)
    bench = Bench({"t": LocalTool(tool, ANY, {"slug": "s", "limit": 2})})
    results = await asyncio.gather(*(bench.call("s__t", agent=f"a{n}") for n in range(10)))
    assert Counter(result.end for result in results) == {ToolEnd.OK: 1, ToolEnd.UNAVAILABLE: 9}
    assert now() < 6
    late = await bench.call("s__t", agent="late")
    assert late.end is ToolEnd.UNAVAILABLE
    assert "takes nothing for" in late.text
    assert tool.calls == 2
    assert bench.idle()
    bench.scheduler.close()


@virtual_clock
async def test_one_server_that_refuses_changes_nothing_for_another() -> None:
    tools = {
        "t": LocalTool(Limited(at_once=0, after=30), ANY, {"slug": "s"}),
        "u": LocalTool(takes(1), ANY, {"slug": "other"}),
    }
    bench = Bench(tools)
    refused = asyncio.create_task(bench.call("s__t"))
    await asyncio.sleep(1)
    assert (await bench.call("other__u", agent="b")).text == "done"
    assert now() == 2
    refused.cancel()
    await asyncio.wait([refused])
    bench.scheduler.close()


@virtual_clock
async def test_waiting_calls_go_by_priority_then_to_who_has_fewest_in_service_and_nobody_starves() -> None:
    bench = Bench({"t": LocalTool(takes(1), ANY, {"slug": "s", "limit": 2})})

    async def call(agent: str, position: int, priority: int) -> None:
        caller = Caller(CallKey(agent, 0, 0, position), agent, priority=priority)
        await bench.scheduler.call(ToolCall("id", "s__t", "{}"), caller, bench.scheduler.view())

    async with asyncio.TaskGroup() as group:
        for position in range(1, 5):
            group.create_task(call("greedy", position, 5))
        await asyncio.sleep(0.1)
        group.create_task(call("modest", 1, 5))
        group.create_task(call("urgent", 1, 0))
        group.create_task(call("patient", 1, 9))
        await asyncio.sleep(0)
        bench.scheduler.set_limit("server:s", 4, "room for two more")
        await asyncio.sleep(0.1)
        bench.scheduler.set_limit("server:s", 1, "too little for all")
        for second in range(100):  # newcomers without end, all of them more urgent than the patient one
            await asyncio.sleep(0.5)
            group.create_task(call(f"new-{second}", 1, 5))
    begun = [event.key.task for event in bench.events() if isinstance(event, CallOpened)]
    assert begun[:4] == ["greedy", "greedy", "urgent", "modest"]
    grants = [event for event in bench.events() if isinstance(event, SlotGranted) and event.resource == "tool:s__t"]
    [patient] = [grant for grant in grants if grant.agent == "patient"]
    after = [grant for grant in grants if grant.at > patient.at]
    assert len(after) >= 15, "who asked forty seconds later no longer goes before it, however urgent the newcomers are"
    assert bench.idle()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_in_use_by_the_facts_is_what_is_in_use_whoever_waits_is_refused_or_is_cancelled(seed: int) -> None:
    @virtual_clock
    async def check() -> None:
        dice = random.Random(seed)
        limited = Limited(at_once=3, after=1.0, takes=0.3)
        tools = {
            "t": LocalTool(limited, ANY, {"slug": "s", "limit": 4}),
            "u": LocalTool(takes(0.4), ANY, {"slug": "s", "limit": 2}),
            "v": LocalTool(Failing(*[ToolUnavailable("down")] * 5), ANY, {"slug": "s", "rerun": True}),
        }
        bench = Bench(tools)
        resources, seen = ("server:s", "tool:s__t", "tool:s__u", "tool:s__v"), Counter[str]()

        def compare() -> None:
            for name in resources:
                row, table = bench.stream.progress.resources[name], bench.slots.table
                held = (table.in_use(name), table.waiting(name), table.limit(name))
                assert (row.in_use, row.waiting, row.limit) == held, name
                seen[name] += row.in_use > 0

        async with asyncio.TaskGroup() as group:
            made = []
            for number in range(60):
                tool = dice.choice(["t", "t", "u", "v"])
                made.append(group.create_task(bench.call(f"s__{tool}", {"n": number}, agent=f"a{number}")))
                if dice.random() < 0.2:
                    dice.choice(made).cancel()
                if dice.random() < 0.1:
                    bench.scheduler.set_limit(dice.choice(resources[:3]), dice.randint(1, 5), "test")
                await asyncio.sleep(dice.choice([0.0, 0.05, 0.2]))
                compare()
            while not all(call.done() for call in made):
                await asyncio.sleep(0.05)
                compare()
        assert len(seen) == 4 and min(seen.values()) > 0
        assert bench.idle()
        assert not any(row.in_use or row.waiting for row in bench.stream.progress.resources.values())
        bench.scheduler.close()

    check()


@virtual_clock
async def test_a_call_that_waits_for_nothing_is_two_records() -> None:
    bench = Bench({"t": LocalTool(takes(1), ANY, {"slug": "s", "limit": 4})})
    before = bench.journal.last_seq
    await asyncio.gather(*(bench.call("s__t", agent=f"a{n}") for n in range(4)))
    assert [record.event.kind for record in bench.journal.read(after=before)] == ["call_opened"] * 4 + [
        "call_closed"
    ] * 4


# -- limits that change ----------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_limit_that_is_changed_while_running_holds_at_once_and_stays() -> None:
    bench = Bench({"t": LocalTool(takes(1), ANY, {"slug": "s", "limit": 1})})
    calls = asyncio.gather(*(bench.call("s__t", agent=f"a{n}") for n in range(11)))
    await asyncio.sleep(0.5)
    bench.scheduler.set_limit("server:s", 5, "set by the user")
    await calls
    assert now() == 3
    assert bench.host.most["s"] == 5
    bench.scheduler.server_changed(ServerState("s", "s", up=True, limit=1))
    assert bench.slots.table.limit("server:s") == bench.slots.table.limit("tool:s__t") == 5
    for unknown in ("server:x", "tool:x", "agents", "model:m", ""):
        with pytest.raises(KeyError):
            bench.scheduler.set_limit(unknown, 5, "set by the user")


@virtual_clock
async def test_the_limit_of_one_tool_leaves_its_server_and_the_others_as_they_are() -> None:
    tools = {name: LocalTool(takes(1), ANY, {"slug": "s", "limit": 4}) for name in "ab"}
    bench = Bench(tools)
    bench.scheduler.set_limit("tool:s__a", 1, "set by the user")
    assert [bench.slots.table.limit(name) for name in ("server:s", "tool:s__a", "tool:s__b")] == [4, 1, 4]
    bench.scheduler.set_limit("server:s", 8, "set by the user")
    assert [bench.slots.table.limit(name) for name in ("server:s", "tool:s__a", "tool:s__b")] == [8, 1, 8]


@virtual_clock
async def test_a_server_that_lost_a_replica_takes_less_and_then_more_again() -> None:
    bench = Bench({"t": LocalTool(takes(1), ANY, {"slug": "s", "limit": 4})})
    for limit, replicas in ((2, ("", "It died.")), (4, ("", ""))):
        state = ServerState("s", "s", up=True, limit=limit, mode="pool", replicas=replicas)
        bench.scheduler.server_changed(state)
        assert bench.slots.table.limit("server:s") == limit
