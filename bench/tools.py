"""Tool calls: 100 callers on one session, `echo`, as fast as they go, beside the bare SDK.

run.py uses `compare`, `judge` and `table`; each system is a process of its own:

python bench/tools.py --system {sdk,host,scheduler,durable} --transport {stdio,http} --url URL --mock PROGRAM
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from worker import peak_rss_mb

CALLERS = 100
#: The most CPU that one call may take with everything on, the disk too, as a multiple of the bare SDK's.
MOST_CPU = 1.3
NAMES = {
    "sdk": "bare MCP SDK",
    "host": "Centuria's tool host",
    "scheduler": "Centuria, scheduled",
    "durable": "Centuria, scheduled and on disk",
}
TRANSPORTS = {"http": "streamable HTTP", "stdio": "stdio"}
_BUILD = Path(__file__).parent / "build"

Call = Callable[[str, int], Awaitable[str]]


@asynccontextmanager
async def sdk(given: argparse.Namespace) -> AsyncIterator[Call]:
    """The bare SDK: its client over its own transports."""
    from mcp import Client, StdioServerParameters

    server = given.url if given.transport == "http" else StdioServerParameters(command=given.mock, args=["stdio"])
    async with Client(server) as client:
        await client.list_tools()

        async def call(text: str, _: int) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text  # type: ignore[union-attr]

        yield call


@asynccontextmanager
async def host(given: argparse.Namespace) -> AsyncIterator[Call]:
    """Centuria's host of tool servers, without the scheduler."""
    async with _host(given) as opened:

        async def call(text: str, _: int) -> str:
            return (await opened.call("mock__echo", {"text": text}, timeout=30)).text

        yield call


def _host(given: argparse.Namespace):
    from centuria.settings import Timeouts, ToolServer
    from centuria.toolhost import McpToolHost

    how = {"url": given.url} if given.transport == "http" else {"command": given.mock, "args": ("stdio",)}
    server = ToolServer("mock", "mock", limit=CALLERS, required=True, **how)
    return McpToolHost([server], timeouts=Timeouts(), dice=random.random)


@asynccontextmanager
async def scheduler(given: argparse.Namespace, *, durable: bool = False) -> AsyncIterator[Call]:
    """The whole way of a run's tool call: check, two slots, rows before and after it, call. `durable`: on disk."""
    from centuria.admission import Slots
    from centuria.core.calls import CallLedger
    from centuria.core.progress import Progress
    from centuria.core.retry import RetryPolicy
    from centuria.core.slots import SlotTable
    from centuria.journal import SqliteJournal
    from centuria.messages import CallKey, ToolCall
    from centuria.ports import Caller, Journal
    from centuria.scheduler import ToolScheduler
    from centuria.settings import Timeouts
    from centuria.stream import Stream
    from centuria.testing.journal import MemoryJournal

    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_BUILD))
        opened = await stack.enter_async_context(_host(given))
        journal: Journal = MemoryJournal()
        if durable:
            journal = SqliteJournal.create(Path(folder) / "journal.db", run="bench", name="bench")
        stack.push_async_callback(journal.aclose)
        stream = Stream(journal, clock=time.time, progress=Progress())
        tools = ToolScheduler(
            host=opened,
            slots=Slots(SlotTable(), stream),
            calls=CallLedger(),
            stream=stream,
            retry=RetryPolicy(),
            timeouts=Timeouts(),
            dice=random.random,
            spill=lambda key, text: "",
            result_chars=20_000,
        )
        view, turns = tools.view(), count(1)

        async def call(text: str, index: int) -> str:
            agent = f"agent-{index}"
            caller = Caller(CallKey(agent, 0, next(turns), 1), agent, index)
            return (await view.call(ToolCall("id", "mock__echo", json.dumps({"text": text})), caller)).text

        yield call


SYSTEMS = {"sdk": sdk, "host": host, "scheduler": scheduler, "durable": partial(scheduler, durable=True)}


