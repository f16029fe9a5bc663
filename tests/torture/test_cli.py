"""`centuria torture` says the cost, asks, shows each row, and leaves with the code of the worst."""

import json
import os
import subprocess
import sys
import threading
from asyncio import Event, new_event_loop
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from centuria.testing.replies import HttpError, Reply
from centuria.testing.torture.server import Obliging
from centuria.testing.upstream import FakeUpstream, Script

KEY = "sk-right-0123456789abcdef"


@contextmanager
def serving(script: Script) -> Iterator[FakeUpstream]:
    """An upstream in a thread of its own, for a command that runs beside it."""
    loop, ready, up = new_event_loop(), threading.Event(), FakeUpstream(script, key=KEY, models=("a-model",))
    over = Event()

    async def main() -> None:
        async with up:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        assert ready.wait(5)
        yield up
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(5)
        loop.close()


def torture(upstream: FakeUpstream, *flags: str) -> subprocess.CompletedProcess[str]:
    command = "import sys; from centuria.cli import main; sys.exit(main())"
    where = ("--base-url", upstream.base_url, "--model", "a-model", "--key-env", "TORTURE_KEY", "--context", "2000")
    return subprocess.run(
        [sys.executable, "-c", command, "torture", *where, *flags],
        env={**os.environ, "TORTURE_KEY": KEY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


HONEST = Obliging(models=("a-model",))


def no_stop(body: dict[str, Any]) -> Reply:
    return HttpError(500) if "stop" in body else HONEST(body)


def test_all_rows_pass_and_the_cost_was_said_first() -> None:
    with serving(HONEST) as upstream:
        done = torture(upstream, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "28 pass, 0 fail, 1 not applicable" in done.stdout
        said = f"about {len(upstream.requests)} requests"
        assert said in done.stderr and "tokens of prompts" in done.stderr
        assert KEY not in done.stdout + done.stderr


def test_a_row_that_fails_is_shown_with_what_is_right_and_the_exit_code_is_1() -> None:
    with serving(no_stop) as upstream:
        done = torture(upstream, "--yes", "--skip", "at once,slot")
        assert done.returncode == 1 and "fail  stop" in done.stdout
        assert "right: the text ends before the stop sequence" in done.stdout
        assert "32 at once" not in done.stdout


def test_json_has_a_row_each() -> None:
    with serving(no_stop) as upstream:
        done = torture(upstream, "--yes", "--json", "--skip", "at once,slot")
        told = json.loads(done.stdout)
        states = {row["check"]: row["state"] for row in told["rows"]}
        assert done.returncode == 1 and states["stop"] == "fail" and states["[DONE]"] == "pass"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "Add --yes"),
        (("--yes", "--skip", "e,o,a,i"), "nothing to try"),
        (("--yes", "--base-url", "ftp://127.0.0.1/v1"), "https://"),
        (("--yes", "--base-url", "http://127.0.0.1/v1/chat/completions"), "/v1"),
    ],
)
def test_what_cannot_start_sends_nothing(flags: tuple[str, ...], said: str) -> None:
    with serving(HONEST) as upstream:
        done = torture(upstream, *flags)
        assert done.returncode == 2 and said in done.stderr and upstream.requests == []
