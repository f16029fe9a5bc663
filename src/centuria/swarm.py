"""The public API: one `Swarm` runs jobs, maps templates over rows, streams what happens, and resumes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from centuria.compare import Comparing, Comparison, prepare_comparison
from centuria.config import LoadedJob, Overrides, job_from_goal, job_from_prompt, load_job
from centuria.ending import Report
from centuria.errors import ConfigurationError
from centuria.folder import RunFolder, find_run, register
from centuria.launch import Launch, Tape, new_run_id, prepare, prepare_resume
from centuria.resume import statuses
from centuria.run import Run
from centuria.stream import Item, Stream, Subscription

#: Where runs live unless they are told otherwise: below the current folder.
RUNS = Path("runs")
_API_KEY = "CENTURIA_API_KEY"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a new run goes: below `root` under its id, or at `out`."""

    root: Path = RUNS
    out: Path | None = None

    def new(self, name: str) -> tuple[str, RunFolder]:
        run = new_run_id(name, time.time())
        return run, RunFolder(self.out if self.out is not None else self.root / run)


class Swarm:
    """A hundred agents for one job at a time or several, each run with its own budget, journal and folder.

    `model`, `provider`, `base_url`: as in a job's `[model]`; the key comes from the provider's environment variable,
    or from `api_key`. `tools`: an `mcpServers` JSON file. `budget`: dollars a run (False: no cap; not said: the job's,
    or 5). Without a key, or with `rehearse=True`, runs are rehearsals and say so. `record` keeps the model exchanges of
    one run in a new file; `replay` answers from such a file, without a key or a network, `paced` as slowly as it was
    recorded. Leaving the block cancels what still runs; partial results are kept.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        tools: str | Path | None = None,
        budget: float | Literal[False] | None = None,
        agents: int | None = None,
        concurrency: int | None = None,
        max_tokens: int | None = None,
        rehearse: bool = False,
        record: str | Path | None = None,
        replay: str | Path | None = None,
        paced: bool = False,
        runs: str | Path = RUNS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._env = dict(os.environ if env is None else env)
        if api_key is not None:
            self._env[_API_KEY] = api_key
        self._overrides = Overrides(
            model=model,
            provider=provider,
            base_url=base_url,
            key_env=_API_KEY if api_key is not None else None,
            budget=budget,
            agents=agents,
            concurrency=concurrency,
            max_tokens=max_tokens,
            tools=Path(tools) if tools is not None else None,
        )
        self._rehearse = rehearse
        tapes = [Path(file) if file is not None else None for file in (record, replay)]
        self._tape = Tape(tapes[0], tapes[1], paced)
        self._root = Path(runs)
        #: Each run that works now, and what is done once it has ended.
        self._active: dict[Run | Comparing, asyncio.Future[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._active:
            run.cancel(cause="the swarm was closed")
        if self._active:
            await asyncio.wait(list(self._active.values()))

    async def map(
        self,
        template: str,
        rows: str | Path | Iterable[Mapping[str, Any]],
        *,
        id: str | None = None,
        label: str | None = None,
        system: str | None = None,
        name: str = "map",
        schema: Mapping[str, Any] | str | Path | None = None,
        merge: Literal["concatenate", "table", "written"] | None = None,
        out: str | Path | None = None,
    ) -> Report:
        """One subagent a row: `template` filled with the row's columns. `rows`: a CSV or JSONL file, or mappings.

        With a `schema` each answer is JSON of that shape, and the results become a table. Raises `ConfigurationError`
        before anything is sent, `JournalError` when the run can no longer be kept; a task that fails raises nothing.
        """
        source = Path(rows) if isinstance(rows, str | Path) else list(rows)
        overrides = self._with(merge=merge, schema=schema)
        loaded = job_from_prompt(
            template, source, id=id, label=label, system=system, name=name, overrides=overrides, env=self._env
        )
        return await self._follow(self._launch(loaded, out))

    async def run(self, job: str | Path, *, out: str | Path | None = None) -> Report:
        """Run a job file (a `Path`, or a string that ends in `.toml`), or a goal as one task.

        What this swarm was given (model, budget, tools) takes the place of what the job file says. Raises as `map`.
        """
        return await self._follow(self._launch(self._load(job), out))

    async def stream(self, job: str | Path, *, out: str | Path | None = None) -> AsyncIterator[Item]:
        """Like `run`, giving every fact (`Record`) and every piece of text (`TextDelta`) as it happens.

        A reader that is too slow gets a `Gap` in place of what it missed. Leaving the loop early cancels the run.
        """
        run = Run(self._launch(self._load(job), out))
        ready: asyncio.Future[Subscription] = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(self._tracked(run, ready))
        waits: list[asyncio.Future[Any]] = [ready, work]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                async for item in ready.result():
                    yield item
            await work
        finally:
            if not work.done():
                run.cancel(cause="its reader went away")
                await asyncio.wait([work])

    async def compare(
        self,
        job: str | Path,
        models: Sequence[str] = (),
        *,
        reference: str | None = None,
        in_turn: bool = False,
        out: str | Path | None = None,
    ) -> Comparison:
        """Run the same job on each model, all at once or `in_turn`, within one budget; see docs/compare.md.

        `models`: `NAME` (as this swarm's `model`), `PROVIDER:NAME`, `URL#NAME`, or a name of the job's
        `[compare.models]`; none: all of those. `reference`: whose tool calls the others' are held against, by default
        the first's. Raises `ConfigurationError` before anything is sent; a model that fails raises nothing.
        """
        if self._tape.record is not None or self._tape.replay is not None:
            raise ConfigurationError("A comparison is neither recorded nor replayed.", remedy="Record one run.")
        plan = prepare_comparison(
            self._load(job),
            models,
            self._env,
            root=self._root,
            out=Path(out) if out is not None else None,
            reference=reference,
            rehearse=self._rehearse,
            in_turn=in_turn,
            tools_file=self._overrides.tools,
        )
        for remark in plan.remarks:
            logging.getLogger("centuria").warning(remark)
        comparing = Comparing(plan)
        ended = self._active[comparing] = asyncio.get_running_loop().create_future()
        try:
            return await comparing.execute(begun=lambda one, stream: register(plan.folder_of(one), self._root, one.run))
        finally:
            del self._active[comparing]
            ended.set_result(None)

    async def resume(
        self, run: str | Path = "last", *, only: Sequence[str] = (), budget: float | Literal[False] | None = None
    ) -> Report:
        """Go on with a broken run: by folder, id, the start of one, or `last`.

        `only`: what ended with these statuses. `budget`: a new cap in dollars (False: no cap). What this swarm was
        given (model, limits, tools) takes the place of what the run began with.
        """
        ended = statuses(only) if only else None
        overrides = self._overrides if budget is None else replace(self._overrides, budget=budget)
        folder = find_run(str(run), self._root)
        launch = prepare_resume(folder, self._env, only=ended, overrides=overrides, tape=self._tape)
        return await self._follow(launch)

    # -- steering: each run that works now, or `run` by its id. `ConfigurationError` where there is no such run, task or
    # -- call.

    def set_limit(self, resource: str, limit: int, *, run: str | None = None) -> None:
        """Change how many there are at once; 0 is a pause. What is in service is not disturbed.

        `resource`: `server:SLUG`, `tool:NAME`, `lease:SLUG` or `agents`.
        """
        for each in self._working(run):
            each.set_limit(resource, limit)

    def cancel(self, task: str | None = None, *, run: str | None = None) -> None:
        """Stop a run, or a task and all that it assigned; partial results are kept."""
        for each in self._working(run):
            each.cancel(task)

    def pause(self, task: str | None = None, *, run: str | None = None) -> None:
        """No further request of a run, or of a task and all that it assigned, until `go_on`."""
        for each in self._working(run):
            each.pause(task)

    def go_on(self, task: str | None = None, *, run: str | None = None) -> None:
        """End a pause; without a task, all of them."""
        for each in self._working(run):
            each.go_on(task)

    def set_priority(self, task: str, priority: int, *, run: str | None = None) -> None:
        """Serve a task and all that it assigned sooner (0) or later (9)."""
        for each in self._working(run):
            each.set_priority(task, priority)

    def retry(self, task: str, *, run: str | None = None) -> None:
        """Run a task afresh that did not end well, while its run works."""
        for each in self._working(run):
            each.retry(task)

    def approve(self, call: str | None = None, *, yes: bool = True, run: str | None = None) -> int:
        """Answer the tool call that waits for a yes (TASK/EPOCH/TURN/POSITION), or all. Returns how many that were."""
        return sum(each.approve(call, yes=yes) for each in self._working(run))

    def _working(self, run: str | None) -> list[Run]:
        runs = [one for each in self._active for one in (each.runs if isinstance(each, Comparing) else [each])]
        working = [each for each in runs if run in (None, each.launch.run)]
        if not working:
            raise ConfigurationError("No such run works now.", remedy="Steer a run while it works.")
        return working

    # -- how -----------------------------------------------------------------------------------------------------

    def _with(self, *, merge: str | None, schema: Mapping[str, Any] | str | Path | None) -> Overrides:
        if schema is None:
            return replace(self._overrides, merge=merge)
        shape = schema if isinstance(schema, Mapping) else Path(schema)
        return replace(self._overrides, merge=merge or "table", schema=shape)

    def _load(self, job: str | Path) -> LoadedJob:
        if isinstance(job, Path) or job.endswith(".toml"):
            return load_job(Path(job), self._overrides, env=self._env)
        return job_from_goal(job, overrides=self._overrides, env=self._env)

    def _launch(self, loaded: LoadedJob, out: str | Path | None) -> Launch:
        run, folder = Place(self._root, Path(out) if out is not None else None).new(loaded.job.name)
        tools = self._overrides.tools
        launch = prepare(
            loaded, self._env, run=run, folder=folder, rehearse=self._rehearse, tools_file=tools, tape=self._tape
        )
        if launch.remark:  # nobody asked for a rehearsal: a library says so where its user's program logs
            logging.getLogger("centuria").warning(launch.remark)
        return launch

    async def _follow(self, launch: Launch) -> Report:
        return await self._tracked(Run(launch))

    async def _tracked(self, run: Run, ready: asyncio.Future[Subscription] | None = None) -> Report:
        def begun(stream: Stream) -> None:
            register(run.launch.folder, self._root, run.launch.run)
            if ready is not None and not ready.done():
                ready.set_result(stream.subscribe())

        ended = self._active[run] = asyncio.get_running_loop().create_future()
        try:
            return await run.execute(begun=begun)
        finally:
            del self._active[run]
            ended.set_result(None)


def run_sync(work: Coroutine[Any, Any, _T]) -> _T:
    """Run one coroutine of the API from code that has no event loop. Raises `ConfigurationError` inside one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise ConfigurationError("An event loop is running here already.", remedy="Await the call instead.")
