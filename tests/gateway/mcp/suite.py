"""The MCP server that the conformance suite's tools live on, behind the gateway: `python -m tests.gateway.mcp.suite`.

Its tools are those that the suite's server scenarios ask for by name; over stdio, which needs no port.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0D\xac\0\0\x88X\1\0\2\0\x10\0data\0\0\0\0").decode()
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
CUSTOM_HEADERS = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
        "query": {"type": "string"},
    },
    "required": ["region"],
}
TOOLS = {
    "test_simple_text": ("Text.", NOTHING),
    "test_image_content": ("An image.", NOTHING),
    "test_audio_content": ("A sound.", NOTHING),
    "test_embedded_resource": ("A resource in the answer.", NOTHING),
    "test_multiple_content_types": ("Text, an image and a resource.", NOTHING),
    "test_error_handling": ("Fails, always.", NOTHING),
    "test_tool_with_progress": ("Says how far it has come.", NOTHING),
    "test_custom_headers": ("Some arguments travel as headers.", CUSTOM_HEADERS),
    "json_schema_2020_12_tool": ("A schema with all that draft 2020-12 has.", JSON_SCHEMA),
    "test_missing_capability": ("Needs a client that samples.", NOTHING),
    "test_streaming_elicitation": ("Asks its caller something.", NOTHING),
    "test_logging_tool": ("Logs.", NOTHING),
    "test_structured": (
        "Data with a schema.",
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    ),
}


def text(said: str) -> types.TextContent:
    return types.TextContent(type="text", text=said)


def image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def resource(uri: str, said: str, kind: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=kind, text=said)
    )


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    tools = []
    for name, (description, schema) in TOOLS.items():
        tool = types.Tool(name=name, description=description, input_schema=schema)
        if name == "test_structured":
            tool.title = "Structured"
            tool.output_schema = {"type": "object", "properties": {"twice": {"type": "integer"}}, "required": ["twice"]}
            tool.annotations = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
        tools.append(tool)
    return types.ListToolsResult(tools=tools)


def plain_content(name: str, arguments: Any) -> list[Any]:
    match name:
        case "test_simple_text":
            return [text("This is a simple text response for testing.")]
        case "test_image_content":
            return [image()]
        case "test_audio_content":
            return [types.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]
        case "test_embedded_resource":
            return [resource("test://embedded-resource", "This is an embedded resource content.", "text/plain")]
        case "test_multiple_content_types":
            mixed = resource("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
            return [text("Multiple content types test:"), image(), mixed]
        case _:
            return [text(f"{name}: {arguments}")]


async def call_tool(
    context: Any, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    arguments = params.arguments or {}
    match params.name:
        case "test_error_handling":
            said = text("This tool intentionally returns an error for testing")
            return types.CallToolResult(content=[said], is_error=True)
        case "test_tool_with_progress":
            for done in (0, 50, 100):
                await context.session.report_progress(done, 100, f"Completed step {done} of 100")
                await asyncio.sleep(0.05)
            return types.CallToolResult(content=[text("done")])
        case "test_missing_capability":
            needed = types.ClientCapabilities(sampling=types.SamplingCapability())
            if not context.session.check_client_capability(needed):
                data = {"requiredCapabilities": {"sampling": {}}}
                raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "It takes a client that samples.", data)
        case "test_streaming_elicitation" if not params.input_responses:
            form = types.ElicitRequestFormParams(message="Who?", requested_schema=NOTHING)
            return types.InputRequiredResult(
                input_requests={"who": types.ElicitRequest(params=form)}, request_state="asked"
            )
        case "test_structured":
            data = {"twice": 2 * arguments["n"]}
            return types.CallToolResult(content=[text(str(data))], structured_content=data)
    return types.CallToolResult(content=plain_content(params.name, arguments))


def server() -> Server[Any]:
    return Server("suite", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    made = server()
    async with stdio_server() as (read, write):
        await made.run(read, write, made.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
