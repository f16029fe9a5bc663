"""What one tool call needs before it is sent: a session, where sessions are leased, and slots at an open gate.

    session (`lease:SLUG`) -> slot of `tool:NAME` -> slot of `server:SLUG` -> the call

Always in that order, so that no two calls wait crosswise; what is held is given back in the tick in which the call
ends, but for the session, which is the agent's until its task ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from centuria.admission import Hold, Slots
from centuria.config.problems import where
from centuria.errors import SlotRefused
from centuria.events import Notice, SlotGranted
from centuria.leasing import Leases, lease_resource
from centuria.ports import Caller, HostedTool, ServerState, ToolHost
from centuria.stream import Publisher
from centuria.toolgates import ToolGates, server_resource

#: A server with one slot and more calls waiting than this is worth a notice.
LONG_QUEUE = 5
#: A call that had a slot once, and was refused as one too many, goes before all that had none: it keeps its place.
_AGAIN = 1000
#: Seconds before its deadline in which a wait counts as over.
_CLOSE = 0.01


def tool_resource(name: str) -> str:
    return f"tool:{name}"


@dataclass(slots=True)
class Refusals:
    """How often a server refused one call as one too many, and since when."""

    count: int = 0
    since: float = 0.0

    def add(self) -> None:
        self.since = self.since if self.count else asyncio.get_running_loop().time()
        self.count += 1


class Turns:
    """The turns of a run's tool calls. `queue` is the longest wait for one, in seconds.

    A call that its server refuses as one too many may wait again, `max_wait` seconds in all. `dice` gives numbers in
    [0, 1).
    """

    def __init__(
        self,
        host: ToolHost,
        slots: Slots,
        stream: Publisher,
        *,
        queue: float,
        max_wait: float,
        dice: Callable[[], float],
    ) -> None:
        self.leases = Leases(host, slots)
        self.gates = ToolGates(slots, stream, dice=dice, max_wait=max_wait)
        self._host = host
        self._slots = slots
        self._stream = stream
        self._queue = queue
        #: The limits that were set here, and those of them that somebody changed since.
        self._limits: dict[str, int] = {}
        self._by_hand: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._noticed: set[str] = set()

    # -- limits -------------------------------------------------------------------------------------------------------

    def server_changed(self, state: ServerState) -> None:
        """Follow how many calls, and agents, the server takes; what somebody changed while running stays as it is."""
        reason = str(state.detail.get("limit_reason", "the server's own"))
        self.gates.server_changed(state)
        if state.mode == "leased":
            why = f"{state.in_service} of {len(state.replicas)} sessions are up"
            self._follow(lease_resource(state.slug), state.in_service or len(state.replicas), why)
        for tool in self._host.catalogue():
            if tool.slug == state.slug:
                why = reason if tool.limit == state.limit else "set by the job"
                self._follow(tool_resource(tool.name), tool.limit, why)

    def _follow(self, resource: str, limit: int, reason: str) -> None:
        if resource not in self._by_hand and self._limits.get(resource) != limit:
            self._limits[resource] = limit
            self._slots.set_limit(resource, limit, reason)

    def set_limit(self, resource: str, limit: int, reason: str) -> None:
        """Change how many calls (`server:SLUG`, `tool:NAME`) or agents (`lease:SLUG`) there are at once, from now on.

        A server's limit is that of its tools too, where they have none of their own. Raises `KeyError` for what is
        none of these.
        """
        kind, _, slug = resource.partition(":")
        if kind == "server":
            before = self.gates.most(slug)
            self.gates.set_limit(slug, limit, reason)
            for tool in self._host.catalogue():
                if tool.slug == slug and self._limits.get(tool_resource(tool.name)) == before:
                    self.set_limit(tool_resource(tool.name), limit, reason)
            return
        if resource not in self._limits:
            raise KeyError(resource)
        self._by_hand.add(resource)
        self._limits[resource] = limit
        self._slots.set_limit(resource, limit, reason)

    # -- one turn -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(
        self, tool: HostedTool, caller: Caller, refusals: Refusals, *, patience: float | None = None
    ) -> AsyncIterator[Turn]:
        """Hold what a call needs beside its server: a session where they are leased, and a slot of its tool.

        `patience` is the longest wait for this one call, in seconds (None: that of all).

        Raises `SlotRefused`, and `ToolUnavailable` where there is no session to lease.
        """
        patience = self._queue if patience is None else patience
        deadline = asyncio.get_running_loop().time() + patience
        first = bool(refusals.count)
        async with AsyncExitStack() as stack:
            renewed = tool.lease is not None and await stack.enter_async_context(
                self.leases.use(tool, caller, patience)
            )
            slot = self._slot(tool_resource(tool.name), tool, caller, deadline, first=first)
            try:
                granted = await self._take(slot, tool)
                yield Turn(self, tool, caller, deadline, refusals, renewed, granted.slot)
            finally:
                slot.leave()

    def _slot(self, resource: str, tool: HostedTool, caller: Caller, deadline: float, *, first: bool) -> Hold:
        """A slot of the tool or of its server, to be taken and left; `first`: before all that do not say so."""
        return self._slots.hold(
            resource,
            agent=caller.key.task,
            index=caller.index,
            priority=caller.priority - (_AGAIN if first else 0),
            patience=max(0.0, deadline - asyncio.get_running_loop().time()),
        )

    async def _take(self, slot: Hold, tool: HostedTool) -> SlotGranted:
        """Wait for it, as long as the server's gate lets anyone hope."""
        if self._slots.free(slot.resource) and not self.gates.closed(tool.slug):
            return await slot.take()
        self._waiting[tool.slug] += 1
        try:
            self._notice_queue(tool)
            async with asyncio.timeout(None) as scope:
                with self.gates.patience(tool.slug, scope):
                    return await slot.take()
        except TimeoutError:
            raise self.gates.denial(tool.slug) from None
        finally:
            self._waiting[tool.slug] -= 1

    def _notice_queue(self, tool: HostedTool) -> None:
        slug = tool.slug
        if self._waiting[slug] <= LONG_QUEUE or slug in self._noticed or tool.lease is not None:
            return
        if self.gates.most(slug) != 1:
            return
        self._noticed.add(slug)
        self._stream.publish(
            Notice(
                f"The tool server {tool.server} takes one call at a time, and more than {LONG_QUEUE} are waiting. "
                f"If it is safe with several at once, set `limit` in {where(('tools', tool.server))}; if not, `mode`."
            )
        )


