"""The gateway as an MCP server: the tools of a key, and `run_swarm`, over streamable HTTP at `/mcp`."""

from centuria.gateway.mcp.serving import McpServing, RunSwarm

__all__ = ["McpServing", "RunSwarm"]
