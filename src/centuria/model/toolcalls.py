"""Merging of streamed tool calls. Pure.

Upstreams leave the index out, repeat it for every call, or repeat ids in every turn, so neither names a
call: its place among the calls of the turn does. A fragment belongs to the call that its index opened; a new
id or a new name under the same index, or a second whole object of arguments, starts another call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from centuria.errors import ModelRefused
from centuria.messages import ToolCall, safe_text
from centuria.model.wire import parse_object

#: Calls of one turn. Providers accept 128 functions a request; more calls than that in one answer is a
#: runaway.
CALLS_CAP = 256


@dataclass(slots=True)
class _Open:
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.parts)


class ToolCallMerger:
    """Feed the `tool_calls` of each delta; `calls()` gives them in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

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
                arguments=safe_text(call.arguments),
            )
            for place, call in enumerate(self._calls)
            if not truncated or parse_object(call.arguments) is not None
        )

    def _feed_one(self, fragment: Mapping[str, Any]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        id_, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        index = _index(fragment.get("index"))
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
        if arguments:
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
    return not (repeats and parse_object(call.arguments) is not None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])  # some servers write every number as a string
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _arguments(value: Any) -> str:
    """Arguments as text; some servers send the object itself."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else ""
