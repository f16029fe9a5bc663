"""The public kit for tests of what calls models and tools: second implementations of each port, not mocks.

upstream    a model provider on loopback that answers as scripted, misbehaves as told, and keeps the books
scripted    a model that answers from a script
tools       a tool host of Python functions
journal     a journal without a disk, whose commits can be held back or made to fail
clock       virtual time for asyncio
torture     a table of faults for any client, and checks for any server
"""

from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal
from centuria.testing.limits import RateLimits
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
from centuria.testing.upstream import FakeUpstream, Seen

__all__ = [
    "Calls",
    "Cut",
    "Document",
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
    "virtual_clock",
]
