"""Server-sent events out of pieces of bytes, in linear time. Pure."""

from __future__ import annotations

from dataclasses import dataclass


class TooLong(ValueError):
    """An event is longer than the cap."""


@dataclass(frozen=True, slots=True)
class Event:
    """`data` as the server sent it; `id` "" and `retry` (seconds) None where this event says nothing of them."""

    data: bytes
    id: str = ""
    retry: float | None = None


class EventReader:
    """Feed it pieces as they come; it gives the events that each ends. `cap` is in bytes of one event."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: list[bytes] = []  # the line that has not ended
        self._size = 0  # of the event so far
        self._after_cr = False
        self._first = True
        self._data: list[bytes] = []
        self._kind = b""
        self._id = ""
        self._retry: float | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Raises `TooLong`."""
        if chunk:
            after_cr, self._after_cr = self._after_cr, chunk.endswith(b"\r")
            if after_cr:
                chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events = []
        *lines, rest = chunk.split(b"\n")
        for piece in lines:
            self._grow(piece)
            line, self._parts = b"".join(self._parts), []
            if line:
                self._field(line)
                continue
            event = self._ended()
            if event is not None:
                events.append(event)
        self._grow(rest)
        return events

    def _grow(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._cap:
            raise TooLong(f"more than {self._cap} bytes")
        if piece:
            self._parts.append(piece)

    def _field(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._kind = value
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) < 9:
                self._retry = int(value) / 1000

    def _ended(self) -> Event | None:
        data, event_id, retry = self._data, self._id, self._retry
        if self._kind not in (b"", b"message"):
            data = []  # it is not for us, but its id counts
        self._data, self._kind, self._id, self._retry, self._size = [], b"", "", None, 0
        if data or event_id or retry is not None:
            return Event(b"\n".join(data), event_id, retry)
        return None
