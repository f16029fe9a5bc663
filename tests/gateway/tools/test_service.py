"""The one set of tools that all keys and agents share: order, fairness, bounds, names."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem
from centuria.gateway.settings import Caps
from centuria.gateway.tools.manifest import Registered
from centuria.messages import CallKey, ToolEnd
from centuria.ports import Caller, LeaseTerms
from centuria.testing.clock import virtual_clock
from centuria.testing.tools import LocalToolHost
from tests.gateway.kit import ALICE, BOB
from tests.gateway.tools.kit import QUERY, host_of, service_of, tool, web


def now() -> float:
    return asyncio.get_running_loop().time()


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def taking(seconds: float) -> Any:
    async def run(query: str = "") -> str:
        await asyncio.sleep(seconds)
        return f"found {query}"

    return run


def slow_web(seconds: float = 1.0, limit: int = 20) -> LocalToolHost:
    return host_of(web_search=tool(taking(seconds), QUERY, slug="web", limit=limit))


# -- order and fairness -----------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_hundred_agents_share_twenty_slots_evenly_and_nobody_is_refused() -> None:
    host = slow_web()
    at_half: Counter[str] = Counter()
    waits: dict[str, float] = defaultdict(float)
    async with service_of(host) as service:

        async def agent(name: str) -> None:
            for turn in range(5):
                done = await service.invoke(ALICE, name, "web_search", {"query": f"{name} {turn}"})
                assert done.result.text == f"found {name} {turn}"
                waits[name] += done.queued_ms
                if now() <= 15:
                    at_half[name] += 1

        await asyncio.gather(*(agent(f"agent-{n:03}") for n in range(100)))
        assert host.most["web"] == 20
        assert len(host.calls) == 500
        assert now() == 25  # 500 calls of a second, 20 at once: no slot was ever idle
        assert service.calls.gauges.open_tickets() == 0
        assert [(gauge.resource, gauge.in_use, gauge.waiting, gauge.rejected) for gauge in service.occupancy()] == [
            ("server:web", 0, 0, 0),
            ("tool:web__web_search", 0, 0, 0),
        ]
    # Three fifths of the way, when 300 of 500 are served: three each, if all are treated alike.
    assert jain([float(at_half[f"agent-{n:03}"]) for n in range(100)]) >= 0.98
    assert jain(list(waits.values())) >= 0.98


@virtual_clock
async def test_an_agent_that_asks_for_everything_at_once_does_not_push_others_back() -> None:
    async with service_of(slow_web(limit=2)) as service:
        ended: dict[str, list[float]] = defaultdict(list)

        async def one(key: Key, agent: str) -> None:
            await service.invoke(key, agent, "web_search", {"query": agent})
            ended[agent].append(now())

        greedy = [asyncio.create_task(one(ALICE, "greedy")) for _ in range(40)]
        await asyncio.sleep(0.5)
        await one(BOB, "modest")
        assert ended["modest"] == [2.0]  # the very next turn
        await asyncio.gather(*greedy)


@virtual_clock
async def test_a_lower_number_goes_first_and_whoever_waits_long_goes_before_it() -> None:
    async with service_of(slow_web(limit=1)) as service:
        order: list[str] = []

        async def one(name: str, priority: int) -> None:
            await service.invoke(ALICE, name, "web_search", {"query": name}, priority=priority)
            order.append(name)

        tasks = [asyncio.create_task(one("first", 5))]
        await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(one(name, rank)) for name, rank in [("late", 9), ("usual", 5), ("urgent", 0)]]
        await asyncio.gather(*tasks)
        assert order == ["first", "urgent", "usual", "late"]

        order.clear()
        patient = asyncio.create_task(one("patient", 9))
        urgent: list[asyncio.Task[None]] = []
        for _ in range(130):  # a hundred seconds and more of nothing but urgent calls
            urgent.append(asyncio.create_task(one("urgent", 0)))
            await asyncio.sleep(0.9)
        assert patient.done()
        await asyncio.gather(*urgent)


@virtual_clock
async def test_a_busy_tool_is_waited_for_until_the_deadline_and_then_refused_with_a_true_retry_after() -> None:
    async with service_of(slow_web(seconds=25, limit=1), caps=Caps(queue=60)) as service:
        calls = [asyncio.create_task(service.invoke(ALICE, f"a{n}", "web_search", {"query": "x"})) for n in range(4)]
        await asyncio.wait(calls)
        problems = [task.exception() for task in calls if task.exception()]
        assert len(problems) == 1  # at 0, 25 and 50 s three began
        [problem] = problems
        assert isinstance(problem, Problem)
        assert (problem.status, problem.headers["Retry-After"]) == (503, "25")
        assert now() == 75
        assert service.calls.gauges.open_tickets() == 0


@virtual_clock
async def test_more_calls_of_a_key_than_may_wait_are_refused_at_once() -> None:
    async with service_of(slow_web(limit=1), caps=Caps(waiting=3)) as service:
        calls = [asyncio.create_task(service.invoke(ALICE, "a", "web_search", {"query": "x"})) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert (await service.invoke(BOB, "b", "web_search", {"query": "x"})).result.text == "found x"
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(result, "status", 200) for result in results] == [200, 200, 200, 503]


@virtual_clock
async def test_nothing_is_left_of_a_call_that_is_given_up_in_the_queue_or_in_service() -> None:
    async with service_of(slow_web(limit=1)) as service:
        calls = [asyncio.create_task(service.invoke(ALICE, "a", "web_search", {"query": "x"})) for _ in range(3)]
        await asyncio.sleep(0.5)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert service.calls.gauges.open_tickets() == 0
        began = now()
        await service.invoke(ALICE, "a", "web_search", {"query": "x"})
        assert now() == began + 1


@virtual_clock
async def test_limits_change_while_calls_wait() -> None:
    async with service_of(slow_web(limit=1)) as service:
        calls = [asyncio.create_task(service.invoke(ALICE, f"a{n}", "web_search", {"query": "x"})) for n in range(5)]
        await asyncio.sleep(0.5)
        service.calls.turns.set_limit("server:web", 4, "by hand")
        await asyncio.gather(*calls)
        assert now() == 2.0  # three more at once, and the last when the first ends
        with pytest.raises(KeyError):
            service.calls.turns.set_limit("tool:nothing", 4, "by hand")


async def test_nothing_grows_with_the_number_of_calls() -> None:
    async with service_of(host_of(web_search=web())) as service:
        for n in range(300):
            await service.invoke(ALICE, f"agent-{n}", "web_search", {"query": "x"})
        table, gauges = service.calls.slots.table, service.calls.gauges
        assert len(table.resources()) == len(gauges.all()) == 2
        assert gauges.open_tickets() == 0
        assert table._tickets == {}
        assert [place._agents for place in table._resources.values()] == [{}, {}]
        assert service._waiting == {}


@virtual_clock
async def test_nothing_is_kept_of_a_registrations_limit_while_nobody_calls_it() -> None:
    async with service_of(slow_web()) as service:
        hosted = service.names(ALICE).by_name["web_search"]
        await service.registry.add(ALICE.id, [Registered("few", hosted.name, hosted.key, limit=2)])
        calls = [asyncio.create_task(service.invoke(ALICE, "a", "few", {"query": "x"})) for _ in range(6)]
        await asyncio.sleep(0.5)
        assert service._own.table.limit("own:key-alice:few") == 2
        calls.pop().cancel()
        await asyncio.gather(*calls)
        assert now() == 3
        assert service._own.table.resources() == service._own_gauges.all() == ()


# -- trouble ----------------------------------------------------------------------------------------------------------


def failing(*errors: Exception) -> Any:
    left = list(errors)

    async def run(query: str = "") -> str:
        if left:
            raise left.pop(0)
        return "done"

    return run


@virtual_clock
async def test_trouble_that_passes_is_tried_again_and_what_may_have_happened_is_not() -> None:
    down = failing(ToolUnavailable("Down."), ToolUnavailable("Down."))
    once = failing(OutcomeUnknown("It broke."))
    again = failing(OutcomeUnknown("It broke."))
    async with service_of(host_of(down=tool(down), once=tool(once), again=tool(again, rerun=True))) as service:
        done = await service.invoke(ALICE, "a", "down", {})
        assert (done.result.text, done.queued_ms, now()) == ("done", 3000, 3)
        assert (await service.invoke(ALICE, "a", "again", {})).result.text == "done"
        with pytest.raises(Problem, match="may or may not have happened") as unknown:
            await service.invoke(ALICE, "a", "once", {})
        assert (unknown.value.status, unknown.value.code) == (502, "outcome_unknown")


@virtual_clock
async def test_a_tool_that_takes_too_long_is_a_504_and_one_that_is_down_a_503() -> None:
    host = host_of(slow=tool(taking(60), timeout=5.0), down=tool(taking(1), slug="d"))
    host.down["d"] = "It crashed."
    async with service_of(host) as service:
        with pytest.raises(Problem) as late:
            await service.invoke(ALICE, "a", "slow", {})
        assert (late.value.status, now()) == (504, 5)
        with pytest.raises(Problem, match=r"did not run. .*It crashed") as gone:
            await service.invoke(ALICE, "a", "down", {})
        assert (gone.value.status, gone.value.headers) == (503, {"Retry-After": "1"})


@virtual_clock
async def test_a_server_that_refuses_calls_as_too_many_is_left_in_peace_and_then_asked_again() -> None:
    host = host_of(t=tool(failing(*[ToolUnavailable("429", retry_after=5.0, throttled=True)] * 2), slug="s"))
    async with service_of(host) as service:
        done = await service.invoke(ALICE, "a", "t", {})
        assert (done.result.text, now()) == ("done", 10)
        assert service.occupancy()[0].closed == ""


async def test_what_a_tool_says_is_a_value_and_arguments_that_do_not_fit_are_never_sent() -> None:
    host = host_of(bad=tool(failing(RuntimeError("no disk"))), web_search=web())
    async with service_of(host) as service:
        assert (await service.invoke(ALICE, "a", "bad", {})).result.end is ToolEnd.ERROR
        for arguments, what in [({}, "query"), ({"query": 3}, "string"), ({"query": "x", "more": 1}, "more")]:
            with pytest.raises(Problem, match=what) as refused:
                await service.invoke(ALICE, "a", "web_search", arguments)
            assert (refused.value.status, refused.value.code) == (400, "invalid_arguments")
        assert [name for name, _ in host.calls] == ["local__bad"]


# -- names ------------------------------------------------------------------------------------------------------------


async def test_a_bare_name_leads_to_the_only_tool_that_has_it_and_the_full_name_always() -> None:
    host = LocalToolHost({"search": tool(taking(0), slug="web"), "read": tool(taking(0), slug="files")})
    twin = LocalToolHost({"search": tool(taking(0), slug="docs")})
    host._tools |= twin._tools
    async with service_of(host) as service:
        assert [t.name for t in service.visible(ALICE)] == ["read", "web__search", "docs__search"]
        only_web = replace(ALICE, tools=frozenset({"web__*", "read"}))
        assert [t.name for t in service.visible(only_web)] == ["read", "search"]
        assert (await service.choose(only_web, "", "search")).hosted.name == "web__search"
        with pytest.raises(Problem, match="web__search") as unclear:
            await service.choose(ALICE, "", "search")
        assert unclear.value.status == 404


async def test_without_bare_names_tools_are_listed_in_full_and_found_by_both() -> None:
    async with service_of(host_of(web_search=web()), bare_names=False) as service:
        assert [t.name for t in service.visible(ALICE)] == ["web__web_search"]
        for name in ("web__web_search", "web_search"):
            assert (await service.invoke(ALICE, "", name, {"query": "x"})).result.text == "1 about x"


@pytest.mark.parametrize("tools", [{"code"}, {"web__*"}, {"web_search"}, {"web__web_search"}, set()])
async def test_a_key_has_the_tools_that_it_was_given_and_no_others(tools: set[str]) -> None:
    host = host_of(web_search=web(), code=tool(taking(0), slug="c"))
    key = replace(ALICE, tools=frozenset(tools))
    mine = "code" if "code" in tools else "web_search" if tools else None
    async with service_of(host) as service:
        assert [t.name for t in service.visible(key)] == ([mine] if mine else [])
        for name in {"code", "c__code", "web_search", "web__web_search"}:
            if mine is None or not name.endswith(mine):
                with pytest.raises(Problem, match="There is no tool") as unknown:
                    await service.choose(key, "", name)
                assert unknown.value.status == 404
                named = str(unknown.value).partition("for this key.")[2]
                assert ("web_search" in named) == (mine == "web_search")  # nor are others named


async def test_a_tool_that_asks_first_is_for_nobody_since_nobody_is_there_to_ask() -> None:
    async with service_of(host_of(web_search=web(ask=True))) as service:
        assert service.visible(ALICE) == ()


# -- sessions of their own, and runs ----------------------------------------------------------------------------------


@virtual_clock
async def test_sessions_are_had_by_one_agent_of_one_key_and_given_back_when_idle() -> None:
    host = LocalToolHost({"shell": tool(taking(1), slug="sh", limit=1, lease=LeaseTerms(1, 30.0))}, sessions={"sh": 1})
    async with service_of(host) as service:
        await service.invoke(ALICE, "a", "shell", {})
        assert service.calls.slots.table.in_use("lease:sh") == 1
        await service.invoke(BOB, "a", "shell", {})  # waits until the other is idle for long enough
        assert now() == 32
        assert [agent for agent, _ in host.used] == ["key-alice/a", "key-bob/a"]
        await asyncio.sleep(31)
        assert service.calls.slots.table.in_use("lease:sh") == 0
        assert service.calls._idle == {}


@virtual_clock
async def test_of_agents_that_got_no_session_nothing_is_kept() -> None:
    host = LocalToolHost({"shell": tool(taking(20), slug="sh", limit=1, lease=LeaseTerms(1, 30.0))}, sessions={"sh": 1})
    async with service_of(host, caps=Caps(queue=1.0)) as service, asyncio.TaskGroup() as group:
        group.create_task(service.invoke(ALICE, "a", "shell", {}))
        await asyncio.sleep(1)
        for number in range(5):
            with pytest.raises(Problem):
                await service.invoke(ALICE, f"b{number}", "shell", {})
            assert not service.calls.turns.leases.has(f"key-alice/b{number}")
        assert service.calls._idle == {}


@virtual_clock
async def test_a_run_calls_through_the_slots_that_all_share() -> None:
    host = slow_web(limit=2)
    async with service_of(host) as service:
        runs = [service.host_for(key, ["web_search"]) for key in (ALICE, BOB)]
        assert [t.name for t in runs[0].catalogue()] == ["web_search"]
        assert [state.slug for state in runs[0].servers()] == ["web"]

        async def call(run: Any, n: int) -> str:
            caller = Caller(CallKey(f"t{n}", 0, 1, 1), "n", index=n)
            result: str = (await run.call("web_search", {"query": "q"}, timeout=1.5, caller=caller)).text
            return result

        texts = await asyncio.gather(*(call(run, n) for run in runs for n in range(4)))
        assert texts == ["found q"] * 8
        assert (host.most["web"], now()) == (2, 4)  # its time-out does not count while a call waits
        tasks = {caller.key.task for caller in host.callers if caller}
        assert len(tasks) == 8  # `t0` of one run is not `t0` of another
        with pytest.raises(ToolUnavailable):
            await runs[0].call("web__web_search", {}, timeout=1, caller=Caller(CallKey("t", 0, 0, 0), "n"))
        with pytest.raises(Problem, match="Did you mean web_search"):
            service.host_for(ALICE, ["web_serch"])
