"""What cannot be is refused before anything is sent, and a stranger finds nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from centuria.gateway.ports import Key
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.swarms.records import KIND, OPEN
from centuria.messages import DOLLAR
from centuria.testing.tools import LocalToolHost
from tests.gateway.swarms.kit import ADMIN, ALICE, MODEL, ROOT, gateway, numbered, pay, store_with
from tests.waiting import until

TASK = {"id": "a", "prompt": "Do it."}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "JSON object"),
        ({}, "exactly one"),
        ({"goal": "x", "tasks": [TASK]}, "exactly one"),
        ({"goal": "x", "modle": MODEL}, "`modle` is no field of a swarm. Did you mean `model`?"),
        ({"goal": "x", "budget": 1}, "`budget` is no field"),
        ({"goal": "  "}, "not empty"),
        ({"goal": 3}, "not empty"),
        ({"goal": "x" * 300_000}, "longer than"),
        ({"goal": "\ud800"}, "surrogate"),
        ({"goal": "x", "budget_usd": 0}, "budget_usd"),
        ({"goal": "x", "budget_usd": True}, "budget_usd"),
        ({"goal": "x", "max_agents": 101}, "from 1 to 100"),
        ({"goal": "x", "max_agents": 0}, "from 1 to 100"),
        ({"goal": "x", "stream": "yes"}, "stream"),
        ({"goal": "x", "mcp_tools": "web"}, "mcp_tools"),
        ({"goal": "x", "mcp_tools": ["web"]}, "web"),
        ({"goal": "x", "max_tokens": 1.5}, "max_tokens"),
        ({"tasks": []}, "one task at least"),
        ({"tasks": numbered(11)}, "10 tasks at most"),
        ({"tasks": ["a"]}, "tasks[0]"),
        ({"tasks": [{"id": "a"}]}, "no `prompt`"),
        ({"tasks": [{**TASK, "schema": "/etc/passwd"}]}, "`schema` is no field"),
        ({"tasks": [{**TASK, "tools": ["x"]}]}, "`tools` is no field"),
        ({"tasks": [{**TASK, "priority": 10}]}, "priority"),
        ({"tasks": [TASK, TASK]}, "a"),
        ({"tasks": [{**TASK, "id": "line\nbreak"}]}, "line break"),
        ({"tasks": [{**TASK, "id": "*"}]}, '"*"'),
        ({"tasks": [{**TASK, "id": "merge"}]}, "'merge'"),
        ({"tasks": [{**TASK, "needs": ["b"]}]}, "b"),
        (
            {"tasks": [{**TASK, "needs": ["b"]}, {"id": "b", "prompt": "x", "needs": ["a"]}]},
            "need each other: a -> b -> a",
        ),
        ({"tasks": [{**TASK, "id": "i" * 201}]}, "longer than"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_what_is_wrong_about_it(tmp_path: Path, body: Any, said: str) -> None:
    async def main() -> None:
        async with gateway(tmp_path, tasks=10, tools=LocalToolHost({})) as one:
            reply = await one.alice.post(f"{ROOT}/spawn", body)
            assert reply.status == 400
            assert said in reply.error
            assert one.documents(KIND) == one.documents(OPEN) == []
            assert one.provider.requests == 0

    asyncio.run(main())


def test_prompts_that_are_too_long_together_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            tasks = [{"id": f"t{number}", "prompt": "x" * 250_000} for number in range(20)]
            reply = await one.alice.post(f"{ROOT}/spawn", {"tasks": tasks})
            assert reply.status == 400
            assert "in all" in reply.error

    asyncio.run(main())


@pytest.mark.parametrize("star", [False, True])
def test_more_needs_than_can_be_checked_in_a_moment_are_refused(tmp_path: Path, star: bool) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            last = ["*"] if star else [f"t{number}" for number in range(300)]
            tasks = [*numbered(300), *({"id": f"l{number}", "prompt": "x", "needs": last} for number in range(67))]
            reply = await one.alice.post(f"{ROOT}/spawn", {"tasks": tasks})
            assert reply.status == 400
            assert "20,000 needs" in reply.error
            assert (await one.alice.post(f"{ROOT}/spawn", {"tasks": tasks[:-1]})).status == 202

    asyncio.run(main())


def test_a_stranger_finds_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(5, 5)) as one:
            id = await one.alice.spawn(tasks=numbered(2))
            await until(lambda: one.provider.in_flight == 2)
            own = f"{ROOT}/{id}"
            for path in ("", "/events", "/result", "/agents/t0"):
                assert (await one.bob.get(own + path)).status == 404
            steps: list[tuple[str, Any]] = [("cancel", None), ("pause", None), ("resume", None)]
            steps += [("limits", {"resource": "agents", "limit": 0})]
            steps += [(f"agents/t0/{name}", None) for name in ("cancel", "retry", "pause", "resume")]
            steps += [("agents/t0/priority", {"priority": 0})]
            for path, body in steps:
                assert (await one.bob.post(f"{own}/{path}", body)).status == 404
            assert (await one.bob.get(ROOT)).json["data"] == []
            nobody = await one.as_(Key("key-none", "none")).get(own)
            assert nobody.status == 401
            told = (await one.alice.get(own)).json
            assert told["status"] == "running"
            assert not told["paused"]

    asyncio.run(main())


def test_an_admin_sees_what_is_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            id = await one.alice.spawn(goal="Do it.")
            await one.alice.ended(id)
            admin = one.as_(ADMIN)
            assert (await admin.get(f"{ROOT}/{id}/result")).json["status"] == "ok"
            assert (await admin.get(ROOT)).json["data"] == []
            assert [row["key"] for row in (await admin.get(f"{ROOT}?all=true")).json["data"]] == ["alice"]
            assert (await one.bob.get(f"{ROOT}?all=true")).json["data"] == []

    asyncio.run(main())


@pytest.mark.parametrize("id", ["..", "swarm-1", "%2e%2e%2fetc", "swarm-" + "g" * 24, "swarm-" + "0" * 24])
def test_an_id_that_is_none_leads_nowhere(tmp_path: Path, id: str) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            assert (await one.alice.get(f"{ROOT}/{id}")).status == 404
            assert (await one.as_(ADMIN).get(f"{ROOT}/{id}/result")).status == 404

    asyncio.run(main())


def test_the_same_idempotency_key_is_the_same_swarm_and_never_another_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, running=1) as one:
            body = {"tasks": numbered(2)}
            both = await asyncio.gather(
                *(one.alice.post(f"{ROOT}/spawn", body, idempotency_key="k-1") for _ in range(2))
            )
            first, again = both  # which is the only one that may work: the other one waits for it, and is not too many
            assert (first.status, again.status) == (202, 202)
            assert first.json["id"] == again.json["id"]
            await one.alice.ended(first.json["id"])
            late = await one.alice.post(f"{ROOT}/spawn", body, idempotency_key="k-1")
            assert (late.status, late.json["id"], late.json["status"]) == (202, first.json["id"], "ok")
            other = await one.alice.post(f"{ROOT}/spawn", {"goal": "Else."}, idempotency_key="k-1")
            assert other.status == 422
            theirs = await one.bob.post(f"{ROOT}/spawn", {"goal": "Else."}, idempotency_key="k-1")
            assert theirs.status == 202
            assert theirs.json["id"] != first.json["id"]
            await one.bob.ended(theirs.json["id"])
            assert one.provider.requests == 3
            assert (await one.alice.post(f"{ROOT}/spawn", body, idempotency_key="")).status == 400

    asyncio.run(main())


def test_another_body_under_the_key_of_a_swarm_that_is_being_accepted_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, running=1) as one:
            replies = await asyncio.gather(
                *(one.alice.post(f"{ROOT}/spawn", {"goal": goal}, idempotency_key="k-1") for goal in ("x", "y"))
            )
            assert sorted(reply.status for reply in replies) == [202, 422]

    asyncio.run(main())


def test_one_key_has_so_many_swarms_at_once_and_others_are_not_kept_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, running=2, latency=(0.3, 0.3)) as one:
            ids = [await one.alice.spawn(goal=f"Goal {number}.") for number in range(2)]
            refused = await one.alice.post(f"{ROOT}/spawn", {"goal": "One more."})
            assert refused.status == 429
            assert int(refused.headers["retry-after"]) >= 1
            await one.bob.spawn(goal="Mine.")
            await one.alice.ended(ids[0])
            await until(lambda: one.service.working(ids[0]) is None)
            await one.alice.spawn(goal="One more.")

    asyncio.run(main())


def test_a_swarm_may_spend_what_was_asked_for_the_gateway_allows_and_the_key_has_left(tmp_path: Path) -> None:
    async def main() -> None:
        store = await store_with(ALICE)
        await pay(store, ALICE, cost=2 * DOLLAR)
        async with gateway(tmp_path, store=store, budget=10 * DOLLAR) as one:
            reply = await one.alice.post(f"{ROOT}/spawn", {"goal": "x", "budget_usd": 30})
            assert reply.json["budget_usd"] == 10
            assert (await one.alice.post(f"{ROOT}/spawn", {"goal": "x"})).json["budget_usd"] == 5
            await pay(store, ALICE, cost=16 * DOLLAR, held=DOLLAR)
            reply = await one.alice.post(f"{ROOT}/spawn", {"goal": "x", "budget_usd": 30})
            assert 0.9 < reply.json["budget_usd"] <= 1
            await pay(store, ALICE, cost=DOLLAR)
            reply = await one.alice.post(f"{ROOT}/spawn", {"goal": "x"})
            assert reply.status == 429
            assert "retry-after" not in reply.headers
            assert reply.json["error"]["type"] == "exceeded_current_quota_error"

    asyncio.run(main())


def test_a_model_that_the_key_may_not_use_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        poor = Key("key-poor", "poor", models=frozenset({"other"}))
        async with gateway(tmp_path, store=await store_with(ALICE, poor)) as one:
            for key, body in ((ALICE, {"goal": "x", "model": "gpt-9"}), (poor, {"goal": "x", "model": MODEL})):
                reply = await one.as_(key).post(f"{ROOT}/spawn", body)
                assert reply.status == 404
                assert reply.json["error"]["code"] == "model_not_found"
            assert (await one.as_(poor).post(f"{ROOT}/spawn", {"goal": "x"})).status == 404

    asyncio.run(main())


def test_a_swarm_that_cannot_be_kept_is_not_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            one.store.fault = StoreUnavailable("The store is full.")
            reply = await one.alice.post(f"{ROOT}/spawn", {"goal": "x"})
            assert reply.status == 503
            one.store.fault = None
            assert one.provider.requests == 0
            for number in range(4):  # and it has taken nobody's place
                await one.alice.spawn(goal=f"x{number}")

    asyncio.run(main())
