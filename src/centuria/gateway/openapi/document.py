"""The whole document, and the address where it is served."""

from __future__ import annotations

import json
from typing import Any

from centuria import __version__
from centuria.gateway.openapi import chat, house, page, swarms, tools
from centuria.gateway.openapi.parts import ERROR, RESPONSES
from centuria.gateway.web import Reply, Request, Route

PATH = "/openapi.json"
_ROOMS = (chat, tools, swarms, page, house)
_DESCRIPTION = """\
One key and one URL for many models, one set of tools, and swarms as a service.

Every route takes `Authorization: Bearer KEY`, with a key that `centuria keys add NAME` made. A gateway on loopback for
which no key was ever made takes requests of its own machine without one.

Any client of OpenAI's API works: its base URL is this gateway's with `/v1`. The same tools are at `/mcp` for MCP hosts
(streamable HTTP, the same key).

Errors have OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`. What can be tried again says when in
`Retry-After`, in whole seconds; a spent budget says `x-should-retry: false` instead. Every answer has an
`x-request-id`, which is also in the ledger."""


def document() -> dict[str, Any]:
    """The document as a JSON value."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {}
    for room in _ROOMS:
        schemas |= room.SCHEMAS
        paths |= room.PATHS
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Centuria gateway",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for room in _ROOMS for name, text in room.TAGS.items()],
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": RESPONSES,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key: `ck-...`"},
                "apiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "The same key, for clients that cannot send it otherwise.",
                },
            },
        },
    }


def routes() -> list[Route]:
    """The document's own route."""
    body = json.dumps(document(), ensure_ascii=False).encode()

    async def serve(request: Request) -> Reply:
        return Reply(body)

    return [Route("GET", PATH, serve, access="public")]
