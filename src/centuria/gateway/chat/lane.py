"""One deployment: who may be there, and when. The shell of its governor and of its queue.

    async with lane.enter(key, agent, priority=, tokens=, deadline=) as place:
        place.accepted(headers)
        place.succeeded(usage)

A `ModelError` that leaves the block is told to the governor; whatever else leaves it gives the place up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from centuria.core.fairqueue import FairQueue
from centuria.core.governor import Governor
from centuria.core.ratelimits import NOTHING, Stated, read_headers, read_refusal
from centuria.core.refusals import verdict
from centuria.errors import ModelDenied, ModelError
from centuria.gateway.problems import Problem, overloaded
from centuria.gateway.settings import Caps, Deployment
from centuria.messages import Usage

#: No timer is set for less, so that a wait always moves the clock.
_TICK = 0.001
#: Nor for so many seconds: somebody else will see to it before.
_NEVER = 1e9
#: Seconds until a deployment that denies everything is asked again, where it does not say; doubled up to the second.
DENIED, DENIED_MOST = 60.0, 900.0
#: Seconds that a deployment may ask to be left alone: it is everybody's, and after that a request finds out.
BELIEVED = 900.0


@dataclass(slots=True)
class _Waiter:
    tokens: int
    woken: asyncio.Future[None]


class Lane:
    """Made in the loop that it works in. `dice` is in [0, 1); `wall` is seconds since 1970, for resets that are a point
    in time."""

    def __init__(
        self, deployment: Deployment, caps: Caps, *, dice: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self.deployment = deployment
        self.governor = Governor(
            deployment.name,
            most=deployment.concurrency,
            known=deployment.known,
            max_wait=caps.queue,
        )
        self.queue = FairQueue(most=caps.waiting_all, most_each=caps.waiting)
        self._dice = dice
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._tickets = count(1)
        self.waiters: dict[int, _Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        #: Denials one after another, each by a request that was let through, and until when the last one holds.
        self.denials = 0
        self._denied_until = -math.inf

    def load(self) -> float:
        """How full it is: those that are there and those that wait, of those that may be there."""
        return (self.governor.in_flight() + len(self.queue)) / max(1, self.governor.concurrency)

    def denial(self, tokens: int) -> ModelDenied | None:
        """Why nothing like this is sent within the time that a request may wait: cooling down, or broken."""
        return self.governor.denial(tokens, self.now())

    def enter(self, group: str, member: str, *, priority: int, tokens: int, deadline: float) -> Place:
        """A place for the length of an `async with`. Entering raises `ModelDenied` and `Problem` (no place in time)."""
        return Place(self, group, member, priority, tokens, deadline)

    # -- a place ------------------------------------------------------------------------------------------------------

    def admit(self, tokens: int, now: float) -> int | None:
        """A ticket, where there is nothing to wait for. Raises `ModelDenied`."""
        governor = self.governor
        if not self._begun:
            self._begun = True
            governor.begin(now=now)
        denial = governor.denial(tokens, now)
        if denial is not None:
            raise denial
        if self.waiters:
            return None
        ticket = next(self._tickets)
        governor.admit(ticket, tokens, now=now)
        return ticket if governor.is_admitted(ticket) else None

    async def wait(self, place: Place, now: float) -> int:
        """Its ticket, once it is let in. Raises `ModelDenied`, `Problem`."""
        ticket = next(self._tickets)
        delay = self.governor.delay(place.tokens, now)
        if delay is not None and delay.seconds < math.inf and now + delay.seconds > place.deadline:
            raise self._too_late(place)
        if not self.queue.add(ticket, place.group, place.member, priority=place.priority, now=now):
            raise self._full(place.tokens)
        waiter = self.waiters[ticket] = _Waiter(place.tokens, self._loop.create_future())
        try:
            self.pump()
            async with asyncio.timeout_at(place.deadline):
                await waiter.woken
        except BaseException as error:
            self._forget(ticket)
            if isinstance(error, TimeoutError):
                raise self._too_late(place) from None
            raise
        return ticket

    def _forget(self, ticket: int) -> None:
        """Whoever waited has gone, perhaps in the very tick in which it was let in."""
        self.waiters.pop(ticket, None)
        self.queue.remove(ticket)
        self.governor.abandoned(ticket, now=self.now())
        self.pump()

    def pump(self) -> None:
        """Let in whoever is next, as long as the governor lets anyone in: after whatever may have made room."""
        now = self.now()
        while (ticket := self.queue.first()) is not None:
            waiter = self.waiters[ticket]
            denial = self.governor.denial(waiter.tokens, now)
            if denial is None:
                self.governor.admit(ticket, waiter.tokens, now=now)
                if not self.governor.is_admitted(ticket):
                    delay = self.governor.delay(waiter.tokens, now)
                    self._arm(math.inf if delay is None else delay.seconds)
                    return
            self.queue.pop()
            del self.waiters[ticket]
            if waiter.woken.done():
                continue
            if denial is None:
                waiter.woken.set_result(None)
            else:
                waiter.woken.set_exception(denial)

    def refused(self, ticket: int, error: ModelError, headers: Mapping[str, str] | None) -> None:
        """Whoever has this ticket got no answer."""
        now = self.now()
        asked = error.retry_after
        if asked is None and verdict(error) == "limited":
            asked = read_refusal(error.message).wait
        if asked is not None and asked > BELIEVED:
            error = _asking(error, BELIEVED)
        elif error.retry_after is None and verdict(error) == "denied":
            error = self._with_an_end(error, now)
        self.governor.refused(ticket, error, self.stated(headers), now=now, dice=self._dice())
        self.pump()

    def _with_an_end(self, error: ModelError, now: float) -> ModelError:
        """A gateway runs for months: someone tops the account up, and what denied everything has to be asked again."""
        if now >= self._denied_until:
            self._denied_until = now + min(DENIED * 2.0 ** min(self.denials, 20), DENIED_MOST)
            self.denials += 1
        return _asking(error, self._denied_until - now)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds < _NEVER:
            self._timer = self._loop.call_later(max(seconds, _TICK), self.pump)

    def _full(self, tokens: int) -> Problem:
        return overloaded(f"Too many requests wait for {self.deployment.endpoint.model}.", self._soon(tokens))

    def _too_late(self, place: Place) -> Problem:
        said = f"No place at {self.deployment.endpoint.model} came free in time."
        return overloaded(said, self._soon(place.tokens))

    def _soon(self, tokens: int) -> float:
        """When somebody will be let in, as far as that is known."""
        delay = self.governor.delay(tokens, self.now())
        return 1.0 if delay is None or math.isinf(delay.seconds) else delay.seconds

    def stated(self, headers: Mapping[str, str] | None) -> Stated:
        """What these headers say of limits; most say nothing."""
        for name in headers or ():
            if "ratelimit" in name:
                return read_headers(headers or {}, self._wall())
        return NOTHING

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _asking(error: ModelError, seconds: float) -> ModelError:
    """The same error, which asks for so long."""
    return type(error)(
        error.message,
        status=error.status,
        kind=error.kind,
        retry_after=seconds,
        served=error.served,
        remedy=error.remedy,
    )


class Place:
    """One request at a deployment. The first of its ends counts."""

    __slots__ = ("_lane", "_over", "_ticket", "deadline", "group", "member", "priority", "queued", "tokens")

    def __init__(self, lane: Lane, group: str, member: str, priority: int, tokens: int, deadline: float) -> None:
        self._lane = lane
        self.group = group
        self.member = member
        self.priority = priority
        self.tokens = tokens
        self.deadline = deadline
        #: Seconds that it waited.
        self.queued = 0.0
        self._ticket = 0
        self._over = True

    async def __aenter__(self) -> Self:
        lane = self._lane
        now = lane.now()
        ticket = lane.admit(self.tokens, now)
        if ticket is None:
            ticket = await lane.wait(self, now)
            self.queued = lane.now() - now
        self._ticket = ticket
        self._over = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ModelError):
            self.failed(error)
        self.leave()

    def accepted(self, headers: Mapping[str, str]) -> None:
        """The status line says success."""
        if not self._over:
            lane = self._lane
            lane.denials = 0
            lane.governor.accepted(self._ticket, lane.stated(headers), now=lane.now())
            if lane.waiters:  # it may have made room for more
                lane.pump()

    def succeeded(self, usage: Usage | None) -> None:
        """The answer is whole."""
        if not self._over:
            self._over = True
            lane = self._lane
            tokens = None if usage is None else usage.prompt + usage.output
            lane.governor.succeeded(self._ticket, tokens, NOTHING, now=lane.now())
            if lane.waiters:
                lane.pump()

    def failed(self, error: ModelError, headers: Mapping[str, str] | None = None) -> None:
        """There is no answer."""
        if not self._over:
            self._over = True
            self._lane.refused(self._ticket, error, headers)

    def leave(self) -> None:
        """Whatever was not told an end was given up."""
        if not self._over:
            self._over = True
            self._lane.governor.abandoned(self._ticket, now=self._lane.now())
            self._lane.pump()
