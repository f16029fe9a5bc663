"""login and logout: let a tool server know who runs the agents, once, before a run needs it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import random
from urllib.parse import urlsplit

from centuria.config import load_job, read_mcp_json
from centuria.core.quoting import did_you_mean, quoted
from centuria.errors import ConfigurationError, ToolUnavailable
from centuria.ports import ServerState
from centuria.settings import Authorization, Timeouts, ToolServer
from centuria.toolhost import McpToolHost
from centuria.toolhost.loopback import Loopback
from centuria.toolhost.tokens import TokenStore, store_of
from centuria.views.words import clean

#: Files that are looked for where none is named.
_USUAL = (Path("job.toml"), Path("mcp.json"), Path(".mcp.json"))


def login(options: argparse.Namespace) -> int:
    """`centuria login`: a browser, and back. Exit 0 where the server lets us in, 1 where it does not."""
    server = _server(options)
    _check(server)
    if options.scopes:
        auth = server.auth or Authorization()
        server = replace(server, auth=replace(auth, scopes=tuple(options.scopes.split())))
    if not 0 < options.timeout <= 3600:
        raise ConfigurationError("--timeout must be more than 0 and at most 3600 seconds.")
    store = store_of(os.environ)
    state, asked = asyncio.run(_log_in(server, store, options))
    if not state.up:
        raise ToolUnavailable(f"{server.name}: {state.reason}")
    kept = store.read(server) is not None and asked > 0
    if options.json:
        print(json.dumps({"server": server.name, "logged_in": kept, "tools": state.tools, "folder": str(store.folder)}))
    elif kept:
        print(f"Logged in to {server.name}: {state.tools} tools. Kept in {store.folder}, readable by you alone.")
    else:
        print(f"{server.name} lets everybody in: {state.tools} tools, and no login to keep.")
    return 0


def logout(options: argparse.Namespace) -> int:
    """`centuria logout`: forget a login. The server is not told; revoke it there if it could be known to others."""
    server = _server(options)
    forgotten = store_of(os.environ).remove(server)
    if options.json:
        print(json.dumps({"server": server.name, "forgotten": forgotten}))
    else:
        print(f"The login to {server.name} is forgotten." if forgotten else f"There was no login to {server.name}.")
    return 0


async def _log_in(server: ToolServer, store: TokenStore, options: argparse.Namespace) -> tuple[ServerState, int]:
    port = server.auth.redirect_port if server.auth is not None else None

    def show(url: str) -> None:
        opened = not options.no_browser and webbrowser.open(url)
        what = "Your browser was opened. If it was not, go to:" if opened else "Open this in a browser of this machine:"
        print(f"{what}\n\n  {clean(url, 10_000)}\n", file=sys.stderr, flush=True)

    timeouts = Timeouts(server_start=options.timeout + 60)
    async with (
        Loopback(show, seconds=options.timeout, port=port or 0) as person,
        McpToolHost(
            [replace(server, required=False)], timeouts=timeouts, dice=random, tokens=store, consent=person
        ) as host,
    ):
        (state,) = host.servers()
        asked = await host.log_in(server.slug) if state.up else 0
        return state, asked


def _check(server: ToolServer) -> None:
    """Raises `ConfigurationError` where a login would change nothing."""
    if server.url is None:
        raise ConfigurationError(
            f"{server.name} is a process of this machine: there is no login.",
            remedy="Give it what it needs in its `env`.",
        )
    if any(name.lower() == "authorization" for name in server.headers) or "@" in urlsplit(server.url).netloc:
        raise ConfigurationError(
            f"{server.name} has an Authorization header, or a password in its URL, and is let in by that.",
            remedy="Remove it to log in instead.",
        )
    if server.auth is not None and server.auth.grant == "client_credentials":
        raise ConfigurationError(
            f"{server.name} uses client credentials: nobody has to log in.", remedy="Try it: centuria doctor."
        )


def _server(options: argparse.Namespace) -> ToolServer:
    if options.url:
        if not options.url.startswith(("https://", "http://")):
            raise ConfigurationError("--url is not an http(s) URL.", remedy="Write https://HOST/PATH.")
        name = options.server or options.url
        return ToolServer("server", name, url=options.url)
    servers = _servers(options.job, options.tools)
    if options.server is None:
        remote = [server for server in servers if server.url is not None]
        if len(remote) == 1:
            return remote[0]
        names = ", ".join(server.name for server in remote)
        raise ConfigurationError("Which server?", remedy=f"Name one: {names}." if names else "None has a URL.")
    for server in servers:
        if options.server in (server.name, server.slug):
            return server
    raise ConfigurationError(
        f"There is no tool server {quoted(options.server)}.",
        remedy=did_you_mean(options.server, [server.name for server in servers]) or "Name its file with --tools.",
    )


def _servers(job: Path | None, tools: Path | None) -> Sequence[ToolServer]:
    if job is None and tools is None:
        found = next((path for path in _USUAL if path.is_file()), None)
        if found is None:
            raise ConfigurationError(
                "Which server is meant? There is no job.toml or mcp.json here.",
                remedy="Name the file with --tools mcp.json or --job job.toml, or the server with --url.",
            )
        job, tools = (found, None) if found.suffix == ".toml" else (None, found)
    servers: list[ToolServer] = []
    if job is not None:
        servers += load_job(job).job.servers
    if tools is not None:
        servers += read_mcp_json(tools, os.environ)
    return servers
