"""What a model is told of a tool call beside, or in place of, the tool's own words; and what is too long of these."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from centuria.core.toolsearch import CALL_TOOL
from centuria.errors import ToolUnavailable
from centuria.messages import Fault, ToolEnd, ToolResult, safe_text
from centuria.ports import HostedTool

#: Characters of JSON beyond which a result's structured form is left out; its text, or the file, still has it.
MAX_STRUCTURED = 200_000

NO_CALL = f'{CALL_TOOL} was not called. Give {{"name": a tool\'s name, "arguments": {{its arguments}}}}.'
MAY_HAVE_HAPPENED = (
    "It may or may not have happened, and it was not sent again. Check what it would have changed before you call it "
    "again."
)


def refusal(text: str, fault: Fault = "") -> ToolResult:
    return ToolResult(safe_text(text), ToolEnd.REFUSED, fault=fault)


def unavailable(tool: HostedTool, error: ToolUnavailable, attempts: int) -> ToolResult:
    text = f"{tool.name} is not available and did not run ({attempts} attempts). {error.message}"
    return ToolResult(safe_text(text), ToolEnd.UNAVAILABLE)


def noted(result: ToolResult, tool: HostedTool) -> ToolResult:
    """What an agent must know that finds another session than it left."""
    note = (
        f"[The session with {tool.server} is a new one: what an earlier call left in it (variables, open files or "
        "pages) is gone.]"
    )
    return replace(result, text=f"{note}\n\n{result.text}")


def capped(result: ToolResult, limit: int, spill: Callable[[str], str]) -> ToolResult:
    """The result in valid Unicode and within bounds: the head and the tail of a text of more than `limit` characters.

    `spill` keeps the whole of it and returns the name of its file.
    """
    text, file, structured = safe_text(result.text), result.spill, result.structured
    if structured is not None:
        structured = plain(structured)
    if len(text) > limit:
        file = spill(text)
        head = limit * 2 // 3
        tail = len(text) - (limit - head)
        note = f"[{tail - head:,} of {len(text):,} characters are left out here; the whole is in {file}]"
        text = f"{text[:head]}\n\n{note}\n\n{text[tail:]}"
    if text is result.text and structured is None and result.structured is None:
        return result
    return replace(result, text=text, structured=structured, spill=file)


def plain(structured: Any, most: int = MAX_STRUCTURED) -> Any:
    """A tool's data as plain JSON in valid Unicode; None where it is of more than `most` characters, or no JSON."""
    try:
        text = json.dumps(structured, ensure_ascii=False)
        return json.loads(safe_text(text)) if len(text) <= most else None
    except (TypeError, ValueError, RecursionError):
        return None
