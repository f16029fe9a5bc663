"""Warm first: one call brings a shared prefix into the provider's prompt cache, the others wait for it. Pure.

A prefix is cold, warming (one call has gone ahead) or warm. What is warm stays so for `ttl` seconds after it was
last used; a warm-up counts for `patience` seconds, whatever becomes of the call, so that nobody waits longer.

Providers keep a prefix for 5 to 30 minutes (measured on Moonshot's coding endpoint, in units of 256 tokens).
"""

from __future__ import annotations

from typing import Literal

from centuria.events import Event, Fact, PrefixSet, RunResumed

State = Literal["cold", "warming", "warm"]

#: Tokens that a shared prefix has to have: shorter ones are not cached.
LEAST = 1024
#: Prefixes that are remembered: the oldest are forgotten, which costs one warm-up.
_MOST = 1000


class WarmUp:
    """The shared prefixes of one model. `by` names a call."""

    def __init__(self, model: str, *, patience: float = 20.0, ttl: float = 240.0) -> None:
        self._model = model
        self.patience = patience
        self._ttl = ttl
        self._prefixes: dict[str, PrefixSet] = {}

    def ask(self, prefix: str, by: str, *, now: float) -> list[Fact]:
        """Make this call the one that goes ahead, if there is none and the prefix is cold."""
        known = self._prefixes.get(prefix)
        if known is not None and known.state != "cold" and now < known.until:
            return []
        if known is not None and known.state == "warming":
            # It is as slow as all that: nobody waits for another.
            return []
        return self._set(prefix, "warming", by, now, now + self.patience)

    def wait(self, prefix: str, by: str, *, now: float) -> float:
        """Seconds to wait for the call that has gone ahead, at most."""
        known = self._prefixes.get(prefix)
        if known is None or known.state != "warming" or known.by == by:
            return 0.0
        return max(0.0, known.until - now)

    def warmed(self, prefix: str, *, now: float) -> list[Fact]:
        """A call with this prefix is being answered: it is in the cache."""
        known = self._prefixes.get(prefix)
        if known is not None and known.state == "warm" and now < known.until - self._ttl / 2:
            return []
        return self._set(prefix, "warm", "", now, now + self._ttl)

    def gave_up(self, prefix: str, by: str, *, now: float) -> list[Fact]:
        """The call that went ahead has no answer: the next one goes."""
        known = self._prefixes.get(prefix)
        if known is None or known.state != "warming" or known.by != by:
            return []
        return self._set(prefix, "cold", "", now, now)

    def _set(self, prefix: str, state: State, by: str, now: float, until: float) -> list[Fact]:
        fact = PrefixSet(self._model, prefix, state, by, now, until)
        self.apply(fact)
        return [fact]

    def apply(self, event: Event) -> None:
        """The only place where it changes."""
        if isinstance(event, RunResumed):
            self._prefixes.clear()
        elif isinstance(event, PrefixSet) and event.model == self._model:
            self._prefixes.pop(event.prefix, None)
            if event.state != "cold":
                self._prefixes[event.prefix] = event
            if len(self._prefixes) > _MOST:
                del self._prefixes[next(iter(self._prefixes))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WarmUp) and self._prefixes == other._prefixes

    __hash__ = None  # type: ignore[assignment]
