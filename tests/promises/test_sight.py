"""Promise 6: you can watch it and explain it, from the same events that the run itself acted on."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from centuria import ConfigurationError, Record, TextDelta
from centuria.config import load_job
from centuria.core.money import Ledger
from centuria.events import RunEnded, RunStarted, TaskEnded
from centuria.folder import RunFolder
from centuria.launch import prepare
from centuria.messages import Status
from centuria.run import Run
from centuria.stream import Stream
from centuria.testing.upstream import Calls, FakeUpstream, HttpError, Reply, Stall, Text
from tests.promises.kit import (
    Body,
    begin,
    centuria,
    fold,
    prompt,
    raw_server,
    results,
    swarm,
    the_run,
    turn,
    until,
    write_job,
)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "report": {"type": "string"}},
    "required": ["name", "n", "report"],
}


def answer_or_fail(body: Body) -> Reply:
    who = prompt(body).split()[-1].strip(".")
    if who == "n2":
        return HttpError(400, message="Not this one.")
    return Text(json.dumps({"name": f"={who}", "n": int(who[1:]), "report": f"# All of {who}"}))


async def test_the_files_of_a_run_agree_with_its_outcomes(tmp_path: Path) -> None:
    async with FakeUpstream(answer_or_fail) as upstream:
        merge = {"kind": "table", "schema": SCHEMA, "text": "report"}
        job = write_job(tmp_path, upstream, rows=5, merge=merge)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    folder, good = report.folder, ["n0", "n1", "n3", "n4"]
    lines = results(folder)
    assert list(lines) == ["n0", "n1", "n2", "n3", "n4"]
    for task, end in report.outcomes.items():
        line = lines[task]
        assert (line["status"], line["cause"], line["attempts"]) == (end.status.value, end.cause, end.attempts)
        assert line["cost"] == end.cost / 10**12 and line["tokens"]["output"] == end.usage.output
        assert line["answer"] == (end.structured if end.status is Status.OK else end.text)
    assert sorted(path.stem for path in (folder / "reports").iterdir()) == good
    assert (folder / "reports" / "n3.md").read_text() == "# All of n3\n"
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_bytes().decode())))
    assert [(row["id"], row["name"], row["n"]) for row in rows] == [(task, f"'={task}", task[1:]) for task in good]
    assert "report" not in rows[0]
    page = (folder / "report.html").read_text()
    assert "Not this one." in page and "n2" in page
    assert "default-src 'none'" in page, "a report fetches nothing"
    written = fold(folder).progress.files
    assert all((folder / path).is_file() for path in written) and len(written) == 4 + 3
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]


async def test_a_stream_gives_facts_and_tagged_text_and_then_ends(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text(f"The story of {prompt(body)}", piece=3)) as upstream:
        job = write_job(tmp_path, upstream, rows=4)
        async with swarm(tmp_path) as hundred:
            items = [item async for item in hundred.stream(job)]
    facts = [item for item in items if isinstance(item, Record)]
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
    assert isinstance(facts[0].event, RunStarted) and isinstance(facts[-2].event, RunEnded)
    texts: dict[str, str] = {}
    for item in items:
        if isinstance(item, TextDelta):
            texts[item.task] = texts.get(item.task, "") + item.text
    assert texts == {f"n{n}": f"The story of Report on n{n}." for n in range(4)}
    ended = [fact.event.outcome for fact in facts if isinstance(fact.event, TaskEnded)]
    assert {end.task: end.text for end in ended} == texts


async def test_leaving_a_stream_early_cancels_its_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Here.") if "n0" in prompt(body) else Stall(Text("Long."))) as upstream:
        job = write_job(tmp_path, upstream, rows=3)
        async with swarm(tmp_path) as hundred:
            stream = hundred.stream(job)
            async for item in stream:
                if isinstance(item, Record) and isinstance(item.event, TaskEnded):
                    break
            await stream.aclose()
            lines = results(the_run(tmp_path))
        await upstream.until(lambda: upstream.in_flight == 0)
    assert {task: line["status"] for task, line in lines.items()} == {"n0": "ok", "n1": "cancelled", "n2": "cancelled"}


async def test_a_stream_says_what_is_wrong_with_its_job(tmp_path: Path) -> None:
    async with swarm(tmp_path) as hundred:
        with pytest.raises(ConfigurationError, match="nowhere"):
            async for _ in hundred.stream("nowhere.toml"):
                pytest.fail("there is nothing to show")


async def test_the_journal_folded_again_equals_the_live_state_of_the_whole_run(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if "n3" in prompt(body):
            return HttpError(400)
        return Text("Here.") if turn(body) else Calls((("raw__echo", '{"text": "a"}'), ("nothing", "{}")))

    live: list[Stream] = []
    async with FakeUpstream(script, latency=0.01) as upstream:
        path = write_job(tmp_path, upstream, rows=8, tools={"raw": raw_server(limit=2)}, limits={"concurrency": 3})
        loaded = load_job(path, env={})
        launch = prepare(loaded, {}, run="one", folder=RunFolder(tmp_path / "runs" / "one"))
        run = Run(launch)
        report = await run.execute(begun=live.append)
    folded = fold(report.folder)
    assert live[0].progress == folded.progress
    assert folded.progress.seq == live[0].seq and folded.progress.status == "partial"
    assert {task: folded.graph.outcome(task) for task in folded.graph.ids()} == report.outcomes
    assert (folded.ledger.spent("run"), folded.ledger.held("run")) == (report.cost, report.held)
    assert folded.ledger.open_holds() == () and folded.calls.in_doubt() == []
    money = folded.progress.money()
    assert (money.spent, money.held, money.reserved) == (report.cost, report.held, 0)
    assert isinstance(folded.ledger, Ledger)


# -- from a second process ---------------------------------------------------------------------------------------------


async def test_a_second_process_watches_a_run_to_its_end_and_cancels_one_task_of_it(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if "n1." in prompt(body):
            return Stall(Text("A story without an end.", piece=2))
        return Text("Here.")

    async with FakeUpstream(script, latency=0.05) as upstream:
        job = write_job(tmp_path, upstream, rows=4, limits={"agents": 2})
        run = await begin(tmp_path, "run", job)
        await until(lambda: (tmp_path / "runs").is_dir() and list((tmp_path / "runs").glob("*/reports/n3.md")), 60)
        watch = await begin(tmp_path, "watch", "last")
        listed = await centuria(tmp_path, "runs", "--json")
        assert [(line["running"], line["status"], line["ok"]) for line in listed.lines] == [(True, "running", 3)]
        nonsense = await centuria(tmp_path, "cancel", "last", "n99")
        assert nonsense.code == 2 and "n99" in nonsense.err and run.running and watch.running
        told = await centuria(tmp_path, "cancel", "last", "n1")
        assert told.code == 0 and told.out == ""
        ended, watched = await run.end(), await watch.end()
        assert ended.code == 1 and watched.code == 0
        lines = results(the_run(tmp_path))
        assert {task: line["status"] for task, line in lines.items()} == {
            "n0": "ok",
            "n1": "cancelled",
            "n2": "ok",
            "n3": "ok",
        }
        assert lines["n1"]["answer"].startswith("A story")
        assert watched.out == "" and "3 ok, 1 cancelled of 4" in watched.err
        late = await centuria(tmp_path, "cancel", "last", "n1")
        assert late.code == 2 and "centuria runs" in late.err


async def test_standard_output_holds_nothing_but_data(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text(f"About {prompt(body)}")) as upstream:
        job = write_job(tmp_path, upstream, rows=2)
        plain = await centuria(tmp_path, "run", job)
        assert plain.out == "# n0\n\nAbout Report on n0.\n\n# n1\n\nAbout Report on n1.\n"
        assert "2 ok of 2" in plain.err and "2 tasks, 2 agents at once" in plain.err
        assert "\x1b" not in plain.err, "no colours for a pipe"
        quiet = await centuria(tmp_path, "run", job, "--json", "--quiet")
        assert quiet.err == "" and quiet.data["census"]["ok"] == 2
        assert quiet.data["answer"] == plain.out and len(quiet.data["tasks"]) == 2
        shown = await centuria(tmp_path, "show", "last", "--json")
        assert shown.data["run"] == quiet.data["run"] and shown.data["running"] is False
        assert {key: shown.data[key] for key in ("cost", "census", "status")} == {
            key: quiet.data[key] for key in ("cost", "census", "status")
        }
        task = await centuria(tmp_path, "show", "last", "n1", "--json")
        assert task.data["outcome"]["text"] == "About Report on n1." and len(task.data["calls"]) == 1
        runs = await centuria(tmp_path, "runs", "--json")
    assert [(line["status"], line["ok"], line["tasks"]) for line in runs.lines] == [("ok", 2, 2)] * 2
