"""The results' own files: `reports/TASK.md`, written the moment each is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set

from centuria.events import FileWritten
from centuria.folder import RunFolder, Stems
from centuria.merge import report_text
from centuria.messages import Outcome, Status
from centuria.stream import Stream


class ResultFiles:
    """One file a task that ended ok. `text_property` names that property of a structured answer which is its text."""

    def __init__(self, folder: RunFolder, stream: Stream, tasks: Sequence[str], text_property: str | None) -> None:
        self._folder = folder
        self._stream = stream
        self._stems = Stems(tasks)
        self._text_property = text_property
        #: Results that are to be written, by task, and the right to write them.
        self._pages: dict[str, str] = {}
        self._pen = asyncio.Lock()

    def add(self, task: str) -> None:
        """One more task."""
        self._stems.add(task)

    def path(self, task: str) -> str:
        """Relative to the run's folder."""
        return f"reports/{self._stems.of(task)}.md"

    async def write_aside(self, outcome: Outcome) -> None:
        """Write one in a thread: a slow disk must not hold up the other agents.

        Whoever comes while it writes waits, and then the first of them writes what has come together.
        """
        self._pages[outcome.task] = report_text(outcome, self._text_property)
        async with self._pen:
            if outcome.task in self._pages:
                pages, self._pages = self._pages, {}
                await asyncio.to_thread(self._write_pages, pages)
                self._stream.publish(*(FileWritten(self.path(page), page) for page in pages))

    def _write_pages(self, pages: Mapping[str, str]) -> None:
        for task, text in pages.items():
            self._folder.write(self.path(task), text)

    def restore(self, outcomes: Mapping[str, Outcome], unwritten: Set[str] = frozenset()) -> None:
        """Write those that a broken run had finished and not yet written: the `unwritten`, and what is not there."""
        for task, outcome in outcomes.items():
            if outcome.status is not Status.OK:
                continue
            path = self.path(task)
            if task in unwritten or not self._folder.exists(path):
                self._folder.write(path, report_text(outcome, self._text_property))
                self._stream.publish(FileWritten(path, task))
