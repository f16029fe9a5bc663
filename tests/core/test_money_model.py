"""The ledger against a plain model of the same promises: alike in every decision, in whatever order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from centuria.core.money import Ledger
from centuria.events import Fact, MoneyRefused, MoneyReserved, TaskReady, fold

PARENTS = {"run": None, "a": "run", "b": "run", "a1": "a", "a2": "a", "b1": "b"}


class Plain:
    """The same promises, written as slowly and as plainly as possible."""

    def __init__(self) -> None:
        self.caps: dict[str, int | None] = dict.fromkeys(PARENTS)
        self.open: dict[int, tuple[str, int]] = {}
        self.gone: list[tuple[str, int]] = []  # (node, spent or held)
        self.waiting: dict[int, tuple[str, int]] = {}

    @staticmethod
    def path(node: str) -> list[str]:
        found, at = [], node
        while at:
            found.append(at)
            at = PARENTS[at] or ""
        return found

    def used(self, node: str, rows: Sequence[tuple[str, int]]) -> int:
        return sum(amount for where, amount in rows if node in self.path(where))

    def room(self, node: str, *, later: bool) -> float:
        """What fits under this cap alone; `later`: with nothing reserved."""
        cap = self.caps[node]
        if cap is None:
            return math.inf
        return cap - self.used(node, self.gone) - (0 if later else self.used(node, list(self.open.values())))

    def hopeless(self, node: str, amount: int) -> bool:
        return any(self.room(each, later=True) < amount for each in self.path(node))

    def rearrange(self) -> tuple[list[int], list[int]]:
        """(refused, granted): who can never fit goes; then each in order, unless stopped on its way up."""
        refused = [hold for hold, ask in self.waiting.items() if self.hopeless(*ask)]
        for hold in refused:
            del self.waiting[hold]
        granted, stopped_at = [], set()
        for hold, (node, amount) in list(self.waiting.items()):
            for each in self.path(node):
                if each in stopped_at or self.room(each, later=False) < amount:
                    stopped_at.add(each)
                    break
            else:
                granted.append(hold)
                self.open[hold] = self.waiting.pop(hold)
        return refused, granted


nodes = st.sampled_from(list(PARENTS))
asks = st.lists(st.tuples(nodes, st.integers(1, 12)), min_size=1, max_size=5)
limits = st.sampled_from([None, 10, 14, 20, 30])


@settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live = Ledger()
        self.plain = Plain()
        self.journal: list[Fact] = []
        self.number = 0
        self.lowered = False

    @initialize(caps=st.lists(limits, min_size=6, max_size=6))
    def plant(self, caps: list[int | None]) -> None:
        for (node, parent), cap in zip(PARENTS.items(), caps, strict=True):
            self.journal += self.live.set_cap(node, cap, parent=parent)
            self.plain.caps[node] = cap

    def compare(self, facts: list[Fact]) -> None:
        refused, granted = self.plain.rearrange()
        assert sorted(fact.hold for fact in facts if isinstance(fact, MoneyRefused)) == refused
        assert [fact.hold for fact in facts if isinstance(fact, MoneyReserved)] == granted
        self.journal += facts

    @rule(several=asks)
    def reserve_several(self, several: list[tuple[str, int]]) -> None:
        for node, amount in several:
            self.reserve(node, amount)

    def reserve(self, node: str, amount: int) -> None:
        self.number += 1
        self.plain.waiting[self.number] = (node, amount)
        facts = self.live.reserve(self.number, node, amount)
        for fact in facts:
            if isinstance(fact, MoneyRefused):
                assert fact.affordable == max(0, min(self.plain.room(n, later=True) for n in Plain.path(node)))
                assert max(0, self.plain.room(fact.limited_by, later=True)) == fact.affordable
        self.compare(facts)

    def pick(self, data: st.DataObject, holds: Sequence[int]) -> int:
        return data.draw(st.sampled_from(list(holds))) if holds else 0

    @rule(data=st.data(), share=st.floats(0, 1), extra=st.sampled_from([0, 0, 0, 3]))
    def settle(self, data: st.DataObject, share: float, extra: int) -> None:
        hold = self.pick(data, self.live.open_holds())
        node, amount = self.plain.open.pop(hold, ("run", 0))
        cost = int(amount * share) + (extra if hold else 0)
        self.lowered = self.lowered or cost > amount
        if hold:
            self.plain.gone.append((node, cost))
        self.compare(self.live.settle(hold, cost))

    @rule(data=st.data())
    def forfeit(self, data: st.DataObject) -> None:
        hold = self.pick(data, self.live.open_holds())
        if hold in self.plain.open:
            self.plain.gone.append(self.plain.open.pop(hold))
        self.compare(self.live.forfeit(hold))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold = self.pick(data, [*self.live.open_holds(), *self.live.waiting()])
        self.plain.open.pop(hold, None)
        self.plain.waiting.pop(hold, None)
        self.compare(self.live.release(hold))

    @rule(node=nodes, cap=limits | st.integers(0, 40))
    def set_cap(self, node: str, cap: int | None) -> None:
        before = self.plain.caps[node]
        self.lowered = self.lowered or (cap is not None and (before is None or cap < before))
        self.plain.caps[node] = cap
        self.compare(self.live.set_cap(node, cap))

    @invariant()
    def never_over(self) -> None:
        if not self.lowered:  # neither was a cap lowered under what is used, nor did a call pass its reservation
            assert all(self.live.overrun(node) == 0 for node in PARENTS)

    @invariant()
    def sums_match(self) -> None:
        for node in PARENTS:
            assert self.live.reserved(node) == self.plain.used(node, list(self.plain.open.values()))
            assert self.live.spent(node) + self.live.held(node) == self.plain.used(node, self.plain.gone)
        assert self.live.waiting() == tuple(self.plain.waiting)

    @invariant()
    def replay_equals_live_and_decides_alike(self) -> None:
        replayed = Ledger()
        fold(replayed, [*self.journal, TaskReady("x")])
        assert replayed == self.live
        for hold in self.live.open_holds()[:1]:
            assert replayed.release(hold) == deepcopy(self.live).release(hold)


TestLedgerMachine = LedgerMachine.TestCase
