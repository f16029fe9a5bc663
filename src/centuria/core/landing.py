"""Soft landing: an agent is told what it has used of its limits, and at 85 % of one it gets one recovery turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from centuria.events import Event, Fact, LimitsTold, RecoveryAsked

#: The used part of the limit that is nearest to its end at which an agent is told of all of them.
TOLD_AT = (0.5, 0.7)


class SoftLanding:
    """Who was told what, and who was asked to come to an end, at which turn. A replayed turn is told as it was."""

    def __init__(self, *, share: float = 0.85) -> None:
        self._share = share
        self._asked: dict[tuple[str, int], RecoveryAsked] = {}
        self._told: dict[tuple[str, int], list[LimitsTold]] = {}

    def check(self, task: str, epoch: int, turn: int, used: Mapping[str, float], *, replayed: bool) -> list[Fact]:
        """Tell or ask now, if a limit is used so far and nobody did before. `used` maps a limit to its used part.

        The first turn is never a recovery turn: there is nothing yet to tell. `replayed`: the journal already holds
        the call of this turn, so the question was settled when it was first sent.
        """
        if turn == 0 or replayed or (task, epoch) in self._asked:
            return []
        limit = max(used, key=lambda name: used[name], default="")
        event: Fact
        if limit and used[limit] >= self._share:
            event = RecoveryAsked(task, epoch, turn, limit)
        elif limit and sum(used[limit] >= part for part in TOLD_AT) > len(self._told.get((task, epoch), ())):
            event = LimitsTold(task, epoch, turn, _said(used))
        else:
            return []
        self.apply(event)
        return [event]

    def asked(self, task: str, epoch: int, turn: int) -> str | None:
        """The limit because of which this very turn is a recovery turn."""
        event = self._asked.get((task, epoch))
        return event.limit if event is not None and event.turn == turn else None

    def told(self, task: str, epoch: int, turn: int) -> str:
        """What the agent is told before this very turn; "" mostly."""
        return next((event.text for event in self._told.get((task, epoch), ()) if event.turn == turn), "")

    def apply(self, event: Event) -> None:
        if isinstance(event, RecoveryAsked):
            self._asked[event.task, event.epoch] = event
        elif isinstance(event, LimitsTold):
            self._told.setdefault((event.task, event.epoch), []).append(event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftLanding) and (self._asked, self._told) == (other._asked, other._told)

    __hash__ = None  # type: ignore[assignment]


def _said(used: Mapping[str, float]) -> str:
    parts = ", ".join(f"{part:.0%} of your {name}" for name, part in sorted(used.items(), key=lambda item: -item[1]))
    return f"[You have used {parts}. Come to your answer before one of them ends.]"
