"""Server-sent events from bytes in any split. Pure.

Source: WHATWG HTML, section 9.2.6 (event stream interpretation). Two leniencies that upstreams need: an
event that the end of the body cuts off before its blank line is still given, and a byte order mark is
skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from centuria.errors import ModelRefused

#: Bytes of one event; a whole tool call of a megabyte is real, more than this is not.
EVENT_CAP = 16 * 2**20

_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """`name` is "" where the upstream gave none; the lines of `data` are joined by a line feed."""

    name: str
    data: str


class EventDecoder:
    """Feed bytes, get the events that they complete. Lines end in CRLF, LF or CR; comments are dropped."""

    def __init__(self, *, event_cap: int = EVENT_CAP) -> None:
        self._cap = event_cap
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._name = b""
        self._after_cr = False
        self._first = True

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Raises `ModelRefused` (kind "too_large") where one event outgrows the cap."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerSentEvent] = []
        if self._first and not self._tail and len(data) >= len(_BOM):
            self._first = False
            data = data.removeprefix(_BOM)
        if not self._size and len(data) <= self._cap and not (self._first or self._tail or self._data or self._name):
            data = self._plain(data, events)
            if not data:
                return events
        lines = data.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if self._tail:
                self._tail.append(line)
                line = b"".join(self._tail)
                self._tail.clear()
            self._take(line, events)
        self._grow(len(rest))
        if rest:
            self._tail.append(rest)
        return events

    @staticmethod
    def _plain(data: bytes, events: list[ServerSentEvent]) -> bytes:
        """The short way, between two events: those of one line, `data: ...`. Returns from the first other one on."""
        start = 0
        while data.startswith(b"data: ", start):
            end = data.find(b"\n", start)
            if end < 0 or data[end + 1 : end + 2] != b"\n":
                break
            events.append(ServerSentEvent("", data[start + 6 : end].decode("utf-8", "replace")))
            start = end + 2
        return data[start:]

    def close(self) -> list[ServerSentEvent]:
        """The end of the body: the event that it cut off, if there was one."""
        events: list[ServerSentEvent] = []
        if self._tail:
            self._take(b"".join(self._tail), events)
            self._tail.clear()
        self._take(b"", events)
        return events

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._cap:
            raise ModelRefused(f"One event of the answer is larger than {self._cap} bytes.", kind="too_large")

    def _take(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                name = self._name.decode("utf-8", "replace")
                events.append(ServerSentEvent(name, b"\n".join(self._data).decode("utf-8", "replace")))
            self._data.clear()
            self._name = b""
            self._size = 0
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._grow(len(value))
            self._data.append(value)
        elif field == b"event":
            self._name = value[:100]
        elif not self._data:
            self._size = 0
