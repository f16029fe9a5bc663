"""The registry of tools and calls of them, described."""

from __future__ import annotations

from typing import Any

from centuria.gateway.openapi.parts import (
    AGENT,
    PRIORITY,
    answer,
    body,
    idempotency,
    operation,
    path,
    record,
    ref,
)

TAGS = {"tools": "The operator's MCP tools, for all agents of all keys. MCP hosts find the same ones at `/mcp`."}

_PLAIN = r"^[^\x00-\x1f\x7f]*$"
_LEGAL = r"^[A-Za-z_][A-Za-z0-9_-]{2,63}$"
_NAME = path("name", "The tool's name.", {"type": "string", "minLength": 1}, "web_search")
_SCHEMA = {"type": "object", "description": "JSON Schema of its arguments."}
_SCOPE = {
    "type": "string",
    "maxLength": 200,
    "pattern": _PLAIN,
    "description": "An agent's id, as `X-Agent-Id` says it, or `run` for all agents of the key.",
    "default": "run",
    "examples": ["agent-007"],
}
_RANK = {"type": ["integer", "null"], "minimum": 0, "maximum": 9, "description": "0 (first) to 9 (last)."}
_OWN_LIMIT = {
    "type": ["integer", "null"],
    "minimum": 1,
    "maximum": 10_000,
    "description": "Calls of it at once, beside the operator's limit, which it cannot exceed.",
}

_ENTRY: dict[str, Any] = {
    "type": "object",
    "description": "One of the operator's tools under a name of your own. How anything is started or reached is never "
    "said here.",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {
            "type": "string",
            "pattern": _LEGAL,
            "description": "What it is called by. `TOOL__SCOPE` means the tool TOOL where `tool` is not said.",
            "examples": ["web_search__agent-007"],
        },
        "tool": {
            "type": "string",
            "maxLength": 200,
            "pattern": _PLAIN,
            "description": "The operator's tool.",
            "examples": ["web_search"],
        },
        "description": {"type": "string", "maxLength": 100_000, "description": "In place of its own."},
        "parameters": {**_SCHEMA, "description": "Taken, and not used: the tool's own schema holds."},
        "input_schema": {**_SCHEMA, "description": "As `parameters`."},
        "scope": _SCOPE,
        "limit": _OWN_LIMIT,
        "priority": _RANK,
        "type": {"const": "function"},
    },
}
_REMOTE: dict[str, Any] = {
    "type": "object",
    "description": "An MCP server over HTTPS, if the operator's list has its host. Its tools are called NAME__TOOL.",
    "required": ["name", "url"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z][a-z0-9-]{2,15}$", "examples": ["notes"]},
        "url": {"type": "string", "maxLength": 2000, "pattern": "^https://", "examples": ["https://mcp.example/mcp"]},
        "description": {"type": "string", "maxLength": 100_000},
        "scope": _SCOPE,
        "limit": _OWN_LIMIT,
        "priority": _RANK,
        "type": {"const": "function"},
    },
}
_ENTRY_OR_REMOTE = {"anyOf": [ref("ToolEntry"), ref("RemoteServer")]}
_ENTRIES = {"type": "array", "minItems": 1, "maxItems": 500, "items": _ENTRY_OR_REMOTE}
_MANIFEST: dict[str, Any] = {
    "anyOf": [
        _ENTRY_OR_REMOTE,
        _ENTRIES,
        {"type": "object", "required": ["tools"], "additionalProperties": False, "properties": {"tools": _ENTRIES}},
    ]
}
_MADE: dict[str, Any] = record(
    {
        "name": {"type": "string"},
        "key": {"type": "string", "description": "A hash of the tool's name and schema, as they are now."},
        "replicas": {"type": "integer", "description": "Sessions that its server has; calls are spread over them."},
        "limit": {"type": "integer", "description": "Calls of it at once."},
        "scope": {"type": "string"},
        "url": {"type": "string"},
        "tools": {"type": "array", "items": {"type": "string"}, "description": "Of a remote server: its tools."},
    },
    ["name", "scope", "replicas"],
)
_TOOL: dict[str, Any] = record(
    {
        "name": {"type": "string", "examples": ["web_search"]},
        "description": {"type": "string"},
        "parameters": _SCHEMA,
        "output_schema": {"type": "object"},
        "annotations": {"type": "object", "description": "What its server says of it, such as `readOnlyHint`."},
        "key": {"type": "string"},
        "replicas": {"type": "integer"},
        "limit": {"type": "integer"},
        "scope": {"type": "string", "description": "Of one that was registered."},
        "priority": {"type": "integer"},
        "tool": {"type": "string"},
    },
    ["name", "description", "parameters", "key", "replicas", "limit"],
)
_WAITING: dict[str, Any] = record(
    {
        "name": {"type": "string"},
        "scope": {"type": "string"},
        "url": {"type": "string", "description": "Of a remote server, whose tools are listed while it is open."},
        "description": {"type": "string"},
        "tool": {"type": "string"},
        "unavailable": {"type": "string", "description": "Why a registered tool cannot be called now."},
    },
    ["name", "scope"],
)
_INVOCATION: dict[str, Any] = record(
    {
        "content": {"type": "array", "items": {"type": "object"}, "description": "As MCP writes it: text, images, ..."},
        "structured_content": {"description": "What the tool said as a value, if it did."},
        "is_error": {"type": "boolean", "description": "The tool itself says that it failed."},
        "replica": {"type": ["string", "integer", "null"], "description": "Which session of its server ran it."},
        "slot": {"type": ["integer", "null"], "description": "Which of the tool's slots it had."},
        "queued_ms": {"type": "number", "description": "Milliseconds that it waited for its turn."},
        "ran_ms": {"type": "number", "description": "Milliseconds that it ran."},
    }
)

