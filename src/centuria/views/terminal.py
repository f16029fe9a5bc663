"""A slow, stopped (Ctrl-S) or vanished terminal must not stop the run: a thread writes, nobody waits."""

from __future__ import annotations

import threading
from collections import deque
from typing import IO

_LINES = 2_000


class TerminalWriter:
    """Writes to a terminal or pipe from a thread of its own. A newer frame replaces one not yet written.

    `close` waits a bounded time for what is left. After an error of the file, everything is dropped.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._frame = ""
        self._closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="terminal", daemon=True)
        self._thread.start()

    def line(self, text: str, *, end: str = "\n") -> None:
        """Write a line, in order; the oldest are dropped where very many wait."""
        with self._news:
            self._lines.append(text + end)
            self._news.notify()

    def frame(self, text: str) -> None:
        """Write this, unless a newer frame comes first."""
        with self._news:
            self._frame = text
            self._news.notify()

    def close(self, *, patience: float = 2.0) -> None:
        """Write what is left, waiting for it `patience` seconds at most."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(patience)

    def _work(self) -> None:
        try:
            while (text := self._next()) is not None:
                self._file.write(text)
                self._file.flush()
        except (OSError, ValueError):  # closed, or nobody reads: the run goes on unseen
            with self._news:
                self._lines.clear()

    def _next(self) -> str | None:
        with self._news:
            while not (self._lines or self._frame or self._closed):
                self._news.wait()
            text = self._frame + "".join(self._lines)
            self._frame = ""
            self._lines.clear()
            return text or None
