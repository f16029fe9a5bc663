"""The table of sessions, against a model of it: bounded, in time and in number, and no key signs another out."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from centuria.gateway.page.session import Sessions
from centuria.gateway.ports import Key

LASTS, MOST, OF_ONE = 100.0, 6, 2
KEYS = [Key(name, name) for name in ("a", "b", "c", "d")]


class SessionsAsTheyShouldBe(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        numbers = count()
        self.sessions = Sessions(
            clock=lambda: self.now, lasts=LASTS, most=MOST, most_of_one=OF_ONE, dice=lambda: f"dice-{next(numbers)}"
        )
        #: Cookie, key and end of those that ought to be there, the oldest first.
        self.known: list[tuple[str, str, float]] = []
        self.gone: list[str] = []

    def _drop(self, one: tuple[str, str, float]) -> None:
        self.known.remove(one)
        self.gone.append(one[0])

    @rule(key=st.sampled_from(KEYS))
    def begins(self, key: Key) -> None:
        for one in [one for one in self.known if one[2] <= self.now]:
            self._drop(one)
        own = [one for one in self.known if one[1] == key.id]
        if len(own) == OF_ONE:
            self._drop(own[0])
        elif len(self.known) == MOST:
            self._drop(self.known[0])
        id, session = self.sessions.begin(b"digest", key)
        assert session.csrf != id
        self.known.append((id, key.id, self.now + LASTS))

    @rule(seconds=st.sampled_from([1.0, 30.0, LASTS]))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, MOST - 1))
    def ends(self, number: int) -> None:
        if number < len(self.known):
            self.sessions.end(self.known[number][0])
            self._drop(self.known[number])

    @invariant()
    def those_that_should_be_there_are_there_and_no_others(self) -> None:
        assert len(self.sessions) <= MOST
        for id, key, end in self.known:
            found = self.sessions.find(id)
            assert (found is not None) == (end > self.now)
            assert found is None or found.key == key
        assert all(self.sessions.find(id) is None for id in [*self.gone, "", "guess"])


SessionsAsTheyShouldBe.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_sessions_are_bounded_and_end_in_time = SessionsAsTheyShouldBe.TestCase
