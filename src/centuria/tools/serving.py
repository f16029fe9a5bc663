"""What the three servers share: a tool is a schema and a coroutine, and `serve` speaks MCP over stdio.

The MCP package takes most of a second to import, so it is imported last: `--help` and a wrong flag answer at once.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.lowlevel import Server

#: JSON types as Python sees them; a bool is no number here.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
    "number": (int, float),
}


class Refusal(Exception):
    """The call has no answer; the sentence says why and what would work, and is what the model gets."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool gives: a text for the model and, where there is one, the same as a JSON object."""

    text: str
    structured: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, structured: Mapping[str, Any]) -> Answer:
        """An answer whose text is the JSON of the object."""
        text = json.dumps(structured, ensure_ascii=False)
        if not is_sendable(text):
            text = sendable(text)
            structured = json.loads(text)
        return cls(text, structured)


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool of a server. The built-in tools only read; `open_world`: it reaches out of this machine.

    `run` takes arguments that already fit `schema` and raises `Refusal`.
    """

    name: str
    title: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], Awaitable[Answer]]
    open_world: bool = False


def is_sendable(text: str) -> bool:
    """Whether the text is UTF-8 when encoded: JSON text can carry lone surrogates, which are not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def nearest(name: str, known: Sequence[str]) -> str:
    """A sentence that names the nearest right name, or those that there are."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f'Did you mean "{close[0]}"?'
    shown = ", ".join(f'"{item}"' for item in known[:40])
    return f"There is: {shown}{', ...' if len(known) > 40 else ''}." if known else "There is none."


def check(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise `Refusal` unless the arguments fit the schema (the keywords that the built-in tools use)."""
    properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
    for name in arguments:
        if name not in properties:
            raise Refusal(f'There is no argument "{name[:100]}". {nearest(name[:100], list(properties))}')
    for name in schema.get("required", ()):
        if name not in arguments:
            raise Refusal(f'The argument "{name}" is missing.')
    for name, value in arguments.items():
        _check_value(f'The argument "{name}"', value, properties[name])


def _check_value(what: str, value: Any, schema: Mapping[str, Any]) -> None:
    choices = schema.get("anyOf", [schema])
    names = [choice["type"] for choice in choices]
    fitting = [choice for choice in choices if _is(value, choice["type"])]
    if not fitting:
        raise Refusal(f"{what} must be {' or '.join(names)}, not {type(value).__name__}.")
    chosen = fitting[0]
    if "enum" in chosen and value not in chosen["enum"]:
        raise Refusal(f"{what} must be one of {', '.join(chosen['enum'])}.")
    if chosen["type"] == "integer" and value < chosen.get("minimum", value):
        raise Refusal(f"{what} must be at least {chosen['minimum']}.")
    if chosen["type"] == "array":
        for item in value:
            _check_value(f"Each item of {what[0].lower()}{what[1:]}", item, chosen["items"])
    inner = chosen.get("additionalProperties")
    if chosen["type"] == "object" and isinstance(inner, Mapping):
        for key, item in value.items():
            _check_value(f'"{key[:100]}" in {what[0].lower()}{what[1:]}', item, inner)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def build(
    name: str,
    tools: Sequence[ServedTool],
    *,
    instructions: str = "",
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> Server[Any]:
    """An MCP server of these tools, not yet connected. `lifespan` surrounds the time that it serves."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    by_name = {tool.name: tool for tool in tools}

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in tools])

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = _chosen(by_name, params.name)
            arguments = params.arguments or {}
            check(arguments, tool.schema)
            answer = await tool.run(arguments)
        except Refusal as refusal:
            return types.CallToolResult(content=[_text(str(refusal))], is_error=True)
        return types.CallToolResult(content=[_text(answer.text)], structured_content=answer.structured)

    @asynccontextmanager
    async def living(_server: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        if lifespan is None:
            yield {}
            return
        async with lifespan():
            yield {}

    return Server(
        f"centuria-{name.replace('_', '-')}",
        version="1",
        instructions=instructions or None,
        lifespan=living,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _chosen(tools: Mapping[str, ServedTool], name: str) -> ServedTool:
    if name not in tools:
        raise Refusal(f'There is no tool "{name[:100]}". {nearest(name[:100], list(tools))}')
    return tools[name]


def _described(tool: ServedTool) -> types.Tool:
    import mcp_types as types

    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.schema),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=True,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=tool.open_world,
        ),
    )


def _text(text: str) -> types.TextContent:
    import mcp_types as types

    return types.TextContent(type="text", text=sendable(text))


def serve(make: Callable[[], Server[Any]]) -> None:
    """Build the server, serve it on stdin and stdout until stdin ends, and leave the process.

    The process ends without Python's own tear-down: threads that still read a file would keep it alive, and
    the sandbox's native threads can abort an interpreter that is going down.
    """
    gc.disable()  # a fifth of the import time is the collector looking at what stays
    from mcp.server.stdio import stdio_server

    server = make()
    gc.freeze()
    gc.enable()

    async def main() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    status = 0
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(status)
