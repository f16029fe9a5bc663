"""Steering a run while it works: pauses, a yes or no for tools that ask first, and the commands of other processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from centuria.core.graph import TaskGraph
from centuria.errors import ConfigurationError
from centuria.events import ApprovalAsked, ApprovalGiven, Notice, TaskPaused
from centuria.messages import CallKey
from centuria.ports import HostedTool
from centuria.stream import Stream


class Pauses:
    """Which branches make no request now. A branch is a task and all below it; None is the whole run."""

    def __init__(self, graph: TaskGraph, stream: Stream) -> None:
        self._graph = graph
        self._stream = stream
        self._paused: set[str | None] = set()
        self._changed = asyncio.Event()

    def pause(self, task: str | None) -> None:
        """Requests that are in flight come to their end; no other begins."""
        if task not in self._paused:
            self._paused.add(task)
            self._stream.publish(TaskPaused(task, paused=True))

    def go_on(self, task: str | None) -> None:
        """None ends every pause."""
        ended = set(self._paused) if task is None else {task} & self._paused
        if not ended:
            return
        self._paused -= ended
        self._stream.publish(*(TaskPaused(one, paused=False) for one in sorted(ended, key=str)))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def holds(self, task: str) -> bool:
        """Whether this task, or one above it, is paused."""
        if not self._paused:
            return False
        above: str | None = task
        while above is not None:
            if above in self._paused:
                return True
            above = self._graph.task(above).parent
        return None in self._paused

    async def change(self) -> None:
        """Return when some pause has ended."""
        await self._changed.wait()


class Approvals:
    """Implements `scheduler.Approve`: each question is a fact and waits for an answer, for a bounded time."""

    def __init__(self, stream: Stream, *, patience: float) -> None:
        self._stream = stream
        self._patience = patience
        self._open: dict[str, tuple[CallKey, asyncio.Future[bool]]] = {}
        self._told = False

    async def __call__(self, tool: HostedTool, key: CallKey, arguments: Mapping[str, Any]) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open[str(key)] = (key, answer)
        self._stream.publish(ApprovalAsked(key, tool.name, json.dumps(arguments, ensure_ascii=False)[:2_000]))
        self._tell()
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError:
            self._stream.publish(ApprovalGiven(key, yes=False, why=f"nobody answered within {self._patience:g} s"))
            return False
        finally:
            del self._open[str(key)]

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            run = self._stream.progress.run
            text = (
                f"Tool calls wait for a yes. See them: centuria show {run}. Say yes: centuria approve {run} [CALL]; "
                f"no: centuria approve {run} [CALL] --no."
            )
            self._stream.publish(Notice(text, "warning"))

    def give(self, call: str | None, *, yes: bool, why: str = "by command") -> int:
        """Answer one question, or all of them (None). Returns how many that were.

        Raises `ConfigurationError` for a call that does not ask.
        """
        if call is not None and call not in self._open:
            there = ", ".join(list(self._open)[:10]) or "none"
            raise ConfigurationError(f"No call {call!r} waits for a yes.", remedy=f"There is: {there}.")
        asked = [self._open[call]] if call is not None else list(self._open.values())
        asked = [(key, answer) for key, answer in asked if not answer.done()]
        for key, answer in asked:
            self._stream.publish(ApprovalGiven(key, yes=yes, why=why))
            answer.set_result(yes)
        return len(asked)


class Steered(Protocol):
    """A run, as far as it can be steered. Each raises `ConfigurationError` for what is not there."""

    def cancel(self, task: str | None = None, *, cause: str = ...) -> None: ...
    def pause(self, task: str | None = None) -> None: ...
    def go_on(self, task: str | None = None) -> None: ...
    def set_priority(self, task: str, priority: int) -> None: ...
    def retry(self, task: str) -> None: ...
    def approve(self, call: str | None = None, *, yes: bool = True) -> int: ...
    def set_limit(self, resource: str, limit: int, *, reason: str = ...) -> None: ...


def obey(command: Mapping[str, Any], run: Steered) -> None:
    """Do what another process asks for. Raises `ConfigurationError` for what is no command, or cannot be done."""
    match command:
        case {"command": "cancel", **rest}:
            run.cancel(_text(rest.get("task")), cause="cancelled by command")
        case {"command": "pause", **rest}:
            run.pause(_text(rest.get("task")))
        case {"command": "go_on", **rest}:
            run.go_on(_text(rest.get("task")))
        case {"command": "priority", "task": str(task), "priority": int(priority)}:
            run.set_priority(task, priority)
        case {"command": "retry", "task": str(task)}:
            run.retry(task)
        case {"command": "approve", "yes": bool(yes), **rest}:
            run.approve(_text(rest.get("call")), yes=yes)
        case {"command": "limit", "resource": str(resource), "limit": int(limit)}:
            run.set_limit(resource, limit, reason="set by command")
        case _:
            raise ConfigurationError(f"The command {str(command.get('command'))[:40]!r} is unknown, or not whole.")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
