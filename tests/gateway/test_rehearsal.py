"""`centuria serve --rehearse`: a scripted model that costs nothing, and never hides that it is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from centuria.testing import FakeUpstream
from tests.gateway.command import HEADERS, Command, balance, command

ASKED = {"model": "kimi", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 50}


async def post(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[aiohttp.ClientResponse, bytes]:
    async with session.post(path, json=body) as response:
        assert response.status in (200, 202), await response.read()
        return response, await response.read()


async def first_line_after_the_address(served: Command) -> str:
    assert served.process.stderr is not None
    return (await served.process.stderr.readline()).decode()


async def test_a_rehearsal_costs_nothing_whatever_the_prices_and_says_so_everywhere(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, command(tmp_path, upstream, 1.0, flags=["--rehearse"]) as served:
        assert "this is a rehearsal" in await first_line_after_the_address(served)
        async with aiohttp.ClientSession(served.url, headers=HEADERS) as session:
            response, body = await post(session, "/v1/chat/completions", ASKED)
            assert response.headers["x-centuria-rehearsal"] == "true"
            assert float(response.headers["x-centuria-cost-usd"]) == 0
            told = json.loads(body)
            usage = told["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
            assert told["id"].startswith("chatcmpl-") and told["created"] > 1_600_000_000
            response, body = await post(session, "/v1/chat/completions", ASKED | {"stream": True})
            assert response.headers["x-centuria-rehearsal"] == "true"
            chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
            assert {chunk["id"] for chunk in chunks} != {told["id"]} and len({chunk["id"] for chunk in chunks}) == 1
            assert all(chunk["created"] > 1_600_000_000 for chunk in chunks)
            asked = {"tasks": [{"id": "one", "prompt": "Look."}], "stream": True}
            response, body = await post(session, "/v1/agents/swarm/spawn", asked)
            facts = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
            assert next(fact for fact in facts if fact["kind"] == "run_started")["rehearsal"] is True
            async with session.get(f"/v1/agents/swarm/{facts[-1]['id']}") as answered:
                snapshot = await answered.json()
            assert (snapshot["rehearsal"], snapshot["cost_usd"], snapshot["status"]) == (True, 0, "ok")
        served.terminate()
        await served.ended()
    assert not upstream.requests
    rows, spent, held, _ = await balance(tmp_path)
    assert rows >= 3 and (spent, held) == (0, 0)
