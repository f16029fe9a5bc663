"""Sessions of servers that remember (a browser, a shell): an agent has one to itself, from its first call to its end.

The slots of `lease:SLUG` are how many agents may have one; their queue is the slot table's, with its priorities, and is
measured and shown like any other. Which session it is, and that it is a new one, is the tool host's to say. An agent
that has not called its session for as long as its terms say loses it to one that waits, so that two agents that each
wait for what the other holds go on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from centuria.admission import Slots, Ticket, too_late
from centuria.ports import Caller, HostedTool, LeaseTerms, ToolHost

#: Seconds: no wait is shorter, so that a wait always moves the clock.
_TICK = 0.001
_EARLIER = "of the run before this one"


def lease_resource(slug: str) -> str:
    return f"lease:{slug}"


@dataclass(slots=True)
class _Lease:
    """One agent at one server. `users` are its calls that need the session now, `session` is the last one it used."""

    agent: str
    terms: LeaseTerms
    calls: asyncio.Semaphore
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    ticket: Ticket | None = None
    session: str = ""
    users: int = 0
    idle_since: float = 0.0

    @property
    def ends_at(self) -> float:
        """When it may be taken away."""
        return math.inf if self.ticket is None or self.users else self.idle_since + self.terms.idle


class Leases:
    """All leases of a run. `release` an agent when its task has ended, however it ended."""

    def __init__(self, host: ToolHost, slots: Slots) -> None:
        self._host = host
        self._slots = slots
        self._leases: dict[str, dict[str, _Lease]] = {}

    @asynccontextmanager
    async def use(self, tool: HostedTool, caller: Caller, patience: float) -> AsyncIterator[bool]:
        """Hold the agent's session of this tool's server for one call, at most as many at once as it takes.

        Gives whether the agent had another one before: what it had left there is gone. A tool that needs no session of
        its own gives False at once. Raises `SlotRefused` after `patience` seconds, `ToolUnavailable`.
        """
        if tool.lease is None:
            yield False
            return
        deadline = asyncio.get_running_loop().time() + patience
        lease = self._of(tool, tool.lease, caller.key.task)
        lease.users += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    async with lease.door:  # its calls ask together, and one of them waits for all
                        if lease.ticket is None:
                            lease.ticket = await self._take(tool.slug, lease, caller, deadline)
                    await lease.calls.acquire()
            except TimeoutError:
                raise too_late(lease_resource(tool.slug), patience) from None
            try:
                left = max(_TICK, deadline - asyncio.get_running_loop().time())
                session = await self._host.lease(tool.name, caller=caller, timeout=left)
                other = lease.session not in ("", session)
                lease.session = session
                yield other
            finally:
                lease.calls.release()
        finally:
            lease.users -= 1
            lease.idle_since = asyncio.get_running_loop().time()

    def replayed(self, tool: HostedTool, agent: str) -> None:
        """A call of the agent is answered from the journal: the session in which it ran is no more."""
        if tool.lease is not None:
            lease = self._of(tool, tool.lease, agent)
            lease.session = lease.session or _EARLIER

    def has(self, agent: str) -> bool:
        """Whether the agent has a session, or has lost one and is to be told so."""
        return any(agent in leases and leases[agent].session for leases in self._leases.values())

    def release(self, agent: str) -> None:
        """The agent's task has ended: its sessions are for others."""
        for slug, leases in self._leases.items():
            lease = leases.pop(agent, None)
            if lease is not None:
                self._end(slug, lease)

    def _of(self, tool: HostedTool, terms: LeaseTerms, agent: str) -> _Lease:
        leases = self._leases.setdefault(tool.slug, {})
        if agent not in leases:
            leases[agent] = _Lease(agent, terms, asyncio.Semaphore(terms.limit))
        return leases[agent]

    async def _take(self, slug: str, lease: _Lease, caller: Caller, deadline: float) -> Ticket:
        """Wait for a slot of the server's sessions, and meanwhile end the leases that have been idle for too long."""
        loop = asyncio.get_running_loop()
        left = max(0.0, deadline - loop.time())
        ticket = self._slots.ask(
            lease_resource(slug), agent=lease.agent, index=caller.index, priority=caller.priority, patience=left
        )
        try:
            while not ticket.granted.done():
                wakes = self._end_idle(slug, lease.terms, loop.time())
                if not ticket.granted.done():
                    await asyncio.wait({ticket.granted}, timeout=max(_TICK, wakes - loop.time()))
            ticket.granted.result()
        except BaseException:
            self._slots.leave(ticket)
            raise
        return ticket

    def _end_idle(self, slug: str, terms: LeaseTerms, now: float) -> float:
        """End leases that may be taken away while anyone waits; returns when the next one may be, at the earliest."""
        while self._slots.table.waiting(lease_resource(slug)):
            first = min(self._leases.get(slug, {}).values(), key=lambda lease: lease.ends_at, default=None)
            if first is None or first.ends_at == math.inf:
                break  # none is idle: the next one will be for as long as its terms say
            if now < first.ends_at:
                return first.ends_at
            self._end(slug, first)
        return now + terms.idle

    def _end(self, slug: str, lease: _Lease) -> None:
        ticket, lease.ticket = lease.ticket, None
        self._host.release(lease.agent, slug)
        if ticket is not None:
            self._slots.leave(ticket)
