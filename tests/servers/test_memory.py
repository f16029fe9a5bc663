"""`server-memory` keeps one file and reads it before it writes it: calls at once would lose each other's work."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from centuria.events import LimitSet, Notice
from centuria.turns import LONG_QUEUE
from tests.servers.kit import Bench, host_of, memory, server


async def test_a_hundred_agents_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    async with host_of(server("memory", memory(file))) as host:
        bench = Bench(host)
        names = [f"agent {number}" for number in range(100)]
        entities = [{"name": name, "entityType": "agent", "observations": ["was here"]} for name in names]
        calls = [
            bench.call("memory__create_entities", {"entities": [entity]}, agent=str(entity["name"]))
            for entity in entities
        ]
        results = await asyncio.gather(*calls)
        assert {result.end.value for result in results} == {"ok"}
        graph = (await bench.call("memory__read_graph")).structured
    assert isinstance(graph, dict)
    assert sorted(entity["name"] for entity in graph["entities"]) == sorted(names)
    assert sorted(json.loads(line)["name"] for line in file.read_text().splitlines()) == sorted(names)


async def test_one_call_at_a_time_is_the_default_and_a_long_queue_is_told_once(tmp_path: Path) -> None:
    entry = replace(server("memory", memory(tmp_path / "memory.jsonl")), name="our memory")
    async with host_of(entry) as host:
        (state,) = host.servers()
        assert state.limit == 1 and state.detail["limit_reason"] == "unknown stdio server"
        bench = Bench(host)
        limits = {event.resource: (event.limit, event.reason) for event in bench.events(LimitSet)}
        assert limits["server:memory"] == limits["tool:memory__read_graph"] == (1, "unknown stdio server")
        await asyncio.gather(*(bench.call("memory__read_graph") for _ in range(LONG_QUEUE)))
        assert bench.events(Notice) == []
        await asyncio.gather(*(bench.call("memory__read_graph") for _ in range(4 * LONG_QUEUE)))
        (notice,) = bench.events(Notice)
    assert "our memory takes one call at a time" in notice.text
    assert "more than 5 are waiting" in notice.text and 'set `limit` in [tools."our memory"]' in notice.text
