"""The sessions of one server, and which of them a call goes to: shared, one of a pool, or leased to its agent.

One of them gives the catalogue. The others must list the same tools: one that does not is not used while it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from centuria.core.leases import LeaseTable
from centuria.core.names import manifest_key
from centuria.core.replicas import Replicas
from centuria.errors import ToolUnavailable
from centuria.messages import ToolResult
from centuria.ports import Caller, HostedTool, Listener
from centuria.settings import ToolServer
from centuria.toolhost.session import Phase, Session

if TYPE_CHECKING:
    import mcp_types as types

MakeSession = Callable[[str, Callable[[], None]], Session]


class ServerSessions:
    """All sessions with one server. `make(name, on_change)` makes one; `limit` is how many calls each takes at once.

    `on_change` is told when the server, or one of its replicas, comes up or goes down; not of a session that is opened
    anew for the next agent.
    """

    def __init__(self, server: ToolServer, make: MakeSession, *, limit: int, on_change: Callable[[], None]) -> None:
        self.server = server
        self.limit = limit
        self._on_change = on_change
        names = [server.name] if server.replicas == 1 else [f"{server.name} {n + 1}" for n in range(server.replicas)]
        self.sessions = tuple(make(name, partial(self._changed, number)) for number, name in enumerate(names))
        self._pool = Replicas(server.replicas, limit)
        self._leases = LeaseTable(server.replicas)
        self._lead = 0
        self._manifests: list[tuple[object, frozenset[str]]] = [((), frozenset()) for _ in names]
        #: Sessions that are being opened anew, and were in service.
        self._renewing: set[int] = set()
        self._tickets = count(1)
        self._turned = asyncio.Event()

    def start(self, group: asyncio.TaskGroup) -> None:
        for session in self.sessions:
            session.start(group)

    async def settled(self) -> None:
        """Return once each is up or its first attempt has failed."""
        for session in self.sessions:
            await session.settled()

    def stop(self) -> None:
        for session in self.sessions:
            session.stop()

    # -- the census ---------------------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return not all(self.reasons())

    @property
    def tools(self) -> Sequence[types.Tool]:
        """The catalogue, as the first session that is up gave it."""
        return self.sessions[self._lead].tools

    def reasons(self) -> tuple[str, ...]:
        """Of each session why it is not in service; "" = it is, or will be at once."""
        return tuple(self._reason(number) for number in range(len(self.sessions)))

    def _reason(self, number: int) -> str:
        session = self.sessions[number]
        if number in self._renewing:
            return ""
        if not session.up:
            return session.reason or "It is not up."
        if number == self._lead or self._manifest(number) == self._manifest(self._lead):
            return ""
        ours, theirs = self._manifest(self._lead), self._manifest(number)
        return (
            f"Its tools are not those of replica {self._lead + 1}: "
            f"{len(ours - theirs)} of them are missing or differ, {len(theirs - ours)} are others."
        )

    @property
    def reason(self) -> str:
        """Why the server is not up: the reasons of its replicas, each once."""
        if self.up:
            return ""
        return " ".join(dict.fromkeys(self.reasons()))

    def _manifest(self, number: int) -> frozenset[str]:
        """The manifest keys of a session's tools, made anew when it lists anew."""
        tools = self.sessions[number].tools
        if self._manifests[number][0] is not tools:
            keys = frozenset(manifest_key("", tool.name, tool.input_schema) for tool in tools)
            self._manifests[number] = (tools, keys)
        return self._manifests[number][1]

    def _changed(self, number: int) -> None:
        session, before = self.sessions[number], self._manifests[number][1]
        if number in self._renewing and session.phase is Phase.RETURNING:
            return
        quiet = number in self._renewing and session.up and self._manifest(number) == before
        self._renewing.discard(number)
        if session.up and not self.sessions[self._lead].up and self._lead not in self._renewing:
            self._lead = number
        if session.up and not self._reason(number):
            self._leases.opened(number, now=_now())
        for other, reason in enumerate(self.reasons()):
            state, session = self._leases.states[other], self.sessions[other]
            # One that lists other tools is leased to nobody more; who has it keeps what it remembers.
            differs = bool(reason) and session.up and state != "held"
            if state != "down" and (differs or session.phase is Phase.DOWN):
                self._leases.failed(other)
            elif state == "down" and not reason:
                self._leases.opened(other, now=_now())
        self._rouse()
        if not quiet:
            self._on_change()

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(
        self,
        tool: HostedTool,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        caller: Caller | None,
        listener: Listener | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        """`Session.call` on the session that this caller uses."""
        if self.server.mode == "leased":
            return self._call_leased(tool, arguments, timeout, caller, listener)
        if len(self.sessions) > 1:
            return self._call_chosen(tool, arguments, timeout, caller, listener)
        return self._call_on(0, tool, arguments, timeout, listener)

    async def _call_chosen(
        self,
        tool: HostedTool,
        arguments: Mapping[str, Any],
        timeout: float,
        caller: Caller | None,
        listener: Listener | None,
    ) -> ToolResult:
        number = self._choose(tool, caller)
        if number is None:
            raise self._unavailable()
        self._pool.begin(number)
        try:
            return await self._call_on(number, tool, arguments, timeout, listener)
        finally:
            self._pool.end(number)

    def _call_on(
        self, number: int, tool: HostedTool, arguments: Mapping[str, Any], timeout: float, listener: Listener | None
    ) -> Coroutine[Any, Any, ToolResult]:
        if listener is not None:
            listener.replica = number
        return self.sessions[number].call(tool.tool, arguments, timeout=timeout, listener=listener)

    def _choose(self, tool: HostedTool, caller: Caller | None) -> int | None:
        index = 0 if caller is None else caller.index
        live = [
            not reason and session.up and not session.wire.lost.is_set()
            for reason, session in zip(self.reasons(), self.sessions, strict=True)
        ]
        chosen = self._pool.choose(tool.key, index, live)
        if chosen is None:  # wait for one that was up a moment ago
            back = [session.phase in (Phase.UP, Phase.RETURNING) for session in self.sessions]
            chosen = self._pool.choose(tool.key, index, back)
        return chosen

    async def _call_leased(
        self,
        tool: HostedTool,
        arguments: Mapping[str, Any],
        timeout: float,
        caller: Caller | None,
        listener: Listener | None,
    ) -> ToolResult:
        if caller is None:
            raise ToolUnavailable(f"{tool.name} needs a session of its own, and nobody said for which agent it is.")
        began = _now()
        await self.lease(caller.key.task, timeout)
        number = self._leases.session_of(caller.key.task)
        if number is None:
            raise self._unavailable()
        left = max(0.0, began + timeout - _now())
        return await self._call_on(number, tool, arguments, left, listener)

    def _unavailable(self) -> ToolUnavailable:
        return ToolUnavailable(f"The server {self.server.name} is not available. {self.reason}".rstrip())

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(self, agent: str, timeout: float) -> str:
        """A session of this agent alone, which is up: what tells it from all others. Raises `ToolUnavailable`."""
        if self.server.mode != "leased":
            return ""
        deadline, ticket, leases = _now() + timeout, next(self._tickets), self._leases
        try:
            while True:
                number = leases.session_of(agent)
                if number is None and ticket not in leases.waiting:
                    number = leases.ask(ticket, agent, now=_now(), deadline=deadline)
                if number is not None and self.sessions[number].up:
                    return f"{number + 1}.{self.sessions[number].opened}"
                if all(session.phase in (Phase.DOWN, Phase.STOPPED) for session in self.sessions):
                    raise self._unavailable()
                if not await self._told(deadline):
                    raise ToolUnavailable(f"No session of {self.server.name} came free within {timeout:g} s.")
        finally:
            leases.leave(ticket)

    async def _told(self, deadline: float) -> bool:
        """Wait until something has changed; False: not before the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._turned.wait()
        except TimeoutError:
            return False
        return True

    def release(self, agent: str) -> None:
        """The agent's session is nobody's, and is opened anew: its process killed, or its connection closed."""
        number = self._leases.release(agent)
        if number is None:
            return
        session = self.sessions[number]
        if session.up:
            self._renewing.add(number)
            session.reset()
        self._rouse()

    def _rouse(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
