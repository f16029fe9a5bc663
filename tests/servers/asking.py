"""A server that asks its client back, made with whichever MCP SDK runs it: 2.x, or the one before (`FastMCP`)."""

from __future__ import annotations

try:
    from mcp.server import MCPServer as Server
    from mcp.server.mcpserver import Context
    from mcp_types import SamplingMessage, TextContent
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server
    from mcp.types import SamplingMessage, TextContent

from pydantic import BaseModel

server = Server("asking")


class Answer(BaseModel):
    color: str


@server.tool()
async def ask_the_user(ctx: Context) -> str:
    """Ask the user for a color."""
    answer = await ctx.elicit("Which color?", Answer)
    return f"the user said {answer.action}"


@server.tool()
async def ask_the_model(ctx: Context) -> str:
    """Have the client's model answer."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="2 + 2?"))
    said = await ctx.session.create_message([message], max_tokens=10)
    return f"the model said {said.content}"


@server.tool()
async def ask_for_roots(ctx: Context) -> str:
    """List the client's roots."""
    return f"the roots are {await ctx.session.list_roots()}"


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    return text


if __name__ == "__main__":
    server.run("stdio")
