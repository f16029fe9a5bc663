"""The public kit for tests of what calls models and tools: second implementations of each port, not mocks.

upstream    a model provider on loopback that answers as scripted, misbehaves as told, and keeps the books
transport   the same in memory, on virtual time, for ten thousand calls
scripted    a model that answers from a script
tools       a tool host of Python functions
mcp         an MCP server with seeded faults, over stdio and streamable HTTP
journal     a journal without a disk, whose commits can be held back or made to fail
oauth       an MCP server that wants a login, with its authorization server
clock       virtual time for asyncio
torture     a table of faults for any client, and checks for any server

Public names are found when they are first used: the fake MCP server is a process that is started often.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: Public name -> the module that defines it.
_PUBLIC = {
    "Calls": "replies",
    "Cut": "replies",
    "Document": "replies",
    "FakeMcp": "mcp",
    "FakeOAuth": "oauth",
    "FakeUpstream": "upstream",
    "HttpError": "replies",
    "Late": "replies",
    "LocalToolHost": "tools",
    "MemoryJournal": "journal",
    "RateLimits": "limits",
    "Raw": "replies",
    "Reply": "replies",
    "Reset": "replies",
    "Script": "replies",
    "ScriptedModel": "scripted",
    "Seen": "connection",
    "Silence": "replies",
    "Stall": "replies",
    "Text": "replies",
    "Verbatim": "replies",
    "Written": "replies",
    "fake_mcp_command": "mcp",
    "virtual_clock": "clock",
}

__all__ = [
    "Calls",
    "Cut",
    "Document",
    "FakeMcp",
    "FakeOAuth",
    "FakeUpstream",
    "HttpError",
    "Late",
    "LocalToolHost",
    "MemoryJournal",
    "RateLimits",
    "Raw",
    "Reply",
    "Reset",
    "Script",
    "ScriptedModel",
    "Seen",
    "Silence",
    "Stall",
    "Text",
    "Verbatim",
    "Written",
    "fake_mcp_command",
    "virtual_clock",
]

if TYPE_CHECKING:  # what type checkers see; a test proves that both lists are one
    from centuria.testing.clock import virtual_clock
    from centuria.testing.connection import Seen
    from centuria.testing.journal import MemoryJournal
    from centuria.testing.limits import RateLimits
    from centuria.testing.mcp import FakeMcp, fake_mcp_command
    from centuria.testing.oauth import FakeOAuth
    from centuria.testing.replies import (
        Calls,
        Cut,
        Document,
        HttpError,
        Late,
        Raw,
        Reply,
        Reset,
        Script,
        Silence,
        Stall,
        Text,
        Verbatim,
        Written,
    )
    from centuria.testing.scripted import ScriptedModel
    from centuria.testing.tools import LocalToolHost
    from centuria.testing.upstream import FakeUpstream


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'centuria.testing' has no attribute {name!r}")
    value = getattr(import_module(f"centuria.testing.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
