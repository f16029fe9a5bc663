"""run, map and resume: start work, show it live, take Ctrl-C, and leave with the exit code of the census."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from centuria.cli.main import INTERRUPTED, NOT_OK, USAGE, silence
from centuria.compare import Comparing
from centuria.config import LoadedJob, Overrides, job_from_goal, job_from_prompt, load_job
from centuria.core.progress import Progress
from centuria.ending import Report
from centuria.errors import ConfigurationError
from centuria.folder import find_run, register
from centuria.launch import Launch, Tape, prepare, prepare_resume
from centuria.messages import Status
from centuria.resume import statuses
from centuria.run import Run
from centuria.stream import Feed, Stream
from centuria.swarm import RUNS, Place
from centuria.views import digest, live, plain, text
from centuria.views.lines import lines
from centuria.views.words import clean, clean_text, counted, dollars, seconds

#: An answer longer than this goes to a file, and its path to standard output.
_MOST_PRINTED = 20_000
#: One word that ends so is a file that is not there, and no goal.
_FILE_SUFFIXES = frozenset({".csv", ".ini", ".json", ".jsonl", ".md", ".tml", ".txt", ".yaml", ".yml"})


def runs_root() -> Path:
    """The folder of runs: `CENTURIA_RUNS`, or `runs` below the current folder."""
    return Path(os.environ.get("CENTURIA_RUNS") or RUNS)


def run(options: argparse.Namespace) -> int:
    """`centuria run`: a job file, or a goal in words."""
    overrides = overrides_from(options)
    if is_job_file(options.job):
        return _start(load_job(Path(options.job), overrides), options)
    return _start(job_from_goal(options.job, overrides=overrides), options)


def map_rows(options: argparse.Namespace) -> int:
    """`centuria map`: one subagent a row."""
    if is_file(options.template) and not is_file(str(options.rows)):
        right = shlex.join([str(options.rows), options.template])
        raise ConfigurationError(
            f"The prompt comes before the rows, and {clean(options.template, 80)} is a file.",
            remedy=f"Did you mean: centuria map {right}?",
        )
    merge = "table" if options.schema else None
    overrides = overrides_from(options, schema=options.schema, merge=merge, limit=options.limit)
    loaded = job_from_prompt(
        options.template, options.rows, id=options.id, label=options.label, name=options.rows.stem, overrides=overrides
    )
    return _start(loaded, options)


def resume(options: argparse.Namespace) -> int:
    """`centuria resume`: the rest of a run."""
    overrides = overrides_from(options)
    edited = load_job(options.job, overrides) if options.job is not None else None
    folder, only = find_run(options.run, runs_root()), _only(options.only)
    launch = prepare_resume(folder, os.environ, only=only, edited=edited, overrides=overrides, tape=_tape(options))
    return _execute(launch, options)


def overrides_from(options: argparse.Namespace, **more: Any) -> Overrides:
    """What the flags say over a job file."""
    names = ("model", "provider", "base_url", "budget", "agents", "concurrency", "tools")
    return Overrides(**{name: getattr(options, name, None) for name in names}, flags=True, **more)


def is_job_file(job: str) -> bool:
    """A goal has spaces or is no file; what looks like a file and is not there is a mistake, not a goal."""
    if not job.strip():
        raise ConfigurationError("The goal is empty.", remedy='Give a job file, or a goal: centuria run "Compare ...".')
    path, there = Path(job), False
    with suppress(OSError, ValueError):
        there = path.exists()
    if job.endswith(".toml") or is_file(job):
        return True
    if len(job.split()) == 1 and (there or path.suffix.lower() in _FILE_SUFFIXES):
        raise ConfigurationError(
            f"{job} is not a job file.", remedy='Give a TOML file, or a goal in words: centuria run "Compare ...".'
        )
    return False


def is_file(word: str) -> bool:
    """Whether there is a file of this name; a text that is too long for one, or cannot be one, is none."""
    with suppress(OSError, ValueError):
        return Path(word).is_file()
    return False


def _only(written: str | None) -> frozenset[Status] | None:
    return None if written is None else statuses([name.strip() for name in written.split(",") if name.strip()])


def _start(loaded: LoadedJob, options: argparse.Namespace) -> int:
    run_id, folder = Place(runs_root(), options.out).new(loaded.job.name)
    launch = prepare(
        loaded,
        os.environ,
        run=run_id,
        folder=folder,
        rehearse=options.rehearse,
        tools_file=options.tools,
        tape=_tape(options),
    )
    return _execute(launch, options)


def _tape(options: argparse.Namespace) -> Tape:
    if options.paced and options.replay is None:
        raise ConfigurationError("--paced is for a replay.", remedy="Give it with --replay FILE.")
    return Tape(options.record, options.replay, options.paced)


def _execute(launch: Launch, options: argparse.Namespace) -> int:
    if launch.remark:
        print(f"centuria: {launch.remark}", file=sys.stderr)
    free = launch.rehearse or launch.tape.replay is not None
    if not options.yes and not free and not _agreed(launch):
        print("centuria: nothing was sent.", file=sys.stderr)
        return USAGE
    run = Run(launch)
    report = asyncio.run(_show(run, options))
    assert run.stream is not None
    try:
        _tell(report, run.stream.progress, launch, options, idle=run.idle)
        sys.stdout.flush()
    except OSError as error:  # the run is over and its folder complete, whoever can still be told
        return _untold(error, report.exit_code)
    return report.exit_code


def _untold(error: OSError, code: int) -> int:
    silence(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return code
    with suppress(OSError):
        print(f"centuria: the output could not be written: {error.strerror}", file=sys.stderr)
    return code or NOT_OK


def _tell(report: Report, progress: Progress, launch: Launch, options: argparse.Namespace, *, idle: bool) -> None:
    """What the run came to: the summary beside the answer."""
    if options.json or options.stream:
        print(json.dumps(digest.as_json(progress) | {"folder": str(report.folder), "answer": report.answer}))
        return
    print(text.summary(progress, folder=nice(report.folder)), file=sys.stderr)
    if idle:
        print("centuria: nothing was left to do\n", file=sys.stderr)
    if not idle and launch.rehearse and launch.tape.replay is None and report.exit_code != INTERRUPTED:
        print(_expected(launch, progress), file=sys.stderr)
    _print_answer(report)


def _expected(launch: Launch, progress: Progress) -> str:
    """What the rehearsed job would take with the real model: what a dry run is for."""
    tokens = progress.usage.prompt + progress.usage.output
    spent = progress.money().spent
    cost = "an unknown price" if launch.price is None else f"about {dollars(spent)}"
    refused = launch.refused_when_real
    real = f"But a real run of this will be refused. {refused.remedy}\n" if refused is not None else ""
    took = seconds(progress.elapsed())
    latency = f"{launch.job.rehearsal.latency_ms:g} ms a model call"
    return f"expect  {cost}, {tokens:,} tokens and {took} on {launch.endpoint.model}, at {latency}\n{real}"


def _agreed(launch: Launch) -> bool:
    """Ask a person; a script has said yes by being one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    cap = launch.job.limits.budget
    most = "without a cap" if cap is None else f"for {dollars(cap)} at most"
    tasks = counted(len(launch.job.tasks), "task")
    print(f"{tasks} on {launch.endpoint.model}, {most}. Go on? [Y/n] ", end="", file=sys.stderr)
    sys.stderr.flush()
    said = sys.stdin.readline()
    return said.endswith("\n") and said.strip().lower() in ("", "y", "yes")  # the end of input is no yes


