"""A swarm is watched over SSE: every fact once and in order, whoever reads and however slowly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from centuria.core.progress import Progress
from centuria.events import Notice
from centuria.gateway.swarms import events as sse
from centuria.journal import JournalReader, SqliteJournal
from centuria.stream import Feed, Stream
from centuria.testing.replies import Text
from centuria.views.lines import line
from tests.gateway.swarms.kit import ROOT, Gateway, gateway, numbered, parse, prompt_of
from tests.waiting import until


def long_answer(body: dict[str, Any]) -> Text:
    return Text(f"Done: {prompt_of(body)} " + "word " * 100, piece=10)


def test_a_reader_that_comes_back_again_and_again_gets_every_fact_exactly_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.001, 0.1)) as one:
            id = await one.alice.spawn(tasks=numbered(100), max_agents=20)
            seen: list[int] = []
            visits, kinds = 0, set()
            while "end" not in kinds:
                visits += 1
                headers = {"last_event_id": str(seen[-1])} if seen else {}
                async with one.alice.events(f"{ROOT}/{id}/events", **headers) as events:
                    took = 0
                    async for event in events:
                        kinds.add(event.kind)
                        if event.id is not None:
                            seen.append(event.id)
                            took += 1
                            if took == 150:
                                break
            assert visits > 5
            assert seen == list(range(1, len(seen) + 1))
            with JournalReader(tmp_path / "runs" / id / "journal.sqlite") as reader:
                assert reader.last_seq == len(seen)

    asyncio.run(main())


def test_an_event_is_the_same_object_as_the_line_of_a_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            id = await one.alice.spawn(tasks=numbered(3))
            live = [event for event in await one.alice.all_events(id) if event.id is not None]
            again = [event for event in await one.alice.all_events(id) if event.id is not None]
            progress = Progress()
            with JournalReader(tmp_path / "runs" / id / "journal.sqlite") as reader:
                records = list(reader.records())
            for record in records:
                progress.record(record)
            lines = [json.loads(line(record, Feed(progress))) for record in records]
            assert [event.data for event in live] == lines
            assert again == live
            async with one.alice.events(f"{ROOT}/{id}/events?after=7") as events:
                assert [event async for event in events if event.id is not None] == live[7:]
            for wrong in ("events?after=x", "events?after=-1"):
                assert (await one.alice.get(f"{ROOT}/{id}/{wrong}")).status == 400
            assert (await one.alice.get(f"{ROOT}/{id}/events", last_event_id="1e3")).status == 400
            assert [event.kind for event in live] == [each["kind"] for each in lines]

    asyncio.run(main())


def test_readers_who_come_at_different_times_see_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, long_answer, latency=(0.01, 0.05)) as one:
            id = await one.alice.spawn(tasks=numbered(30), max_agents=5)
            readers = [asyncio.create_task(one.alice.all_events(id))]
            work = working(one, id)
            for count in (5, 15, 25):
                await until(lambda count=count: work.progress is not None and work.progress.ended_count >= count)
                readers.append(asyncio.create_task(one.alice.all_events(id)))
            seen = [[event for event in await reader if event.id is not None] for reader in readers]
            assert seen[0] == seen[1] == seen[2] == seen[3]

    asyncio.run(main())


def test_pieces_of_text_come_as_they_are_written_and_have_no_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, long_answer) as one:
            async with one.alice.events(
                f"{ROOT}/spawn", {"tasks": [{"id": "only", "prompt": "P"}], "stream": True}
            ) as events:
                seen = [event async for event in events]
            deltas = [event for event in seen if event.kind == "text_delta"]
            assert all(event.id is None for event in deltas)
            assert {event.data["agent"] for event in deltas} == {"only"}
            assert (
                "".join(event.data["text"] for event in deltas)
                == long_answer({"messages": [{"role": "user", "content": "P"}]}).text
            )
            assert seen[-1].kind == "end"

    asyncio.run(main())


def test_a_swarm_goes_on_when_the_reader_of_its_spawn_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(0.05, 0.1)) as one:
            async with one.alice.events(f"{ROOT}/spawn", {"tasks": numbered(5), "stream": True}) as events:
                first = await anext(events)
            id = first.data["run"]
            result = await one.alice.ended(id)
            assert result["census"]["ok"] == 5

    asyncio.run(main())


def test_a_reader_that_takes_nothing_slows_nobody_and_then_gets_every_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "BOUND", 20)

    async def main() -> None:
        async with gateway(tmp_path, long_answer, latency=(0.005, 0.02)) as one:
            id = await one.alice.spawn(tasks=numbered(60), max_agents=10)
            takes = asyncio.Event()
            takes.set()
            async with one.alice.events(f"{ROOT}/{id}/events", slow=takes) as events:
                seen = [await anext(events)]
                while seen[-1].kind != "call_closed":
                    seen.append(await anext(events))  # the beginning, and some of what happens meanwhile
                takes.clear()
                stream = working(one, id).stream
                assert stream is not None
                await until(lambda: stream.progress.status == "ok")
                assert all(reader.waiting <= 20 for reader in stream._readers)
                takes.set()
                seen += [event async for event in events]
            facts = [event.id for event in seen if event.id is not None]
            assert facts == list(range(1, len(facts) + 1))
            assert "gap" in {event.kind for event in seen}
            assert seen[-1].data["status"] == "ok"

    asyncio.run(main())


def test_a_reader_that_was_with_it_and_falls_behind_gets_nothing_twice(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "journal.sqlite"
        journal = SqliteJournal.create(path, run="r", name="n")
        stream = Stream(journal, clock=lambda: 1.0, progress=Progress())

        def say(count: int) -> None:
            for _ in range(count):
                stream.publish(Notice("Something happens."))

        say(3)
        chunks = sse.follow(stream, path, 1)
        text = (await anext(chunks)).decode()
        for count in (4, 1, sse.BOUND + 10, 2, sse.BOUND * 2, 5):
            say(count)
            text += (await anext(chunks)).decode()
        stream.close()
        text += b"".join([chunk async for chunk in chunks]).decode()
        await journal.aclose()
        events = [event for event in map(parse, text.split("\n\n")) if event is not None]
        facts = [event.id for event in events if event.id is not None]
        assert facts == list(range(2, stream.seq + 1))
        assert [event.kind for event in events].count("gap") == 2

    asyncio.run(main())


def test_a_reader_that_is_gone_is_forgotten_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(5, 5)) as one:
            id = await one.alice.spawn(goal="Wait.")
            work = working(one, id)
            await work.begun.wait()
            assert work.stream is not None
            async with one.alice.events(f"{ROOT}/{id}/events") as events:
                await anext(events)
                assert len(work.stream._readers) == 1
            assert work.stream._readers == []

    asyncio.run(main())


def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(5, 5)) as one:
            id = await one.alice.spawn(goal="Wait.")
            work = working(one, id)
            chunks = sse.live(work, 0, heartbeat=0.05)
            async with asyncio.timeout(10):
                while not (chunk := await anext(chunks)).startswith(b":"):
                    pass
            assert chunk.endswith(b"\n\n")
            await chunks.aclose()

    asyncio.run(main())


def test_a_snapshot_shows_agents_slots_queues_and_money(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, latency=(5, 5)) as one:
            tasks = [*numbered(4), {"id": "last", "prompt": "Sum up.", "needs": ["t0", "t1"], "priority": 2}]
            id = await one.alice.spawn(tasks=tasks, max_agents=2, budget_usd=1)
            await until(lambda: one.provider.in_flight == 2)
            told = (await one.alice.get(f"{ROOT}/{id}")).json
            assert told["status"] == "running"
            assert told["census"]["ok"] == 0
            assert told["unfinished"] == 5
            agents = {agent["id"]: agent for agent in told["agents"]}
            assert agents["last"]["needs"] == ["t0", "t1"]
            assert agents["last"]["priority"] == 2
            assert agents["last"]["state"] == "waiting"
            assert [agents[name]["doing"] for name in ("t0", "t1")] == ["model", "model"]
            assert sorted(filter(None, told["slots"])) == ["t0", "t1"]
            assert len(told["slots"]) == 2
            assert told["money"]["cap_usd"] == 1
            assert told["money"]["reserved_usd"] > 0
            queues = {row["resource"]: row for row in told["queues"]}
            assert queues["agents"]["limit"] == queues["agents"]["in_use"] == 2
            listed = (await one.alice.get(ROOT)).json["data"]
            assert [(row["id"], row["status"], row["tasks"]) for row in listed] == [(id, "running", 5)]
            assert (await one.alice.get(f"{ROOT}/{id}/result")).status == 409

    asyncio.run(main())


def test_the_list_has_the_newest_first_and_no_more_than_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as one:
            ids = []
            for number in range(3):
                ids.append(await one.alice.spawn(goal=f"Goal {number}."))
                await one.alice.ended(ids[-1])
            data = (await one.alice.get(f"{ROOT}?limit=2")).json["data"]
            assert [row["id"] for row in data] == [ids[2], ids[1]]
            assert {row["status"] for row in data} == {"ok"}
            assert all(row["cost_usd"] > 0 and row["ok"] == 1 for row in data)
            assert (await one.alice.get(f"{ROOT}?limit=0")).status == 400

    asyncio.run(main())


def working(one: Gateway, id: str) -> Any:
    work = one.service.working(id)
    assert work is not None
    return work
