"""`Swarm`, the public API: what it was given holds for a resume too, and closing it waits for its runs alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from centuria import ConfigurationError, Report, Swarm, run_sync
from centuria.testing.upstream import FakeUpstream, Silence
from tests.promises.kit import swarm, the_run, write_job


async def test_a_resume_with_a_budget_of_nothing_is_refused_and_not_taken_for_no_cap(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, swarm(tmp_path) as hundred:
        await hundred.run(write_job(tmp_path, upstream, rows=1))
        with pytest.raises(ConfigurationError, match="`budget` is 0"):
            await hundred.resume(budget=0.0)


async def test_the_limits_of_a_swarm_hold_for_the_runs_that_it_resumes(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        async with swarm(tmp_path) as hundred:
            await hundred.run(write_job(tmp_path, upstream, rows=1))
        async with swarm(tmp_path, agents=0) as none:
            with pytest.raises(ConfigurationError, match="agents"):
                await none.resume(the_run(tmp_path))


async def test_closing_a_swarm_cancels_its_runs_and_does_not_wait_for_what_their_callers_do_next(
    tmp_path: Path,
) -> None:
    closed = asyncio.Event()

    async def call_and_wait_for_the_end() -> Report:
        report = await hundred.run(job)
        await closed.wait()
        return report

    async with FakeUpstream(lambda body: Silence()) as upstream, asyncio.timeout(30):
        job = write_job(tmp_path, upstream, rows=1)
        async with asyncio.TaskGroup() as group:
            async with swarm(tmp_path) as hundred:
                caller = group.create_task(call_and_wait_for_the_end())
                await upstream.until(lambda: upstream.in_flight == 1)
            closed.set()
    assert caller.result().status == "cancelled" and caller.result().cause == "the swarm was closed"


def test_code_without_a_loop_can_run_the_api_and_code_inside_one_is_told_to_await(tmp_path: Path) -> None:
    async def rehearse() -> Report:
        async with Swarm(rehearse=True, runs=tmp_path, env={}) as hundred:
            return await hundred.run("Say hello.")

    assert run_sync(rehearse()).status == "ok"

    async def inside() -> None:
        with pytest.raises(ConfigurationError, match="Await the call instead"):
            run_sync(rehearse())

    asyncio.run(inside())
