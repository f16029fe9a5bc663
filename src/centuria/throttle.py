"""The door to one (key, model): it asks the governor, publishes what it answered, and lets one request through.

    warm first? -> slot of `model:NAME` (priority, fairness: the slot table's) -> gate, rates, breaker (the
    governor's) -> the request -> its end

    async with throttle.admit(caller, tokens=bound + max_tokens, patience=patience) as admission:
        admission.accepted(headers)              # it answers
        admission.begun()                        # its first token is there
        admission.succeeded(usage, headers)

A `ModelError` that leaves the block is told to the governor; whatever else leaves it gives the request up.
Everything is released in that very tick.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from centuria.admission import Hold, Slots
from centuria.core.governor import Governor
from centuria.core.ratelimits import NOTHING, Stated, read_headers
from centuria.core.refusals import spends_no_retry
from centuria.core.warmup import WarmUp
from centuria.errors import ModelDenied, ModelError, ModelUnavailable
from centuria.events import BreakerOpened, Fact, GateClosed, LimitSet, PrefixSet
from centuria.messages import Usage
from centuria.ports import Caller
from centuria.stream import Stream

#: Seconds: no timer is set for less, so that a wait always moves the clock.
_TICK = 0.001
#: A call that was admitted before and refused goes before all that were not: it keeps its place. So it does for a few
#: times: one that is refused whenever it comes would close the gate again and again before anyone else is let in.
_AGAIN, _AGAIN_MOST = 1000, 3


@dataclass(slots=True)
class Patience:
    """What one call has waited for rate limits, over all of its requests, in seconds. One for each call.

    Only the time counts in which the model took nothing from anyone: a queue that moves has a bound of its own.
    """

    waited: float = 0.0
    refusals: int = 0
    since: float | None = None

    def used(self, now: float, taken_at: float) -> float:
        """`taken_at`: when the model last took a request."""
        return self.waited + (0.0 if self.since is None else now - max(self.since, taken_at))


class Admission:
    """One request on its way through the door, for the length of an `async with`.

    The first of its ends counts, later ones change nothing.
    """

    def __init__(self, throttle: Throttle, caller: Caller, tokens: int, patience: Patience, prefix: str | None) -> None:
        self._throttle = throttle
        self._caller = caller
        self._tokens = tokens
        self._patience = patience
        self._prefix = prefix
        self._slot: Hold | None = None
        #: Of its slot; 0 until it has one.
        self.ticket = 0
        self._over = True

    async def __aenter__(self) -> Self:
        try:
            self._slot = await self._throttle._enter(self._caller, self._tokens, self._patience, self._prefix)
        except BaseException:
            self._leave()
            raise
        self.ticket, self._over = self._slot.ticket, False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, ModelError):
                self.failed(error)
            self.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._slot is not None:
            self._slot.leave()
        if self._prefix is not None:
            self._throttle._give_up_warming(self._prefix, str(self._caller.key))

    def accepted(self, headers: Mapping[str, str] | None = None) -> None:
        """The status line says success: this request was not refused."""
        if not self._over:
            self._throttle._accepted(self.ticket, headers)

    def begun(self) -> None:
        """The first token is there: the prompt is in the provider's cache."""
        if not self._over and self._prefix is not None:
            self._throttle._warmed(self._prefix)

    def succeeded(self, usage: Usage | None, headers: Mapping[str, str] | None = None) -> None:
        """The answer is whole; what it did not use of its tokens is given back."""
        self.begun()
        if not self._over:
            self._over = True
            tokens = None if usage is None else usage.prompt + usage.output
            self._throttle._succeeded(self.ticket, tokens, headers)

    def failed(self, error: ModelError, headers: Mapping[str, str] | None = None) -> None:
        """There is no answer. What that means for all others is the governor's to say."""
        if not self._over:
            self._over = True
            if spends_no_retry(error):
                self._patience.refusals += 1
                self._patience.since = asyncio.get_running_loop().time()
            self._throttle._refused(self.ticket, error, headers)

    def close(self) -> None:
        """Whatever was not told an end was given up."""
        if not self._over:
            self._over = True
            self._throttle._abandoned(self.ticket)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that is not admitted yet: `scope` ends its wait. Fresh ones have no `deadline` of their own."""

    scope: asyncio.Timeout
    deadline: float | None
    patience: Patience
    cause: ModelDenied | None = None


class Throttle:
    """The shell of one governor. `queue` is the longest wait for a slot, in seconds; `wall` is seconds since 1970.

    `heeds` False: what an upstream says of its limits is no news (it is a recording), and nothing waits for it.
    """

    def __init__(
        self,
        governor: Governor,
        warmup: WarmUp,
        slots: Slots,
        stream: Stream,
        *,
        queue: float | None,
        dice: Callable[[], float],
        wall: Callable[[], float],
        heeds: bool = True,
    ) -> None:
        self.governor = governor
        self.warmup = warmup
        self._slots = slots
        self._stream = stream
        self._queue = queue
        self._dice = dice
        self._wall = wall
        self._heeds = heeds
        #: Those with a slot pass one at a time, in the order of their grants.
        self._door = asyncio.Lock()
        self._waiting: set[_Waiting] = set()
        self._knock: asyncio.Future[None] | None = None
        self._cold: dict[str, set[asyncio.Future[None]]] = {}
        #: When a request was last taken, and when that last gave more time to those that wait.
        self._taken_at = self._renewed_at = -math.inf

    def begin(self) -> None:
        """Set the first limit. Before anything is admitted."""
        self._publish(self.governor.begin(now=self._now()))

    def admit(self, caller: Caller, *, tokens: int, patience: Patience, prefix: str | None = None) -> Admission:
        """Admit one request of a call, for the length of the block, when the upstream will have it.

        `tokens` are the prompt's bound and the longest answer. `prefix` names a shared prefix that is worth a
        warm-up. Entering raises `ModelDenied` (breaker; or the upstream asks for longer than `max_wait`: kind
        "parked"), `ModelUnavailable` (kind "gate", not retryable: this call was refused, and has waited for
        `max_wait` in all while nothing was taken from anyone), `SlotRefused`.
        """
        return Admission(self, caller, tokens, patience, prefix)

    async def _enter(self, caller: Caller, tokens: int, patience: Patience, prefix: str | None) -> Hold:
        """The slot of a request that the governor has admitted."""
        now = self._now()
        deadline = None
        if patience.refusals:
            deadline = now + self.governor.max_wait - patience.used(now, self._taken_at)
        waiting = _Waiting(asyncio.timeout_at(deadline), deadline, patience)
        slot = self._slots.hold(
            self.governor.resource,
            agent=caller.key.task,
            index=caller.index,
            priority=caller.priority - (_AGAIN if 0 < patience.refusals <= _AGAIN_MOST else 0),
            patience=self._queue,
        )
        try:
            async with waiting.scope:
                self._waiting.add(waiting)
                self._refuse_if_denied(tokens)
                self._refuse_if_in_vain(waiting)
                if prefix is not None:
                    await self._warm_first(prefix, str(caller.key))
                await slot.take()
                await self._pass_door(slot.ticket, tokens)
        except BaseException as error:
            slot.leave()
            if isinstance(error, TimeoutError):
                if waiting.cause is not None:
                    raise waiting.cause from None
                if waiting.scope.expired():
                    raise self._out_of_patience(patience) from None
            raise
        finally:
            self._waiting.discard(waiting)
        if patience.since is not None:
            patience.waited = patience.used(self._now(), self._taken_at)
            patience.since = None
        return slot

    # -- waiting -------------------------------------------------------------------------------------------

    async def _pass_door(self, ticket: int, tokens: int) -> None:
        """Wait, first of all with a slot, until the governor admits this one."""
        async with self._door:
            while True:
                self._refuse_if_denied(tokens)
                self._publish(self.governor.admit(ticket, tokens, now=self._now()))
                if self.governor.is_admitted(ticket):
                    return
                delay = self.governor.delay(tokens, self._now())
                if delay is not None:
                    await self._knocked(delay.seconds)

    async def _knocked(self, seconds: float) -> None:
        """Wait this long, or until the governor has changed."""
        loop = asyncio.get_running_loop()
        knock = self._knock = loop.create_future()
        timer = None if seconds > 1e9 else loop.call_later(max(seconds, _TICK), _wake, knock)
        try:
            await knock
        finally:
            self._knock = None
            if timer is not None:
                timer.cancel()

    async def _warm_first(self, prefix: str, by: str) -> None:
        """Go ahead as the first with this prefix, or wait, for a bounded time, for the one that has."""
        began = self._now()
        while True:
            self._publish(self.warmup.ask(prefix, by, now=self._now()))
            seconds = self.warmup.wait(prefix, by, now=self._now())
            seconds = min(seconds, began + self.warmup.patience - self._now())
            if seconds <= 0:
                return
            warm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._cold.setdefault(prefix, set()).add(warm)
            timer = asyncio.get_running_loop().call_later(max(seconds, _TICK), _wake, warm)
            try:
                await warm
            finally:
                timer.cancel()
                waiters = self._cold.get(prefix, set())
                waiters.discard(warm)
                if not waiters:
                    self._cold.pop(prefix, None)

    def _refuse_if_denied(self, tokens: int) -> None:
        denial = self.governor.denial(tokens, self._now())
        if denial is not None:
            raise denial

    def _refuse_if_in_vain(self, waiting: _Waiting) -> None:
        if self._in_vain(waiting):
            raise self._out_of_patience(waiting.patience)

    def _out_of_patience(self, patience: Patience) -> ModelError:
        most = self.governor.max_wait
        error = ModelUnavailable(
            f"{self.governor.model} refused it {patience.refusals} times for its rate limits, in {most:g} s.",
            kind="gate",
            served=False,
            remedy="Lower limits.concurrency, or state the account's limits.",
        )
        error.retryable = False
        return error

    # -- publishing ----------------------------------------------------------------------------------------

    def _publish(self, facts: Sequence[Fact]) -> None:
        """Make what a core decided known, and act on it. A limit is published by the table that it is set in."""
        if self._knock is not None:  # also where there is no fact: one request less is in flight
            _wake(self._knock)
        if not facts:
            return
        self._stream.publish(*(fact for fact in facts if not isinstance(fact, LimitSet)))
        for fact in facts:
            if isinstance(fact, LimitSet):
                self._slots.set_limit(fact.resource, fact.limit, fact.reason)
            elif isinstance(fact, GateClosed | BreakerOpened):
                self._send_away()
            elif isinstance(fact, PrefixSet):
                for waiter in self._cold.get(fact.prefix, ()):
                    _wake(waiter)

    def _send_away(self) -> None:
        """End the waits that can come to nothing, now: all of them where nothing will be sent for `max_wait`, and
        those whose own deadline is before the gate opens."""
        now = self._now()
        denial = self.governor.denial(0, now)
        for waiting in self._waiting:
            if (denial is not None or self._in_vain(waiting)) and not waiting.scope.expired():
                waiting.cause = denial
                waiting.scope.reschedule(now)

    def _in_vain(self, waiting: _Waiting) -> bool:
        opens = self.governor.closed_until()
        return waiting.deadline is not None and opens is not None and waiting.deadline < opens

    # -- the ends of an admission --------------------------------------------------------------------------

    def _accepted(self, ticket: int, headers: Mapping[str, str] | None) -> None:
        self._taken()
        self._publish(self.governor.accepted(ticket, self._stated(headers), now=self._now()))

    def _succeeded(self, ticket: int, tokens: int | None, headers: Mapping[str, str] | None) -> None:
        self._publish(self.governor.succeeded(ticket, tokens, self._stated(headers), now=self._now()))

    def _taken(self) -> None:
        """The model takes requests: those that it refused before have time again."""
        now, most = self._now(), self.governor.max_wait
        self._taken_at = now
        if now - self._renewed_at < most / 10:  # not for each of thousands
            return
        self._renewed_at = now
        for waiting in self._waiting:
            if waiting.deadline is not None and not waiting.scope.expired():
                waiting.deadline = now + most - waiting.patience.waited
                waiting.scope.reschedule(waiting.deadline)

    def _refused(self, ticket: int, error: ModelError, headers: Mapping[str, str] | None) -> None:
        if not self._heeds and not isinstance(error, ModelDenied):
            self._abandoned(ticket)
            return
        stated, dice = self._stated(headers), self._dice()
        self._publish(self.governor.refused(ticket, error, stated, now=self._now(), dice=dice))

    def _abandoned(self, ticket: int) -> None:
        self.governor.abandoned(ticket, now=self._now())
        self._publish(())

    def _warmed(self, prefix: str) -> None:
        self._publish(self.warmup.warmed(prefix, now=self._now()))

    def _stated(self, headers: Mapping[str, str] | None) -> Stated:
        return read_headers(headers, self._wall()) if headers and self._heeds else NOTHING

    def _give_up_warming(self, prefix: str, by: str) -> None:
        self._publish(self.warmup.gave_up(prefix, by, now=self._now()))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
