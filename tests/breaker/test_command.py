"""The command under an unkind parent: odd goals, closed or full outputs, no terminal, signals at bad moments."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from centuria.testing.upstream import FakeUpstream, Text
from tests.promises.kit import begin, centuria, fold, processes_naming, run_folders, the_run, until, write_job

CLI = "import sys; from centuria.cli import main; sys.exit(main())"
#: A tool server that starts and never says a word.
MUTE = "import time; time.sleep(600)"


def command(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ["PATH"], "CENTURIA_RUNS": str(folder / "runs"), **more.pop("env", {})}
    command = [sys.executable, "-c", CLI, *arguments]
    return subprocess.run(command, cwd=folder, env=env, timeout=60, check=False, **more)


def closing(*numbers: int) -> Callable[[], None]:
    return lambda: [os.close(number) for number in numbers] and None


# -- goals -----------------------------------------------------------------------------------------------------------


def test_a_goal_longer_than_a_file_name_is_a_goal(tmp_path: Path) -> None:
    ended = command(tmp_path, "run", "compare the banks " * 30, "--rehearse", "--quiet", capture_output=True)
    assert (ended.returncode, b"compare the banks" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.parametrize("goal", ["job.yaml", "rows.csv", ".", "/dev/null"])
def test_what_looks_like_a_file_is_never_sent_as_a_goal(tmp_path: Path, goal: str) -> None:
    ended = command(tmp_path, "run", goal, "--rehearse", capture_output=True)
    assert (ended.returncode, b"not a job file" in ended.stderr) == (2, True)
    assert run_folders(tmp_path) == []


def test_a_name_that_no_file_can_have_is_no_run(tmp_path: Path) -> None:
    ended = command(tmp_path, "show", "x" * 5000, capture_output=True)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (2, False)


def test_a_limit_chooses_among_more_rows_than_a_job_may_have(tmp_path: Path) -> None:
    (tmp_path / "many.csv").write_text("Name\n" + "".join(f"n{number}\n" for number in range(10_001)))
    arguments = ("map", "On {Name}.", "many.csv", "--limit", "2", "--rehearse", "--quiet", "--json")
    ended = command(tmp_path, *arguments, capture_output=True)
    assert (ended.returncode, len(run_folders(tmp_path))) == (0, 1), ended.stderr


# -- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=str)
def test_closed_outputs_do_not_stop_the_work(tmp_path: Path, closed: Sequence[int]) -> None:
    ended = command(tmp_path, "run", "say hello", "--rehearse", preexec_fn=closing(*closed))
    assert ended.returncode == 0
    assert (the_run(tmp_path) / "report.html").exists()


def test_an_output_that_is_full_is_said_once_and_the_folder_is_complete(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = command(tmp_path, "run", "say hello", "--rehearse", "--quiet", stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert b"could not be written" in ended.stderr and b"Traceback" not in ended.stderr
    assert (the_run(tmp_path) / "answer.md").exists()


def test_an_encoding_without_the_answers_letters_gets_marks_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("Name\nZürich\n", encoding="utf-8")
    arguments = ("map", "On {Name}.", "rows.csv", "--rehearse", "--quiet")
    ended = command(tmp_path, *arguments, capture_output=True, env={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, b"Z?rich" in ended.stdout) == (0, True), ended.stderr


# -- people and signals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "sent"), [(b"\x04", 0), (b"n\n", 0), (b" Y \n", 1)], ids=["end", "no", "yes"])
async def test_only_a_yes_spends_money_and_the_end_of_input_is_none(tmp_path: Path, typed: bytes, sent: int) -> None:
    async with FakeUpstream(lambda body: Text("Hello.")) as upstream:
        path = write_job(tmp_path, upstream, rows=1)
        master, slave = pty.openpty()
        env = {"PATH": os.environ["PATH"], "CENTURIA_RUNS": str(tmp_path / "runs"), "TERM": "dumb"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLI, "run", str(path), "--quiet"),
            cwd=tmp_path,
            env=env,
            stdin=slave,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=slave,
        )
        os.close(slave)
        try:
            said = b""
            while b"Go on?" not in said:
                said += await asyncio.to_thread(os.read, master, 4096)
            os.write(master, typed)
            async with asyncio.timeout(30):
                assert await process.wait() == (0 if sent else 2)
        finally:
            if process.returncode is None:
                process.kill()
            os.close(master)
        assert len(upstream.requests) == sent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_while_a_tool_server_starts_ends_the_run_at_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with FakeUpstream(lambda body: Text("Hello.")) as upstream:
        server = {"command": sys.executable, "args": ["-c", f"{MUTE}  # {tmp_path.name}"]}
        timeouts = {"server_start": 300}
        path = write_job(tmp_path, upstream, rows=3, tools={"mute": server}, timeouts=timeouts)
        running = await begin(tmp_path, "run", path, "--quiet")
        await until(lambda: processes_naming(f"# {tmp_path.name}"))
        running.interrupt(number)
        ended = await running.end(within=30)
        assert (ended.code, len(upstream.requests)) == (130, 0), ended.err
        census = {row.status and row.status.value for row in fold(the_run(tmp_path)).progress.tasks.values()}
        assert census == {"cancelled"}
        await until(lambda: not processes_naming(f"# {tmp_path.name}"))


async def test_a_hang_up_that_the_parent_ignores_is_ignored(tmp_path: Path) -> None:
    start = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {CLI}"
    async with FakeUpstream(lambda body: Text("Hello."), latency=0.5) as upstream:
        path = write_job(tmp_path, upstream, rows=2)
        running = await begin(tmp_path, "run", path, "--quiet", start=start)
        await until(lambda: len(upstream.requests) == 2)
        running.interrupt(signal.SIGHUP)
        assert (await running.end()).code == 0


async def test_a_run_name_with_spaces_is_found(tmp_path: Path) -> None:
    ended = await centuria(tmp_path, "run", "say hello", "--rehearse", "--quiet", "--out", "my run")
    assert ended.code == 0
    assert (await centuria(tmp_path, "show", "my run")).code == 0
