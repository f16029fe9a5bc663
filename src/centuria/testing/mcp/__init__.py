"""A fake MCP server with seeded, scriptable faults: put your own MCP client on it.

As a process, over stdio or streamable HTTP (`python -m centuria.testing.mcp --help` lists the faults):

    python -m centuria.testing.mcp --faults crash@3 slow=0.1-3@20% --seed 7 --books seen.jsonl

or inside a test, over streamable HTTP:

    async with FakeMcp("429=0.5@/10", "half@3") as server:
        ...  # a client of `server.url`
    assert server.books.calls["echo"] == 20

It speaks JSON-RPC by itself, in both eras of the protocol (2025-11-25, 2026-07-28), because a server that can break
the protocol cannot be built on a library that keeps it. What it does depends on the seed and the number of the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from centuria.testing.mcp.books import Books
from centuria.testing.mcp.faults import FAULTS, Fault, FaultKind, Plan, as_markdown, parse_fault
from centuria.testing.mcp.http import FakeMcp
from centuria.testing.mcp.service import ERAS
from centuria.testing.mcp.toolbox import TOOLS

__all__ = [
    "ERAS",
    "FAULTS",
    "TOOLS",
    "Books",
    "FakeMcp",
    "Fault",
    "FaultKind",
    "Plan",
    "as_markdown",
    "fake_mcp_command",
    "parse_fault",
]


def fake_mcp_command(
    *faults: str,
    seed: int = 0,
    era: str = "both",
    tools: Sequence[str] = (),
    books: Path | None = None,
) -> list[str]:
    """The command line of the server over stdio. Raises `ValueError` for a fault that does not exist over stdio."""
    Plan.of(faults, seed, "stdio")
    command = [sys.executable, "-m", "centuria.testing.mcp", "--seed", str(seed), "--era", era]
    command += ["--books", str(books)] if books is not None else []
    command += ["--tools", *tools] if tools else []
    return [*command, "--faults", *faults] if faults else command
