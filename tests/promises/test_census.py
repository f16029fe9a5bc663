"""Promise 5: the census is honest. Each task ends exactly once, with its cause, its partial text and its cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from centuria.events import TaskEnded
from centuria.journal import JournalReader, post_command
from centuria.messages import Status, Usage
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Silence, Stall, Text
from tests.promises.kit import (
    Body,
    begin,
    billed,
    bodies,
    census,
    centuria,
    fold,
    prompt,
    results,
    swarm,
    the_run,
    turn,
    write_job,
)

#: 16,000 output tokens cost ten cents.
PRICE = {"input": 0.0, "output": 6.25}
LONG = Text("Once upon a time there was a very long answer.", piece=4)


def every_end(body: Body) -> Reply:
    """A script for tasks that are named after how they are to end."""
    match prompt(body).split()[0]:
        case "failed":
            return HttpError(400, message="Not like this.")
        case "timeout" | "cancelled":
            return Stall(LONG)
        case "budget":
            return Calls((("no_such_tool", "{}"),), text="So far.", usage=Usage(10, output=15_000))
    return Text("Here.", usage=Usage(10, output=100))


TASKS: list[dict[str, Any]] = [
    {"id": "fine", "prompt": "ok"},
    {"id": "failing", "prompt": "failed"},
    {"id": "slow", "prompt": "timeout", "max_tokens": 4_000},
    {"id": "unwanted", "prompt": "cancelled"},
    {"id": "dear", "prompt": "budget"},
    {"id": "behind", "prompt": "blocked", "needs": ["failing"]},
    {"id": "far behind", "prompt": "blocked too", "needs": ["behind"]},
    {"id": "tolerant", "prompt": "ok then", "needs": ["failing", "fine"], "allow_failed": True},
    {"id": "after", "prompt": "ok after", "needs": ["fine"]},
]


async def test_a_run_with_every_kind_of_end_counts_each_task_once_with_its_cause(tmp_path: Path) -> None:
    async with FakeUpstream(every_end) as upstream:
        job = write_job(
            tmp_path,
            upstream,
            tasks=TASKS,
            price=PRICE,
            limits={"agent_budget": 0.2},
            timeouts={"total": 1.5},
        )
        async with swarm(tmp_path) as hundred:
            work = asyncio.create_task(hundred.run(job))
            await upstream.until(lambda: any(prompt(body) == "cancelled" for body in bodies(upstream)))
            post_command(the_run(tmp_path), {"command": "cancel", "task": "unwanted"})
            report = await asyncio.wait_for(work, 30)
    ends = report.outcomes
    assert {task: end.status.value for task, end in ends.items()} == {
        "fine": "ok",
        "failing": "failed",
        "slow": "timeout",
        "unwanted": "cancelled",
        "dear": "budget",
        "behind": "blocked",
        "far behind": "blocked",
        "tolerant": "ok",
        "after": "ok",
    }
    assert all(bool(end.cause) is (end.status is not Status.OK) for end in ends.values())
    assert "Not like this." in ends["failing"].cause
    assert "'failing'" in ends["behind"].cause and "'failing'" in ends["far behind"].cause
    assert "command" in ends["unwanted"].cause
    assert ends["slow"].text and LONG.text.startswith(ends["slow"].text)
    assert ends["unwanted"].text and LONG.text.startswith(ends["unwanted"].text)
    assert ends["dear"].text == "So far." and ends["dear"].cost > 0
    assert (report.status, report.exit_code) == ("budget", 3)

    folded = fold(report.folder).progress
    assert sum(folded.census().values()) == len(TASKS) == len(folded.tasks)
    assert {status.value: number for status, number in folded.census().items() if number} == census(report)
    with JournalReader(report.folder / "journal.sqlite") as reader:
        ended = Counter(record.event.task for record in reader.records() if isinstance(record.event, TaskEnded))
    assert ended == Counter(list(ends))
    assert sum(end.cost for end in ends.values()) == report.cost
    assert sum(end.held for end in ends.values()) == report.held
    assert billed(upstream, PRICE) <= report.cost + report.held
    lines = results(report.folder)
    assert {task: line["status"] for task, line in lines.items()} == {
        task: end.status.value for task, end in ends.items()
    }
    assert lines["slow"]["answer"] == ends["slow"].text


async def test_a_task_that_an_edited_job_no_longer_has_ends_as_skipped(tmp_path: Path) -> None:
    async with FakeUpstream(every_end) as upstream:
        tasks = [{"id": "fine", "prompt": "ok"}, {"id": "gone", "prompt": "timeout"}]
        write_job(tmp_path, upstream, tasks=tasks)
        async with swarm(tmp_path) as hundred:
            stream = hundred.stream(tmp_path / "job.toml")
            async for item in stream:
                if isinstance(getattr(item, "event", None), TaskEnded):
                    break
            await stream.aclose()
        run = the_run(tmp_path)
        # The one that was running is cancelled; as if it had been killed, it has no outcome for the resume to keep.
        assert results(run)["gone"]["status"] == "cancelled"
        edited = write_job(tmp_path, upstream, tasks=tasks[:1], name="edited.toml")
        ended = await centuria(tmp_path, "resume", run, "--job", edited, "--json")
    assert ended.code == 0, ended.err
    assert ended.data["status"] == "ok"


async def test_a_task_that_never_ended_and_is_no_longer_there_is_counted_as_skipped(tmp_path: Path) -> None:
    async with FakeUpstream(every_end) as upstream:
        tasks = [{"id": "fine", "prompt": "ok"}, {"id": "gone", "prompt": "timeout"}]
        job = write_job(tmp_path, upstream, tasks=tasks)
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: len(upstream.requests) == 2, within=60)
        command.kill()
        await command.end()
        edited = write_job(tmp_path, upstream, tasks=tasks[:1], name="edited.toml")
        ended = await centuria(tmp_path, "resume", "last", "--job", edited, "--json")
    assert ended.code == 0, ended.err
    assert (ended.data["census"]["ok"], ended.data["census"]["skipped"]) == (1, 1)
    assert sum(ended.data["census"].values()) == 2 and ended.data["unfinished"] == 0


async def test_results_are_passed_on_to_the_task_that_needs_them_and_failures_are_named(tmp_path: Path) -> None:
    async with FakeUpstream(every_end) as upstream:
        tasks = [
            {"id": "good", "prompt": "ok"},
            {"id": "bad", "prompt": "failed"},
            {"id": "end", "prompt": "ok end", "needs": ["*"], "allow_failed": True},
        ]
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(write_job(tmp_path, upstream, tasks=tasks))
    assert census(report) == {"ok": 2, "failed": 1}
    last = prompt(bodies(upstream)[-1])
    assert "## good\n\nHere." in last and "## bad\n\n(this task ended as failed: " in last
    assert "# Missing" in report.answer and "Not like this." in report.answer


async def test_the_text_of_a_stream_that_was_cut_for_good_is_kept(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Cut(LONG)) as upstream:
        job = write_job(tmp_path, upstream, rows=1, limits={"seconds": 2.5})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    end = report.outcomes["n0"]
    assert end.status in (Status.TIMEOUT, Status.FAILED) and end.attempts >= 2
    assert end.text and LONG.text.startswith(end.text)
    assert results(report.folder)["n0"]["answer"] == end.text


async def test_what_an_agent_said_before_and_what_it_was_saying_are_both_kept(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        return Stall(LONG) if turn(body) else Calls((("no_such_tool", "{}"),), text="I shall look.")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=1, job={"max_tokens": 4_000}, timeouts={"total": 1.0})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    end = report.outcomes["n0"]
    assert end.status is Status.TIMEOUT and end.text.startswith("I shall look.\n\nOnce upon")


async def test_an_agent_whose_time_is_up_ends_as_timeout(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Silence()) as upstream:
        job = write_job(tmp_path, upstream, rows=2, limits={"seconds": 0.5})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"timeout": 2} and (report.status, report.exit_code) == ("failed", 1)


async def test_exit_codes_follow_from_the_census(tmp_path: Path) -> None:
    async with FakeUpstream(every_end) as upstream:
        wanted = {("ok", "ok"): 0, ("ok", "failed"): 1, ("failed", "failed"): 1}
        for ways, code in wanted.items():
            tasks = [{"id": f"t{number}", "prompt": way} for number, way in enumerate(ways)]
            async with swarm(tmp_path) as hundred:
                report = await hundred.run(write_job(tmp_path, upstream, tasks=tasks))
            assert report.exit_code == code
            assert report.status == {0: "ok", 1: "partial" if "ok" in ways else "failed"}[code]


async def test_an_answer_at_its_token_limit_is_ok_and_marked_as_cut_short(tmp_path: Path) -> None:
    cut = Text("As far as I", finish="length")
    async with FakeUpstream(lambda body: cut) as upstream, swarm(tmp_path) as hundred:
        report = await hundred.run(write_job(tmp_path, upstream, rows=1))
    end = report.outcomes["n0"]
    assert end.status is Status.OK and end.cut_short and "max_tokens" in end.cause
