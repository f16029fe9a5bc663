"""A goal that the model drives, as the whole program: killed and resumed, out of money, cancelled, all failed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from centuria.messages import Usage
from centuria.testing.upstream import Calls, FakeUpstream, HttpError, Reply, Silence, Text
from tests.promises.kit import (
    Body,
    begin,
    bodies,
    calls,
    census,
    centuria,
    fold,
    prompt,
    swarm,
    the_run,
    tool_texts,
    turn,
    write_job,
)
from tests.promises.test_resume import key_of

USAGE = Usage(100, output=50)
WIDTH = 8


def orchestrator(body: Body) -> Reply:
    """The goal assigns readers, each of which assigns a checker; every text is made of what came back."""
    said = prompt(body)
    if said.startswith("check"):
        return Text(f"checked {said.split()[1]}", usage=USAGE)
    if turn(body) == 0:
        return Calls((("create_subagent", json.dumps({"name": "w", "system_prompt": "Work."})),), usage=USAGE)
    if turn(body) == 1:
        if said.startswith("read"):
            wanted = [{"agent": "w", "prompt": f"check {said.split()[1]}"}]
        else:
            wanted = [{"agent": "w", "prompt": f"read {n}", "id": f"r{n}"} for n in range(WIDTH)]
        return Calls(tuple(("assign_task", json.dumps(one)) for one in wanted), usage=USAGE)
    return Text(f"{said.split()[0]}({'; '.join(tool_texts(body)[1:])})", usage=USAGE)


def goal(folder: Path, upstream: FakeUpstream, **more: object) -> Path:
    more = {"job": {"prompt": "reach it"}, **more}
    return write_job(folder, upstream, **more)  # type: ignore[arg-type]


ANSWER = "reach(" + "; ".join(f"read(checked {n})" for n in range(WIDTH)) + ")"
TASKS, CALLS = 1 + 2 * WIDTH, 3 + 3 * WIDTH + WIDTH


@pytest.mark.parametrize("seed", range(4))
async def test_a_goal_that_was_killed_goes_on_where_it_was_and_pays_no_finished_call_twice(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    async with FakeUpstream(orchestrator, latency=0.05) as upstream:
        job = goal(tmp_path, upstream, limits={"concurrency": 4, "agents": 6})
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: len(upstream.requests) >= dice.randint(1, CALLS - 2), within=60)
        await asyncio.sleep(dice.random() * 0.08)  # any moment will do
        command.kill()
        await command.end()
        run = the_run(tmp_path)
        done = [call for call in calls(run) if call.call == "model" and call.state == "done"]
        before = len(upstream.requests)
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(run)
    assert report.answer.strip() == ANSWER
    assert census(report) == {"ok": TASKS} and report.exit_code == 0
    assert len(upstream.requests) - before == CALLS - len(done)
    finished = {key_of(run, call.task, call.epoch, call.turn) for call in done}
    of_run: Counter[str] = upstream.attempts
    assert all(of_run[name] == 1 for name in finished), "a call that was done was sent again"


async def test_a_goal_that_was_cancelled_is_resumed_with_all_that_it_had_assigned(tmp_path: Path) -> None:
    async with FakeUpstream(orchestrator, latency=0.05) as upstream:
        job = goal(tmp_path, upstream, limits={"concurrency": 4})
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: len(upstream.requests) >= 14, within=60)
        command.interrupt()
        assert (await command.end()).code == 130
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(the_run(tmp_path))
    assert (report.answer.strip(), census(report)) == (ANSWER, {"ok": TASKS})


async def test_what_a_finished_agent_was_told_is_settled_so_a_resume_of_a_goal_that_ended_runs_nothing(
    tmp_path: Path,
) -> None:
    def failing(body: Body) -> Reply:
        if prompt(body) == "check 3":
            return HttpError(400, "invalid_request_error", "Not this one.")
        return orchestrator(body)

    async with FakeUpstream(failing) as upstream:
        job = goal(tmp_path, upstream)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
            assert census(report) == {"ok": TASKS - 1, "failed": 1}
            assert (report.exit_code, report.status) == (1, "partial")
            assert "Not this one" in report.answer and "checked 7" in report.answer
            sent = len(upstream.requests)
            again = await hundred.resume(the_run(tmp_path))
    assert len(upstream.requests) == sent
    assert again.answer == report.answer


async def test_a_goal_whose_agents_all_failed_is_failed_and_counts_the_causes(tmp_path: Path) -> None:
    def failing(body: Body) -> Reply:
        if prompt(body).startswith("reach"):
            return orchestrator(body)
        return HttpError(400, "invalid_request_error", "It is down.")

    async with FakeUpstream(failing) as upstream:
        ended = await centuria(tmp_path, "run", goal(tmp_path, upstream), "--json")
    assert ended.code == 1
    assert ended.data["status"] == "failed"
    assert f"{WIDTH} x " in ended.data["cause"] and "It is down." in ended.data["cause"]


async def test_a_model_that_always_spawns_is_stopped_by_its_money_and_what_was_found_is_kept(tmp_path: Path) -> None:
    def spawning(body: Body) -> Reply:
        if turn(body) == 0:
            made = [("create_subagent", json.dumps({"name": "w", "system_prompt": "Work."}))]
            made += [("assign_task", json.dumps({"agent": "w", "prompt": f"{prompt(body)}.{n}"})) for n in range(3)]
            return Calls(tuple(made), usage=USAGE)
        return Text(f"<{prompt(body)}>", usage=USAGE)

    async with FakeUpstream(spawning) as upstream:
        limits = {"budget": 0.05, "depth": 20}
        job = goal(tmp_path, upstream, limits=limits, job={"prompt": "reach", "max_tokens": 1024})
        ended = await centuria(tmp_path, "run", job, "--json")
        run = the_run(tmp_path)
    assert (ended.code, ended.data["status"]) == (3, "budget")
    assert ended.data["answer"].startswith("<reach>")
    counted = ended.data["census"]
    assert counted["ok"] + counted["budget"] == ended.data["total"] and counted["ok"] > 10 and counted["budget"] > 0
    ledger = fold(run).ledger
    assert ledger.spent("run") + ledger.held("run") <= 50_000_000_000


def wide(body: Body, *, again: bool = False) -> Reply:
    """The goal assigns forty readers, and one that needs the last of them; with `again` it asks for the last twice."""
    if not prompt(body).startswith("reach"):
        return Text(f"<{prompt(body)}>", usage=USAGE)
    readers = [{"agent": "w", "prompt": f"read {n}", "id": f"r{n}"} for n in range(40)]
    if turn(body) == 0:
        return Calls((("create_subagent", json.dumps({"name": "w", "system_prompt": "Work."})),), usage=USAGE)
    if turn(body) == 1:
        wanted = [*readers, {"agent": "w", "prompt": "sum up", "id": "sum", "needs": ["r39"]}]
        return Calls(tuple(("assign_task", json.dumps(one)) for one in wanted), usage=USAGE)
    if turn(body) == 2 and again:
        return Calls((("assign_task", json.dumps(readers[39])),), usage=USAGE)
    return Text(f"reached with {sum('<read' in text for text in tool_texts(body))}", usage=USAGE)


SHORT = {"limits": {"budget": 0.02}, "job": {"prompt": "reach", "max_tokens": 256}}


async def test_what_was_refused_for_lack_of_money_is_in_the_census_and_runs_with_a_larger_budget(
    tmp_path: Path,
) -> None:
    async with FakeUpstream(wide) as upstream:
        ended = await centuria(tmp_path, "run", goal(tmp_path, upstream, **SHORT), "--json")
        before = len(upstream.requests)
        others = await centuria(tmp_path, "resume", "last", "--budget", "5", "--only", "failed", "--json")
        assert (others.code, len(upstream.requests)) == (3, before)
        more = await centuria(tmp_path, "resume", "last", "--budget", "5", "--json")
        after = await centuria(tmp_path, "resume", "last", "--json")
    counted = ended.data["census"]
    assert (ended.code, ended.data["status"], ended.data["total"]) == (3, "budget", 42)
    assert counted["budget"] >= 10 and counted["ok"] + counted["budget"] == 42
    assert [one["cause"] for one in ended.data["causes"] if one["status"] == "budget"] == [
        "it was refused, because the budget would not have lasted for it"
    ]
    assert "A resume with a larger --budget runs them" in json.dumps(ended.data["notices"])
    assert "# Missing" in ended.data["answer"] and "read 39: budget" in ended.data["answer"]
    assert (more.code, more.data["census"]["ok"]) == (0, 42)
    assert len(upstream.requests) - before == 42 - counted["ok"], "what had ended is paid once"
    assert more.data["answer"].strip() == ended.data["answer"].partition("\n")[0]
    assert (after.code, len(upstream.requests) - before) == (0, 42 - counted["ok"])


async def test_what_was_refused_for_lack_of_money_can_be_asked_for_again_by_its_name(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: wide(body, again=True)) as upstream:
        ended = await centuria(tmp_path, "run", goal(tmp_path, upstream, **SHORT), "--json")
    ends = {task["task"]: task["status"] for task in ended.data["tasks"]}
    assert (ended.code, ends["r38"], ends["r39"], ends["sum"]) == (3, "budget", "ok", "budget")


async def test_a_goal_on_the_command_line_is_driven_by_the_model(tmp_path: Path) -> None:
    async with FakeUpstream(orchestrator) as upstream:
        ended = await centuria(
            tmp_path,
            *("run", "reach it", "--base-url", upstream.base_url, "--model", "kimi-k2.5", "--budget", "none", "--json"),
        )
    assert ended.code == 0, ended.err
    assert ended.data["answer"].strip() == ANSWER
    assert ended.data["census"]["ok"] == TASKS


async def test_a_task_that_was_cancelled_before_the_crash_is_not_what_a_resumed_agent_waits_for(tmp_path: Path) -> None:
    killed = False

    def script(body: Body) -> Reply:
        if not prompt(body).startswith("reach"):
            return Text("<found>", usage=USAGE) if killed else Silence()
        tasks = [{"agent": "w", "prompt": f"read {n}", "id": f"t{n}", "background": True} for n in range(2)]
        turns = [
            [
                ("create_subagent", json.dumps({"name": "w", "system_prompt": "Work."})),
                *(("assign_task", json.dumps(one)) for one in tasks),
            ],
            [("cancel_task", '{"id": "t0"}')],
            [("wait_any", "{}")],
        ]
        if turn(body) < len(turns):
            return Calls(tuple(turns[turn(body)]), usage=USAGE)
        return Text(tool_texts(body)[-1], usage=USAGE)

    async with FakeUpstream(script) as upstream:
        command = await begin(tmp_path, "run", goal(tmp_path, upstream))
        await upstream.until(lambda: sum(prompt(body).startswith("reach") for body in bodies(upstream)) == 3, within=60)
        await asyncio.sleep(0.3)  # until it waits
        command.kill()
        await command.end()
        killed = True
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(the_run(tmp_path))
    assert report.answer.startswith("Task 't1':\n\n<found>"), report.answer
    assert census(report) == {"ok": 2, "cancelled": 1}
