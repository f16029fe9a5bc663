"""Whole runs with tool servers that are leased, pooled, limited, or refuse what is too much; and limits that change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from centuria import ConfigurationError
from centuria.cli import main
from centuria.core.progress import Progress
from centuria.events import GateClosed, LimitSet, Notice
from centuria.journal import JournalReader
from centuria.testing.upstream import Calls, FakeUpstream, Reply, Text
from centuria.views import text
from tests.promises.kit import (
    Body,
    begin,
    census,
    centuria,
    fold,
    prompt,
    raw_server,
    swarm,
    the_run,
    tool_texts,
    turn,
    until,
    write_job,
)
from tests.toolhost.servers.rawhttp import RawHttp


def facts(run: Path, *kinds: type) -> list[Any]:
    with JournalReader(run / "journal.sqlite") as reader:
        return [record.event for record in reader.records() if isinstance(record.event, kinds)]


def unused(progress: Progress) -> bool:
    return all(row.in_use == row.waiting == 0 for row in progress.resources.values())


def keeps_twice(body: Body) -> Reply:
    """Leave a name in the session, twice, then say what was found there."""
    who = prompt(body).split()[-1].strip(".")
    if turn(body) < 2:
        return Calls((("raw__keep", json.dumps({"text": who})),))
    return Text(" | ".join(tool_texts(body)))


async def test_agents_of_a_leased_server_never_meet_what_another_left(tmp_path: Path) -> None:
    async with FakeUpstream(keeps_twice) as upstream:
        server = raw_server("keeps", mode="leased", replicas=2)
        job = write_job(tmp_path, upstream, rows=6, tools={"raw": server})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert {task: end.text for task, end in report.outcomes.items()} == {f"n{n}": f"n{n} | n{n} n{n}" for n in range(6)}
    progress = fold(report.folder).progress
    lease = progress.resources["lease:raw"]
    assert (lease.limit, lease.peak, lease.granted, lease.rejected) == (2, 2, 6, 0)
    assert lease.peak_waiting == 4
    assert unused(progress)
    said = text.show(progress)
    assert "raw (sessions)" in said
    assert "leased, 2 of 2 replicas up" in said
    assert "leased, 2 of 2 replicas up" in (report.folder / "report.html").read_text()


async def test_a_cancelled_agent_gives_its_session_to_the_next(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if "n0" in prompt(body):
            return Calls((("raw__sleep", '{"seconds": 300}'),))
        return keeps_twice(body)

    async with FakeUpstream(script) as upstream:
        server = raw_server("keeps", mode="leased", replicas=1, timeout=600)
        job = write_job(tmp_path, upstream, rows=2, tools={"raw": server}, limits={"agents": 2})
        async with swarm(tmp_path) as hundred:
            working = asyncio.create_task(hundred.run(job))
            await until(lambda: any(run.stream is not None for run in hundred._active))
            (run,) = hundred._active
            assert run.stream is not None
            tasks = run.stream.progress.tasks
            await until(lambda: "n0" in tasks and tasks["n0"].doing == "tool raw__sleep")
            await until(lambda: tasks["n1"].doing == "queued for a session of raw")
            run.cancel("n0")
            report = await working
    assert census(report) == {"cancelled": 1, "ok": 1}
    assert report.outcomes["n1"].text == "n1 | n1 n1"
    assert unused(fold(report.folder).progress)


async def test_a_hundred_agents_against_a_server_that_takes_ten_all_succeed_with_few_calls_too_many(
    tmp_path: Path,
) -> None:
    def script(body: Body) -> Reply:
        return Text(tool_texts(body)[0]) if turn(body) else Calls((("web__limited", "{}"),))

    async with FakeUpstream(script) as upstream, RawHttp(at_once=10).serving() as server:
        tools = {"web": {"url": server.url, "limit": 40}}
        job = write_job(tmp_path, upstream, rows=100, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
        sent = server.seen.count("limited")
    assert census(report) == {"ok": 100}
    assert {end.text for end in report.outcomes.values()} == {"done"}
    assert 100 <= sent < 130
    progress = fold(report.folder).progress
    row = progress.upstreams.get("server:web")
    assert len(facts(report.folder, GateClosed)) >= (row is not None)
    if sent > 100:
        assert row is not None
        assert "refused calls as too many" in text.summary(progress)
        reasons = [event.reason for event in facts(report.folder, LimitSet) if event.resource == "server:web"]
        assert any("HTTP 429" in reason for reason in reasons)
    assert progress.tools["web__limited"].results == {"ok": 100}
    assert unused(progress)


async def test_a_limit_is_changed_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CENTURIA_RUNS", str(tmp_path / "runs"))

    async def limit(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["limit", "last", *arguments])
        return code, capsys.readouterr().err

    def script(body: Body) -> Reply:
        return Text("Done.") if turn(body) else Calls((("raw__sleep", '{"seconds": 0.5}'),))

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=80, tools={"raw": raw_server()})
        running = await begin(tmp_path, "run", job, "--quiet", "--json", "--yes")
        await until(lambda: (tmp_path / "runs").is_dir() and list((tmp_path / "runs").iterdir()), within=60)
        folder = the_run(tmp_path)
        await until(lambda: "server:raw" in _resources(folder), within=60)
        for resource, number, said in (
            ("server:rwa", "5", "Did you mean `server:raw`?"),
            ("model:kimi-k2.5", "5", "found out from what the provider takes"),
            ("agents", "500", "cannot have more"),
            ("server:raw", "-1", "cannot be -1"),
        ):
            code, err = await limit(resource, number)
            assert code == 2
            assert said in err
        code, err = await limit("server:raw", "40")
        assert (code, "will be 40" in err) == (0, True), err
        ended = await running.end()
        assert ended.code == 0, ended.err
    limits = [event for event in facts(folder, LimitSet) if event.resource in ("server:raw", "tool:raw__sleep")]
    assert Counter((event.limit, event.reason) for event in limits)[40, "set by command"] == 2
    assert fold(folder).progress.resources["server:raw"].peak > 1
    code, err = await limit("server:raw", "20")
    assert (code, "Nothing works on" in err) == (2, True)


def _resources(folder: Path) -> set[str]:
    try:
        return set(fold(folder).progress.resources)
    except Exception:
        return set()


async def test_a_swarm_changes_the_limits_of_the_run_that_it_works_on(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        return Text("Done.") if turn(body) else Calls((("raw__sleep", '{"seconds": 0.2}'),))

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=20, tools={"raw": raw_server()})
        async with swarm(tmp_path) as hundred:
            with pytest.raises(ConfigurationError, match="No such run"):
                hundred.set_limit("server:raw", 5)
            changed = False
            async for item in hundred.stream(job):
                if not changed and getattr(getattr(item, "event", None), "resource", "") == "tool:raw__sleep":
                    changed = bool(getattr(item.event, "ticket", 0))  # type: ignore[union-attr]
                    if changed:
                        hundred.set_limit("server:raw", 20)
                        hundred.set_limit("agents", 3)
                        with pytest.raises(ConfigurationError, match="cannot be"):
                            hundred.set_limit("server:raw", -1)
    progress = fold(the_run(tmp_path)).progress
    assert progress.resources["agents"].limit == 3
    assert progress.resources["server:raw"].reasons[-1] == (20, "set by the user")
    assert progress.ended_count == 20


async def test_a_command_that_makes_no_sense_is_a_warning_and_nothing_more(tmp_path: Path) -> None:
    from centuria.journal import post_command

    def script(body: Body) -> Reply:
        return Text("Done.") if turn(body) else Calls((("raw__sleep", '{"seconds": 1.5}'),))

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=1, tools={"raw": raw_server()})
        async with swarm(tmp_path) as hundred:
            async for item in hundred.stream(job):
                if getattr(getattr(item, "event", None), "kind", "") == "task_started":
                    folder = the_run(tmp_path)
                    post_command(folder, {"command": "limit", "resource": ["x"], "limit": "many"})
                    post_command(folder, {"command": "limit", "resource": "server:x", "limit": 3})
    notices = [event.text for event in facts(the_run(tmp_path), Notice)]
    assert any("not whole" in notice for notice in notices)
    assert any("nothing called 'server:x'" in notice for notice in notices)
    assert fold(the_run(tmp_path)).progress.status == "ok"


async def test_doctor_and_tools_say_which_replicas_are_up_and_why_others_are_not(tmp_path: Path) -> None:
    server = raw_server(f"one={tmp_path / 'mark'}", mode="pool", replicas=3)
    job = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1, tools={"raw": server})
    doctor = await centuria(tmp_path, "doctor", job, "--offline")
    assert "pool, 1 of 3 replicas up" in doctor.out
    assert "only one of me may run" in doctor.out
    assert "note server raw" in doctor.out
    (tmp_path / "mark").unlink()
    tools = await centuria(tmp_path, "tools", job, "--json")
    assert tools.code == 0
    (line,) = [line for line in tools.lines if line.get("mode") == "pool"]
    assert Counter(replica["up"] for replica in line["replicas"]) == {True: 1, False: 2}
    assert line["limit"] == 1
