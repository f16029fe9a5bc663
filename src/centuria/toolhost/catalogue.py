"""A server's catalogue: all of its pages, without the tools that are none, and word of its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types import methods
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from centuria.toolhost.results import lost_in_transport

#: Pages of a catalogue; a cursor that comes again ends it too.
MAX_PAGES = 100
#: Tools of one server; nobody could choose among more.
MAX_TOOLS = 10_000
#: Tools that are none, of which the names are kept.
MAX_TOLD = 100


async def list_tools(session: ClientSession) -> list[types.Tool]:
    """All pages of a catalogue, by name; of two tools with one name the first counts. Raises `MCPError`."""
    found: dict[str, types.Tool] = {}
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            found.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if cursor is None or cursor in seen or len(found) > MAX_TOOLS:
            break
        seen.add(cursor)
    return [found[name] for name in sorted(found)][:MAX_TOOLS]


def without_bad_tools(result: dict[str, Any], version: str | None, bad: dict[str, str]) -> dict[str, Any]:
    """A page of a catalogue without the tools that are none: the SDK would refuse the whole page.

    `bad` is told of them, by name, and why.
    """
    tools = result.get("tools")
    version = version or LATEST_HANDSHAKE_VERSION
    if not isinstance(tools, list) or not _fault(result, version):
        return result
    kept = []
    for tool in tools:
        fault = _fault({**result, "tools": [tool]}, version)
        if not fault:
            kept.append(tool)
        elif len(bad) < MAX_TOLD:
            name = tool.get("name") if isinstance(tool, Mapping) else tool
            bad[str(name)[:100]] = f"What the server says of it is not valid{fault}."
    return {**result, "tools": kept}


def _fault(result: dict[str, Any], version: str) -> str:
    """What is wrong with a page, after a colon; "" where nothing is."""
    try:
        methods.validate_server_result("tools/list", version, result)
        types.ListToolsResult.model_validate(result, by_name=False)
    except KeyError:
        return ""  # a version that the SDK does not know: it will say so itself
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"][2:])
        return f": {place}: {first['msg']}"[:200] if place else f": {first['msg']}"[:200]
    return ""


def subscribes(session: ClientSession) -> bool:
    """Whether changes of this catalogue are heard by subscription only."""
    tools = session.server_capabilities.tools if session.server_capabilities is not None else None
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)


async def follow_changes(session: ClientSession, changed: Callable[[], None]) -> bool:
    """Call `changed` at each change until the subscription ends, and once it begins: nobody told of what came before.

    True: it broke off. False: there will be none.
    """
    try:
        async with listen(session, tools_list_changed=True) as subscription:
            changed()
            async for _ in subscription:
                changed()
    except SubscriptionLost:
        return True
    except MCPError as error:
        return lost_in_transport(error)
    return True
