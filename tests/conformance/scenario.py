"""One scenario of the conformance suite, all of it by `McpToolHost`. The person who logs in is a thread with a URL."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import random
from typing import Any

from centuria.settings import Authorization, Secret, Timeouts, ToolServer
from centuria.toolhost import McpToolHost
from centuria.toolhost.loopback import Loopback
from centuria.toolhost.tokens import TokenStore

#: What a tool is called with where the scenario does not say.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


def scenario() -> str:
    return os.environ.get("MCP_CONFORMANCE_SCENARIO", "")


def context() -> Mapping[str, Any]:
    """What the client is to know."""
    known: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return known


def browse(url: str) -> None:
    """A person who agrees to everything: their browser follows the redirect back to us."""
    threading.Thread(target=lambda: urllib.request.urlopen(url, timeout=10).close(), daemon=True).start()


def authorization(folder: Path) -> Authorization:
    """What an operator would have written into `auth`, from what the suite says of its client."""
    said = context()
    known: dict[str, Any] = {"client_id": said.get("client_id"), "issuer": said.get("issuer")}
    if "client_secret" in said:
        known["client_secret"] = Secret(said["client_secret"])
    if "private_key_pem" in said:
        known["private_key"] = folder / "key.pem"
        known["private_key"].write_text(said["private_key_pem"])
        known["algorithm"] = said["signing_algorithm"]
    if scenario().startswith("auth/client-credentials"):
        known["grant"] = "client_credentials"
    return Authorization(client_metadata_url="https://conformance-test.local/client-metadata.json", **known)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[McpToolHost]:
    with tempfile.TemporaryDirectory() as folder:
        auth = authorization(Path(folder)) if scenario().startswith("auth/") else None
        server = ToolServer("suite", "suite", url=url, auth=auth, elicit="defaults")
        async with (
            Loopback(browse, seconds=10) as person,
            McpToolHost(
                [server],
                timeouts=Timeouts(server_start=20),
                dice=random,
                tokens=TokenStore(Path(folder) / "tokens"),
                consent=person,
            ) as host,
        ):
            yield host


async def call(host: McpToolHost, tool: str, arguments: Mapping[str, Any]) -> None:
    try:
        print(tool, await host.call(f"suite__{tool}", arguments, timeout=15))
    except Exception as error:
        print(tool, repr(error))


def play(url: str) -> None:
    """Play the scenario of this process's environment against the server at `url`."""
    asyncio.run(_play(url))


async def _play(url: str) -> None:
    async with connected(url) as host:
        print(*host.servers())
        schemas = {tool.tool: tool.schema for tool in host.catalogue()}
        if scenario() == "json-schema-2020-12-preservation":
            await call(host, "json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})
        elif "toolCalls" in context():
            for planned in context()["toolCalls"]:
                await call(host, planned["name"], planned["arguments"])
        else:
            async with asyncio.TaskGroup() as group:
                for tool in schemas:
                    group.create_task(call(host, tool, ARGUMENTS.get(tool, {})))
