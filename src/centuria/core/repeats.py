"""The same call again and again: the turns in which an agent makes it, counted, remarked on, and stopped. Pure."""

from __future__ import annotations

import json
from collections import Counter

#: The numbers of turns with the same call at which the model is reminded; and after which it has to answer.
REMINDED = (3, 5, 8)
STOPPED = 12


class Repeats:
    """Counts one conversation's calls by name and arguments, however the arguments are written."""

    def __init__(self) -> None:
        self._made: Counter[tuple[str, str]] = Counter()
        self._in_turn: set[tuple[str, str]] = set()
        #: The call that was made too often, "" while none was.
        self.stuck = ""

    def begin_turn(self) -> None:
        """A call that is made twice in one turn counts once."""
        self._in_turn.clear()

    def note(self, name: str, arguments: str) -> str:
        """Count one call. What its result is to be followed by; "" mostly."""
        call = (name, _canonical(arguments))
        if call in self._in_turn:
            return ""
        self._in_turn.add(call)
        self._made[call] += 1
        made = self._made[call]
        if made >= STOPPED:
            self.stuck = name
        if made not in REMINDED:
            return ""
        return (
            f"[You have made this very call {made} times. Its result is above: use it, call something else, or answer. "
            f"After {STOPPED} times you have to answer.]"
        )


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
