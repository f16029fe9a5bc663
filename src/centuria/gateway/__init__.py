"""The gateway: one key and one URL for many models, one set of MCP tools, swarms as a service, and a page to watch.

server.py   the listening socket, its caps and its end        web.py       routes, keys, Host and Origin, errors
chat/       the one funnel to every upstream                   books.py     money and rows; keys.py: who asks
tools/      the operator's MCP tools, over HTTP and at /mcp    swarms/      runs as a service
page/       the web page                                       store/       SQLite or PostgreSQL
"""
