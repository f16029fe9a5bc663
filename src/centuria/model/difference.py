"""Where two requests first differ, in words. Pure."""

from __future__ import annotations

import json
from typing import Any, AnyStr

_SHOWN = 40


def first_difference(recorded: bytes, asked: bytes) -> str:
    """The first place where these bodies differ, what was recorded there and what is asked now; "" if nowhere."""
    if recorded == asked:
        return ""
    try:
        found = _walk(json.loads(recorded), json.loads(asked))
    except (ValueError, RecursionError):
        found = ""
    return found or "byte " + _of_texts(recorded.decode("latin-1"), asked.decode("latin-1"))


def shared(one: AnyStr, two: AnyStr) -> int:
    """How many characters, or bytes, both begin with. Slices are compared, which is faster than one after another."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == two[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _walk(one: Any, two: Any) -> str:
    """Down to the first difference; "" where the two are equal as JSON. Each level is compared once."""
    path = ""
    while True:
        if isinstance(one, dict) and isinstance(two, dict):
            step = next((name for name in {**one, **two} if name not in one or name not in two), None)
            if step is not None:
                which = "only in the recording" if step in one else "not in the recording"
                return f"{_join(path, step)} is {which}"
            step = next((name for name in one if one[name] != two[name]), None)
            if step is None:
                return ""
            path, one, two = _join(path, step), one[step], two[step]
        elif isinstance(one, list) and isinstance(two, list):
            place = next((n for n, (left, right) in enumerate(zip(one, two, strict=False)) if left != right), None)
            if place is None:
                return f"{path} had {len(one)} items, now {len(two)}" if len(one) != len(two) else ""
            path, one, two = f"{path}[{place}]", one[place], two[place]
        elif isinstance(one, str) and isinstance(two, str):
            return f"{path}, character {_of_texts(one, two)}"
        else:
            return f"{path or 'the body'}: recorded {_short(one)}, now {_short(two)}"


def _join(path: str, name: str) -> str:
    shown = name if len(name) <= 60 else name[:60] + "..."
    return f"{path}.{shown}" if path else shown


def _of_texts(one: str, two: str) -> str:
    """Place and surroundings of the first character that differs."""
    place = shared(one, two)
    start = max(0, place - _SHOWN // 4)
    return f"{place}: recorded {_short(one[start : start + _SHOWN + 1])}, now {_short(two[start : start + _SHOWN + 1])}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN + 20 else text[: _SHOWN + 16] + "..."
