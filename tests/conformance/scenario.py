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

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))

#: What a tool is called with where the scenario does not say.
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


def browse(url: str) -> None:
    """A person who agrees to everything: their browser follows the redirect back to us."""
    threading.Thread(target=lambda: urllib.request.urlopen(url, timeout=10).close(), daemon=True).start()


def authorization(folder: Path) -> Authorization:
    """What an operator would have written into `auth`, from what the suite says of its client."""
    known: dict[str, Any] = {"client_id": CONTEXT.get("client_id"), "issuer": CONTEXT.get("issuer")}
    if "client_secret" in CONTEXT:
        known["client_secret"] = Secret(CONTEXT["client_secret"])
    if "private_key_pem" in CONTEXT:
        known["private_key"] = folder / "key.pem"
        known["private_key"].write_text(CONTEXT["private_key_pem"])
        known["algorithm"] = CONTEXT["signing_algorithm"]
    if SCENARIO.startswith("auth/client-credentials"):
        known["grant"] = "client_credentials"
    return Authorization(client_metadata_url="https://conformance-test.local/client-metadata.json", **known)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[McpToolHost]:
    with tempfile.TemporaryDirectory() as folder:
        auth = authorization(Path(folder)) if SCENARIO.startswith("auth/") else None
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


async def main(url: str) -> None:
    async with connected(url) as host:
        print(*host.servers())
        schemas = {tool.tool: tool.schema for tool in host.catalogue()}
        if SCENARIO == "json-schema-2020-12-preservation":
            await call(host, "json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})
        elif "toolCalls" in CONTEXT:
            for planned in CONTEXT["toolCalls"]:
                await call(host, planned["name"], planned["arguments"])
        else:
            async with asyncio.TaskGroup() as group:
                for tool in schemas:
                    group.create_task(call(host, tool, ARGUMENTS.get(tool, {})))
