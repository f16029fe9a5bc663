"""Replicas: agents are dealt round robin and stay at home, unless it is busy or gone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.names import manifest_key
from centuria.core.replicas import Replicas

KEYS = [manifest_key("s", tool, {}) for tool in ("a", "b", "c", "d", "e", "f")]


def test_agents_are_dealt_round_robin_and_stay_at_home() -> None:
    replicas = Replicas(4, limit=10)
    homes = [replicas.choose(KEYS[0], index, [True] * 4) for index in range(100)]
    assert Counter(homes) == dict.fromkeys(range(4), 25)
    assert [replicas.choose(KEYS[0], index, [True] * 4) for index in range(100)] == homes
    assert [(home - homes[0]) % 4 for home in homes[:5] if home is not None and homes[0] is not None] == [0, 1, 2, 3, 0]


def test_the_first_agents_of_several_tools_begin_at_several_replicas() -> None:
    assert len({Replicas(4, 1).home(key, 0) for key in KEYS}) > 1


def test_a_dead_home_is_passed_over_and_found_again() -> None:
    replicas = Replicas(3, limit=1)
    home = replicas.home(KEYS[0], 7)
    serving = [number != home for number in range(3)]
    assert replicas.choose(KEYS[0], 7, serving) == (home + 1) % 3
    assert replicas.choose(KEYS[0], 7, [True] * 3) == home
    assert replicas.choose(KEYS[0], 7, [False] * 3) is None


def test_there_is_no_set_without_a_replica() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Replicas(0, 1)


@given(
    size=st.integers(1, 6),
    limit=st.integers(1, 3),
    calls=st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from(KEYS), st.booleans(), st.integers(0, 63)), max_size=60
    ),
)
def test_home_if_it_has_room_else_the_least_busy_of_those_that_serve(
    size: int, limit: int, calls: list[tuple[int, str, bool, int]]
) -> None:
    replicas = Replicas(size, limit)
    running: list[int] = []
    for index, key, ends, mask in calls:
        serving = [bool(mask >> number & 1) for number in range(size)]
        before = list(replicas.loads)
        chosen = replicas.choose(key, index, serving)
        assert replicas.loads == before
        if chosen is None:
            assert not any(serving)
        else:
            home = replicas.home(key, index)
            assert serving[chosen]
            if serving[home] and before[home] < limit:
                assert chosen == home
            else:
                assert before[chosen] == min(load for load, up in zip(before, serving, strict=True) if up)
            replicas.begin(chosen)
            running.append(chosen)
        if ends and running:
            replicas.end(running.pop(0))
        assert replicas.loads == [running.count(number) for number in range(size)]
