"""Who waits for whom: edges between tasks, and the cycle that one more would close. Pure.

An edge is recorded whenever an agent waits for a task or a lock. `more(node)` gives the edges that are known elsewhere,
such as the needs of a task that has not begun. The graph is of this process only: after a crash nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

More = Callable[[str], Iterable[str]]
#: Seconds without progress after which the second line breaks a wait.
STALLED = 45.0


@dataclass(slots=True)
class _Waiter:
    """What one node waits for, by how many of its calls, and since when it waits for anything."""

    since: float
    awaited: dict[str, int] = field(default_factory=dict)


class WaitGraph:
    """Waits of this moment. Whoever adds an edge removes it, whatever comes of the wait."""

    def __init__(self, more: More = lambda node: ()) -> None:
        self._more = more
        self._waiters: dict[str, _Waiter] = {}

    def cycle(self, waiter: str, awaited: str) -> list[str] | None:
        """The cycle that this edge would close, `[waiter, awaited, ..., waiter]`; None if it closes none."""
        came_from: dict[str, str] = {awaited: waiter}
        stack = [awaited]
        while stack:
            node = stack.pop()
            if node == waiter:
                return self._path(waiter, came_from)
            for following in self._edges(node):
                if following not in came_from:
                    came_from[following] = node
                    stack.append(following)
        return None

    @staticmethod
    def _path(waiter: str, came_from: dict[str, str]) -> list[str]:
        path = [waiter]
        node = came_from[waiter]
        while node != waiter:
            path.append(node)
            node = came_from[node]
        return [waiter, *reversed(path[1:]), waiter]

    def add(self, waiter: str, awaited: str, *, now: float) -> None:
        """`waiter` waits from now on. Raises `ValueError` for an edge that closes a cycle: ask `cycle` before."""
        if self.cycle(waiter, awaited) is not None:
            raise ValueError(f"{waiter!r} cannot wait for {awaited!r}: that would be a cycle")
        entry = self._waiters.setdefault(waiter, _Waiter(now))
        entry.awaited[awaited] = entry.awaited.get(awaited, 0) + 1

    def remove(self, waiter: str, awaited: str) -> None:
        """That wait is over. Raises `ValueError` for one that is not there."""
        entry = self._waiters.get(waiter)
        if entry is None or awaited not in entry.awaited:
            raise ValueError(f"{waiter!r} does not wait for {awaited!r}")
        entry.awaited[awaited] -= 1
        if not entry.awaited[awaited]:
            del entry.awaited[awaited]
        if not entry.awaited:
            del self._waiters[waiter]

    def stalled(self, now: float, active: Callable[[str], bool], *, after: float = STALLED) -> list[str]:
        """Who has waited for `after` seconds for what cannot end: nothing that it awaits, however far, is `active`.

        The youngest first: the one to break.
        """
        found = [
            (entry.since, waiter)
            for waiter, entry in self._waiters.items()
            if now - entry.since >= after and not any(map(active, self._reached(waiter)))
        ]
        return [waiter for _, waiter in sorted(found, reverse=True)]

    def awaited(self, waiter: str) -> list[str]:
        """What it waits for, in the order in which it began to."""
        entry = self._waiters.get(waiter)
        return list(entry.awaited) if entry is not None else []

    def __len__(self) -> int:
        return len(self._waiters)

    def _edges(self, node: str) -> Iterable[str]:
        entry = self._waiters.get(node)
        if entry is not None:
            yield from entry.awaited
        yield from self._more(node)

    def _reached(self, waiter: str) -> list[str]:
        seen = {waiter}
        stack, order = [waiter], []
        while stack:
            for following in self._edges(stack.pop()):
                if following not in seen:
                    seen.add(following)
                    order.append(following)
                    stack.append(following)
        return order
