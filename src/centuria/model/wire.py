"""The one dialect: messages and tools to the JSON of an OpenAI-compatible request. Pure.

Sources: OpenAI's chat completions reference; for Kimi, `reasoning_content` goes back beside tool calls,
`content` is left out where it would be empty beside them, and ids are echoed as they came (Kimi-K2
docs/tool_call_guidance.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from centuria.core.strict_json import strict_json
from centuria.errors import ModelRefused
from centuria.messages import Message, ToolCall, ToolSpec, safe_text
from centuria.ports import ChatRequest
from centuria.settings import Endpoint

#: Lists of tools that are kept as they were written: there is one for each set of servers that agents may use.
_TOOL_LISTS = 100
#: Escapes inside a tool call's arguments that would become a lone surrogate or NUL when the server parses
#: them.
_RISKY = re.compile(r"\\u(?:[dD][89a-fA-F]|0000)")


class RequestWriter:
    """Writes the requests to one endpoint. Tools are written once: all siblings offer the same ones."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._tools: dict[int, tuple[tuple[ToolSpec, ...], str]] = {}

    def write(self, request: ChatRequest, conversation: str, max_tokens: int) -> bytes:
        """The body of a request for a stream; `conversation` is its `identity`. Fields of fixed sampling are not sent
        unless `endpoint.sampling` says so.

        Text is made safe: lone surrogates and NUL become U+FFFD. Tools go before messages, as providers put them
        into the prompt, so that the bytes of two turns share the prefix that their prompts share. Raises
        `ModelRefused` (kind "encode") where a tool's schema cannot be written as JSON.
        """
        last = {self._endpoint.limit_field: max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        first = {**self._endpoint.sampling, "model": request.model or self._endpoint.model}
        for name in ("tools", "messages", *last):  # the object is written in parts, where a name would stand twice
            first.pop(name, None)
        tools = f',"tools":{self._written(request.tools)}' if request.tools else ""
        return f'{_dump(first)[:-1]}{tools},"messages":{conversation},{_dump(last)[1:]}'.encode()

    def _written(self, tools: tuple[ToolSpec, ...]) -> str:
        known = self._tools.get(id(tools))
        if known is None:
            if len(self._tools) >= _TOOL_LISTS:
                self._tools.clear()
            try:
                specs = [_tool(tool) for tool in tools]
            except RecursionError as error:
                raise _unwritable(error) from error
            # The list is kept as well, so that its id is no other's.
            known = self._tools[id(tools)] = tools, _dump(specs)
        return known[1]


def identity(request: ChatRequest) -> str:
    """The canonical text of the conversation so far: what a stored answer is an answer to.

    Not of the model, the tools on offer or `max_tokens`: a run that is resumed with others keeps what it paid for.
    """
    return _dump([written_message(message) for message in request.messages])


def authorization(endpoint: Endpoint) -> dict[str, str]:
    """The header that carries the key; none where there is no key, or where the endpoint brings its own."""
    if endpoint.key is None or any(name.lower() == "authorization" for name in endpoint.headers):
        return {}
    return {"Authorization": f"Bearer {endpoint.key.value}"}


def _dump(body: Any) -> str:
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if "\\u0000" in text:
            text = json.dumps(_without_nul(body), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(error) from error
    return safe_text(text)


def _unwritable(error: Exception) -> ModelRefused:
    return ModelRefused(
        f"The request cannot be written as JSON: {error}.",
        kind="encode",
        served=False,
        remedy="Look for a value that JSON does not have in the schema of a tool or in `sampling`.",
    )


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "�")
    if isinstance(value, Mapping):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value


def written_message(message: Message) -> dict[str, Any]:
    """A message as chat completions have it. Arguments that are no JSON object travel inside one."""
    body: dict[str, Any] = {"role": message.role}
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id or ""
    if message.content or not message.tool_calls:
        body["content"] = message.content
    if message.tool_calls:
        if message.reasoning is not None:
            body["reasoning_content"] = message.reasoning
        body["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return body


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": _arguments(call.arguments)},
    }


def _arguments(text: str) -> str:
    """Arguments for the way back. Servers parse them again and refuse the whole conversation for one bad
    text, so what is no JSON object travels inside one, where the model still sees what it wrote."""
    if not text.strip():
        return "{}"
    value = parse_object(text)
    if value is not None and not _RISKY.search(text):
        return text
    try:
        return json.dumps({"invalid_json": text} if value is None else _without_nul(value), ensure_ascii=False)
    except RecursionError:  # deeper than it can be written again: as good as no JSON
        return json.dumps({"invalid_json": text}, ensure_ascii=False)


def parse_object(text: str) -> dict[str, Any] | None:
    """The text as one JSON object, or None where it is none (NaN and Infinity are no JSON)."""
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": _plain(tool.schema),
        },
    }


def _plain(value: Any) -> Any:
    """Mappings and sequences of any type as the ones that JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