async def rounds_of(call: Call, calls: int) -> tuple[float, float]:
    """Wall and CPU seconds of so many calls. Each caller checks that it gets its own answer."""
    numbers = iter(range(calls))

    async def caller(index: int) -> None:
        for number in numbers:
            text = f"nonce {index} {number}"
            if await call(text, index) != text:
                raise AssertionError(f"{text!r} had another's answer")

    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for index in range(CALLERS):
            group.create_task(caller(index))
    return time.perf_counter() - wall, time.process_time() - cpu


async def main(given: argparse.Namespace) -> None:
    _BUILD.mkdir(exist_ok=True)
    async with SYSTEMS[given.system](given) as call:
        await rounds_of(call, 2 * CALLERS)
        wall, cpu = await rounds_of(call, given.calls)
    found = {"rate": given.calls / wall, "cpu_ms": 1000 * cpu / given.calls, "rss_mb": peak_rss_mb()}
    print(json.dumps(found), flush=True)


# -- the driver's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolRow:
    """The medians of one system over one transport: calls a second, CPU milliseconds a call."""

    transport: str
    system: str
    rounds: int
    rate: float
    cpu_ms: float
    rss_mb: float


class Failed(Exception):
    """A system could not be measured."""


def compare(url: str, program: Path, rounds: int, say: Callable[[str], None]) -> list[ToolRow]:
    """All systems over both transports, alternating."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {(t, s): [] for t in TRANSPORTS for s in NAMES}
    for number in range(rounds):
        for transport, system in found:
            say(f"round {number + 1} of {rounds}: tool calls over {TRANSPORTS[transport]}, {NAMES[system]}")
            found[transport, system].append(_measure(url, program, transport, system))
    return [
        ToolRow(*place, len(runs), *(median(run[name] for run in runs) for name in ("rate", "cpu_ms", "rss_mb")))
        for place, runs in found.items()
    ]


def _measure(url: str, program: Path, transport: str, system: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--system", system, "--transport", transport]
    command += ["--url", f"{url}/mcp", "--mock", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if ended.returncode:
        what = f"{NAMES[system]} over {TRANSPORTS[transport]} ended with {ended.returncode}"
        raise Failed(f"{what}:\n{ended.stderr[-3000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def judge(rows: Sequence[ToolRow]) -> list[tuple[str, str, str, bool]]:
    """Targets: what, measured, wanted, met."""
    at = {(row.transport, row.system): row for row in rows}
    targets = []
    for transport in TRANSPORTS:
        bare, host, full = (at[transport, system] for system in ("sdk", "host", "durable"))
        for what, row in (("tool host", host), ("scheduled calls", full)):
            rate = row.rate / bare.rate
            targets.append((f"{what} over {transport}, calls/s", f"{rate:.2f} x the SDK", ">= 1 x", rate >= 1))
        cpu = full.cpu_ms / bare.cpu_ms
        targets.append(
            (f"scheduled calls over {transport}, CPU", f"{cpu:.2f} x the SDK", f"<= {MOST_CPU} x", cpu <= MOST_CPU)
        )
    return targets


def table(rows: Sequence[ToolRow]) -> list[str]:
    lines = ["", f"Tool calls: {CALLERS} callers on one session, echo", ""]
    lines.append(f"{'':<42}{'calls/s':>9}{'CPU ms/call':>13}{'x SDK':>7}{'peak MB':>9}")
    for row in rows:
        bare = next(other.cpu_ms for other in rows if (other.transport, other.system) == (row.transport, "sdk"))
        name = f"{TRANSPORTS[row.transport]}, {NAMES[row.system]}"
        lines.append(f"{name:<42}{row.rate:>9.0f}{row.cpu_ms:>13.3f}{row.cpu_ms / bare:>7.2f}{row.rss_mb:>9.0f}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--transport", choices=("stdio", "http"), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--mock", required=True)
    parser.add_argument("--calls", type=int, default=2000)
    asyncio.run(main(parser.parse_args()))
