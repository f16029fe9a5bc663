"""Which protocol a server speaks: 2026-07-28 if it answers `server/discover` with it, else the handshake before it."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError


async def negotiate(session: ClientSession) -> None:
    """As the SDK's `Client(mode="auto")` does it. Raises what says that the server cannot be talked to.

    A server that answers neither in time may still settle for the newer protocol when it hears of the older one: then
    it is asked once more.
    """
    versions = [LATEST_MODERN_VERSION]
    for version in versions:
        try:
            if await _discovered(session, version):
                return
        except MCPError as error:
            offered = _offered(error)
            if offered is not None and len(versions) == 1 and (mutual := _mutual(offered)):
                versions.append(mutual)
                continue
            if offered is not None and not set(offered) & set(HANDSHAKE_PROTOCOL_VERSIONS):
                raise  # it speaks nothing that we do
        try:
            await session.initialize()
        except MCPError as error:
            mutual = _mutual(_offered(error) or [])
            if mutual is None or len(versions) > 1:
                raise
            versions.append(mutual)
        else:
            return


async def _discovered(session: ClientSession, version: str) -> bool:
    try:
        found = types.DiscoverResult.model_validate(await session.send_discover(version))
    except ValidationError:
        return False
    if _mutual(found.supported_versions) is None:
        return False
    session.adopt(found)
    return True


def _mutual(offered: list[str]) -> str | None:
    return next((version for version in reversed(MODERN_PROTOCOL_VERSIONS) if version in offered), None)


def _offered(error: MCPError) -> list[str] | None:
    """The versions that a server names where it does not speak the one it was asked for."""
    if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
        return None
    data: Any = error.data
    try:
        return types.UnsupportedProtocolVersionErrorData.model_validate(data).supported
    except ValidationError:
        return None
