"""What a fake MCP server has seen and done, counted. In memory, and in a file that outlives a server that is killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_LONGEST = 400


class Books:
    """`seen` counts by word:

        start  initialize  discover  list (fetches of the tool list)  page (their pages)  call  answer
        cancelled  listen  unlistened  session  stream  forgotten  deleted  refused  fault:NAME

    `calls` counts by tool what ran, and `ran` has it in order: the tool and its arguments as JSON (cut off). A `path`
    keeps all of it, a line of JSON each: servers that are started again with it count on.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.ran: list[tuple[str, str]] = []
        #: The processes that were this server, the newest last.
        self.pids: list[int] = []
        #: Connections, or sessions over stdio, that are open now, and the most that were; the same of calls.
        self.open = 0
        self.most_open = 0
        self.in_flight = 0
        self.peak = 0
        #: Called after each entry.
        self.changed: Callable[[], None] = lambda: None
        self._file: int | None = None
        if path is not None:
            self._read(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @classmethod
    def read(cls, path: Path) -> Books:
        """The books of servers that were started with `--books path`."""
        books = cls()
        books._read(path)
        return books

    def note(self, what: str, **more: Any) -> int:
        """Enter one thing; returns how often it has been so far, this time included."""
        entry = {"what": what, **more}
        self._take(entry)
        if self._file is not None:  # one write, so that servers that share the file do not mix their lines
            os.write(self._file, json.dumps(entry).encode() + b"\n")
        self.changed()
        return self.seen[what]

    def run(self, tool: str, arguments: Mapping[str, Any]) -> int:
        """Enter that a tool runs; returns how often it has run."""
        self.note("run", tool=tool, arguments=json.dumps(arguments, sort_keys=True)[:_LONGEST])
        return self.calls[tool]

    def connected(self, by: int) -> None:
        self.open += by
        self.most_open = max(self.open, self.most_open)
        self.changed()

    def served(self, by: int) -> None:
        self.in_flight += by
        self.peak = max(self.in_flight, self.peak)
        self.changed()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, entry: Mapping[str, Any]) -> None:
        what = str(entry.get("what"))
        self.seen[what] += 1
        if what == "run":
            self.calls[str(entry["tool"])] += 1
            self.ran.append((str(entry["tool"]), str(entry["arguments"])))
        elif what == "start":
            self.pids.append(int(entry["pid"]))

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines[:-1]:
            self._take(json.loads(line))
