"""What a server's answer, or its failure, comes to for the caller. Pure."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
from mcp import MCPError

from centuria.errors import OutcomeUnknown, ToolError, ToolUnavailable
from centuria.messages import ToolEnd, ToolResult

#: HTTP statuses by which a server says that it has not begun: too early, too many. A 408 or 503 says so only with a
#: `Retry-After`: a proxy, or a time-out around the tool, sends them while the call runs.
_NOT_BEGUN = frozenset({425, 429})
_DOUBTFUL = frozenset({408, 503})


def result_of(answer: types.CallToolResult | types.InputRequiredResult) -> ToolResult:
    """Text as it is, everything else as a short mark; `structured` is what the tool returned as data."""
    if isinstance(answer, types.InputRequiredResult):
        return ToolResult("The tool asks for input in mid-call, and nobody is there to give it.", ToolEnd.ERROR)
    parts = [_text_of(block) for block in answer.content]
    structured = answer.structured_content
    if not parts and structured is not None:
        parts = [json.dumps(structured, ensure_ascii=False)]
    end = ToolEnd.ERROR if answer.is_error else ToolEnd.OK
    return ToolResult("\n".join(parts), end, structured)


def _text_of(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return f"[image {block.mime_type}, {_size(block.data)}]"
        case types.AudioContent():
            return f"[audio {block.mime_type}, {_size(block.data)}]"
        case types.ResourceLink():
            return f"[resource {block.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as held):
            return held.text
        case types.EmbeddedResource(resource=types.BlobResourceContents() as held):
            return f"[resource {held.uri} {held.mime_type or 'binary'}, {_size(held.blob)}]"
        case _:
            return f"[{getattr(block, 'type', 'content')}]"


def _size(base64: str) -> str:
    size = len(base64) * 3 // 4
    return f"{size} B" if size < 1000 else f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"


class Facts(dict[str, Any]):
    """The `data` of an error of the connection. What a server sends is never of this class, whatever it says."""


def _facts(error: MCPError) -> Facts:
    return error.data if isinstance(error.data, Facts) else Facts()


def is_closed(error: MCPError) -> bool:
    """Whether the connection ended; many servers have the same code for errors of all kinds."""
    return _facts(error).get("kind") == "closed"


def lost_in_transport(error: MCPError) -> bool:
    """Whether this error stands for a connection that failed."""
    return _facts(error).get("kind") == "transport"


def denied(error: MCPError) -> bool:
    """Whether the server wants a login, or a better one."""
    facts = _facts(error)
    return facts.get("kind") == "http" and facts.get("status") in (401, 403)


def has_expired(error: MCPError) -> bool:
    """Whether the server said that it does not know the session: nothing ran."""
    return _facts(error).get("kind") == "expired"


def trouble_of(server: str, error: MCPError) -> ToolError | None:
    """The exception that an error of the connection stands for; None: the server itself said no."""
    facts = _facts(error)
    match facts.get("kind"):
        case "transport" if not facts.get("sent"):
            return ToolUnavailable(f"The server {server} cannot be reached: {error.message}.")
        case "transport":
            return OutcomeUnknown(f"The connection to {server} broke during the call: {error.message}.")
        case "http":
            status, wait = int(facts.get("status", 0)), facts.get("retry_after")
            if status in _NOT_BEGUN or (status in _DOUBTFUL and wait is not None):
                return ToolUnavailable(
                    f"The server {server} refused for now: HTTP {status}.",
                    retry_after=float(wait) if isinstance(wait, int | float) else None,
                    throttled=status in (429, 503),
                )
            if status >= 500 or status in _DOUBTFUL:
                return OutcomeUnknown(f"The server {server} failed during the call: HTTP {status}.")
        case "closed":
            return OutcomeUnknown(f"The server {server} went away during the call.")
        case "garbled":
            return OutcomeUnknown(f"The server {server} answered with something else: {error.message}")
    return None
