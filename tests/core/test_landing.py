"""Soft landing: one recovery turn at 85 % of any limit, and the same one again when the turn is replayed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from centuria.core.landing import SoftLanding
from centuria.events import LimitsTold, RecoveryAsked, fold


def test_an_agent_is_asked_to_land_at_85_percent_and_only_once() -> None:
    landing = SoftLanding()
    early = landing.check("a", 0, 1, {"steps": 0.84}, replayed=False)
    assert not any(isinstance(fact, RecoveryAsked) for fact in early)
    asked = landing.check("a", 0, 2, {"steps": 0.2, "tokens": 0.85}, replayed=False)
    assert [event.limit for event in asked if isinstance(event, RecoveryAsked)] == ["tokens"]
    assert landing.asked("a", 0, 2) == "tokens"
    assert landing.check("a", 0, 3, {"tokens": 0.99}, replayed=False) == []
    assert landing.asked("a", 0, 3) is None


def test_the_first_turn_and_a_replayed_turn_are_never_newly_made_a_recovery_turn() -> None:
    landing = SoftLanding()
    assert landing.check("a", 0, 0, {"budget": 1.0}, replayed=False) == []
    assert landing.check("a", 0, 4, {"budget": 1.0}, replayed=True) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 5), st.floats(0, 1.5))))
def test_replay_equals_live(asks: list[tuple[str, int, int, float]]) -> None:
    live, replayed = SoftLanding(), SoftLanding()
    events = [
        event
        for task, epoch, turn, used in asks
        for event in live.check(task, epoch, turn, {"x": used}, replayed=False)
    ]
    fold(replayed, events)
    assert replayed == live


def test_an_agent_is_told_what_it_has_used_at_half_and_at_seven_tenths_of_a_limit() -> None:
    landing = SoftLanding()
    told = []
    for turn in range(1, 11):
        used = {"steps": turn / 10, "budget": 0.25}
        told += [fact for fact in landing.check("a", 0, turn, used, replayed=False) if isinstance(fact, LimitsTold)]
    assert [fact.turn for fact in told] == [5, 7]
    assert told[0].text.startswith("[You have used 50% of your steps, 25% of your budget.")
    assert landing.told("a", 0, 5) == told[0].text
    assert landing.told("a", 0, 6) == ""


def test_what_was_told_is_told_again_on_replay_and_nothing_else_is() -> None:
    live, folded = SoftLanding(), SoftLanding()
    fold(folded, live.check("a", 0, 3, {"tokens": 0.6}, replayed=False))
    assert folded == live
    assert folded.check("a", 0, 2, {"tokens": 0.9}, replayed=True) == []
    assert folded.told("a", 0, 3) == live.told("a", 0, 3) != ""
