"""Promise 2: nothing lost, nothing paid twice. After `kill -9`, a resume runs only what had not finished."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from centuria.errors import ConfigurationError, JournalError
from centuria.messages import CallKey, Status, Usage
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Stall, Text
from tests.promises.kit import (
    MODEL,
    Body,
    begin,
    bodies,
    calls,
    census,
    centuria,
    fold,
    processes_naming,
    prompt,
    raw_server,
    results,
    run_folders,
    swarm,
    the_run,
    tool_texts,
    turn,
    until,
    write_job,
)

#: A server whose one tool has an effect, and then waits for leave to say so: `python slow.py FOLDER`.
SLOW_SERVER = """
import json, pathlib, sys, time

folder = pathlib.Path(sys.argv[1])
TOOL = {"name": "book", "description": "Books a seat.", "inputSchema": {"type": "object"}}


def send(number, result):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        info = {"name": "slow", "version": "1"}
        version = message["params"]["protocolVersion"]
        send(number, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        send(number, {"tools": [TOOL]})
    elif method == "tools/call":
        with open(folder / "booked.txt", "a") as file:
            file.write("a seat\\n")
        while not (folder / "go").exists():
            time.sleep(0.01)
        send(number, {"content": [{"type": "text", "text": "booked"}], "isError": False})
    elif number is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}}), flush=True)
