"""compare: the same job on several models, one line each while they run, and one table at the end."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from centuria.cli.main import USAGE
from centuria.cli.running import is_job_file, nice, overrides_from, runs_root, take_signals
from centuria.compare import Comparing, Comparison, Plan, prepare_again, prepare_comparison, tabulate
from centuria.config import LoadedJob, job_from_goal, load_job
from centuria.core.comparison import Candidate
from centuria.core.progress import Progress
from centuria.errors import ConfigurationError
from centuria.folder import register
from centuria.stream import Stream
from centuria.views.board import board
from centuria.views.compare import as_json, as_text
from centuria.views.plain import plain
from centuria.views.words import clean, counted, dollars

#: What belongs to a new comparison; one that there is has its own.
_NEW = ("job", "models", "out", "tools", "agents", "concurrency", "limit")


def compare(options: argparse.Namespace) -> int:
    """`centuria compare`: a new comparison, the rest of one, or the table of one again."""
    if options.table is not None:
        _only_with(options, "--table", "budget")
        return _tell(tabulate(options.table, reference=options.reference), options)
    if options.resume is not None:
        _only_with(options, "--resume")
        plan = prepare_again(options.resume, os.environ, budget=options.budget, reference=options.reference)
    else:
        plan = _new(options)
    for remark in plan.remarks:
        print(f"centuria: {remark}", file=sys.stderr)
    if not options.yes and not _agreed(plan):
        print("centuria: nothing was sent.", file=sys.stderr)
        return USAGE
    return _tell(asyncio.run(_show(Comparing(plan), options)), options)


def _new(options: argparse.Namespace) -> Plan:
    if options.job is None:
        raise ConfigurationError("There is no job.", remedy="Name a job file: centuria compare job.toml --models a,b.")
    models = [name for names in options.models or () for name in names.split(",") if name.strip()]
    return prepare_comparison(
        _loaded(options),
        models,
        os.environ,
        root=runs_root(),
        out=options.out,
        reference=options.reference,
        rehearse=options.rehearse,
        in_turn=options.in_turn,
        tools_file=options.tools,
    )


def _loaded(options: argparse.Namespace) -> LoadedJob:
    overrides = overrides_from(options, limit=options.limit)
    if is_job_file(options.job):
        return load_job(Path(options.job), overrides)
    return job_from_goal(options.job, overrides=overrides)


def _only_with(options: argparse.Namespace, flag: str, *more: str) -> None:
    """Refuse what such a call would not heed."""
    said = [name for name in (*_NEW, *more) if getattr(options, name) is not None]
    said += [name for name in ("rehearse", "in_turn") if getattr(options, name)]
    if said:
        word = "a job" if said[0] == "job" else f"--{said[0].replace('_', '-')}"
        raise ConfigurationError(
            f"{flag} goes on with what the comparison began with: {word} cannot be given with it.",
            remedy=f"Leave it out, or start a new comparison without {flag}.",
        )


def _agreed(plan: Plan) -> bool:
    """Ask a person where money can be spent; a script has said yes by being one."""
    paid = [part for part in plan.parts if part.launch is not None and not part.candidate.rehearsal]
    if not paid or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    most = "without a cap" if plan.budget is None else f"for {dollars(plan.budget)} at most, all together"
    tasks = max(len(part.launch.job.tasks) for part in paid if part.launch is not None)
    names = ", ".join(f"{clean(part.candidate.label, 60)} at {part.candidate.provider}" for part in paid)
    print(f"{counted(tasks, 'task')} on each of {names}, {most}. Go on? [Y/n] ", end="", file=sys.stderr)
    sys.stderr.flush()
    said = sys.stdin.readline()
    return said.endswith("\n") and said.strip().lower() in ("", "y", "yes")  # the end of input is no yes


async def _show(comparing: Comparing, options: argparse.Namespace) -> Comparison:
    """Execute, with a line for each model, and Ctrl-C turned into a clean stop."""
    plan, root = comparing.plan, runs_root()
    shown: dict[str, Progress | None] = {part.candidate.label: None for part in plan.parts if part.launch is not None}
    views: list[asyncio.Task[None]] = []
    live = not options.quiet and sys.stderr.isatty()
    wide = max((len(clean(label, 32)) for label in shown), default=0)

    def begun(one: Candidate, stream: Stream) -> None:
        register(plan.folder_of(one), root, one.run)
        shown[one.label] = stream.progress
        if not options.quiet and not live:
            views.append(asyncio.create_task(plain(stream, begin=f"{clean(one.label, 32):<{wide}} | ")))

    take_signals(comparing)
    drawing = asyncio.create_task(board(shown)) if live else None
    try:
        return await comparing.execute(begun=begun)
    finally:
        for view in views:
            with suppress(Exception):  # a broken terminal is no reason to lose a comparison
                await view
        if drawing is not None:
            drawing.cancel()
            with suppress(Exception, asyncio.CancelledError):
                await drawing


def _tell(comparison: Comparison, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(as_json(comparison.table) | {"folder": str(comparison.folder)}))
        return comparison.exit_code
    print(as_text(comparison.table))
    where = nice(comparison.folder)
    print(f"files   {where}: comparison.html, comparison.md, comparison.csv, and each run's folder", file=sys.stderr)
    if comparison.exit_code and any(row.unfinished or row.status != "ok" for row in comparison.rows):
        print(f"resume  centuria compare --resume {where}", file=sys.stderr)
    return comparison.exit_code
