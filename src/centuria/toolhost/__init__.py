"""MCP sessions: one owner task each, the warden of their processes. The only room that imports the MCP client."""

from centuria.toolhost.addresses import Guard, any_host, public_only
from centuria.toolhost.host import McpToolHost
from centuria.toolhost.launch import limit_of, limit_reason

__all__ = ["Guard", "McpToolHost", "any_host", "limit_of", "limit_reason", "public_only"]