"""


def three_turns(body: Body) -> Reply:
    """Two turns of tool calls, then a text made of what the tools said: the same whenever it is asked."""
    who = re.findall(r"n\d+", prompt(body))[0]
    if turn(body) < 2:
        said = [("raw__echo", f'{{"text": "{who} {turn(body)}.{part}"}}') for part in range(2)]
        return Calls(tuple(said), usage=Usage(100, output=50))
    return Text(f"{who} heard {', '.join(tool_texts(body))}.", usage=Usage(200, output=80))


def key_of(run: Path, task: str, epoch: int, turn: int) -> str:
    """The idempotency key that a model call bears at the upstream, in this run and every resume of it."""
    name = hashlib.sha256(f"{run.name}\n{CallKey(task, epoch, turn, 0)}".encode()).hexdigest()[:40]
    return f"centuria-{name}"


def counts(err: str) -> tuple[int, ...]:
    """What a resume says: reused, run, in doubt."""
    found = re.search(r"(\d+) reused, (\d+) run, (\d+) in doubt", err)
    assert found, err
    return tuple(map(int, found.groups()))


# -- kill -9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_run_gives_the_same_answer_after_a_resume_and_pays_no_finished_call_twice(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    async with FakeUpstream(three_turns, latency=0.05) as upstream:
        tools = {"raw": raw_server(str(tmp_path), trusted=["*"], limit=10)}
        summary = {"id": "all", "prompt": "n99: sum up.", "needs": ["*"]}
        job = write_job(tmp_path, upstream, rows=12, tasks=[summary], tools=tools, limits={"concurrency": 4})
        command = await begin(tmp_path, "run", job)
        moment = dice.randint(1, 38)
        await upstream.until(lambda: len(upstream.requests) >= moment, within=60)
        await asyncio.sleep(dice.random() * 0.08)  # any moment will do
        command.kill()
        await command.end()
        run = the_run(tmp_path)
        done = [call for call in calls(run) if call.call == "model" and call.state == "done"]
        before = len(upstream.requests)
        await until(lambda: not processes_naming(str(tmp_path)))

        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(run)
            requests = len(upstream.requests)
            whole = await hundred.run(job)
    assert census(report) == {"ok": 13} and report.exit_code == 0
    assert report.answer == whole.answer
    assert {task: end.text for task, end in report.outcomes.items()} == {
        task: end.text for task, end in whole.outcomes.items()
    }
    of_run = Counter({name: seen for name, seen in upstream.attempts.items() if name in _keys(run, report.outcomes)})
    finished = {key_of(run, call.task, call.epoch, call.turn) for call in done}
    assert all(of_run[name] == 1 for name in finished), "a call that was done was sent again"
    assert max(of_run.values()) <= 2 and len(of_run) == 13 * 3
    assert requests - before == 39 - len(done)
    assert report.cost == 13 * 3_000_000 * 180 + 13 * 600_000 * 400, "each answer is paid once"


def _keys(run: Path, tasks: Any) -> set[str]:
    return {key_of(run, task, 0, turn) for task in tasks for turn in range(3)}


async def test_a_resume_says_what_it_does_and_a_second_one_does_nothing(tmp_path: Path) -> None:
    async with FakeUpstream(three_turns, latency=0.02) as upstream:
        tools = {"raw": raw_server(str(tmp_path), trusted=["*"], limit=10)}
        job = write_job(tmp_path, upstream, rows=6, tools=tools, limits={"agents": 2})
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: len(upstream.requests) >= 9, within=60)
        command.kill()
        await command.end()
        run = the_run(tmp_path)
        left = calls(run)
        resumed = await centuria(tmp_path, "resume", "last")
        assert resumed.code == 0, resumed.err
        reused, again, in_doubt = counts(resumed.err)
        assert (reused + again, in_doubt) == (6, sum(call.state == "open" for call in left))
        assert reused >= 1 and again >= 1
        requests = len(upstream.requests)
        second = await centuria(tmp_path, "resume", "last")
    assert counts(second.err) == (6, 0, 0) and second.code == 0
    assert len(upstream.requests) == requests
    assert second.out == resumed.out and "n5 heard n5 0.0, n5 0.1, n5 1.0, n5 1.1." in second.out
    assert len(results(run)) == 6


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_tool_call_in_doubt_is_run_again_only_where_that_is_safe(tmp_path: Path, trusted: bool) -> None:
    def script(body: Body) -> Reply:
        return Text(tool_texts(body)[0]) if turn(body) else Calls((("slow__book", "{}"),))

    (tmp_path / "slow.py").write_text(SLOW_SERVER)
    server = raw_server(str(tmp_path), script=tmp_path / "slow.py", trusted=["book"] if trusted else [])
    booked = tmp_path / "booked.txt"
    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, tasks=[{"id": "seat", "prompt": "Book a seat."}], tools={"slow": server})
        command = await begin(tmp_path, "run", job)
        await until(booked.exists, within=60)
        command.kill()
        await command.end()
        await until(lambda: not processes_naming(str(tmp_path)))
        (tmp_path / "go").touch()
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(the_run(tmp_path))
    assert census(report) == {"ok": 1} and len(upstream.requests) == 2
    states = [call.state for call in calls(report.folder) if call.call == "tool"]
    if trusted:
        assert (report.outcomes["seat"].text, states) == ("booked", ["lost", "done"])
        assert booked.read_text() == "a seat\n" * 2
    else:
        assert "may or may not have happened" in report.outcomes["seat"].text
        assert states == ["unknown"] and booked.read_text() == "a seat\n"


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_ctrl_c_sends_nothing_more_keeps_what_there_is_and_leaves_no_process(tmp_path: Path) -> None:
    hanging = True

    def script(body: Body) -> Reply:
        if "n0" in prompt(body) and not turn(body):
            return Calls((("raw__echo", '{"text": "hello"}'),), text="First I ask.")
        answer = Text("A report of some length, word by word.", piece=4)
        return Stall(answer) if hanging else answer

    async with FakeUpstream(script) as upstream:
        tools = {"raw": raw_server(str(tmp_path), limit=10)}
        job = write_job(tmp_path, upstream, rows=20, tools=tools, limits={"agents": 5, "concurrency": 5})
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: len(upstream.requests) == 6 and upstream.in_flight == 5, within=60)
        servers = processes_naming(str(tmp_path))
        assert servers
        await until(lambda: len(_streamed(upstream)) == 5)
        command.interrupt()
        ended = await command.end(30)
        assert ended.code == 130 and "Traceback" not in ended.err
        assert len(upstream.requests) == 6
        await until(lambda: not processes_naming(str(tmp_path)), within=2)
        run = the_run(tmp_path)
        lines = results(run)
        assert {line["status"] for line in lines.values()} == {"cancelled"} and len(lines) == 20
        assert all("interrupted" in line["cause"] for line in lines.values())
        begun = [task for task, line in lines.items() if line["attempts"]]
        assert len(begun) == 5 and all("A report" in lines[task]["answer"] for task in begun)
        assert lines["n0"]["answer"].startswith("First I ask.")
        assert (run / "report.html").exists()

        hanging = False
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(run)
    assert census(report) == {"ok": 20}
    assert sum(turn(body) == 0 and "n0" in prompt(body) for body in bodies(upstream)) == 1, "n0 goes on where it was"


def _streamed(upstream: FakeUpstream) -> list[Usage]:
    """The answers that have begun, but for the tool call."""
    return upstream.billed[1:]


# -- what a resume may change ------------------------------------------------------------------------------------------


async def test_only_runs_again_what_ended_so(tmp_path: Path) -> None:
    broken = True

    def script(body: Body) -> Reply:
        if broken and "n1." in prompt(body):
            return HttpError(400, message="Not like this.")
        if broken and "n2." in prompt(body):
            return Stall(Text("This takes long.", piece=2))
        return Text("Fine.")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=5, job={"max_tokens": 4_000}, timeouts={"total": 1.0})
        async with swarm(tmp_path) as hundred:
            first = await hundred.run(job)
            assert census(first) == {"ok": 3, "failed": 1, "timeout": 1}
            before, broken = len(upstream.requests), False
            second = await hundred.resume(first.folder, only=["failed"])
            assert census(second) == {"ok": 4, "timeout": 1}
            assert [prompt(body) for body in bodies(upstream)[before:]] == ["Report on n1."]
            third = await hundred.resume(first.folder)
    assert census(third) == {"ok": 5} and third.exit_code == 0
    assert [prompt(body) for body in bodies(upstream)[before + 1 :]] == ["Report on n2."]


async def test_a_task_that_answered_badly_is_asked_anew_by_a_resume_not_replayed(tmp_path: Path) -> None:
    good = False
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with FakeUpstream(lambda body: Text('{"n": 1}' if good else "I would rather not.")) as upstream:
        task = {"id": "one", "prompt": "Count.", "schema": schema}
        job = write_job(tmp_path, upstream, tasks=[task])
        async with swarm(tmp_path) as hundred:
            first = await hundred.run(job)
            assert census(first) == {"failed": 1} and len(upstream.requests) == 3
            good = True
            second = await hundred.resume(first.folder)
    assert census(second) == {"ok": 1} and second.outcomes["one"].structured == {"n": 1}
    assert len(upstream.requests) == 4


async def test_a_higher_budget_lets_those_run_who_had_no_money(tmp_path: Path) -> None:
    answer = Text("Paid.", usage=Usage(10, output=16_000))
    price = {"input": 0.0, "output": 6.25}
    async with FakeUpstream(lambda body: answer) as upstream:
        job = write_job(tmp_path, upstream, rows=10, job={"max_tokens": 16_000}, price=price, limits={"budget": 0.3})
        async with swarm(tmp_path) as hundred:
            first = await hundred.run(job)
            assert census(first) == {"ok": 3, "budget": 7} and len(upstream.requests) == 3
            same = await hundred.resume(first.folder)
            assert census(same) == {"ok": 3, "budget": 7} and len(upstream.requests) == 3
            more = await hundred.resume(first.folder, budget=1.0)
    assert census(more) == {"ok": 10} and more.cost == 10**12
    assert len(upstream.requests) == 10 == len(set(upstream.attempts))


async def test_an_edited_job_runs_only_what_was_edited_or_added(tmp_path: Path) -> None:
    tasks = [{"id": f"t{number}", "prompt": f"Task {number}."} for number in range(4)]
    tasks.append({"id": "after", "prompt": "Use it.", "needs": ["t2"]})
    async with FakeUpstream(lambda body: Text(f"Done: {prompt(body)[:20]}")) as upstream:
        job = write_job(tmp_path, upstream, tasks=tasks)
        async with swarm(tmp_path) as hundred:
            first = await hundred.run(job)
        before = len(upstream.requests)
        tasks[1] = {"id": "t1", "prompt": "Another task 1."}
        tasks.append({"id": "new", "prompt": "A new task."})
        edited = write_job(tmp_path, upstream, tasks=tasks, name="edited.toml")
        ended = await centuria(tmp_path, "resume", first.folder, "--job", edited)
        assert ended.code == 0 and counts(ended.err) == (4, 2, 0)
        assert sorted(prompt(body) for body in bodies(upstream)[before:]) == ["A new task.", "Another task 1."]
        before = len(upstream.requests)
        tasks[2] = {"id": "t2", "prompt": "Another task 2."}
        edited = write_job(tmp_path, upstream, tasks=tasks, name="edited.toml")
        ended = await centuria(tmp_path, "resume", first.folder, "--job", edited)
    assert ended.code == 0 and counts(ended.err) == (4, 2, 0)
    sent = [prompt(body) for body in bodies(upstream)[before:]]
    assert sent[0] == "Another task 2." and sent[1].startswith("Use it.") and len(sent) == 2
    assert "Done: Another task 2." in sent[1], "what was made of a result is made again"


async def _broken_after_one_turn(tmp_path: Path, upstream: FakeUpstream) -> Path:
    """A run of two tasks: n1 is ok, n0 failed in its second turn."""

    def script(body: Body) -> Reply:
        if "n1" in prompt(body):
            return Text("Fine.")
        return HttpError(400) if turn(body) else Calls((("no_such_tool", "{}"),))

    upstream.script = script
    async with swarm(tmp_path) as hundred:
        first = await hundred.run(write_job(tmp_path, upstream, rows=2))
    assert census(first) == {"ok": 1, "failed": 1}
    upstream.requests.clear()
    upstream.script = lambda body: Text(f"By {body['model']}.")
    return first.folder


async def test_another_model_goes_on_with_what_the_first_one_was_paid_for(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        run = await _broken_after_one_turn(tmp_path, upstream)
        async with swarm(tmp_path, model="another") as other:
            report = await other.resume(run, budget=False)
    assert census(report) == {"ok": 2}
    assert (report.outcomes["n0"].text, report.outcomes["n1"].text) == ("By another.", "Fine.")
    assert [turn(body) for body in bodies(upstream)] == [1]


async def test_a_conversation_that_is_no_longer_the_same_begins_afresh_instead_of_ending_the_run(
    tmp_path: Path,
) -> None:
    async with FakeUpstream() as upstream:
        run = await _broken_after_one_turn(tmp_path, upstream)
        saved = (run / "job.json").read_text()
        assert "Report on n0." in saved
        # As if a newer program opened its conversations with other words.
        (run / "job.json").write_text(saved.replace("Report on n0.", "Please report on n0."))
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(run)
    assert census(report) == {"ok": 2} and report.outcomes["n0"].text == f"By {MODEL}."
    assert [(turn(body), prompt(body)) for body in bodies(upstream)] == [(0, "Please report on n0.")]
    assert any("afresh" in notice.text for notice in fold(run).progress.notices)
    assert fold(run).calls.epoch("n0") == 1


# -- disks -----------------------------------------------------------------------------------------------------------


async def test_a_full_disk_ends_the_run_with_a_clear_error_and_loses_nothing_that_was_finished(
    tmp_path: Path,
) -> None:
    small = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from centuria.cli import main; sys.exit(main())"
    )
    async with FakeUpstream(lambda body: Text("word " * 400), latency=0.01) as upstream:
        job = write_job(tmp_path, upstream, rows=60, limits={"agents": 4})
        ended = await (await begin(tmp_path, "run", job, start=small)).end()
        assert ended.code == 1 and "Traceback" not in ended.err, ended.err
        assert re.search(r"journal .* cannot be written", ended.err) and "resume" in ended.err
        run = the_run(tmp_path)
        done = {key_of(run, call.task, 0, 0) for call in calls(run) if call.state == "done"}
        assert 0 < len(done) < 60
        async with swarm(tmp_path) as hundred:
            report = await hundred.resume(run)
    assert census(report) == {"ok": 60}
    assert all(upstream.attempts[name] == 1 for name in done)


async def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        job = write_job(tmp_path, upstream, rows=2)
        async with swarm(tmp_path) as hundred:
            with pytest.raises(ConfigurationError, match="cannot be made") as caught:
                await hundred.run(job, out="/proc/nowhere")
            assert "--out" in caught.value.remedy
            (tmp_path / "file").write_text("in the way")
            with pytest.raises(ConfigurationError, match="cannot be made"):
                await hundred.run(job, out=tmp_path / "file" / "run")
    assert upstream.requests == [] and run_folders(tmp_path) == []


async def test_a_result_that_cannot_be_written_ends_the_run_clearly_and_its_answer_is_not_paid_again(
    tmp_path: Path,
) -> None:
    def script(body: Body) -> Reply:
        (the_run(tmp_path) / "reports").write_text("in the way")
        return Text("Here.")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=1)
        async with swarm(tmp_path) as hundred:
            with pytest.raises(JournalError, match=r"n0\.md cannot be written") as caught:
                await hundred.run(job)
            assert "centuria resume" in caught.value.remedy
            (the_run(tmp_path) / "reports").unlink()
            report = await hundred.resume("last")
    assert census(report) == {"ok": 1} and len(upstream.requests) == 1
    assert (report.folder / "reports" / "n0.md").read_text() == "Here.\n"


async def test_a_run_that_is_running_is_not_resumed_by_a_second_process(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Stall(Text("A long one."))) as upstream:
        job = write_job(tmp_path, upstream, rows=2)
        command = await begin(tmp_path, "run", job)
        await upstream.until(lambda: upstream.in_flight == 2, within=60)
        async with swarm(tmp_path) as hundred:
            with pytest.raises(JournalError, match="running"):
                await hundred.resume(the_run(tmp_path))
        command.kill()
        await command.end()
    assert len(upstream.requests) == 2


async def test_a_cut_answer_is_held_as_money_and_asked_for_again(tmp_path: Path) -> None:
    tries: Counter[str] = Counter()

    def script(body: Body) -> Reply:
        tries[prompt(body)] += 1
        answer = Text("The whole answer.", piece=4)
        return Cut(answer) if tries[prompt(body)] == 1 else answer

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, rows=1)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    end = report.outcomes["n0"]
    assert (end.status, end.text, end.attempts) == (Status.OK, "The whole answer.", 2)
    assert report.held > 0 and [call.state for call in calls(report.folder)] == ["lost", "done"]
    assert len(set(upstream.attempts)) == 1, "the same call bears the same idempotency key"


async def test_a_rehearsal_that_was_killed_holds_no_money_when_it_is_resumed(tmp_path: Path) -> None:
    job = write_job(
        tmp_path,
        "http://127.0.0.1:9/v1",
        rows=40,
        limits={"budget": 3.0, "concurrency": 40},
        rehearsal={"latency_ms": 600},
    )
    command = await begin(tmp_path, "run", job, "--rehearse", "--quiet")
    await until(lambda: run_folders(tmp_path) and (the_run(tmp_path) / "journal.sqlite").exists(), within=60)
    await until(lambda: len(_opened(the_run(tmp_path))) >= 20, within=60)
    command.kill()
    await command.end()
    ended = await centuria(tmp_path, "resume", "last", "--json")
    assert ended.code == 0, ended.err
    assert ended.data["census"]["ok"] == 40
    assert ended.data["cost"]["held"] == 0


def _opened(run: Path) -> list[object]:
    try:
        return [call for call in calls(run) if call.call == "model"]
    except JournalError:
        return []
