"""What may begin, in order: priority, then the order in which tasks were added. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from centuria.core.graph import TaskGraph


class ReadyQueue:
    """The ready tasks of a graph. Those that are held back when their turn comes keep their place until `release`.

    A task may be put again: after its priority changed, that is how it moves.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._heap: list[tuple[int, int, str]] = []
        self._held: list[str] = []
        self._there: set[str] = set()

    def put(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            self._there.add(task)
            added = self._graph.task(task)
            heappush(self._heap, (added.priority, added.index, task))

    def take(self, held: Callable[[str], bool] = lambda task: False) -> str | None:
        """The next task that is ready and not held back; None where there is none."""
        while self._heap:
            priority, _, task = heappop(self._heap)
            moved = self._graph.task(task).priority != priority
            if task not in self._there or moved or self._graph.state(task) != "ready":
                continue  # it was taken, stands elsewhere, or has ended
            if held(task):
                self._held.append(task)
                continue
            self._there.discard(task)
            return task
        return None

    def release(self) -> None:
        """Those that were held back, and were not taken since, stand in their old places again."""
        held, self._held = self._held, []
        self.put([task for task in held if task in self._there])

    def clear(self) -> None:
        self._heap.clear()
        self._held.clear()
        self._there.clear()

    def __len__(self) -> int:
        """At most so many can be taken: those that stand twice count twice."""
        return len(self._heap)
