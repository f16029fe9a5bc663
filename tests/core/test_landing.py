"""Soft landing: one recovery turn at 85 % of any limit, and the same one again when the turn is replayed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from centuria.core.landing import SoftLanding
from centuria.events import fold


def test_an_agent_is_asked_to_land_at_85_percent_and_only_once() -> None:
    landing = SoftLanding()
    assert landing.check("a", 0, 1, {"steps": 0.84}, replayed=False) == []
    assert [event.limit for event in landing.check("a", 0, 2, {"steps": 0.2, "tokens": 0.85}, replayed=False)] == [
        "tokens"
    ]
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