SCHEMAS: dict[str, Any] = {
    "ToolEntry": _ENTRY,
    "RemoteServer": _REMOTE,
    "Manifest": _MANIFEST,
    "Registered": _MADE,
    "Registrations": record({"tools": {"type": "array", "items": ref("Registered")}}),
    "Tool": _TOOL,
    "Waiting": _WAITING,
    "ServerDown": record(
        {
            "server": {"type": "string"},
            "reason": {"type": "string", "description": "Why, for an admin's key."},
        },
        ["server"],
    ),
    "Tools": record(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"anyOf": [ref("Tool"), ref("Waiting")]}},
            "unavailable": {
                "type": "array",
                "items": ref("ServerDown"),
                "description": "Servers that are not up now, so that their tools are missing; not there if all are up.",
            },
        },
        ["object", "data"],
    ),
    "Invocation": _INVOCATION,
}

PATHS: dict[str, Any] = {
    "/v1/mcp/tools": {
        "get": operation(
            "listTools",
            "tools",
            "The tools that this key, and this agent of it, may call",
            {200: answer("The tools.", ref("Tools"))},
            parameters=[AGENT],
        ),
        "post": operation(
            "registerTools",
            "tools",
            "Register tools under names of your own",
            {
                201: answer(
                    "What was registered: an object where one tool came, else a list in `tools`.",
                    {"anyOf": [ref("Registered"), ref("Registrations")]},
                )
            },
            (409, 429, 502, 504),
            text="Registering a name again replaces it. All tools of a manifest are registered, or none.",
            request=body(
                ref("Manifest"),
                {
                    "two agents, one tool": {
                        "tools": [
                            {"name": "web_search__agent-001", "scope": "agent-001"},
                            {"name": "web_search__agent-002", "scope": "agent-002", "limit": 2},
                        ]
                    },
                    "a name of your own": {"name": "look_up", "tool": "web_search", "priority": 2},
                },
            ),
        ),
    },
    "/v1/mcp/tools/{name}": {
        "delete": operation(
            "removeTool",
            "tools",
            "Take a registration back",
            {204: answer("It is gone.", None)},
            (404,),
            parameters=[_NAME],
        )
    },
    "/v1/mcp/tools/{name}/invoke": {
        "post": operation(
            "invokeTool",
            "tools",
            "Call a tool",
            {200: answer("What the tool said, its own errors too.", ref("Invocation"))},
            (404, 409, 422, 429, 502, 504),
            text="The body is the arguments. The call waits its turn for a slot of the tool and of its server; leaving "
            "cancels it.",
            parameters=[_NAME, AGENT, PRIORITY, idempotency()],
            request=body(
                {"type": "object", "description": "As the tool's `parameters` say."},
                {"a search": {"query": "market size of solar panels"}},
            ),
        )
    },
}
