"""Which agent has which of a server's sessions to itself. Pure.

An agent keeps its session until it is released; then the session is spent, and nobody has it before it is fresh again.
Who finds none free waits, in order. Here that is short: for a session that is being opened anew, or has died. The long
queue, for more agents than sessions, is the slot table's (`lease:SLUG`), where it has priorities and can be seen.

None of this is in the journal: a session is a process or a connection of this process, and dies with it. A resumed run
begins with fresh sessions and no leases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

#: fresh: opened, and nobody has used it · held: an agent has it · spent: to be opened anew · down: it cannot be opened
State = Literal["fresh", "held", "spent", "down"]


@dataclass(frozen=True, slots=True)
class Lease:
    """This agent has this session now."""

    agent: str
    session: int


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: int
    agent: str
    deadline: float


class LeaseTable:
    """The sessions 0..size-1 of one server; all begin as spent, until `opened` says that they are there.

    Times are any clock that never goes back. An agent has one session at most, a session one agent at most; no session
    is fresh while anyone waits.
    """

    def __init__(self, size: int) -> None:
        self.states: list[State] = ["spent"] * size
        self._of: dict[str, int] = {}
        self._waiting: dict[int, _Waiter] = {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def ask(self, ticket: int, agent: str, *, now: float, deadline: float = math.inf) -> int | None:
        """The session that the agent has, or gets now; None: the ticket waits, until `deadline` at most.

        Raises `ValueError` for a ticket that waits already.
        """
        if ticket in self._waiting:
            raise ValueError(f"ticket {ticket} waits already")
        if agent in self._of:
            return self._of[agent]
        if "fresh" in self.states:  # then nobody waits
            return self._give(agent, self.states.index("fresh"))
        if now < deadline:
            self._waiting[ticket] = _Waiter(ticket, agent, deadline)
        return None

    def leave(self, ticket: int) -> None:
        """The ticket waits no more."""
        self._waiting.pop(ticket, None)

    def release(self, agent: str) -> int | None:
        """The agent gives its session back, which is now spent: returns it, to be opened anew. None: it had none."""
        session = self._of.pop(agent, None)
        if session is not None:
            self.states[session] = "spent"
        return session

    def opened(self, session: int, *, now: float) -> list[Lease]:
        """The session is open, and new. Returns who has it now, if somebody waited.

        One that is held stays with its agent: it died and came back.
        """
        if self.states[session] == "held":
            return []
        self.states[session] = "fresh"
        return self._serve(now)

    def failed(self, session: int) -> str | None:
        """The session is down until it is `opened`. Returns the agent that had it, and has none now."""
        agent = next((agent for agent, held in self._of.items() if held == session), None)
        if agent is not None:
            del self._of[agent]
        self.states[session] = "down"
        return agent

    def expire(self, now: float) -> list[int]:
        """Drop the tickets whose deadline has passed, and return them."""
        late = [ticket for ticket, waiter in self._waiting.items() if now >= waiter.deadline]
        for ticket in late:
            del self._waiting[ticket]
        return late

    def _serve(self, now: float) -> list[Lease]:
        """Give what is fresh to who waits, in order. All tickets of an agent that has a session are served by it."""
        given: list[Lease] = []
        self.expire(now)
        for waiter in list(self._waiting.values()):
            if waiter.agent not in self._of:
                if "fresh" not in self.states:
                    continue
                given.append(Lease(waiter.agent, self._give(waiter.agent, self.states.index("fresh"))))
            del self._waiting[waiter.ticket]
        return given

    def _give(self, agent: str, session: int) -> int:
        self.states[session] = "held"
        self._of[agent] = session
        return session

    # -- questions ----------------------------------------------------------------------------------------------------

    def session_of(self, agent: str) -> int | None:
        return self._of.get(agent)

    def holder(self, session: int) -> str | None:
        return next((agent for agent, held in self._of.items() if held == session), None)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The tickets that wait, in order."""
        return tuple(self._waiting)
