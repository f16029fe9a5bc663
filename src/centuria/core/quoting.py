"""Names in the sentences of errors: shown on one line, and the nearest right one beside a wrong one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy: the nearest right name, else all that there are."""
    names = [str(item) for item in known]
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {quoted(close[0])}?"
    return f"There is: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}." if names else ""


def quoted(text: object) -> str:
    """A name as it is shown in a sentence: one line, not too long."""
    shown = str(text)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return "`" + "".join(char if char.isprintable() else "?" for char in shown) + "`"
