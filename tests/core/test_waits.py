"""Who waits for whom: cycles found before they close, and the second line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from centuria.core.waits import STALLED, WaitGraph

NODES = st.sampled_from("abcdefg")


class Waiting(RuleBasedStateMachine):
    """Edges come and go; no cycle is ever in the graph, and none is refused that would be none."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = WaitGraph()
        self.edges: list[tuple[str, str]] = []

    def reaches(self, start: str, goal: str) -> bool:
        seen, stack = set[str](), [start]
        while stack:
            node = stack.pop()
            if node == goal:
                return True
            if node not in seen:
                seen.add(node)
                stack += [to for origin, to in self.edges if origin == node]
        return False

    @rule(waiter=NODES, awaited=NODES)
    def wait(self, waiter: str, awaited: str) -> None:
        cycle = self.graph.cycle(waiter, awaited)
        if self.reaches(awaited, waiter):
            assert cycle is not None
            assert cycle[0] == cycle[-1] == waiter and cycle[1] == awaited
            edges = [*self.edges, (waiter, awaited)]
            assert all(pair in edges for pair in pairwise(cycle))
            with pytest.raises(ValueError, match="cycle"):
                self.graph.add(waiter, awaited, now=0.0)
        else:
            assert cycle is None
            self.graph.add(waiter, awaited, now=0.0)
            self.edges.append((waiter, awaited))

    @precondition(lambda self: self.edges)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        edge = data.draw(st.sampled_from(self.edges))
        self.edges.remove(edge)
        self.graph.remove(*edge)

    @invariant()
    def knows_who_waits(self) -> None:
        assert len(self.graph) == len({waiter for waiter, _ in self.edges})


TestWaiting = Waiting.TestCase


def test_edges_that_are_known_elsewhere_close_cycles_too() -> None:
    needs = {"b": ["c"], "c": ["a"]}
    graph = WaitGraph(lambda node: needs.get(node, ()))
    assert graph.cycle("a", "b") == ["a", "b", "c", "a"]
    assert graph.cycle("a", "d") is None


def test_a_wait_that_is_not_there_cannot_end() -> None:
    with pytest.raises(ValueError, match="does not wait"):
        WaitGraph().remove("a", "b")


def test_only_who_waits_for_what_cannot_move_is_stalled_the_youngest_first_and_only_after_its_time() -> None:
    graph = WaitGraph()
    graph.add("old", "lost", now=0.0)
    graph.add("young", "old", now=10.0)
    graph.add("fine", "busy", now=0.0)
    assert graph.stalled(STALLED - 1, lambda node: node == "busy") == []
    assert graph.stalled(STALLED, lambda node: node == "busy") == ["old"]
    assert graph.stalled(STALLED + 10, lambda node: node == "busy") == ["young", "old"]
    assert graph.stalled(1_000, lambda node: True) == []


@given(st.lists(st.tuples(NODES, NODES), max_size=20))
def test_whoever_is_stalled_reaches_nothing_that_is_active(edges: list[tuple[str, str]]) -> None:
    graph = WaitGraph()
    for waiter, awaited in edges:
        if graph.cycle(waiter, awaited) is None:
            graph.add(waiter, awaited, now=0.0)
    stalled = graph.stalled(STALLED, lambda node: node == "a")
    for waiter in stalled:
        reached, stack = set[str](), [waiter]
        while stack:
            for awaited in graph.awaited(stack.pop()):
                if awaited not in reached:
                    reached.add(awaited)
                    stack.append(awaited)
        assert "a" not in reached
