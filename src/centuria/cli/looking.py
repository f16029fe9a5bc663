"""show, runs and watch: look at runs through their journals, also while another process writes them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from centuria.cli.running import runs_root, view_of
from centuria.core.progress import Progress
from centuria.errors import CenturiaError, ConfigurationError
from centuria.events import RunStarted, TaskEnded
from centuria.folder import RunFolder, find_run, list_runs
from centuria.journal import JournalReader
from centuria.messages import DOLLAR
from centuria.stream import Feed
from centuria.views import digest, text
from centuria.views.words import clean, clean_text, dollars, spending


def show(options: argparse.Namespace) -> int:
    """`centuria show`: a run, or one task of it."""
    folder = find_run(options.run, runs_root())
    if options.task is not None:
        return _show_task(folder, options.task, as_json=options.json)
    progress, running = read_run(folder)
    if options.json:
        print(json.dumps(digest.as_json(progress) | {"folder": str(folder.path), "running": running}))
    else:
        print(text.show(progress, folder=str(folder.path), broken_off=_broken_off(progress, running)))
    return 0


def runs(options: argparse.Namespace) -> int:
    """`centuria runs`: one line a run, the oldest first."""
    found = list_runs(runs_root())
    if not found:
        print(f"centuria: there are no runs in {runs_root()}", file=sys.stderr)
    for folder in found:
        line = _line(folder)
        if options.json:
            print(json.dumps(line))
            continue
        status = line["status"] or "starting"
        started = datetime.fromtimestamp(line["started"], UTC).strftime("%Y-%m-%d %H:%M") if line["started"] else "-"
        counts = f"{line['ok']}/{line['tasks']} ok"
        rehearsal = "  rehearsal" if line["rehearsal"] else ""
        print(f"{folder.path.name}  {started}  {status:<10}  {counts}  {_spent(line)}{rehearsal}")
    return 0


def _spent(line: dict[str, Any]) -> str:
    return spending(round(line["cost"] * DOLLAR), paid=line["paid"], priced=line["priced"])


def watch(options: argparse.Namespace) -> int:
    """`centuria watch`: the live view of a run that another process works on."""
    folder = find_run(options.run, runs_root())
    with JournalReader(folder.journal) as reader:
        progress = asyncio.run(_watch(reader))
        broken_off = _broken_off(progress, reader.writer is not None)
    print(text.summary(progress, folder=str(folder.path), broken_off=broken_off), file=sys.stderr)
    return 0


def read_run(folder: RunFolder) -> tuple[Progress, bool]:
    """The fold of a run so far, and whether a process works on it now."""
    progress = Progress()
    with JournalReader(folder.journal) as reader:
        running = reader.writer is not None
        for record in reader.records():
            progress.record(record)
    return progress, running


def _broken_off(progress: Progress, running: bool) -> bool:
    """Whether its process went (kill -9, a power cut) before the run ended."""
    return not running and progress.status in ("", "running")


def _line(folder: RunFolder) -> dict[str, Any]:
    try:
        progress, running = read_run(folder)
    except CenturiaError as error:
        damaged: dict[str, Any] = {"run": folder.path.name, "status": "damaged", "cause": str(error), "running": False}
        return damaged | {
            "started": None,
            "tasks": 0,
            "ok": 0,
            "cost": 0.0,
            "rehearsal": False,
            "paid": True,
            "priced": True,
        }
    return {
        "run": folder.path.name,
        "folder": str(folder.path),
        "name": progress.name,
        "model": progress.model,
        "status": "broken off" if _broken_off(progress, running) else progress.status,
        "running": running,
        "started": progress.started_at,
        "tasks": len(progress.tasks),
        "ok": sum(1 for row in progress.tasks.values() if row.status == "ok"),
        "cost": progress.money().spent / DOLLAR,
        "rehearsal": progress.rehearsal,
        "paid": progress.paid,
        "priced": progress.priced,
    }


async def _watch(reader: JournalReader) -> Progress:
    progress = Progress()
    last = 0
    for record in reader.records():  # what has been is not shown line by line
        progress.record(record)
        last = record.seq
    feed = Feed(progress)
    view = asyncio.create_task(view_of(feed))
    try:
        async for record in reader.follow(after=last):
            feed.relay(record)
    finally:
        feed.close()
        with suppress(Exception):  # a broken terminal is no error of the run
            await view
    return progress


def _show_task(folder: RunFolder, task: str, *, as_json: bool) -> int:
    """One task: its outcome, and each attempt at a model or tool call."""
    with JournalReader(folder.journal) as reader:
        calls = reader.calls(task=task)
        facts = [record.event for record in reader.records()]
    known = [event for event in facts if getattr(event, "task", None) == task]
    paid = not any(isinstance(event, RunStarted) and (event.rehearsal or event.replay) for event in facts)
    ends = [event.outcome for event in known if isinstance(event, TaskEnded)]
    if not known:
        raise ConfigurationError(f"The run has no task {task!r}.", remedy="See them: centuria show RUN.")
    outcome = ends[-1] if ends else None
    if as_json:
        from pydantic import TypeAdapter

        print(TypeAdapter(dict[str, Any]).dump_json({"task": task, "outcome": outcome, "calls": calls}).decode())
        return 0
    status, cause = (outcome.status.value, outcome.cause) if outcome else ("not ended", "")
    print(f"{task}: {status}" + (f" ({clean(cause, 400)})" if cause else ""))
    for call in calls:
        place = f"turn {call.turn} call {call.position} attempt {call.attempt}"
        cost = f"  {'' if paid else 'would cost '}{dollars(call.cost)}" if call.cost else ""
        what = f"{call.call} {clean(call.name, 80)} {call.state}"
        print(f"  {place}: {what}{cost}  {clean(call.error or '', 120)}".rstrip())
    if outcome and outcome.text:
        print()
        print(clean_text(outcome.text))
    return 0
