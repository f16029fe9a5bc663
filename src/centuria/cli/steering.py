"""cancel, pause, go-on, retry, priority, approve and limit: tell the process that works on a run what to do."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from centuria.cli.looking import read_run
from centuria.cli.running import runs_root
from centuria.core.progress import Progress
from centuria.core.resources import check_limit, check_priority
from centuria.errors import ConfigurationError
from centuria.folder import RunFolder, find_run
from centuria.journal import post_command
from centuria.messages import Status
from centuria.views.words import clean


def cancel(options: argparse.Namespace) -> int:
    """`centuria cancel`: tell the process that works on a run to stop it, or one agent of it."""
    return _steer(options, {"command": "cancel"}, "will stop within a second; partial results are kept")


def pause(options: argparse.Namespace) -> int:
    """`centuria pause`: no further request of a run, or of one agent and all that it assigned."""
    return _steer(options, {"command": "pause"}, "will make no further request; go on: centuria go-on")


def go_on(options: argparse.Namespace) -> int:
    """`centuria go-on`: end a pause."""
    return _steer(options, {"command": "go_on"}, "goes on within a second")


def retry(options: argparse.Namespace) -> int:
    """`centuria retry`: run a task afresh that did not end well, while the run works."""
    return _steer(options, {"command": "retry"}, "will be run again within a second")


def priority(options: argparse.Namespace) -> int:
    """`centuria priority`: serve an agent and all that it assigned sooner or later."""
    check_priority(options.number)
    command = {"command": "priority", "priority": options.number}
    return _steer(options, command, f"has priority {options.number} within a second")


def approve(options: argparse.Namespace) -> int:
    """`centuria approve`: a yes, or a no, to tool calls that wait for one."""
    folder, progress = _working(options.run)
    asked = progress.approvals
    if options.call is not None and options.call not in asked:
        there = ", ".join(list(asked)[:10]) or "none"
        raise ConfigurationError(f"No call {options.call!r} waits for a yes.", remedy=f"There is: {there}.")
    if not asked:
        print("centuria: no tool call waits for a yes", file=sys.stderr)
        return 0
    command: dict[str, Any] = {"command": "approve", "yes": not options.no}
    if options.call is not None:
        command["call"] = options.call
    post_command(folder.path, command)
    for call in [options.call] if options.call is not None else asked:
        name, arguments = asked[call]
        said = "not approved" if options.no else "approved"
        print(f"centuria: {said}: {call} {clean(name, 80)} {clean(arguments, 200)}", file=sys.stderr)
    return 0


def _check_ended_badly(task: str, progress: Progress) -> None:
    """Refuse what the run itself would refuse a moment later, where nobody would see it."""
    row = progress.tasks[task]
    if row.status is None:
        raise ConfigurationError(
            f"Task {task!r} has not ended: it is {row.doing}.", remedy="Wait for its end, or stop it: centuria cancel."
        )
    if row.status is Status.OK:
        raise ConfigurationError(
            f"Task {task!r} ended ok: it is not run again.", remedy=f"See its answer: centuria show RUN {task}."
        )
    parent = progress.tasks.get(row.parent) if row.parent is not None else None
    if parent is not None and parent.status is not None:
        raise ConfigurationError(
            f"{parent.task}, which assigned {task}, has ended.", remedy="Nobody is there who would use its answer."
        )


def _steer(options: argparse.Namespace, command: dict[str, Any], what: str) -> int:
    folder, progress = _working(options.run)
    if options.task is not None:
        if options.task not in progress.tasks:
            raise ConfigurationError(f"The run has no task {options.task!r}.", remedy="See them: centuria show RUN.")
        command["task"] = options.task
        if command["command"] == "retry":
            _check_ended_badly(options.task, progress)
    post_command(folder.path, command)
    who = f"task {options.task}" if options.task is not None else "the run"
    print(f"centuria: {who} {what}", file=sys.stderr)
    return 0


def _working(run: str) -> tuple[RunFolder, Progress]:
    """A run that a process works on now."""
    folder = find_run(run, runs_root())
    progress, running = read_run(folder)
    if not running:
        raise ConfigurationError(f"Nothing works on {folder.path.name} now.", remedy="See what runs: centuria runs.")
    return folder, progress


def limit(options: argparse.Namespace) -> int:
    """`centuria limit`: change, in a run that another process works on, how many there are of something at once."""
    folder, progress = _working(options.run)
    resource, before = options.resource, progress.resources.get(options.resource)
    check_limit(resource, options.number, progress)
    post_command(folder.path, {"command": "limit", "resource": resource, "limit": options.number})
    was = f" (it is {before.limit:,} now)" if before is not None else ""
    print(f"centuria: the limit of {resource} will be {options.number:,} within a second{was}", file=sys.stderr)
    return 0
