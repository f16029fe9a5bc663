"""A run that is given its transport and its tools asks these, and starts no server of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from centuria.config import job_from_goal
from centuria.core.prices import FREE
from centuria.errors import JournalError
from centuria.folder import RunFolder
from centuria.journal import SqliteJournal
from centuria.journal.place import WriterLock
from centuria.launch import Launch, Resume
from centuria.ports import ServerState
from centuria.run import Run
from centuria.settings import Endpoint
from centuria.testing.replies import Answer, Calls, Text
from centuria.testing.tools import LocalToolHost
from centuria.testing.transport import Provider


class Told(LocalToolHost):
    """Says when a server comes or goes, to whoever listens."""

    on_change: Callable[[ServerState], None] | None = None


def script(body: dict[str, Any]) -> Answer:
    if body["messages"][-1]["role"] == "tool":
        return Text(body["messages"][-1]["content"])
    return Calls((("local__look", "{}"),))


def test_a_run_uses_what_it_is_given_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    heard: list[bool] = []

    def look() -> str:
        (state,) = host.servers()
        assert host.on_change is not None
        host.on_change(state)
        heard.append(True)
        return "It is there."

    host = Told({"look": (look, {"type": "object"})})

    async def main() -> None:
        job = job_from_goal("Look.", env={}).job
        endpoint = Endpoint("custom", "http://nowhere.invalid/v1", "kimi-k2.5")
        provider = Provider(script, latency=(0.0, 0.0))
        folder = RunFolder(tmp_path / "run")
        launch = Launch(run="r", folder=folder, job=job, endpoint=endpoint, price=FREE, rehearse=False)
        run = Run(launch, transport=provider, host=host)
        assert not run.ready.is_set()
        report = await run.execute()
        assert run.ready.is_set()
        assert report.answer.strip() == "It is there."
        assert provider.requests == 2
        assert heard == [True]
        assert host.on_change is None

    asyncio.run(main())


async def resumed(folder: RunFolder) -> Run:
    """A run that goes on with a journal that is there."""
    await SqliteJournal.create(folder.journal, run="r", name="n").aclose()
    job = job_from_goal("Look.", env={}).job
    endpoint = Endpoint("custom", "http://nowhere.invalid/v1", "kimi-k2.5")
    again = Resume(only=frozenset())
    launch = Launch(run="r", folder=folder, job=job, endpoint=endpoint, price=FREE, rehearse=False, resume=again)
    return Run(launch, transport=Provider(lambda body: Text("Done."), latency=(0.0, 0.0)))


async def test_while_a_run_waits_for_its_journal_others_of_its_loop_go_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    run = await resumed(folder)
    lock = WriterLock(folder.journal)  # for which it waits a moment
    opening = asyncio.create_task(run.execute())
    steps = 0
    while not opening.done():
        await asyncio.sleep(0.001)
        steps += 1
    with pytest.raises(JournalError):
        opening.result()
    lock.release()
    assert steps > 3


async def test_a_run_that_is_cancelled_while_its_journal_is_opened_closes_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    run = await resumed(folder)
    lock = WriterLock(folder.journal)
    opening = asyncio.create_task(run.execute())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    lock.release()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert run.stream is None
    await SqliteJournal.open(folder.journal).aclose()
