"""A run is steered by another process while it works: one branch pauses, a task is retried, a tool gets its yes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from centuria.cli import main
from centuria.core.progress import Progress
from centuria.errors import ConfigurationError
from centuria.testing.upstream import Calls, FakeUpstream, HttpError, Reply, Text
from tests.promises.kit import (
    Body,
    begin,
    fold,
    prompt,
    raw_server,
    results,
    swarm,
    the_run,
    tool_texts,
    turn,
    until,
    write_job,
)


def folded(folder: Path) -> Progress:
    """The run so far; nothing of it while it has no journal."""
    try:
        return fold(the_run(folder)).progress
    except Exception:
        return Progress()


@pytest.fixture
def steer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("CENTURIA_RUNS", str(tmp_path / "runs"))

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, list(arguments))
        told = capsys.readouterr()
        return code, told.err + told.out

    return run


async def test_a_tool_that_asks_gets_its_yes_or_no_from_another_process(tmp_path: Path, steer: Any) -> None:
    def script(body: Body) -> Reply:
        if turn(body) == 0:
            return Calls((("raw__echo", '{"text": "done it"}'),))
        return Text(" ".join(tool_texts(body)))

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=2, tools={"raw": raw_server(ask=["echo"])})
        running = await begin(tmp_path, "run", job, "--quiet", "--json", "--yes")
        await until(lambda: len(folded(tmp_path).approvals) == 2, within=60)
        code, said = await steer("show", "last")
        assert code == 0
        assert 'waits for a yes: n0/0/0/1 raw__echo {"text": "done it"}' in said
        code, said = await steer("approve", "last", "n0/9/9/9")
        assert (code, "There is: n0/0/0/1" in said) == (2, True)
        assert (await steer("approve", "last", "n0/0/0/1"))[0] == 0
        await until(lambda: "n0/0/0/1" not in folded(tmp_path).approvals, within=20)
        code, said = await steer("approve", "last", "--no")
        assert (code, "not approved: n1/0/0/1" in said) == (0, True)
        ended = await running.end()
    assert ended.code == 0
    answers = {task: line["answer"] for task, line in results(the_run(tmp_path)).items()}
    assert answers["n0"] == "done it"
    assert "it was not approved" in answers["n1"]


async def test_one_task_pauses_and_goes_on_another_is_retried_and_made_urgent_while_the_rest_runs(
    tmp_path: Path, steer: Any
) -> None:
    met: set[str] = set()

    def script(body: Body) -> Reply:
        who = prompt(body)
        if "n1" in who and not met:
            met.add(who)
            return HttpError(400, "invalid_request_error", "Not the first time.")
        if "n0" in who and turn(body) < 40:
            return Calls((("raw__echo", f'{{"text": "{turn(body)}"}}'),))
        return Text(f"{who} done")

    async with FakeUpstream(script, latency=0.05) as upstream:
        job = write_job(tmp_path, upstream, rows=3, tools={"raw": raw_server(limit=10)})
        running = await begin(tmp_path, "run", job, "--quiet", "--json", "--yes")
        await until(lambda: folded(tmp_path).ended_count == 2, within=60)
        assert (await steer("pause", "last", "n0"))[0] == 0
        await until(lambda: folded(tmp_path).paused == {"n0"}, within=20)
        for task, why in (("n0", "has not ended: it is "), ("n2", "ended ok: it is not run again")):
            code, said = await steer("retry", "last", task)
            assert (code, why in said) == (2, True), said
        code, said = await steer("retry", "last", "n1")
        assert (code, "task n1 will be run again within a second" in said) == (0, True)
        await until(lambda: str(folded(tmp_path).tasks["n1"].status) == "ok", within=20)
        seen = len(upstream.requests)
        assert (await steer("priority", "last", "n0", "0"))[0] == 0
        await until(lambda: folded(tmp_path).tasks["n0"].priority == 0, within=20)
        assert len(upstream.requests) == seen
        assert (await steer("go-on", "last", "n0"))[0] == 0
        ended = await running.end()
    assert ended.code == 0, ended.err
    assert ended.data["census"]["ok"] == 3
    assert (await steer("pause", "last"))[0] == 2


async def test_a_swarm_steers_the_run_that_it_works_on(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if turn(body) == 0:
            return Calls((("raw__echo", '{"text": "x"}'),))
        return Text("done")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=3, tools={"raw": raw_server(ask=["*"])})
        async with swarm(tmp_path) as hundred:
            with pytest.raises(ConfigurationError, match="No such run"):
                hundred.pause()
            asked = 0
            async for item in hundred.stream(job):
                if getattr(getattr(item, "event", None), "kind", "") == "approval_asked":
                    asked += 1
                    if asked == 3:
                        with pytest.raises(ConfigurationError, match="no task"):
                            hundred.cancel("nobody")
                        hundred.cancel("n2")
                        assert hundred.approve() == 3
    statuses = {task: line["status"] for task, line in results(the_run(tmp_path)).items()}
    assert statuses == {"n0": "ok", "n1": "ok", "n2": "cancelled"}
