"""Merging of streamed tool calls. Pure.

Upstreams leave the index out, repeat it for every call, or repeat ids in every turn, so neither names a
call: its place among the calls of the turn does. A fragment belongs to the call that its index opened; a new
id or a new name under the same index, or a second whole object of arguments, starts another call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from centuria.errors import ModelRefused
from centuria.messages import ToolCall, safe_text
from centuria.model.failures import as_text
from centuria.model.wire import parse_object

#: Calls of one turn. Providers accept 128 functions a request; more calls than that in one answer is a
#: runaway.
CALLS_CAP = 256
#: Characters of one call's arguments. Of longer ones only the beginning is kept: it is no whole object, so the call is
#: not run, and later turns do not carry all of it.
ARGUMENTS_CAP, BEGINNING = 1_000_000, 1_000


#: What tells where an object ends: its braces, and what may hide them.
_MARKS = re.compile(r'\\.|["{}\\]', re.DOTALL)


class _Object:
    """Tells, as text arrives, whether it is one whole JSON object so far. Every character is looked at once, and
    what may be an object is parsed once, when it closes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._depth = 0
        self._in_text = False
        self._escaped = False
        self._whole: bool | None = None

    def add(self, text: str) -> None:
        if self._whole is not None:  # it has closed, or never will be one
            self._whole = self._whole and not text.strip()
            return
        self._parts.append(text)
        if not self._depth:
            text = text.lstrip()
            if text and text[0] != "{":
                self._whole = False
                return
        self._scan(text, 1 if self._escaped and text else 0)

    @property
    def whole(self) -> bool:
        return bool(self._whole)

    def _scan(self, text: str, start: int) -> None:
        self._escaped = self._escaped and not text
        for found in _MARKS.finditer(text, start):
            mark = found[0]
            if mark[0] == "\\":
                self._escaped = len(mark) == 1
            elif mark == '"':
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if mark == "{" else -1
                if not self._depth:
                    self._whole = not text[found.end() :].strip() and parse_object("".join(self._parts)) is not None
                    return


@dataclass(slots=True)
class _Open:
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    size: int = 0
    _object: _Object = field(default_factory=_Object)
    _scanned: int = 0

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    def whole(self) -> bool:
        """Whether the arguments so far are one whole object; looked into only where it is asked."""
        for part in self.parts[self._scanned :]:
            self._object.add(part)
        self._scanned = len(self.parts)
        return self._object.whole


def _bounded(arguments: str) -> str:
    return arguments if len(arguments) <= ARGUMENTS_CAP else arguments[:BEGINNING]


class ToolCallMerger:
    """Feed the `tool_calls` of each delta; `calls()` gives them in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def feed(self, fragments: Any) -> bool:
        """Whether there was anything. Raises `ModelRefused` (kind "too_large") for too many calls."""
        found = False
        if not isinstance(fragments, list):
            return found
        for fragment in fragments:
            if isinstance(fragment, dict):
                self._feed_one(fragment)
                found = True
        return found

    def calls(self, *, truncated: bool = False) -> tuple[ToolCall, ...]:
        """The calls. Where the answer was `truncated`, those whose arguments are no whole object are left
        out."""
        return tuple(
            ToolCall(
                id=safe_text(call.id) or f"call_{place}",
                name=safe_text(call.name),
                arguments=_bounded(safe_text(call.arguments)),
            )
            for place, call in enumerate(self._calls)
            if not truncated or parse_object(call.arguments) is not None
        )

    def _feed_one(self, fragment: Mapping[str, Any]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        id_, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        index = number_of(fragment.get("index"))
        call = self._find(index, id_, name, arguments)
        if call is None:
            if len(self._calls) >= CALLS_CAP:
                raise ModelRefused(f"The answer holds more than {CALLS_CAP} tool calls.", kind="too_large")
            call = _Open()
            self._calls.append(call)
            if index is not None:
                self._by_index[index] = call
        call.id = call.id or id_
        call.name = call.name or name
        if arguments and call.size <= ARGUMENTS_CAP:  # of what is too long only the beginning will be kept
            call.size += len(arguments)
            call.parts.append(arguments)

    def _find(self, index: int | None, id_: str, name: str, arguments: str) -> _Open | None:
        """The open call that the fragment continues, or None for a new one."""
        if index is not None and index in self._by_index:
            call: _Open | None = self._by_index[index]
        elif index is not None and name:
            call = None
        else:
            call = self._with_id(id_) or (self._calls[-1] if self._calls else None)
        return call if call is not None and _same(call, id_, name, arguments) else None

    def _with_id(self, id_: str) -> _Open | None:
        return next((call for call in reversed(self._calls) if id_ and call.id == id_), None)


def _same(call: _Open, id_: str, name: str, arguments: str) -> bool:
    if (id_ and call.id and id_ != call.id) or (name and call.name and name != call.name):
        return False
    repeats = bool(name and call.name) and arguments.lstrip().startswith("{")
    return not (repeats and call.whole())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else as_text(value)


def number_of(value: Any) -> int | None:
    """An index, however it is written; None where there is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])  # some servers write every number as a string
    if isinstance(value, float) and value.is_integer():
        return int(value)  # and others as a fraction
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _arguments(value: Any) -> str:
    """Arguments as text; some servers send the object itself."""
    if isinstance(value, dict | list):
        return as_text(value)
    return value if isinstance(value, str) else ""
