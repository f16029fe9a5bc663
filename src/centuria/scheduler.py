"""The one way to a tool: look up, check, wait for a session and a slot, journal, call, journal, give the slot back.

What a model can mend or must know is a value (`ToolResult`). What it was told is journaled, refusals too, so that a
resumed conversation reads the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from centuria.admission import Slots
from centuria.core.arguments import ArgumentCheck, BadArguments, parse_arguments
from centuria.core.calls import CallLedger, canonical, fingerprint
from centuria.core.grants import Grant
from centuria.core.retry import RetryPolicy
from centuria.core.schemas import PLAIN, Dialect
from centuria.core.toolsearch import CALL_TOOL, SEARCH_TOOLS
from centuria.errors import OutcomeUnknown, SlotRefused, ToolUnavailable
from centuria.events import CallEnd, ServerDown, ServerUp
from centuria.messages import CallKey, ToolCall, ToolEnd, ToolResult, safe_text
from centuria.ports import Caller, HostedTool, ServerState, ToolHost
from centuria.settings import Timeouts
from centuria.stream import Stream
from centuria.toolanswers import MAY_HAVE_HAPPENED, NO_CALL, capped, noted, refusal, unavailable
from centuria.toolviews import ToolView, Views, unwrapped
from centuria.turns import Refusals, Turn, Turns

#: Whether a call of a tool that asks first, with these arguments, may be made.
Approve = Callable[[HostedTool, CallKey, Mapping[str, Any]], Awaitable[bool]]


@dataclass(slots=True)
class _Work:
    """One call on its way. `stamp` is its fingerprint."""

    call: ToolCall
    caller: Caller
    stamp: str
    tool: HostedTool
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class _Closing:
    """How an attempt ended. With `retry` (seconds) another is to follow, else `result` is what the model gets.

    `throttled`: it was refused as one too many, which is no failure of its own.
    """

    end: CallEnd
    result: ToolResult | None = None
    error: str = ""
    retry: float | None = None
    throttled: bool = False


class ToolScheduler:
    """Every tool call of a run, in its turn. `release` an agent when its task has ended, and `close` when the run has.

    `spill` keeps the whole of a long text and returns the name of its file, or raises `JournalError`. `approve` decides
    on calls of tools that ask first; without it they are refused. Pass `server_changed` to the host as its `on_change`.
    `dialect` and `context` (tokens) are the model's, for which the tools are described.
    """

    def __init__(
        self,
        *,
        host: ToolHost,
        slots: Slots,
        calls: CallLedger,
        stream: Stream,
        retry: RetryPolicy,
        timeouts: Timeouts,
        dice: Callable[[], float],
        spill: Callable[[str, str], str],
        result_chars: int,
        approve: Approve | None = None,
        dialect: Dialect = PLAIN,
        context: int = 131_072,
    ) -> None:
        self._host = host
        self._slots = slots
        self._calls = calls
        self._stream = stream
        self._retry = retry
        self._timeouts = timeouts
        self._dice = dice
        self._spill = spill
        self._result_chars = result_chars
        self._approve = approve
        self._turns = Turns(host, slots, stream, queue=timeouts.queue, max_wait=retry.max_wait, dice=dice, silent=True)
        self._checks: dict[str, ArgumentCheck] = {}
        #: Calls in flight that others may share, by tool and arguments.
        self._flights: dict[tuple[str, str], asyncio.Future[ToolResult | None]] = {}
        self._views = Views(host, self, dialect=dialect, context=context, publish=stream.publish)
        for state in host.servers():
            self.server_changed(state)

    # -- servers and views --------------------------------------------------------------------------------------------

    def server_changed(self, state: ServerState) -> None:
        """Take note of a server, or a replica of it, that came up or went down: its limits, and a fact for everyone."""
        self._turns.server_changed(state)
        self._views.left_out(state.server, state.detail.get("left_out", {}))
        replicas = tuple(safe_text(reason) for reason in state.replicas) if state.mode != "shared" else ()
        if state.up:
            names = tuple(tool.tool for tool in self._views.usable(state.slug))
            self._stream.publish(ServerUp(state.slug, state.server, names, state.limit, state.mode, replicas))
        else:
            self._stream.publish(ServerDown(state.slug, state.server, safe_text(state.reason), state.mode, replicas))

    def set_limit(self, resource: str, limit: int, reason: str) -> None:
        """`Turns.set_limit`."""
        self._turns.set_limit(resource, limit, reason)

    def release(self, agent: str) -> None:
        """The agent's task has ended: what it had to itself is for others."""
        self._turns.leases.release(agent)

    def close(self) -> None:
        """The run has ended."""
        self._turns.gates.close()

    def view(self, grant: Grant | frozenset[str] | None = None, *, beside: int = 0) -> ToolView:
        """What this grant, or these servers (names or slugs; None: all) have now: the same object for all alike.

        `beside` functions are to stand beside them in a request.
        """
        return self._views.of(grant if isinstance(grant, Grant) else Grant(grant), beside)

    # -- one call -----------------------------------------------------------------------------------------------------

    async def call(self, call: ToolCall, caller: Caller, view: ToolView) -> ToolResult:
        """Answer one tool call; one that the journal holds as ended is answered from it and nothing runs.

        A `call_tool` is the call of the tool that it names, in every respect. Everything that can go wrong with a tool
        is a value. Raises `JournalError`.
        """
        wrapped, call = call, unwrapped(call)
        stamp = fingerprint("tool", call.name, call.arguments)
        known = self._calls.find(caller.key, stamp)
        tool = view.resolve(call.name) if call is wrapped else view.meant(call.name)
        if known is not None:
            assert known.result is not None
            if tool is not None:
                self._turns.leases.replayed(tool, caller.key.task)
            return known.result
        if call.name == SEARCH_TOOLS:
            return await self._tell(call, caller, stamp, view.search(call.arguments, self._result_chars))
        if tool is None:
            why = NO_CALL if call.name == CALL_TOOL else view.refusal(call.name)
            return await self._tell(call, caller, stamp, refusal(why, view.fault(call)))
        if call.name != tool.name:
            call = replace(call, name=tool.name)
        try:
            arguments = self._read(tool, call.arguments)
        except BadArguments as error:
            text = f"{tool.name} was not called. {error} Correct the arguments and call it again."
            return await self._tell(call, caller, stamp, refusal(text, error.fault))
        if tool.ask and not (self._approve is not None and await self._approve(tool, caller.key, arguments)):
            why = "needs approval, and nobody is there to give it" if self._approve is None else "was not approved"
            return await self._tell(call, caller, stamp, refusal(f"{tool.name} was not called: it {why}."))
        work = _Work(call, caller, stamp, tool, arguments)
        if not tool.rerun or tool.personal or tool.lease is not None:
            return await self._run(work)
        return await self._once(work)

    def answered(self, call: ToolCall, caller: Caller) -> ToolResult | None:
        """What the journal holds as this call's answer. Raises `FingerprintMismatch`."""
        known = self._calls.find(caller.key, fingerprint("tool", call.name, call.arguments))
        return None if known is None else known.result

    async def local(self, call: ToolCall, caller: Caller, act: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Answer a call of the house's own tools with `act`: journaled like any other, safe to run again, no slot.

        Whatever `act` raises leaves the call open to be made again. Raises `JournalError`.
        """
        known = self.answered(call, caller)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        stamp = fingerprint("tool", call.name, call.arguments)
        attempt = self._open(call, caller.key, stamp)
        closing, began = _Closing("lost", error="It was given up while it ran."), loop.time()
        try:
            result = await act()
            closing = _Closing("done", replace(result, text=safe_text(result.text)))
        finally:
            self._close(caller.key, attempt, closing, loop.time() - began)
        await self._stream.durable()
        assert closing.result is not None
        return closing.result

    def _open(
        self, call: ToolCall, key: CallKey, stamp: str, *, rerun: bool = True, slots: tuple[str, ...] = ()
    ) -> int:
        """The row before an attempt. Returns the attempt's number."""
        [opened] = self._calls.open(
            key, call="tool", name=call.name, fingerprint=stamp, rerun=rerun, arguments=call.arguments, slots=slots
        )
        self._stream.publish(opened)
        return opened.attempt

    def _close(self, key: CallKey, attempt: int, closing: _Closing, seconds: float) -> None:
        facts = self._calls.close(
            key, attempt, end=closing.end, result=closing.result, error=closing.error, total_s=seconds
        )
        self._stream.publish(*facts)

    def _read(self, tool: HostedTool, text: str) -> dict[str, Any]:
        arguments = parse_arguments(text)
        check = self._checks.get(tool.key)
        if check is None:
            check = self._checks[tool.key] = ArgumentCheck(tool.schema)
        complaint = check.complaint(arguments)
        if complaint is not None:
            raise BadArguments(f"The arguments do not fit its schema: {complaint}.", "schema")
        return arguments

    async def _tell(self, call: ToolCall, caller: Caller, stamp: str, result: ToolResult) -> ToolResult:
        """Answer without sending anything, and keep the answer."""
        [opened] = self._calls.open(
            caller.key, call="tool", name=call.name, fingerprint=stamp, rerun=True, arguments=call.arguments
        )
        closed = self._calls.close(caller.key, opened.attempt, end="done", result=result)
        self._stream.publish(opened, *closed)
        await self._stream.durable()
        return result

    async def _once(self, work: _Work) -> ToolResult:
        """Identical calls of a tool that is safe to run again share one execution while it is in flight, whoever makes
        them: each has a row of its own."""
        same = (work.tool.key, canonical(work.arguments))
        while (flight := self._flights.get(same)) is not None:
            followed = await self._follow(work, flight)
            if followed is not None:
                return followed
        flight = self._flights[same] = asyncio.get_running_loop().create_future()
        result: ToolResult | None = None
        try:
            result = await self._run(work)
            return result
        finally:
            del self._flights[same]
            flight.set_result(result)

    async def _follow(self, work: _Work, flight: asyncio.Future[ToolResult | None]) -> ToolResult | None:
        """The result of another's call; None where that was given up."""
        attempt = self._open(work.call, work.caller.key, work.stamp)
        loop = asyncio.get_running_loop()
        closing, began = _Closing("failed", error="It was given up before it was sent."), loop.time()
        try:
            await asyncio.wait({flight})  # whoever is cancelled here cancels nothing for the others
            result = flight.result()
            if result is not None:
                closing = _Closing("done", result)
        finally:
            self._close(work.caller.key, attempt, closing, loop.time() - began)
        await self._stream.durable()
        return result

    async def _run(self, work: _Work) -> ToolResult:
        failures, refusals, renewed = 0, Refusals(), False
        while True:
            try:
                async with self._turns.hold(work.tool, work.caller, refusals) as turn:
                    renewed = renewed or turn.renewed
                    closing = await self._until_taken(work, turn, refusals, failures, renewed=renewed)
            except SlotRefused as error:
                return await self._not_called(work, f"{work.tool.name} was not called: {error.message}")
            except ToolUnavailable as error:  # there is no session for this agent
                delay = self._retry.delay(failures + 1, error, self._dice())
                if delay is None:
                    return await self._not_called(work, unavailable(work.tool, error, failures + 1).text)
                closing = _Closing("failed", retry=delay)
            await self._stream.durable()
            if closing.result is not None:
                return closing.result
            failures += 1
            await asyncio.sleep(closing.retry or 0.0)

    async def _until_taken(
        self, work: _Work, turn: Turn, refusals: Refusals, failures: int, *, renewed: bool
    ) -> _Closing:
        """Attempts until the server takes one: a call that is one too many waits in the queue, which is no retry."""
        while True:
            slot = await turn.server()
            try:
                closing = await self._attempt(work, turn.untold(), failures, renewed=renewed)
            finally:
                slot.leave()
            if not closing.throttled:
                return closing
            refusals.add()

    async def _not_called(self, work: _Work, text: str) -> ToolResult:
        return await self._tell(work.call, work.caller, work.stamp, ToolResult(safe_text(text), ToolEnd.UNAVAILABLE))

    async def _attempt(self, work: _Work, slots: tuple[str, ...], failures: int, *, renewed: bool) -> _Closing:
        """One attempt, from its row before the call to its row after it, which is published whatever happens.

        `slots` are those of which the row before it tells.
        """
        loop = asyncio.get_running_loop()
        tool, key = work.tool, work.caller.key
        attempt = self._open(work.call, key, work.stamp, rerun=tool.rerun, slots=slots)
        began, sent, closing = loop.time(), False, None
        try:
            await self._stream.durable()
            began, sent = loop.time(), True
            closing = await self._send(work, failures, began)
            if renewed and closing.result is not None:
                closing = replace(closing, result=noted(closing.result, tool))
        finally:
            if closing is None:
                closing = (
                    _unanswered(tool, "It was cancelled while it ran.")
                    if sent
                    else _Closing("failed", error="It was cancelled before it was sent.")
                )
            self._close(key, attempt, closing, loop.time() - began)
        return closing

    async def _send(self, work: _Work, failures: int, now: float) -> _Closing:
        tool = work.tool
        seconds = self._timeouts.tool if tool.timeout is None else tool.timeout
        ticket = self._turns.gates.sent(tool.slug, now)
        try:
            result = await self._host.call(tool.name, work.arguments, timeout=seconds, caller=work.caller)
            self._turns.gates.answered(tool.slug, ticket)
        except ToolUnavailable as error:
            if error.throttled:
                self._turns.gates.refused(tool.slug, ticket, error)
                return _Closing("failed", error=safe_text(str(error)), retry=0.0, throttled=True)
            retry = self._retry.delay(failures + 1, error, self._dice())
            if retry is not None:
                return _Closing("failed", error=safe_text(str(error)), retry=retry)
            return _Closing("done", unavailable(tool, error, failures + 1))
        except (OutcomeUnknown, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                end, what = ToolEnd.TIMEOUT, f"{tool.name} did not answer within {seconds:g} s."
            else:
                end, what = ToolEnd.UNKNOWN, f"{tool.name} gave no answer: {error}"
            return self._lost(tool, end, safe_text(what), failures)
        finally:
            self._turns.gates.dropped(tool.slug, ticket)
        return _Closing("done", capped(result, self._result_chars, partial(self._spill, str(work.caller.key))))

    def _lost(self, tool: HostedTool, end: ToolEnd, what: str, failures: int) -> _Closing:
        """The call was sent and has no answer: again where that is safe, else the model must know."""
        if not tool.rerun:
            return _Closing("unknown", ToolResult(f"{what} {MAY_HAVE_HAPPENED}", end))
        retry = self._retry.delay(failures + 1, ToolUnavailable(what), self._dice())
        if retry is not None:
            return _Closing("lost", error=what, retry=retry)
        return _Closing("done", ToolResult(f"{what} It was tried {failures + 1} times.", end))


def _unanswered(tool: HostedTool, why: str) -> _Closing:
    """An attempt that was sent and will have no answer, as the journal keeps it."""
    if tool.rerun:
        return _Closing("lost", error=why)
    return _Closing("unknown", ToolResult(f"{tool.name}: {why} {MAY_HAVE_HAPPENED}", ToolEnd.UNKNOWN))
