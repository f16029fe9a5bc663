"""A whole run, recorded and replayed: the same results and reports, whatever the order, without a key or a network."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from centuria import Swarm
from centuria.cli import main
from centuria.config import Overrides, load_job
from centuria.ending import Report
from centuria.errors import ConfigurationError
from centuria.events import Notice
from centuria.folder import RunFolder
from centuria.journal import JournalReader
from centuria.launch import Tape, prepare
from centuria.run import Run
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Reset, Text
from tests.promises.kit import Body, begin, centuria, prompt, raw_server, swarm, the_run, tool_texts, turn, write_job

ROOT = Path(__file__).parents[2]
KEY = "sk-verysecret0123456789"
#: What a run leaves behind that does not tell of time.
LEFT = ("results.jsonl", "answer.md", "table.csv", "summary.md")


def left(run: Path) -> dict[str, bytes]:
    files = [*(run / name for name in LEFT), *sorted((run / "reports").iterdir())]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.exists()}


async def execute(
    job: Path, out: Path, *, env: Mapping[str, str] | None = None, rehearse: bool = False, **how: Any
) -> Report:
    """One run whose wall clock stands still: nothing in its results may depend on how long it took."""
    tape = Tape(how.pop("record", None), how.pop("replay", None))
    loaded = load_job(job, Overrides(**how), env=env or {})
    launch = prepare(loaded, env or {}, run=out.name, folder=RunFolder(out), rehearse=rehearse, tape=tape)
    return await Run(launch, wall=lambda: 0.0, dice=lambda: 0.5).execute()


def notices(run: Path) -> list[str]:
    with JournalReader(run / "journal.sqlite") as reader:
        return [record.event.text for record in reader.records() if isinstance(record.event, Notice)]


class Unreliable:
    """Three turns with tools; on the way, every agent meets a fault or two that depends on nothing but its name."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, int], int] = {}

    def __call__(self, body: Body) -> Reply:
        who, when = re.findall(r"n\d+", prompt(body))[0], turn(body)
        times = self.asked[who, when] = self.asked.get((who, when), 0) + 1
        number = int(who[1:])
        if times == 1 and when == number % 3:
            faults: list[Reply] = [
                HttpError(429, "rate_limit_reached_error", "Slower.", {"Retry-After": "0.01"}),
                Cut(Text("Half of this is lost. " * 40)),
                Reset(),
                HttpError(503, "server_unavailable", "Later."),
            ]
            return faults[number % 4]
        if when < 2:
            said = [("raw__echo", json.dumps({"text": f"{who} {when}.{part} é"})) for part in range(2)]
            return Calls(tuple(said), text="Let me see.", reasoning="Hm. ")
        return Text(f"{who} heard {', '.join(tool_texts(body))}." * 3, piece=7)


async def test_twenty_agents_with_tools_and_faults_leave_the_same_files_when_they_are_replayed_one_by_one(
    tmp_path: Path,
) -> None:
    tape, key = tmp_path / "run.jsonl", {"CENTURIA_API_KEY": KEY}
    async with FakeUpstream(Unreliable(), key=KEY, latency=0.01) as upstream:
        job = write_job(tmp_path, upstream, rows=20, tools={"raw": raw_server("echo", limit=10)})
        live = await execute(job, tmp_path / "live", env=key, record=tape, concurrency=100)
        asked = len(upstream.requests)
    assert live.status == "ok" and asked == 20 * 4 and upstream.peak >= 10
    assert f"{asked} model exchanges are in {tape}." in notices(tmp_path / "live")
    assert KEY not in tape.read_text() and tape.stat().st_mode & 0o777 == 0o600
    # The upstream has gone, and there is no key.
    for concurrency in (100, 1):
        out = tmp_path / f"again-{concurrency}"
        again = await execute(job, out, replay=tape, concurrency=concurrency, agents=concurrency)
        assert left(out) == left(tmp_path / "live") and len(left(out)) == 22
        assert (again.cost, again.held, again.answer) == (live.cost, live.held, live.answer) and live.held > 0
        assert any("This is a replay" in said for said in notices(out))


async def test_a_rehearsal_of_the_example_is_replayed_with_its_table_summary_and_costs(tmp_path: Path) -> None:
    source, tape = ROOT / "examples" / "market-reports" / "job.toml", tmp_path / "run.jsonl"
    live = await execute(source, tmp_path / "live", rehearse=True, record=tape, limit=8)
    again = await execute(source, tmp_path / "again", replay=tape, limit=8, concurrency=1)
    assert live.status == again.status == "ok" and live.rehearsal and again.rehearsal
    assert left(tmp_path / "again") == left(tmp_path / "live") and live.cost == again.cost > 0


