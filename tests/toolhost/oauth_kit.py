"""What the tests of logins share: people with browsers of all kinds, hosts with a store of their own."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import random
from typing import Any

from centuria.settings import Timeouts, ToolServer
from centuria.testing.oauth import FakeOAuth
from centuria.toolhost import McpToolHost
from centuria.toolhost.flows import Consent
from centuria.toolhost.loopback import Loopback
from centuria.toolhost.tokens import TokenStore


def visit(url: str) -> int:
    """The status at the end of all redirects."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def browse(url: str) -> None:
    """A person who agrees."""

    def go() -> None:
        with suppress(OSError):
            visit(url)

    threading.Thread(target=go, daemon=True).start()


def nobody(url: str) -> None:
    """A person who does not look."""


def server_of(oauth: FakeOAuth, **fields: Any) -> ToolServer:
    return ToolServer("web", "web", url=oauth.url, **fields)


def hosting(server: ToolServer, folder: Path, consent: Consent | None = None) -> McpToolHost:
    """A host that knows the logins in `folder`."""
    timeouts = Timeouts(server_start=30)
    return McpToolHost([server], timeouts=timeouts, dice=random, tokens=TokenStore(folder), consent=consent)


async def log_in(server: ToolServer, folder: Path, person: Callable[[str], None] = browse, seconds: float = 20) -> str:
    """Log in as the command does. Returns why not, "" for success."""
    async with Loopback(person, seconds=seconds) as consent, hosting(server, folder, consent) as host:
        (state,) = host.servers()
        return state.reason


async def call(host: McpToolHost, tool: str = "echo", **arguments: Any) -> str:
    return (await host.call(f"web__{tool}", arguments, timeout=20)).text


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - of another process, or of a server that tells nobody
            await asyncio.sleep(0.01)
