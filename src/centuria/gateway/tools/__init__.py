"""The operator's MCP servers, shared by all keys: registered tools, calls by HTTP, and the tool loop of a chat."""
