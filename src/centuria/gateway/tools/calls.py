"""Calls to the tools of one host, whoever makes them: each waits for its turn, and is sent once it has one.

The slots and gates are those of a run (`turns`); what they decide is counted and kept by nobody.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from centuria.admission import Slots
from centuria.core.retry import RetryPolicy
from centuria.core.slots import SlotTable
from centuria.errors import OutcomeUnknown, ToolUnavailable
from centuria.gateway.tools.gauges import Gauges
from centuria.messages import CallKey, ToolResult
from centuria.ports import Caller, HostedTool, Listener, ServerState, ToolHost
from centuria.settings import Timeouts
from centuria.toolanswers import noted
from centuria.turns import Refusals, Turn, Turns, tool_resource

#: Of an agent's id the digits at its end are its number, by which it is given its home slot.
_DIGITS = 6
#: Home slots of agents that have no number.
_HOMES = 1_000


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call that was answered. `slot` is the tool's, `replica` the server's session; times in milliseconds.
    `answer` is what the server said in the protocol's own words, where the host tells, `error` its refusal in them.
    `renewed`: the agent's session is another than it left, which the result's first paragraph says.
    """

    result: ToolResult
    replica: int = 0
    slot: int = 0
    queued_ms: float = 0.0
    ran_ms: float = 0.0
    answer: Mapping[str, Any] | None = field(default=None, repr=False)
    renewed: bool = False
    error: tuple[int, str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Work:
    tool: HostedTool
    arguments: Mapping[str, Any]
    caller: Caller
    timeout: float
    listener: Listener


def caller_of(owner: str, agent: str, priority: int) -> Caller:
    """Who asks, as slots and sessions know them: one agent of one key."""
    number = agent[len(agent.rstrip("0123456789")) :][-_DIGITS:]
    index = int(number) if number.isascii() and number else zlib.crc32(agent.encode()) % _HOMES if agent else 0
    return Caller(CallKey(f"{owner}/{agent}", 0, 0, 0), owner, index=index, priority=priority)


class ToolCalls:
    """Every call to one host's tools. At most `waiting` wait for one tool; `dice` gives numbers in [0, 1).

    Pass `server_changed` to the host as its `on_change`, and `close` when nothing is called any more.
    """

    def __init__(
        self,
        host: ToolHost,
        *,
        timeouts: Timeouts,
        dice: Callable[[], float],
        waiting: int = 10_000,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.host = host
        self.gauges = Gauges()
        self._timeouts = timeouts
        self._dice = dice
        self._retry = retry or RetryPolicy()
        self.slots = Slots(SlotTable(queue_cap=waiting), self.gauges)
        self.turns = Turns(
            host, self.slots, self.gauges, queue=timeouts.queue, max_wait=self._retry.max_wait, dice=dice
        )
        self._calling: Counter[str] = Counter()
        self._idle: dict[str, asyncio.TimerHandle] = {}
        for state in host.servers():
            self.turns.server_changed(state)

    def server_changed(self, state: ServerState) -> None:
        self.turns.server_changed(state)

    def close(self) -> None:
        self.turns.gates.close()
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()

    def release(self, agent: str) -> None:
        """What this agent had to itself is for others. `agent` is the `task` of its callers' keys."""
        timer = self._idle.pop(agent, None)
        if timer is not None:
            timer.cancel()
        self.turns.leases.release(agent)

    def free_in(self, tool: HostedTool) -> float:
        """Seconds until whoever asks now may have its turn, as far as can be told."""
        own, server = self.gauges.of(tool_resource(tool.name)), self.gauges.of(f"server:{tool.slug}")
        return max(own.free_in(), server.free_in())

    async def answered(
        self,
        tool: HostedTool,
        arguments: Mapping[str, Any],
        caller: Caller,
        *,
        patience: float,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Invocation:
        """`call`, again after trouble that passes where that is surely safe; `patience` seconds go to waiting at most.

        Raises as `call` does.
        """
        loop = asyncio.get_running_loop()
        began, failures = loop.time(), 0
        while True:
            left = began + patience - loop.time()
            try:
                done = await self.call(
                    tool, arguments, caller, patience=max(0.0, left), timeout=timeout, listener=listener
                )
                return done if not failures else _since(done, began, loop.time())
            except (ToolUnavailable, OutcomeUnknown, TimeoutError) as error:
                again = error if isinstance(error, ToolUnavailable) else ToolUnavailable(str(error))
                if not isinstance(error, ToolUnavailable) and not tool.rerun:
                    raise
                failures += 1
                delay = self._retry.delay(failures, again, self._dice())
                if delay is None or loop.time() + delay > began + patience:
                    raise
            await asyncio.sleep(delay)

    async def call(
        self,
        tool: HostedTool,
        arguments: Mapping[str, Any],
        caller: Caller,
        *,
        patience: float,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Invocation:
        """Wait for a turn, `patience` seconds at most, and call once; one that its server refuses as one too many waits
        again. `timeout` counts from when it is sent (None: the tool's own).

        Raises `SlotRefused` and `ToolUnavailable` (surely not run), `OutcomeUnknown` and `TimeoutError` (may have run).
        """
        work = _Work(tool, arguments, caller, timeout or tool.timeout or self._timeouts.tool, listener or Listener())
        refusals, asked, agent = Refusals(), asyncio.get_running_loop().time(), caller.key.task
        self._calls(agent, tool)
        try:
            async with self.turns.hold(tool, caller, refusals, patience=patience) as turn:
                return await self._in_turn(turn, work, refusals, asked)
        finally:
            self._called(agent, tool)

    async def _in_turn(self, turn: Turn, work: _Work, refusals: Refusals, asked: float) -> Invocation:
        loop, gates, slug = asyncio.get_running_loop(), self.turns.gates, work.tool.slug
        while True:
            slot = await turn.server()
            try:
                sent = loop.time()
                ticket = gates.sent(slug, sent)
                try:
                    result = await self._send(work)
                    gates.answered(slug, ticket)
                except ToolUnavailable as error:
                    if not error.throttled:
                        raise
                    gates.refused(slug, ticket, error)
                    refusals.add()
                    continue
                finally:
                    gates.dropped(slug, ticket)
            finally:
                slot.leave()
            if turn.renewed:
                result = noted(result, work.tool)
            queued, ran = (sent - asked) * 1000, (loop.time() - sent) * 1000
            listener = work.listener
            said = listener.answer, turn.renewed, listener.error
            return Invocation(result, listener.replica, turn.slot, queued, ran, *said)

    async def _send(self, work: _Work) -> ToolResult:
        work.listener.answer = work.listener.error = None
        return await self.host.call(
            work.tool.name, work.arguments, timeout=work.timeout, caller=work.caller, listener=work.listener
        )

    # -- sessions that agents have to themselves ----------------------------------------------------------------------

    def _calls(self, agent: str, tool: HostedTool) -> None:
        if tool.lease is not None:
            self._calling[agent] += 1
            timer = self._idle.pop(agent, None)
            if timer is not None:
                timer.cancel()

    def _called(self, agent: str, tool: HostedTool) -> None:
        """Nobody says when an agent of a gateway has ended: what it did not use for long is taken away."""
        if tool.lease is None:
            return
        self._calling[agent] -= 1
        if self._calling[agent]:
            return
        del self._calling[agent]
        if not self.turns.leases.has(agent):
            self.release(agent)  # refused: callers choose the names of agents, and nothing is kept of mere names
        else:
            self._idle[agent] = asyncio.get_running_loop().call_later(tool.lease.idle, self.release, agent)


def _since(done: Invocation, began: float, now: float) -> Invocation:
    """The last of several attempts: all before it was waiting."""
    queued = max(0.0, (now - began) * 1000 - done.ran_ms)
    return replace(done, queued_ms=queued)
