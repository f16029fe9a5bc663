"""Names in the sentences of errors: shown on one line, and the nearest right one beside a wrong one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

#: A name that is longer is no slip of the pen, and comparing it would be slow.
_COMPARED = 200


def nearest(name: str, known: Iterable[str]) -> str:
    """The right name that a wrong one was probably meant to be; "" where none is near."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6) if len(name) <= _COMPARED else []
    return close[0] if close else ""


def meant(name: str, known: Iterable[str], write: Callable[[str], str] = str) -> str:
    """` Did you mean x?`, to follow a sentence; "" where none is near. `write` quotes the name."""
    near = nearest(name, known)
    return f" Did you mean {write(near)}?" if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy: the nearest right name, else all that there are."""
    names = [str(item) for item in known]
    listed = f"There is: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}." if names else ""
    return meant(name, names, quoted).strip() or listed


def quoted(text: object) -> str:
    """A name as it is shown in a sentence: one line, not too long."""
    shown = str(text)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return "`" + "".join(char if char.isprintable() else "?" for char in shown) + "`"