async def _show(run: Run, options: argparse.Namespace) -> Report:
    """Execute, with a view beside it and Ctrl-C turned into a clean stop."""
    views: list[asyncio.Task[None]] = []

    def begun(stream: Stream) -> None:
        register(run.launch.folder, runs_root(), run.launch.run)
        if options.stream:
            views.append(asyncio.create_task(lines(stream, sys.stdout, subscription=stream.subscribe())))
        elif not options.quiet:
            views.append(asyncio.create_task(view_of(stream)))

    take_signals(run)
    try:
        return await run.execute(begun=begun)
    finally:
        for view in views:
            with suppress(Exception):  # a broken terminal is no reason to lose a run
                await view


def view_of(feed: Feed) -> Coroutine[Any, Any, None]:
    """The view that standard error can show: live on a terminal, else plain lines."""
    return live.live(feed) if sys.stderr.isatty() else plain.plain(feed)


def take_signals(run: Run | Comparing) -> None:
    """The first Ctrl-C stops the run and keeps what there is; the second ends the program there and then."""
    interrupts = 0

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            os._exit(INTERRUPTED)
        run.cancel(cause="interrupted")
        with suppress(OSError):  # the terminal may be what has gone
            print("\ncenturia: stopping; partial results are kept (Ctrl-C again: at once)", file=sys.stderr)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and shells' background jobs mean what they say
            loop.add_signal_handler(number, interrupted)


def _print_answer(report: Report) -> None:
    answer = report.answer.rstrip()
    if len(answer) <= _MOST_PRINTED:
        if answer:
            print(clean_text(answer) if sys.stdout.isatty() else answer)
        return
    name = "answer.md" if (report.folder / "answer.md").exists() else "table.csv"
    print(nice(report.folder / name))


def nice(path: Path) -> str:
    """A path as one would type it: relative where it is below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
