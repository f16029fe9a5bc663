"""The tree of a merge that is too long for one request: which parts go into which. Pure.

A level joins neighbours until none of its groups could take another; the texts that they become are the parts of the
next level. A part is at most half of the room and a group's text at most a quarter of it, so each level is shorter than
the one below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The part of a request's room that one group's text is asked to take; twice as much is cut.
SHARE = 0.125
_HEAD = 64


@dataclass(frozen=True, slots=True)
class Part:
    """A text on its way into the merge. `name` says what it is; `of` are the names of the results in it."""

    name: str
    text: str
    of: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its text and its heading."""
        return len(self.text.encode("utf-8", "replace")) + len(self.name.encode("utf-8", "replace")) + _HEAD


def fits(parts: Sequence[Part], room: int) -> bool:
    """Whether one request of so many bytes can hold them all."""
    return sum(part.size for part in parts) <= room


def groups(parts: Sequence[Part], room: int) -> list[list[Part]]:
    """The parts, in their order, in groups that one request holds each. A part that is too long becomes several."""
    made: list[list[Part]] = [[]]
    left = room
    pieces = [piece for part in parts for piece in split(part, room // 2)]
    for part in pieces:
        if part.size > left and made[-1]:
            made.append([])
            left = room
        made[-1].append(part)
        left -= part.size
    return made


def split(part: Part, most: int) -> list[Part]:
    """A part in pieces of at most so many bytes, none of it left out."""
    if part.size <= most:
        return [part]
    step = max(1, most - len(part.name.encode("utf-8", "replace")) - 2 * _HEAD)
    raw, pieces = part.text.encode("utf-8", "replace"), []
    while raw:
        cut = min(step, len(raw))
        while cut < len(raw) and cut > 1 and raw[cut] & 0xC0 == 0x80:  # not inside a character
            cut -= 1
        pieces.append(raw[:cut].decode("utf-8", "replace"))
        raw = raw[cut:]
    total = len(pieces)
    return [Part(f"{part.name} (part {n} of {total})", text, part.of) for n, text in enumerate(pieces, 1)]