@dataclass(slots=True)
class Turn:
    """One call's turn. `renewed`: its agent's session is another than the one it knew. `slot` is that of its tool."""

    _turns: Turns
    _tool: HostedTool
    _caller: Caller
    _deadline: float
    _refusals: Refusals
    renewed: bool
    slot: int = 0

    @asynccontextmanager
    async def server(self) -> AsyncIterator[None]:
        """Hold a slot of the server, whose gate is open, for one attempt.

        After a refusal it waits before all that had no slot yet: it has kept the one of its tool. Raises `SlotRefused`.
        """
        gates, tool, refusals = self._turns.gates, self._tool, self._refusals
        first = bool(refusals.count)
        deadline = refusals.since + gates.max_wait if first else self._deadline
        while True:
            if refusals.count and asyncio.get_running_loop().time() >= deadline - _CLOSE:
                raise self._out_of_patience()
            slot = self._turns._slot(server_resource(tool.slug), tool, self._caller, deadline, first=first)
            try:
                await self._turns._take(slot, tool)
                if not gates.closed(tool.slug):
                    yield
                    return
            except SlotRefused:
                if refusals.count and asyncio.get_running_loop().time() >= deadline - _CLOSE:
                    raise self._out_of_patience() from None
                raise
            finally:
                slot.leave()
            first = True  # it closed in the very tick in which the slot was granted

    def _out_of_patience(self) -> SlotRefused:
        count, seconds = self._refusals.count, asyncio.get_running_loop().time() - self._refusals.since
        times = "once" if count == 1 else f"{count} times"
        return SlotRefused(f"The server {self._tool.server} refused it {times} as one too many, in {seconds:.0f} s.")
