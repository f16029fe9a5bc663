"""A swarm over HTTP, from its request to its result."""

from __future__ import annotations

import asyncio
from pathlib import Path

from centuria.messages import DOLLAR
from tests.gateway.swarms.kit import ALICE, ROOT, gateway, numbered


def test_a_hundred_tasks_come_to_a_hundred_answers_and_the_money_is_right(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            reply = await one.alice.post(f"{ROOT}/spawn", {"tasks": numbered(100), "budget_usd": 3})
            assert reply.status == 202
            id = reply.json["id"]
            assert reply.headers["location"] == f"{ROOT}/{id}"
            assert reply.json["budget_usd"] == 3
            seen = await one.alice.all_events(id)
            facts = [event for event in seen if event.id is not None]
            assert [event.id for event in facts] == list(range(1, len(facts) + 1))
            assert facts[0].kind == "run_started"
            assert facts[0].data["run"] == id
            assert seen[-1].kind == "end"
            assert seen[-1].data["status"] == "ok"
            result = (await one.alice.get(f"{ROOT}/{id}/result")).json
            assert result["census"]["ok"] == 100
            assert result["unfinished"] == 0
            assert {end["id"]: end["answer"] for end in result["outcomes"]} == {
                f"t{number}": f"Done: Task {number}." for number in range(100)
            }
            assert "Done: Task 57." in result["answer"]
            assert one.provider.requests == 100
            balance = await one.spent(ALICE)
            assert (balance.spent, balance.held) == (one.provider.charged, 0)
            assert result["cost_usd"] == one.provider.charged / DOLLAR
            assert result["held_usd"] == 0
            rows = list(one.store._attempts.values())
            assert len(rows) == 100
            assert {(row.route, row.key, row.end, row.attempt) for row in rows} == {("swarm", ALICE.id, "done", 1)}
            assert {row.agent for row in rows} == {f"{id}/t{number}" for number in range(100)}
            assert all(row.request.startswith(f"{id}-") for row in rows)

    asyncio.run(main())


def test_a_goal_is_worked_on_by_an_orchestrator(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            id = await one.alice.spawn(goal="Find {braces} out.", name="finding")
            result = await one.alice.ended(id)
            assert result["answer"].strip() == "Done: Find {braces} out."
            tools = [tool["function"]["name"] for tool in one.calls[0].fields["tools"]]
            assert "assign_task" in tools
            assert result["name"] == "finding"

    asyncio.run(main())
