"""The shell of the tool servers' gates: publishes what they decide, sets the slots, and opens them in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from centuria.admission import Slots
from centuria.core.toolgate import ToolGate
from centuria.errors import JournalError, SlotRefused, ToolUnavailable
from centuria.events import Fact, LimitSet
from centuria.ports import ServerState
from centuria.stream import Publisher


def server_resource(slug: str) -> str:
    return f"server:{slug}"


class ToolGates:
    """One gate for each server, made by its first `server_changed`. `close` them when the run ends.

    `dice` gives numbers in [0, 1); `max_wait` is for how many seconds a call that was refused may wait in all.
    """

    def __init__(self, slots: Slots, stream: Publisher, *, dice: Callable[[], float], max_wait: float = 300.0) -> None:
        self.max_wait = max_wait
        self._slots = slots
        self._stream = stream
        self._dice = dice
        self._gates: dict[str, ToolGate] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tickets = count(1)
        #: Of each server the calls that wait for a slot of it.
        self._waiting: dict[str, set[asyncio.Timeout]] = {}
        self._clock: Callable[[], float] | None = None

    def server_changed(self, state: ServerState) -> None:
        """Take note of how many calls the server takes; what was set by hand stays."""
        resource, why = server_resource(state.slug), str(state.detail.get("limit_reason", "the server's own"))
        gate = self._gates.get(state.slug)
        if gate is None:
            gate = self._gates[state.slug] = ToolGate(resource, state.limit, why, careful=state.remote)
            self._act(state.slug, gate.begin())
        elif gate.most != state.limit and self._slots.table.limit(resource) == gate.slots and not gate.by_hand:
            self._act(state.slug, gate.set_most(state.limit, why))

    def set_limit(self, slug: str, limit: int, why: str) -> None:
        """Somebody knows better; if the gate is closed, it holds once it opens. Raises `KeyError`."""
        self._act(slug, self._gates[slug].set_most(limit, why, by_hand=True))

    def most(self, slug: str) -> int:
        """How many calls the server takes at once as far as is known. Raises `KeyError`."""
        return self._gates[slug].most

    def close(self) -> None:
        """No gate opens any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- one call -----------------------------------------------------------------------------------------------------

    @contextmanager
    def patience(self, slug: str, scope: asyncio.Timeout) -> Iterator[None]:
        """While a call waits for a slot of this server: its `scope` ends at once when that comes to nothing.

        Raises `SlotRefused` where that is known already.
        """
        if self.why_closed(slug):
            raise self.denial(slug)
        waiting = self._waiting.setdefault(slug, set())
        waiting.add(scope)
        try:
            yield
        finally:
            waiting.discard(scope)

    def closed(self, slug: str) -> bool:
        gate = self._gates.get(slug)
        return gate is not None and gate.until is not None

    def denial(self, slug: str) -> SlotRefused:
        """What is said to a call that is not sent because its server takes nothing for too long."""
        return SlotRefused(f"The server {slug} refuses calls as too many: {self.why_closed(slug)}")

    def why_closed(self, slug: str) -> str:
        """Why nothing is sent within `max_wait` seconds; "" if that is not so."""
        gate = self._gates.get(slug)
        return "" if gate is None else gate.denial(self.now(), self.max_wait)

    def sent(self, slug: str, now: float) -> int:
        """A call goes to this server. Returns the ticket under which its end is told."""
        ticket, gate = next(self._tickets), self._gates.get(slug)
        if gate is not None:
            gate.sent(ticket, now=now)
            if gate.due is not None:
                self._arm(slug)
        return ticket

    def answered(self, slug: str, ticket: int) -> None:
        gate = self._gates.get(slug)
        if gate is not None and (facts := gate.answered(ticket, now=self.now())):
            self._act(slug, facts)

    def refused(self, slug: str, ticket: int, error: ToolUnavailable) -> None:
        gate = self._gates.get(slug)
        if gate is not None:
            what = error.message.rstrip(".")
            facts = gate.refused(ticket, error.retry_after, what, now=self.now(), dice=self._dice())
            self._act(slug, facts)

    def dropped(self, slug: str, ticket: int) -> None:
        """It ended without an answer; harmless where its end was told."""
        if slug in self._gates:
            self._gates[slug].dropped(ticket)

    # -- acting -------------------------------------------------------------------------------------------------------

    def _act(self, slug: str, facts: Sequence[Fact]) -> None:
        others = [fact for fact in facts if not isinstance(fact, LimitSet)]
        if others:
            self._stream.publish(*others)
        for fact in facts:
            if isinstance(fact, LimitSet):  # published by the table that it is set in
                self._slots.set_limit(fact.resource, fact.limit, fact.reason)
        self._arm(slug)
        if others and self.why_closed(slug):
            for scope in self._waiting.get(slug, ()):
                if not scope.expired():
                    scope.reschedule(self.now())

    def _arm(self, slug: str) -> None:
        """See to it that the gate is looked at when it is due."""
        due, timer = self._gates[slug].due, self._timers.get(slug)
        if timer is not None and not timer.cancelled() and timer.when() == due:
            return
        if timer is not None:
            timer.cancel()
            del self._timers[slug]
        if due is not None:
            self._timers[slug] = asyncio.get_running_loop().call_at(due, self._tick, slug)

    def _tick(self, slug: str) -> None:
        self._timers.pop(slug, None)
        with suppress(JournalError):  # whoever needs the journal will say so
            self._act(slug, self._gates[slug].tick(now=self.now()))

    def now(self) -> float:
        """The loop's clock."""
        if self._clock is None:  # of the one loop of this run
            self._clock = asyncio.get_running_loop().time
        return self._clock()
