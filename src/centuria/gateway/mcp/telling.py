"""What the gateway's tools and their answers are in the protocol's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from centuria.gateway.tools.calls import Invocation
from centuria.gateway.tools.turn import shortened
from centuria.messages import safe_text
from centuria.ports import HostedTool
from centuria.toolanswers import plain

#: Characters of a tool's text, where it is not passed on as it is.
MOST_TEXT = 500_000
MOST_REFUSAL = 4_000
#: What is said of a tool is passed on, but for how a session of its own would run it.
_NOT_OURS = frozenset({"name", "description", "inputSchema", "execution"})
#: The protocol's own part of `_meta` is said anew by whoever answers.
_RESERVED = "io.modelcontextprotocol/"


def described(tool: HostedTool) -> types.Tool | None:
    """A tool as it is listed; None where its server says of it what no client would take."""
    told = {name: value for name, value in tool.listed.items() if name not in _NOT_OURS}
    told |= {"name": tool.name, "description": tool.description, "inputSchema": _object(tool.schema)}
    if "_meta" in told:
        told["_meta"] = _meta(told["_meta"])
    try:
        return types.Tool.model_validate({name: value for name, value in told.items() if value is not None})
    except ValidationError:
        return None


def result_of(done: Invocation) -> types.CallToolResult:
    """The answer as the tool's own server gave it; where there is none in the protocol's words, its text."""
    answer = done.answer
    if answer is not None and isinstance(answer.get("content"), list):
        content = list(answer["content"])
        if done.renewed:
            content.insert(0, {"type": "text", "text": done.result.text.partition("\n\n")[0]})
        told = {"content": content, "isError": done.result.is_error, "_meta": _meta(answer.get("_meta"))}
        told["structuredContent"] = answer.get("structuredContent")
        try:
            return types.CallToolResult.model_validate({name: each for name, each in told.items() if each is not None})
        except ValidationError:
            pass
    text = shortened(safe_text(done.result.text), MOST_TEXT)
    result = said(text, is_error=done.result.is_error)
    if isinstance(done.result.structured, dict):
        result.structured_content = done.result.structured
    return result


def refused(code: int, message: str, data: Any) -> MCPError:
    """The refusal of the tool's own server, as its own client would have met it."""
    return MCPError(code, shortened(safe_text(message), MOST_REFUSAL), plain(data))


def said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=safe_text(text))], is_error=is_error)


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}


def _meta(meta: Any) -> dict[str, Any] | None:
    kept = {name: value for name, value in meta.items() if not str(name).startswith(_RESERVED)} if meta else {}
    return kept or None
