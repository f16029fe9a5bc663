"""Whole runs of the program with these servers: a rehearsed model, real tools, deaths, and a resume."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from centuria import Swarm
from centuria.core.progress import Progress
from centuria.journal import JournalReader
from tests.promises.kit import (
    begin,
    calls,
    census,
    fold,
    processes_naming,
    results,
    the_run,
    until,
    write_job,
)
from tests.servers.kit import Entry, clock, filesystem, memory

NOBODY = "http://127.0.0.1:9"


def script(*turns: list[tuple[str, dict[str, Any], str]], text: str) -> dict[str, Any]:
    """`[rehearsal]`: turns of calls (tool, arguments, the name of its result), then a text."""
    said: list[dict[str, Any]] = [
        {"calls": [{"tool": tool, "arguments": arguments, "name": name} for tool, arguments, name in turn]}
        for turn in turns
    ]
    return {"latency_ms": 1, "turn": [*said, {"text": text}]}


def table(entry: Entry, **fields: Any) -> dict[str, Any]:
    """An entry as a job file's table; the variables of its environment are written out."""
    return {key: value for key, value in entry.items() if value} | fields


def swarm(folder: Path) -> Swarm:
    return Swarm(rehearse=True, runs=folder / "runs", env={"PATH": os.environ["PATH"]})


def progress(run: Path) -> Progress:
    return fold(run).progress


async def test_a_hundred_agents_remember_at_once_and_tell_the_time_and_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    entity = {"name": "{Name}", "entityType": "row", "observations": ["seen by {Name}"]}
    noon = {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Seoul"}
    rehearsal = script(
        [("create_entities", {"entities": [entity]}, "made"), ("convert_time", noon, "time")],
        [("open_nodes", {"names": ["{Name}"]}, "node")],
        text="{Name}: {node.entities.0.observations.0}, {time.target.datetime}",
    )
    tools = {"memory": table(memory(file)), "time": table(clock(), limit=10)}
    job = write_job(tmp_path, NOBODY, rows=100, tools=tools, rehearsal=rehearsal)
    async with swarm(tmp_path) as hundred:
        report = await hundred.run(job)
    assert report.status == "ok" and census(report) == {"ok": 100}
    assert {json.loads(line)["name"] for line in file.read_text().splitlines()} == {f"n{n}" for n in range(100)}
    texts = {task: outcome.text for task, outcome in report.outcomes.items()}
    assert all(
        text.startswith(f"{task}: seen by {task}, ") and "T21:00:00+09:00" in text for task, text in texts.items()
    )
    assert [call.state for call in calls(report.folder) if call.call == "tool"] == ["done"] * 300
    notices = [notice.text for notice in progress(report.folder).notices]
    assert sum("memory takes one call at a time" in text for text in notices) == 1
    assert not any("time takes one call" in text for text in notices)
    assert not processes_naming(str(file.parent))


async def test_a_server_that_is_killed_in_between_comes_back_and_costs_one_call_at_most(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write = {"path": str(root / "{Name}.txt"), "content": "by {Name}"}
    rehearsal = script(
        [("write_file", write, "wrote")], [("list_directory", {"path": str(root)}, "list")], text="{Name}: {wrote}"
    )
    tools = {"files": table(filesystem(root))}
    job = write_job(tmp_path, NOBODY, rows=30, tools=tools, rehearsal=rehearsal, limits={"concurrency": 20})
    async with swarm(tmp_path) as hundred, asyncio.TaskGroup() as group:
        run = group.create_task(hundred.run(job))
        await until(lambda: len(list(root.iterdir())) >= 5)
        (victim,) = processes_naming(str(root))
        os.kill(victim, signal.SIGKILL)
    report = run.result()
    assert census(report) == {"ok": 30}, "a lost call is a value that the agent goes on with"
    tool_calls = [call for call in calls(report.folder) if call.call == "tool"]
    in_doubt = [call for call in tool_calls if call.state == "unknown"]
    assert len(in_doubt) <= 1, "one call at a time, so one at most was on its way"
    written = {path.stem for path in root.iterdir()}
    assert {f"n{n}" for n in range(30)} - written <= {call.task for call in in_doubt}
    for call in in_doubt:
        if call.name == "files__write_file":
            assert "may or may not have happened" in report.outcomes[call.task].text
    with JournalReader(report.folder / "journal.sqlite") as reader:
        kinds = [record.event.kind for record in reader.records() if record.event.kind.startswith("server_")]
    assert kinds[:3] == ["server_up", "server_down", "server_up"]
    assert not processes_naming(str(root))


async def test_a_killed_run_goes_on_with_its_servers_and_repeats_no_finished_call(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write = {"path": str(root / "{Name}.txt"), "content": "by {Name}"}
    entity = {"name": "{Name}", "entityType": "row", "observations": []}
    rehearsal = script(
        [("write_file", write, "wrote")], [("create_entities", {"entities": [entity]}, "made")], text="{Name}: {wrote}"
    )
    tools = {"files": table(filesystem(root)), "memory": table(memory(root / "memory.jsonl"))}
    job = write_job(tmp_path, NOBODY, rows=20, tools=tools, rehearsal=rehearsal, limits={"concurrency": 10})
    command = await begin(tmp_path, "run", job, "--rehearse")
    await until(lambda: len(list(root.glob("n*.txt"))) >= 5, within=60)
    command.kill()
    await command.end()
    await until(lambda: not processes_naming(str(root)))
    run = the_run(tmp_path)
    before = {str(row): row.state for row in calls(run) if row.call == "tool" and row.state == "done"}
    in_doubt = {row.task for row in calls(run) if row.call == "tool" and row.state == "open"}
    assert before and len(in_doubt) <= 2, "one call at a time of each of two servers"

    async with swarm(tmp_path) as hundred:
        report = await hundred.resume(run)
    assert census(report) == {"ok": 20} and len(results(run)) == 20
    everyone = {f"n{n}" for n in range(20)}
    assert everyone - {path.stem for path in root.glob("n*.txt")} <= in_doubt
    remembered = {json.loads(line)["name"] for line in (root / "memory.jsonl").read_text().splitlines()}
    assert everyone - remembered <= in_doubt
    sent = [(row.task, row.epoch, row.turn, row.position) for row in calls(run) if row.call == "tool"]
    assert len(sent) == len(set(sent)), "none was sent a second time"
    assert not processes_naming(str(root))
