"""The one funnel: reserve money, wait for a place, attempt, settle; again elsewhere where that can help.

    async with funnel.ask(call) as answer:        # an upstream has begun to answer well
        async for chunk in answer.chunks(): ...   # its bytes
                                                  # leaving early cancels the upstream

Everything that reaches a model passes here, whichever route it came by. Each attempt is one row, written when it ends.
Nothing is tried again once the first byte was given out.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from centuria.core.refusals import spends_no_retry
from centuria.core.retry import RetryPolicy
from centuria.errors import ModelDenied, ModelError, ModelRefused
from centuria.gateway.books import Books
from centuria.gateway.chat.attempt import Attempt, Surroundings
from centuria.gateway.chat.calls import ChatCall, Upstream
from centuria.gateway.chat.choosing import Choice, choices_of, next_of, tokens_of
from centuria.gateway.chat.deadlines import Deadlines, Wait
from centuria.gateway.chat.hedging import race
from centuria.gateway.chat.lane import Lane
from centuria.gateway.chat.rates import KeyRates
from centuria.gateway.chat.telling import problem_for
from centuria.gateway.headers import ATTEMPTS, COST, cost_told
from centuria.gateway.ports import AttemptRow, Key
from centuria.gateway.problems import Problem, shutting_down, unavailable
from centuria.gateway.settings import GatewaySettings
from centuria.messages import Pico, Usage
from centuria.ports import Transport


class Answer:
    """A whole answer, or the beginning of one that streams. Whoever has it awaits `end`, whatever happens."""

    def __init__(self, attempt: Attempt, attempts: int, funnel: Funnel) -> None:
        self._attempt = attempt
        self._funnel = funnel
        #: An upstream's 205 or 206 would tell the client of a body that is none, or not all; the row has its status.
        self.status = 200
        #: The gateway's name of the model that answered.
        self.model = attempt.model
        self.attempts = attempts

    @property
    def headers(self) -> dict[str, str]:
        """What the caller is told beside the answer. The cost of a stream is known at its end only."""
        attempt = self._attempt
        told = {
            "x-centuria-model": self.model,
            "x-centuria-deployment": attempt.upstream.deployment.name,
            ATTEMPTS: str(self.attempts),
            "x-centuria-queue-ms": f"{1000 * attempt.queued:.1f}",
            **self._funnel.told(attempt.call.key),
        }
        if not attempt.call.stream and attempt.upstream.deployment.price is not None:
            told[COST] = cost_told(self.cost)
        return told

    @property
    def body(self) -> bytes:
        """The whole answer, where it was not asked for as a stream."""
        return self._attempt.body

    @property
    def usage(self) -> Usage | None:
        """Of a stream at its end."""
        return self._attempt.usage

    @property
    def cost(self) -> Pico:
        """In pico-dollars; of a stream at its end."""
        return self._attempt.paid()

    async def end(self) -> None:
        """Settle it, once, and let go of its upstream."""
        await self._funnel.end(self._attempt)

    def chunks(self) -> AsyncIterator[bytes]:
        """The events of a stream. An error in mid-stream is its last event."""
        return self._attempt.chunks()


@dataclass(slots=True)
class _Rival:
    """The attempt that was begun beside a slow one, if there was one."""

    choice: Choice | None = None
    attempt: Attempt | None = None


class Funnel:
    """`dice` is in [0, 1), `wall` seconds since 1970; `ended` is told each row. `abort` ends all that is under way."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        books: Books,
        transport: Transport,
        dice: Callable[[], float],
        wall: Callable[[], float],
        ended: Callable[[AttemptRow], None] = lambda row: None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._settings = settings
        self._dice = dice
        #: The loop's clock. Finding the loop anew each time costs a system call on Python 3.11.
        self.now = asyncio.get_running_loop().time
        self._retry = retry or RetryPolicy(max_wait=settings.caps.queue)
        self.rates = KeyRates(settings.caps)
        self.models: Mapping[str, Sequence[Upstream]] = {
            name: [Upstream(Lane(one, settings.caps, dice=dice, wall=wall)) for one in deployments]
            for name, deployments in settings.models.items()
        }
        self._deadlines = Deadlines()
        self._beginning: set[Wait] = set()
        self._around = Surroundings(books, transport, settings.timeouts, self._deadlines, wall, ended)
        self._closing = False

    def upstreams(self) -> Iterable[Upstream]:
        """Every deployment."""
        return (upstream for several in self.models.values() for upstream in several)

    def in_flight(self) -> int:
        """Attempts that have not ended."""
        return len(self._around.live)

    def visible(self, key: Key) -> dict[str, Sequence[Upstream]]:
        """The models that a key may use."""
        return key.visible(self.models)

    @asynccontextmanager
    async def ask(self, call: ChatCall) -> AsyncIterator[Answer]:
        """An answer that has begun well. Raises `Problem`, `StoreUnavailable`."""
        answer = await self.open(call)
        try:
            yield answer
        finally:
            await answer.end()

    async def open(self, call: ChatCall) -> Answer:
        """The same without the block, for whoever ends it."""
        attempt, attempts = await self._begin(call)
        return Answer(attempt, attempts, self)

    def told(self, key: Key) -> Mapping[str, str]:
        """What is told of the key and of the whole gateway."""
        limits = self.rates.headers(key)
        return {**limits, "x-centuria-rehearsal": "true"} if self._settings.rehearsal else limits

    def abort(self) -> None:
        """Nothing new is begun, and what is under way is told that the gateway ends."""
        self._closing = True
        for attempt in list(self._around.live):
            attempt.abort()
        for wait in list(self._beginning):
            wait.end()

    def close(self) -> None:
        """No timer is left."""
        self.rates.close()
        self._deadlines.close()
        for upstream in self.upstreams():
            upstream.lane.close()

    # -- the attempts -------------------------------------------------------------------------------------------------

    async def _begin(self, call: ChatCall) -> tuple[Attempt, int]:
        if self._closing:
            raise shutting_down()
        choices = choices_of(call, self.models)
        largest = max([tokens_of(call, choice.upstream) for choice in choices])
        wait = self._deadlines.until(math.inf, shutting_down)
        self._beginning.add(wait)
        try:
            with wait:
                deadline = min(call.deadline, self.now() + self._settings.caps.queue)
                await self.rates.admit(call.key, call.agent, priority=call.priority, tokens=largest, deadline=deadline)
                try:
                    attempt, attempts = await self._attempts(call, choices)
                except BaseException:
                    self.rates.give_back(call.key, largest, 0)
                    raise
        finally:
            self._beginning.discard(wait)
        attempt.charged = largest
        return attempt, attempts

    async def _attempts(self, call: ChatCall, choices: Sequence[Choice]) -> tuple[Attempt, int]:
        most = self._settings.caps.attempts if call.attempts is None else call.attempts
        attempts = 0
        problem: Problem | None = None
        while True:
            choice = next_of(choices, call, self.now())
            late = problem is not None and self.now() >= call.deadline
            if choice is None or attempts >= most or late:
                raise problem or unavailable("No upstream of this model can be asked.")
            attempt = self._attempt(call, choice, call.first_attempt + attempts)
            rival: _Rival | None = None
            try:
                after = None if call.attempts is not None else self._settings.hedge.get(choice.model)
                if after is None:
                    await attempt.begin(patience=self._patience(call))
                else:
                    rival = _Rival()
                    if await self._race(after, attempt, choice, choices, rival):
                        assert rival.attempt is not None and rival.choice is not None
                        attempt, choice = rival.attempt, rival.choice
            except ModelError as error:
                attempts += attempt.sent + _rows_of(rival)
                problem = problem_for(error)
                self._judge(choice, error, streams=call.stream)
            except Problem as error:
                problem, choice.out = error, True
            else:
                choice.upstream.tells_no_usage = choice.upstream.tells_no_usage or choice.bare
                return attempt, attempts + 1 + _rows_of(rival)
            again = next_of(choices, call, self.now())
            if again is not None and again.error is not None and attempts < most:
                await self._pause(again.error, again.tried, problem, call)

    def _patience(self, call: ChatCall) -> float:
        """Seconds that an attempt may wait for money and for its place."""
        return max(0.0, min(self._settings.caps.queue, call.deadline - self.now()))

    async def _race(
        self, after: float, attempt: Attempt, choice: Choice, choices: Sequence[Choice], rival: _Rival
    ) -> bool:
        """Begin an attempt, and a rival elsewhere where it takes longer than `after` seconds. Whether the rival began
        sooner."""
        call = attempt.call

        def second() -> Coroutine[Any, Any, None] | None:
            elsewhere = next_of([each for each in choices if each is not choice and not each.tried], call, self.now())
            last = call.first_attempt + self._settings.caps.attempts - 1
            if elsewhere is None or not attempt.sent or attempt.number >= last:
                return None
            rival.choice = elsewhere
            rival.attempt = self._attempt(call, elsewhere, attempt.number + 1)
            return rival.attempt.begin(patience=self._patience(call))

        async def spare(turn: int) -> None:
            loser = rival.attempt if turn else attempt
            assert loser is not None
            await loser.end()

        first = attempt.begin(patience=self._patience(call))
        return await race(first, after=after, second=second, spare=spare) == 1

    async def end(self, attempt: Attempt) -> None:
        """Settle what `open` began, and give back what its key's limits were charged with and it did not use."""
        try:
            await attempt.end()
        finally:
            usage = attempt.usage
            if usage is not None:
                self.rates.give_back(attempt.call.key, attempt.charged, usage.prompt + usage.output)

    def _judge(self, choice: Choice, error: ModelError, *, streams: bool) -> None:
        """What this error means for its deployment in this call."""
        if streams and isinstance(error, ModelRefused) and _no_usage(error) and not choice.bare:
            # Learned only when it answers without: the words of a refusal may be those of the caller.
            choice.bare = True
            return
        choice.tried += 1
        choice.error = error
        choice.out = isinstance(error, ModelRefused | ModelDenied) or error.kind == "total"

    async def _pause(self, error: ModelError, failures: int, problem: Problem, call: ChatCall) -> None:
        """Wait before a deployment is asked again. Raises the problem where there is no time for that."""
        if spends_no_retry(error):
            return  # the gate of its lane is where it waits
        delay = self._retry.delay(failures, error, self._dice())
        if delay is None or self.now() + delay >= call.deadline:
            raise problem
        await asyncio.sleep(delay)  # holding neither money nor a place

    def _attempt(self, call: ChatCall, choice: Choice, number: int) -> Attempt:
        return Attempt(call, choice.model, choice.upstream, number, self._around, bare=choice.bare)


def _rows_of(rival: _Rival | None) -> int:
    """How many rows it comes to."""
    return int(rival is not None and rival.attempt is not None and rival.attempt.sent)


def _no_usage(error: ModelRefused) -> bool:
    words = f"{error.kind} {error.message}".lower()
    return error.status in (400, 422) and ("stream_options" in words or "include_usage" in words)