async def test_a_changed_prompt_fails_its_tasks_naming_what_differs_and_spends_nothing(tmp_path: Path) -> None:
    tape = tmp_path / "run.jsonl"
    async with FakeUpstream(lambda body: Text(f"Done: {prompt(body)}")) as upstream:
        job = write_job(tmp_path, upstream, rows=3)
        await execute(job, tmp_path / "live", record=tape)
    job.write_text(job.read_text().replace("Report on {Name}.", "Report at length on {Name}."))
    report = await execute(job, tmp_path / "again", replay=tape)
    assert report.status == "failed" and report.cost == report.held == 0
    for task, outcome in report.outcomes.items():
        assert re.match(rf"Task {task}, turn 1, attempt 1: this request is not in the recording", outcome.cause)
        assert 'messages[1].content, character 7: recorded "Report on' in outcome.cause, outcome.cause
        assert 'now "Report at' in outcome.cause and outcome.attempts == 1


async def test_a_recording_tells_the_model_that_its_environment_chose(tmp_path: Path) -> None:
    tape = tmp_path / "run.jsonl"
    async with FakeUpstream(lambda body: Text("Yes.")) as upstream:
        env = {"CENTURIA_BASE_URL": upstream.base_url, "CENTURIA_MODEL": "own-model", "CENTURIA_API_KEY": KEY}
        async with Swarm(env=env, budget=False, runs=tmp_path / "runs", record=tape) as one:
            live = await one.run("Is it so?")
        async with Swarm(env=env, budget=False, runs=tmp_path / "runs", record=tape) as one:
            with pytest.raises(ConfigurationError, match="never writes over"):
                await one.run("Is it so?")
        assert len(upstream.requests) == 1
    async with Swarm(env={}, runs=tmp_path / "runs", replay=tape) as two:
        again = await two.run("Is it so?")
    assert live.answer == again.answer == "Yes.\n" and not again.rehearsal and not again.priced


async def test_a_replay_that_was_broken_off_is_resumed_as_a_replay(tmp_path: Path) -> None:
    tape = tmp_path / "run.jsonl"
    async with FakeUpstream(lambda body: Text(f"Done: {prompt(body)}")) as upstream:
        job = write_job(tmp_path, upstream, rows=3)
        live = await execute(job, tmp_path / "live", record=tape)
    whole = tape.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    tape.write_bytes(first + b"".join(line for line in rest if b'"task":"n1"' not in line))
    async with swarm(tmp_path, replay=tape) as one:
        broken = await one.run(job)
    assert broken.status == "partial" and "no request of this task" in broken.outcomes["n1"].cause
    tape.write_bytes(whole)
    async with swarm(tmp_path) as two:
        mended = await two.resume(broken.folder)
    assert mended.status == "ok" and mended.answer == live.answer


async def test_a_full_disk_warns_once_and_the_run_ends_as_ever(tmp_path: Path) -> None:
    # The kernel lets no file of this process grow beyond 4 MiB. Of answers in tiny pieces a recording is far larger
    # than a journal.
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, 2**22))"
    program = f"import resource, sys; from centuria.cli import main; {limit}; sys.exit(main())"
    async with FakeUpstream(lambda body: Text("word " * 300, piece=1)) as upstream:
        job = write_job(tmp_path, upstream, rows=30)
        run = await begin(tmp_path, "run", job, "--record", "run.jsonl", "--yes", start=program)
        ended = await run.end()
    assert ended.code == 0 and ended.err.count("ends here: it cannot be written") >= 1, ended.err
    assert sum("ends here" in said for said in notices(the_run(tmp_path))) == 1
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    assert 1 < len(lines) <= 30 and all(json.loads(line) and line.endswith(b"\n") for line in lines)


async def test_the_command_records_and_replays_and_says_so(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Yes.")) as upstream:
        job = write_job(tmp_path, upstream, rows=2)
        live = await centuria(tmp_path, "run", job, "--record", "run.jsonl", "--json", "--yes")
    assert live.code == 0 and live.data["replay"] is False
    again = await centuria(tmp_path, "run", job, "--replay", "run.jsonl")
    assert again.code == 0 and "REPLAY" in again.err, again.err
    paced = await centuria(tmp_path, "run", job, "--replay", "run.jsonl", "--paced", "--json")
    assert paced.data["replay"] is True and paced.data["cost"] == live.data["cost"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replay", "none.jsonl"), "cannot be read"),
        (("--replay", "job.toml"), "no line of a recording"),
        (("--replay", "job.toml", "--rehearse"), "cannot be a rehearsal too"),
        (("--paced",), "--paced is for a replay"),
        (("--record", "job.toml", "--rehearse"), "never writes over"),
    ],
)
def test_flags_that_cannot_work_are_refused_before_anything_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    write_job(tmp_path, "http://127.0.0.1:9/v1", rows=2)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "job.toml", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_example_of_the_docs_is_a_test_that_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "record-replay.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

    async def record() -> None:
        async with FakeUpstream(lambda body: Text("NVIDIA makes chips.")) as upstream:
            rows = [{"Name": "NVDA"}]
            job = write_job(tmp_path, upstream, rows=rows)
            async with swarm(tmp_path, record=tmp_path / "run.jsonl") as one:
                await one.run(job)

    asyncio.run(record())
    scope: dict[str, Any] = {"__file__": str(tmp_path / "test_my_job.py"), "__name__": "test_my_job"}
    exec(compile(example, "test_my_job.py", "exec"), scope)
    before = dict(os.environ)
    scope["test_my_job"](tmp_path / "again")
    assert dict(os.environ) == before
