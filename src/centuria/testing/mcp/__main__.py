"""`python -m centuria.testing.mcp`: the fake MCP server as a process, over stdio or streamable HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from centuria.testing.mcp.books import Books
from centuria.testing.mcp.faults import FAULTS, Carrier, Plan
from centuria.testing.mcp.service import ERAS, Service
from centuria.testing.mcp.toolbox import TOOLS, Toolbox

_EPILOG = """\
examples:
  python -m centuria.testing.mcp                                     a right server over stdio, both protocol eras
  python -m centuria.testing.mcp --faults crash@3 junk               noise at every call, and the third kills it
  python -m centuria.testing.mcp --faults slow=0.1-3@20% --seed 7    a fifth of the calls is slow, always the same ones
  python -m centuria.testing.mcp --http 8080 --faults 429=2@/10      streamable HTTP: every tenth call is refused
  python -m centuria.testing.mcp --books seen.jsonl --faults mute:echo@2-5
in an .mcp.json:
  {{"mcpServers": {{"fake": {{"command": "python", "args": ["-m", "centuria.testing.mcp", "--faults", "crash@3"]}}}}}}

faults: NAME[=VALUE][:TOOL][@WHEN], WHEN one of 3, 3-5, 3-, 20%, /10 (each tenth); without it, always
{faults}
tools: {tools}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    over: Carrier = "http" if options.http is not None else "stdio"
    eras = ERAS if options.era == "both" else (options.era,)
    try:
        plan = Plan.of(options.faults, options.seed, over)
    except ValueError as error:
        _parser().error(str(error))
    books = Books(options.books)
    if over == "http":
        from centuria.testing.mcp.http import FakeMcp, serve_for_ever

        server = FakeMcp(
            plan=plan,
            books=books,
            tools=options.tools,
            eras=eras,
            port=options.http,
            at_once=options.at_once,
            answers=options.answers,
        )
        with suppress(KeyboardInterrupt):
            asyncio.run(serve_for_ever(server))
        return 0
    from centuria.testing.mcp.stdio import serve

    service = Service(plan, eras=eras, toolbox=Toolbox(options.tools), books=books)
    if "stubborn" in service.begun:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _burn(service.begun.get("busy-start", 0.0))
    code = asyncio.run(serve(service))
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait for input that never comes


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _parser() -> argparse.ArgumentParser:
    faults = "".join(
        f"  {kind.name:<15} {kind.does}{f' ({kind.value:g} {kind.unit})' if kind.value is not None else ''}"
        f"{'' if len(kind.over) > 1 else f' [{kind.over[0]} only]'}\n"
        for kind in FAULTS.values()
    )
    parser = argparse.ArgumentParser(
        prog="python -m centuria.testing.mcp",
        description="An MCP server with deterministic tools that misbehaves as told, the same way for the same seed.",
        epilog=_EPILOG.format(faults=faults, tools=", ".join(TOOLS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--faults", metavar="FAULT", nargs="+", default=[], help="what goes wrong, and when (see below)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="which calls of a share are met (default: 0)")
    parser.add_argument("--era", choices=[*ERAS, "both"], default="both", help="the protocol (default: both)")
    parser.add_argument("--tools", metavar="NAME", nargs="+", help="the tools that it lists (default: all)")
    parser.add_argument(
        "--books", metavar="FILE", type=Path, help="keep what is seen and run in FILE, restarts included"
    )
    parser.add_argument(
        "--http", metavar="PORT", type=int, help="streamable HTTP on loopback, 0: any port; says its URL"
    )
    parser.add_argument("--at-once", metavar="N", type=int, help="with --http: more calls at once are refused (429)")
    parser.add_argument(
        "--answers", choices=["json", "sse"], default="json", help="with --http: how calls are answered"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
