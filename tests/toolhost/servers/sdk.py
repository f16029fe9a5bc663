"""A well-behaved server made with the SDK: over stdio, or over streamable HTTP with `--http PORT`."""

import asyncio
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent

server = MCPServer("sdk-test")


@server.tool(structured_output=False)
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
async def add(a: int, b: int) -> dict[str, Any]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool(structured_output=False)
async def fail(why: str) -> str:
    """Say no."""
    raise ToolError(why)


@server.tool(structured_output=False)
async def sleep(seconds: float) -> str:
    """Take this long."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool(structured_output=False)
async def picture() -> list[Any]:
    """Text and a picture."""
    return [
        TextContent(type="text", text="look:"),
        ImageContent(type="image", data="A" * 16_000, mime_type="image/png"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        server.run("streamable-http", port=int(sys.argv[2]), stateless_http="--stateless" in sys.argv)
    else:
        server.run("stdio")
