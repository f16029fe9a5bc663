"""Soft landing: at 85 % of any limit an agent gets one recovery turn, in which it says what it knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from centuria.events import Event, Fact, RecoveryAsked


class SoftLanding:
    """Who was asked to come to an end, at which turn, and why. A replayed turn is asked exactly as it was."""

    def __init__(self, *, share: float = 0.85) -> None:
        self._share = share
        self._asked: dict[tuple[str, int], RecoveryAsked] = {}

    def check(self, task: str, epoch: int, turn: int, used: Mapping[str, float], *, replayed: bool) -> list[Fact]:
        """Ask now, if a limit is used to the share and nobody asked before. `used` maps a limit to its used part.

        The first turn is never a recovery turn: there is nothing yet to tell. `replayed`: the journal already holds
        the call of this turn, so the question was settled when it was first sent.
        """
        if turn == 0 or replayed or (task, epoch) in self._asked:
            return []
        limit = max(used, key=lambda name: used[name], default="")
        if not limit or used[limit] < self._share:
            return []
        event = RecoveryAsked(task, epoch, turn, limit)
        self.apply(event)
        return [event]

    def asked(self, task: str, epoch: int, turn: int) -> str | None:
        """The limit because of which this very turn is a recovery turn."""
        event = self._asked.get((task, epoch))
        return event.limit if event is not None and event.turn == turn else None

    def apply(self, event: Event) -> None:
        if isinstance(event, RecoveryAsked):
            self._asked[event.task, event.epoch] = event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftLanding) and self._asked == other._asked

    __hash__ = None  # type: ignore[assignment]
