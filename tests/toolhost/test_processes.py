"""Nothing is left: after a normal end, Ctrl-C and kill -9, whatever the servers have started themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from centuria.errors import ToolUnavailable
from centuria.toolhost import processes
from centuria.toolhost.processes import Warden
from tests.toolhost.kit import RAW, left_after, processes_with

# What is left is gone within two seconds: so these run alone.
pytestmark = pytest.mark.alone

#: Servers that leave something behind, in every way that is common. NONCE marks all of their processes.
SCRIPTS = (
    f"exec 3<&0; {sys.executable} {RAW} NONCE <&3 & wait",  # a shell, or npx, that waits for the server
    f"sleep 300.NONCE & exec {sys.executable} {RAW} NONCE",  # a child in its group that holds its pipes
    f"setsid sleep 301.NONCE & exec {sys.executable} {RAW} NONCE",  # an orphan in a session of its own
    f"(setsid sh -c 'sleep 302.NONCE & wait' &) ; exec {sys.executable} {RAW} stubborn NONCE",  # deaf to TERM
)
NAMES = ("wrapped", "child", "own-session", "stubborn")


def close(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    program.stdin.close()


def interrupt(program: subprocess.Popen[bytes]) -> None:
    program.send_signal(signal.SIGINT)


def kill(program: subprocess.Popen[bytes]) -> None:
    program.kill()


@pytest.mark.parametrize("end", [close, interrupt, kill])
def test_nothing_is_left_two_seconds_after_the_end(end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    nonce = str(uuid.uuid4().int)[:20]
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.toolhost.program", *(script.replace("NONCE", nonce) for script in SCRIPTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready []\n"
        running = [pid for pid in processes_with(nonce) if pid != program.pid]
        assert len(running) >= 2 * len(SCRIPTS)
        warden = [pid for pid in processes_with("warden.py") if _parent(pid) == program.pid]
        assert len(warden) == 1
        end(program)
        assert left_after([*running, *warden], 2.0) == []
        assert [pid for pid in processes_with(nonce) if pid != program.pid] == []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


async def test_a_dead_servers_group_dies_with_it() -> None:
    nonce = str(uuid.uuid4().int)[:20]
    async with Warden() as warden:
        child = await warden.launch(
            ["/bin/sh", "-c", f"sleep 300.{nonce} & echo up; read x"], env={"PATH": "/usr/bin:/bin"}
        )
        assert await child.stdout.readline() == b"up\n"
        others = [pid for pid in processes_with(nonce) if pid != child.pid]
        assert others
        os.kill(child.pid, signal.SIGKILL)
        await asyncio.wait_for(child.exited.wait(), 5)
        assert child.code == -signal.SIGKILL
        assert left_after(others, 2.0) == []
        await child.stop()


async def test_what_cannot_be_started_is_said_and_harms_nobody() -> None:
    async with Warden() as warden:
        with pytest.raises(ToolUnavailable, match="was not found"):
            await warden.launch(["/no/such/program"], env={})
        with pytest.raises(ToolUnavailable, match="was not found"):
            await warden.launch(["/bin/cat"], env={}, cwd=Path("/no/such/folder"))
        child = await warden.launch(["/bin/cat"], env={})
        child.stdin.write(b"hello\n")
        assert await child.stdout.readline() == b"hello\n"
        await child.stop()
        assert child.code == 0


async def test_fifty_starts_at_once_each_get_their_own_pipes() -> None:
    async def say(warden: Warden, word: str) -> bytes:
        child = await warden.launch(["/bin/echo", word], env={})
        heard = await child.stdout.read(100)
        await child.stop()
        return heard

    async with Warden() as warden:
        heard = await asyncio.gather(*(say(warden, str(n)) for n in range(50)))
    assert heard == [f"{n}\n".encode() for n in range(50)]


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    nonce = str(uuid.uuid4().int)[:20]
    async with Warden() as warden:
        for turns in range(8):
            start = asyncio.create_task(warden.launch(["/bin/sleep", f"300.{nonce}"], env={}))
            for _ in range(turns):
                await asyncio.sleep(0)
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled():
                await start.result().stop(graces=(0.0, 0.0, 1.0))
        await (await warden.launch(["/bin/true"], env={})).exited.wait()  # all before it have been dealt with
        assert left_after(processes_with(nonce), 2.0) == []


async def test_the_death_of_the_warden_ends_the_servers_and_refuses_new_ones() -> None:
    async with Warden() as warden:
        child = await warden.launch(["/bin/cat"], env={})
        assert warden._process is not None
        warden._process.kill()
        await asyncio.wait_for(child.exited.wait(), 5)
        assert left_after([child.pid], 2.0) == []
        with pytest.raises(ToolUnavailable, match="is gone"):
            await warden.launch(["/bin/cat"], env={})
        await child.stop()


def test_the_warden_needs_the_standard_library_alone() -> None:
    script = Path(processes.__file__).with_name("warden.py")
    shown = "print([name for name in sys.modules if 'asyncio' in name or 'mcp' in name])"
    check = f"import runpy, sys; runpy.run_path({str(script)!r}); {shown}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
