"""The gateway's HTTP/1.1 server: llhttp (Node.js's parser) and asyncio's protocols below an ASGI application.

- `connection`: what one client sends, read within its caps, and the turns of its requests.
- `exchange`: one request and its answer, as the application has it.
- `scope`, `heads`: what comes in as ASGI has it, and what goes out as bytes. Pure.
- `traffic`: all connections together.
- `listening`: the socket, and the end.
"""

from centuria.gateway.server.listening import Server, listen

__all__ = ["Server", "listen"]
