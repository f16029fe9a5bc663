"""Which of a server's equal sessions runs a call. Pure.

Agents are dealt round robin: agent *i* is at home in replica `start + i` (mod k), where `start` comes from the tool's
manifest key, so that the first agents of several tools do not all begin at the same one. Nothing that happens changes
an agent's home. Where it is busy or out of service the least busy takes the call; among equals, the next after home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Replicas:
    """`size` replicas, each with `limit` calls at once before it counts as busy. `loads` are the calls that run."""

    size: int
    limit: int
    loads: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if self.size < 1 or self.limit < 1:
            raise ValueError("there is at least one replica, and it takes at least one call")
        self.loads = [0] * self.size

    def home(self, key: str, index: int) -> int:
        """The replica that agent number `index` uses when it can, for the tool with this manifest key."""
        return (int.from_bytes(key.encode(), "big") + index) % self.size

    def choose(self, key: str, index: int, serving: Sequence[bool]) -> int | None:
        """The replica for one call, None if none is `serving`."""
        home = self.home(key, index)
        if serving[home] and self.loads[home] < self.limit:
            return home
        return min(
            (number for number in range(self.size) if serving[number]),
            key=lambda number: (self.loads[number], (number - home) % self.size),
            default=None,
        )

    def begin(self, number: int) -> None:
        self.loads[number] += 1

    def end(self, number: int) -> None:
        self.loads[number] -= 1
