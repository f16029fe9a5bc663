"""The counter of wrong keys, against a model of it: bounded in number, and no place closes another one."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from centuria.gateway.page.guesses import Guesses, place_of

MOST, WINDOW, PLACES = 3, 10.0, 4
NAMES = ["a", "b", "c", "d", "e", "f"]


class GuessesAsTheyShouldBe(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.guesses = Guesses(most=MOST, window=WINDOW, places=PLACES)
        #: When the window of a place began, and what counts in it.
        self.known: dict[str, tuple[float, int]] = {}

    @rule(place=st.sampled_from(NAMES), right=st.booleans())
    def guesses_once(self, place: str, right: bool) -> None:
        self.known = {name: one for name, one in self.known.items() if one[0] + WINDOW > self.now}
        began, number = self.known.get(place, (self.now, 0))
        wait = self.guesses.begin(place, self.now)
        if number >= MOST:
            assert wait == began + WINDOW - self.now
            return
        assert wait == 0
        if place not in self.known and len(self.known) == PLACES:
            del self.known[min(self.known, key=lambda name: self.known[name][0])]
        if right:
            self.guesses.take_back(place)
        self.known[place] = (began, number + (not right))

    @rule(seconds=st.sampled_from([1.0, 4.0, WINDOW]))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @rule(place=st.sampled_from(NAMES))
    @precondition(lambda self: self.now > 0)
    def takes_back_what_no_longer_counts(self, place: str) -> None:
        if place not in self.known:
            self.guesses.take_back(place)

    @invariant()
    def it_never_grows_beyond_its_bound(self) -> None:
        assert len(self.guesses) <= PLACES


TestGuesses = GuessesAsTheyShouldBe.TestCase


def test_many_at_once_are_no_way_around_the_bound() -> None:
    guesses = Guesses(most=MOST, window=WINDOW)
    assert [guesses.begin("a", 0.0) for _ in range(5)] == [0, 0, 0, WINDOW, WINDOW]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "a socket", False),
    ],
)
def test_a_network_that_is_one_clients_is_one_place(one: str, other: str, same: bool) -> None:
    assert (place_of(one) == place_of(other)) is same
