"""A swarm is steered while it works: one branch, one agent, one limit, or all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from centuria.gateway.chat.calls import ChatCall
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, bad_request, out_of_budget, overloaded
from centuria.messages import DOLLAR
from centuria.testing.replies import Answer, Calls, Text
from centuria.testing.tools import LocalToolHost
from centuria.testing.transport import Faults, Provider
from tests.gateway.swarms.kit import ALICE, ROOT, TARIFF, Gateway, gateway, numbered, prompt_of
from tests.waiting import until


async def begun(one: Gateway, count: int) -> None:
    await until(lambda: one.provider.in_flight == count)


def test_one_agent_is_cancelled_and_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.3, 0.3)) as one:
            tasks = [*numbered(3), {"id": "after", "prompt": "After.", "needs": ["t1"]}]
            id = await one.alice.spawn(tasks=tasks)
            await begun(one, 3)
            reply = await one.alice.post(f"{ROOT}/{id}/agents/t1/cancel")
            assert (reply.status, reply.json["agent"]) == (202, "t1")
            result = await one.alice.ended(id)
            ends = {end["id"]: (end["status"], end["cause"]) for end in result["outcomes"]}
            assert ends["t1"] == ("cancelled", "cancelled by its owner")
            assert ends["after"][0] == "blocked"
            assert {ends["t0"][0], ends["t2"][0]} == {"ok"}
            assert result["status"] == "partial"

    asyncio.run(main())


def test_a_whole_branch_is_cancelled_with_its_agent(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Answer:
        if prompt_of(body) == "Lead." and len(body["messages"]) == 2:
            create = ("create_subagent", '{"name": "w", "system_prompt": "Work."}')
            return Calls((create, ("assign_task", '{"agent": "w", "prompt": "Child.", "id": "child"}')))
        return Text("Done.")

    async def main() -> None:
        async with gateway(tmp_path, script, latency=(0.2, 0.2)) as one:
            id = await one.alice.spawn(goal="Lead.")
            agents: dict[str, Any] = {}

            async def child_runs() -> None:
                while agents.get("child", {}).get("doing") != "model":
                    told = (await one.alice.get(f"{ROOT}/{id}")).json
                    agents.update({agent["id"]: agent for agent in told["agents"]})
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(child_runs(), 10)
            assert agents["child"]["parent"] == "goal"
            assert (await one.alice.post(f"{ROOT}/{id}/agents/goal/cancel")).status == 202
            result = await one.alice.ended(id)
            assert {end["id"]: end["status"] for end in result["outcomes"]} == {
                "goal": "cancelled",
                "child": "cancelled",
            }

    asyncio.run(main())


def test_the_whole_swarm_is_cancelled_and_what_there_is_is_kept(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Answer:
        return Text(f"Done: {prompt_of(body)}", gap=0.0)

    async def main() -> None:
        async with gateway(tmp_path, script, latency=(0.2, 0.2)) as one:
            id = await one.alice.spawn(tasks=numbered(6), max_agents=2)
            work = one.service.working(id)
            assert work is not None
            await until(lambda: work.progress is not None and work.progress.ended_count >= 2)
            assert (await one.alice.post(f"{ROOT}/{id}/cancel", {})).status == 202
            result = await one.alice.ended(id)
            assert result["status"] == "cancelled"
            assert result["cause"] == "cancelled by its owner"
            assert sum(result["census"].values()) == 6
            assert result["census"]["ok"] >= 2
            assert result["census"]["cancelled"] >= 2
            assert "Done: Task 0." in result["answer"]
            late = await one.alice.post(f"{ROOT}/{id}/cancel")
            assert late.status == 409
            assert late.json["error"]["code"] == "swarm_not_running"
            assert (await one.alice.post(f"{ROOT}/{id}/agents/nobody/cancel")).status == 404

    asyncio.run(main())


def test_a_task_that_failed_is_run_again(tmp_path: Path) -> None:
    def refusal(call: ChatCall) -> Problem | None:
        return bad_request("This cannot be answered.") if call.agent.endswith("/t0") else None

    async def main() -> None:
        async with gateway(tmp_path, latency=(0.01, 0.01)) as one:
            one.problem = refusal
            id = await one.alice.spawn(tasks=numbered(2))
            assert (await one.alice.post(f"{ROOT}/{id}/pause")).json["paused"] is True
            assert (await one.alice.get(f"{ROOT}/{id}")).json["paused"] is True
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t0/resume")).status == 202
            assert (await one.alice.post(f"{ROOT}/{id}/resume")).status == 202
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t1/pause")).status == 202
            work = one.service.working(id)
            assert work is not None and work.progress is not None
            rows = work.progress.tasks
            await until(lambda: rows["t0"].status == "failed")
            assert "This cannot be answered." in rows["t0"].cause
            one.problem = lambda call: None
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t0/retry")).status == 202
            await until(lambda: rows["t0"].status == "ok")
            again = await one.alice.post(f"{ROOT}/{id}/agents/t0/retry")
            assert again.status == 409
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t1/resume")).status == 202
            assert (await one.alice.ended(id))["census"]["ok"] == 2
            (turn,) = (await one.alice.get(f"{ROOT}/{id}/agents/t0")).json["turns"]
            assert (turn["text"], turn["attempts"]) == ("Done: Task 0.", 1)

    asyncio.run(main())


def test_what_waits_is_served_in_the_order_of_the_priorities_that_were_set(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.05, 0.05)) as one:
            id = await one.alice.spawn(tasks=numbered(6), max_agents=1)
            await begun(one, 1)
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t5/priority", {"priority": 0})).json["priority"] == 0
            assert (await one.alice.post(f"{ROOT}/{id}/agents/t1/priority", {"priority": 9})).status == 202
            for body in ({"priority": 10}, {"priority": "1"}, {}, {"priority": 1, "x": 1}):
                assert (await one.alice.post(f"{ROOT}/{id}/agents/t1/priority", body)).status == 400
            await one.alice.ended(id)
            order = [call.agent.partition("/")[2] for call in one.calls]
            assert order == ["t0", "t5", "t2", "t3", "t4", "t1"]
            assert [call.priority for call in one.calls] == [5, 0, 5, 5, 5, 9]

    asyncio.run(main())


def test_tools_are_the_shared_ones_within_a_limit_that_can_be_changed(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def look(word: str) -> str:
        await gate.wait()
        await asyncio.sleep(0.01)
        return f"{word} was found"

    def script(body: dict[str, Any]) -> Answer:
        if body["messages"][-1]["role"] == "tool":
            return Text(f"It says: {body['messages'][-1]['content']}")
        return Calls((("local__look", f'{{"word": "{prompt_of(body)}"}}'),))

    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    host = LocalToolHost({"look": (look, schema, {"limit": 4})})

    async def main() -> None:
        async with gateway(tmp_path, script, tools=host) as one:
            id = await one.alice.spawn(tasks=numbered(8), mcp_tools=["local__look"])
            work = one.service.working(id)
            assert work is not None
            await work.run.ready.wait()
            assert work.progress is not None
            queue = work.progress.resources["tool:local__look"]
            await until(lambda: host._running.get("local") == queue.in_use == queue.waiting == 4)
            own = f"{ROOT}/{id}/limits"
            assert (await one.alice.post(own, {"resource": "server:local", "limit": 0})).status == 202
            for wrong in ({"resource": "server:web", "limit": 5}, {"resource": "server:local", "limit": -1}, {}):
                assert (await one.alice.post(own, wrong)).status == 400
            more = await one.alice.post(own, {"resource": "agents", "limit": 9})
            assert more.status == 400
            assert "`max_agents`) is fixed at the start" in more.error and "centuria resume" not in more.error
            gate.set()
            await until(lambda: host._running["local"] == 0)
            assert len(host.calls) == 4
            host.most.clear()
            assert (await one.alice.post(own, {"resource": "server:local", "limit": 2})).status == 202
            result = await one.alice.ended(id)
            assert result["census"]["ok"] == 8
            assert host.most["local"] == 2
            assert {caller.key.task.partition("/")[0] for caller in host.callers if caller} == {ALICE.id}

    asyncio.run(main())


def test_the_conversation_of_one_agent_is_told_in_full(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Answer:
        if body["messages"][-1]["role"] == "tool":
            return Text(f"It says: {body['messages'][-1]['content']}", reasoning="Found.")
        return Calls((("local__look", f'{{"word": "{prompt_of(body)}"}}'),))

    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    host = LocalToolHost({"look": (lambda word: f"{word} was found " + "x" * 30_000, schema)})

    async def main() -> None:
        async with gateway(tmp_path, script, tools=host) as one:
            id = await one.alice.spawn(tasks=numbered(3), mcp_tools=["local__look"])
            await one.alice.ended(id)
            told = (await one.alice.get(f"{ROOT}/{id}/agents/t2")).json
            assert (told["agent"], told["prompt"], told["parent"]) == ("t2", "Task 2.", None)
            first, second = told["turns"]
            (call,) = first["tool_calls"]
            assert (call["name"], call["arguments"]) == ("local__look", '{"word": "Task 2."}')
            assert call["state"] == "ok"
            assert call["result"].startswith("Task 2. was found")
            assert len(call["result"]) == 20_000
            assert told["capped"]
            assert second["text"].startswith("It says: Task 2. was found")
            assert (second["reasoning"], second["finish"]) == ("Found.", "stop")
            assert second["cost_usd"] > 0
            assert told["outcome"]["status"] == "ok"
            assert (await one.alice.get(f"{ROOT}/{id}/agents/nobody")).status == 404
            assert (await one.alice.get(f"{ROOT}/{id}/agents/merge")).status == 404

    asyncio.run(main())


class Broken(LocalToolHost):
    """Fails in a way that nobody foresaw."""

    def servers(self) -> Any:
        raise RuntimeError("a secret detail")


class BrokenTools:
    def host_for(self, key: Key, names: Any = None, *, run: str = "") -> LocalToolHost:
        return Broken({"look": (lambda: "x", {"type": "object"})})


def test_a_swarm_that_fails_in_an_unexpected_way_is_alone_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.2, 0.2), tools=BrokenTools()) as one:
            well = await one.alice.spawn(goal="Go well.")
            ill = await one.alice.spawn(goal="Go ill.", mcp_tools=["look"])
            assert (await one.alice.post(f"{ROOT}/{ill}/pause")).status == 409
            result = await one.alice.ended(ill)
            assert result["status"] == "failed"
            assert result["cause"] == "an error in the gateway ended it (RuntimeError)"
            assert (await one.alice.ended(well))["status"] == "ok"

    asyncio.run(main())


def test_a_request_for_which_there_was_no_place_is_asked_again_and_costs_nothing(tmp_path: Path) -> None:
    left = [3]

    def problem(call: Any) -> Problem | None:
        left[0] -= 1
        return overloaded("No place came free.", 0.1) if left[0] >= 0 else None

    async def main() -> None:
        async with gateway(tmp_path) as one:
            one.problem = problem
            id = await one.alice.spawn(tasks=numbered(3), max_agents=3)
            result = await one.alice.ended(id)
            assert result["census"]["ok"] == 3
            assert result["held_usd"] == 0
            assert one.provider.requests == 3

    asyncio.run(main())


def test_a_key_that_runs_out_of_money_ends_its_swarm_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.3, 0.3)) as one:
            id = await one.alice.spawn(tasks=numbered(9), max_agents=3)
            other = await one.bob.spawn(tasks=numbered(5))
            await begun(one, 8)
            one.problem = lambda call: out_of_budget("This key's budget is spent.") if call.key == ALICE else None
            result = await one.alice.ended(id)
            ends = [end["status"] for end in result["outcomes"]]
            assert ends.count("ok") == 3
            assert ends.count("blocked") + ends.count("failed") == 6
            assert any("This key's budget is spent." in end["cause"] for end in result["outcomes"])
            assert result["held_usd"] == 0
            assert (await one.bob.ended(other))["status"] == "ok"

    asyncio.run(main())


def test_what_a_swarm_pays_and_holds_is_no_more_than_its_cap_whatever_the_upstream_does(tmp_path: Path) -> None:
    async def main() -> None:
        faults = Faults(failed=0.1, cut=0.1, seed=3)
        provider = Provider(lambda body: Text("Done. " * 20), tariff=TARIFF, faults=faults, latency=(0.001, 0.01))
        async with gateway(tmp_path, provider=provider) as one:
            id = await one.alice.spawn(tasks=numbered(10), budget_usd=2, max_tokens=4000)
            result = await one.alice.ended(id)
            attempts = sum(end["attempts"] for end in result["outcomes"])
            assert provider.requests == attempts > 10  # nobody tries again behind its back
            assert sum(result["census"].values()) == 10
            assert result["cost_usd"] + result["held_usd"] <= 2
            books = await one.spent(ALICE)
            assert provider.charged <= books.spent + books.held
            assert books.spent == round(result["cost_usd"] * DOLLAR)
            assert (books.held > 0) == (result["held_usd"] > 0)

    asyncio.run(main())


def test_run_swarm_is_a_whole_swarm_as_one_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.05, 0.05)) as one:
            answer = await one.service.run_swarm(ALICE, {"tasks": numbered(2), "stream": True})
            assert "Done: Task 0." in answer and "Done: Task 1." in answer
            call = asyncio.create_task(one.service.run_swarm(ALICE, {"goal": "Given up."}))
            await begun(one, 1)
            call.cancel()
            await asyncio.wait([call])
            newest = (await one.alice.get(ROOT)).json["data"][0]
            result = await one.alice.ended(newest["id"])
            assert (result["status"], result["cause"]) == ("cancelled", "its caller gave it up")

    asyncio.run(main())
