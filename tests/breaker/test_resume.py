"""A resume goes on from what the last one was told, and from nothing that is stale."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from centuria.ending import verdict
from centuria.errors import JournalError
from centuria.events import TaskEnded
from centuria.folder import RunFolder
from centuria.journal import JournalReader, SqliteJournal, post_command
from centuria.launch import prepare_resume
from centuria.merger import Merged
from centuria.messages import Outcome, Status
from centuria.testing.upstream import FakeUpstream, Reply, Text
from tests.promises.kit import Body, begin, centuria, prompt, raw_server, results, the_run, until, write_job

FEW = {"agents": 2, "concurrency": 2}


def echo(body: Body) -> Reply:
    return Text(prompt(body))


async def broken(folder: Path, upstream: FakeUpstream, *arguments: str | Path, after: int = 3) -> None:
    """Start a command and kill it in its work."""
    seen = len(upstream.requests)
    running = await begin(folder, *arguments, "--quiet")
    await until(lambda: len(upstream.requests) >= seen + after)
    running.kill()
    await running.end()


async def test_a_resume_of_an_edited_job_that_is_killed_goes_on_with_the_edited_job(tmp_path: Path) -> None:
    async with FakeUpstream(echo, latency=0.1) as upstream:
        await broken(tmp_path, upstream, "run", write_job(tmp_path, upstream, rows=6, limits=FEW))
        edited = write_job(tmp_path, upstream, rows=8, limits=FEW, job={"prompt": "Again: {Name}."}, name="edited.toml")
        await broken(tmp_path, upstream, "resume", "last", "--job", edited)
        ended = await centuria(tmp_path, "resume", "last", "--quiet")
        answers = {line["answer"] for line in results(the_run(tmp_path)).values()}
        assert ended.code == 0
        assert answers == {f"Again: n{number}." for number in range(8)}


async def test_a_lowered_cap_holds_for_the_next_resume_too(tmp_path: Path) -> None:
    async with FakeUpstream(echo, latency=0.1) as upstream:
        await broken(tmp_path, upstream, "run", write_job(tmp_path, upstream, rows=6, limits=FEW))
        run = the_run(tmp_path)
        assert (await centuria(tmp_path, "resume", run, "--budget", "0.000001", "--quiet")).code == 3
        seen = len(upstream.requests)
        assert (await centuria(tmp_path, "resume", run, "--quiet")).code == 3
        assert len(upstream.requests) == seen


async def test_a_lost_job_file_is_no_obstacle_where_the_job_is_given_again(tmp_path: Path) -> None:
    async with FakeUpstream(echo, latency=0.1) as upstream:
        path = write_job(tmp_path, upstream, rows=6, limits=FEW)
        await broken(tmp_path, upstream, "run", path)
        (the_run(tmp_path) / "job.json").write_text('{"schema": 1, "ru')
        refused = await centuria(tmp_path, "resume", "last", "--quiet")
        assert (refused.code, "--job" in refused.err) == (1, True)
        assert (await centuria(tmp_path, "resume", "last", "--quiet", "--job", path)).code == 0
        assert len(results(the_run(tmp_path))) == 6


@pytest.mark.parametrize("limit", ["agents", "concurrency", "steps"])
async def test_limits_with_which_no_run_can_end_are_refused(tmp_path: Path, limit: str) -> None:
    assert (await centuria(tmp_path, "run", "say hello", "--rehearse", "--quiet")).code == 0
    run = the_run(tmp_path)
    saved = json.loads((run / "job.json").read_text())
    saved["job"]["limits"][limit] = 0
    (run / "job.json").write_text(json.dumps(saved))
    with pytest.raises(JournalError, match="cannot be read"):
        prepare_resume(RunFolder(run), {})


def test_a_task_without_an_outcome_is_not_ok() -> None:
    ends = {"a": Outcome("a", Status.OK)}
    assert verdict(ends, Merged(""), stopped="", unended=1)[:2] == ("partial", 1)
    assert verdict({}, Merged(""), stopped="", unended=1)[:2] == ("failed", 1)
    assert verdict(ends, Merged(""), stopped="")[:2] == ("ok", 0)


async def test_a_command_for_the_run_before_does_not_stop_the_one_after(tmp_path: Path) -> None:
    async with FakeUpstream(echo, latency=0.1) as upstream:
        await broken(tmp_path, upstream, "run", write_job(tmp_path, upstream, rows=6, limits=FEW))
        post_command(the_run(tmp_path), {"command": "cancel"})
        assert (await centuria(tmp_path, "resume", "last", "--quiet")).code == 0


async def test_no_key_stays_in_the_folder_wherever_a_server_was_given_it(tmp_path: Path) -> None:
    """In arguments, filled from the environment or behind a flag, and in a URL."""
    key, other = "sk4f9a7d21c05b8e63", "fromaflag"
    async with FakeUpstream(echo) as upstream:
        tools = {
            "a": {**raw_server("echo"), "args": ["-c", "pass", "${MYVALUE}"]},
            "b": {**raw_server("echo"), "args": ["-c", "pass", "--api-token", other]},
            "c": {"url": f"http://127.0.0.1:9/mcp?k={other}"},
        }
        path = write_job(tmp_path, upstream, rows=1, tools=tools)
        ended = await centuria(tmp_path, "run", path, "--quiet", env={"MYVALUE": key})
        run = the_run(tmp_path)
        left = [file.name for file in run.rglob("*") if file.is_file() and any(
            secret in file.read_bytes() for secret in (key.encode(), other.encode())
        )]  # fmt: skip
        assert left == []
        # They are read again from where they were written.
        ended = await centuria(tmp_path, "resume", run, "--quiet", env={"MYVALUE": key})
        assert ended.code == 0, ended.err
        path.unlink()
        refused = await centuria(tmp_path, "resume", run, "--quiet", env={"MYVALUE": key})
        assert refused.code == 2
        assert "not in a run's folder" in refused.err, refused.err


async def test_a_result_that_was_made_again_replaces_the_file_of_the_one_before(tmp_path: Path) -> None:
    """The end of a task is a fact before its file is there: a kill between the two leaves the older file."""
    assert (await centuria(tmp_path, "run", "say hello", "--rehearse", "--quiet")).code == 0
    whole, cut = the_run(tmp_path), tmp_path / "cut"
    (cut / "reports").mkdir(parents=True)
    shutil.copy(whole / "job.json", cut)
    with JournalReader(whole / "journal.sqlite") as reader:
        records = list(reader.records())
    end = next(record.seq for record in records if isinstance(record.event, TaskEnded))
    journal = SqliteJournal.create(cut / "journal.sqlite", run="cut", name="cut")
    journal.append(records[:end])
    await journal.aclose()
    (name,) = (file.name for file in (whole / "reports").iterdir())
    (cut / "reports" / name).write_text("of the epoch before")
    assert (await centuria(tmp_path, "resume", cut, "--quiet")).code == 0
    assert (cut / "reports" / name).read_text() == (whole / "reports" / name).read_text()
