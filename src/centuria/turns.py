"""What one tool call needs before it is sent: a session, where sessions are leased, and slots at an open gate.

    session (`lease:SLUG`) -> slot of `tool:NAME` -> slot of `server:SLUG` -> the call

Always in that order, so that no two calls wait crosswise; what is held is given back in the tick in which the call
ends, but for the session, which is the agent's until its task ends. In a run, a slot that is had without a wait is told
by the call's own row (docs/decisions/0012): most are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

from centuria.admission import Hold, Slots
from centuria.config.problems import where
from centuria.errors import SlotRefused
from centuria.events import Notice
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
    [0, 1). `silent`: a slot that is had without a wait is no fact, and whoever calls tells of it (`Turn.untold`).
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
        silent: bool = False,
    ) -> None:
        self._silent = silent
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

    def hold(
        self, tool: HostedTool, caller: Caller, refusals: Refusals, *, patience: float | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Hold what a call needs beside its server: a session where they are leased, and a slot of its tool.

        `patience` is the longest wait for this one call, in seconds (None: that of all). Entering raises `SlotRefused`,
        and `ToolUnavailable` where there is no session to lease.
        """
        patience = self._queue if patience is None else patience
        turn = Turn(self, tool, caller, refusals, self.gates.now() + patience)
        return turn if tool.lease is None else self._leased(turn, patience)

    @asynccontextmanager
    async def _leased(self, turn: Turn, patience: float) -> AsyncIterator[Turn]:
        async with self.leases.use(turn.tool, turn.caller, patience) as turn.renewed, turn:
            yield turn

    def at_once(self, slot: Hold, tool: HostedTool) -> bool:
        """Take the slot if that needs no wait; in silence, if that is how it is here."""
        if self.gates.closed(tool.slug) or not slot.at_once():
            return False
        if not self._silent:
            slot.tell()
        return True

    async def wait(self, slot: Hold, tool: HostedTool) -> None:
        """Wait for the slot, as long as the server's gate lets anyone hope."""
        self._waiting[tool.slug] += 1
        try:
            self._notice_queue(tool)
            async with asyncio.timeout(None) as scope:
                with self.gates.patience(tool.slug, scope):
                    await slot.take()
        except TimeoutError:
            raise self.gates.denial(tool.slug) from None
        finally:
            self._waiting[tool.slug] -= 1

    def slot(self, resource: str, caller: Caller, patience: float, *, first: bool) -> Hold:
        """A slot of the tool or of its server, to be taken and left; `first`: before all that do not say so."""
        return self._slots.hold(
            resource,
            agent=caller.key.task,
            index=caller.index,
            priority=caller.priority - (_AGAIN if first else 0),
            patience=max(0.0, patience),
        )

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


class Turn:
    """One call's turn, entered with a slot of its tool. `renewed`: its agent's session is another than it knew."""

    __slots__ = ("_deadline", "_refusals", "_server", "_slot", "_turns", "caller", "renewed", "tool")

    def __init__(self, turns: Turns, tool: HostedTool, caller: Caller, refusals: Refusals, deadline: float) -> None:
        self.tool = tool
        self.caller = caller
        self.renewed = False
        self._turns = turns
        self._refusals = refusals
        self._deadline = deadline
        self._slot: Hold | None = None
        self._server: Hold | None = None

    async def __aenter__(self) -> Turn:
        turns, tool, first = self._turns, self.tool, bool(self._refusals.count)
        left = self._deadline - turns.gates.now()
        slot = self._slot = turns.slot(tool_resource(tool.name), self.caller, left, first=first)
        try:
            if not turns.at_once(slot, tool):
                await turns.wait(slot, tool)
        except BaseException:
            slot.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._slot is not None
        self._slot.leave()

    @property
    def slot(self) -> int:
        """The number of its slot of the tool."""
        assert self._slot is not None and self._slot.granted is not None
        return self._slot.granted.slot

    def untold(self) -> tuple[str, ...]:
        """The resources of which it has a slot that nobody was told of."""
        return tuple([slot.resource for slot in (self._slot, self._server) if slot is not None and slot.untold])

    async def server(self) -> Hold:
        """A slot of the server, whose gate is open, for one attempt; whoever gets it leaves it.

        After a refusal it waits before all that had no slot yet: it has kept the one of its tool. Raises `SlotRefused`.
        """
        turns, tool, refusals = self._turns, self.tool, self._refusals
        first = bool(refusals.count)
        deadline = refusals.since + turns.gates.max_wait if first else self._deadline
        while True:
            now = turns.gates.now()
            if refusals.count and now >= deadline - _CLOSE:
                raise self._out_of_patience()
            slot = self._server = turns.slot(server_resource(tool.slug), self.caller, deadline - now, first=first)
            try:
                if turns.at_once(slot, tool):
                    return slot
                assert self._slot is not None
                self._slot.tell()
                await turns.wait(slot, tool)
                if not turns.gates.closed(tool.slug):
                    return slot
            except SlotRefused:
                slot.leave()
                if refusals.count and turns.gates.now() >= deadline - _CLOSE:
                    raise self._out_of_patience() from None
                raise
            except BaseException:
                slot.leave()
                raise
            slot.leave()
            first = True  # it closed in the very tick in which the slot was granted

    def _out_of_patience(self) -> SlotRefused:
        count, seconds = self._refusals.count, self._turns.gates.now() - self._refusals.since
        times = "once" if count == 1 else f"{count} times"
        return SlotRefused(f"The server {self.tool.server} refused it {times} as one too many, in {seconds:.0f} s.")
