"""Three built-in tools, each a real MCP server over stdio that any MCP host can start with one line:

    python -m centuria.tools.file_read --root DIR
    python -m centuria.tools.code_exec
    python -m centuria.tools.web_search --folder DIR

They import nothing of Centuria's own rooms.
"""
