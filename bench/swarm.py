"""Centuria through its public `Swarm`, with everything on: durable commits, a ledger with a price, slots, tools."""

from __future__ import annotations

import time

began = time.perf_counter()

import asyncio
import json
import os
import tempfile
from pathlib import Path

from worker import MODEL, PROMPT, SYSTEM, Arguments, Window, arguments, report

from centuria import Record, Status, Swarm
from centuria.events import PhaseStarted, TaskEnded

import_s = time.perf_counter() - began
_BUILD = Path(__file__).parent / "build"


def write_job(folder: Path, given: Arguments, agents: int) -> Path:
    """A job file of so many rows, priced like Kimi K2.5."""
    rows = folder / f"rows-{agents}.jsonl"
    rows.write_text("".join(json.dumps({"n": str(number)}) + "\n" for number in range(agents)))
    tools = ""
    if given.tools:
        tools = f'[tools.mock]\nurl = "{given.url}/mcp"\nlimit = {min(agents, 100)}\nrequired = true\n'
    path = folder / f"job-{agents}.toml"
    path.write_text(
        f"""
[job]
name = "bench"
prompt = {json.dumps(PROMPT)}
system = {json.dumps(SYSTEM)}
rows = "{rows.name}"
id = "n"
max_tokens = 4096
[model]
name = "{MODEL}"
provider = "custom"
base_url = "{given.url}/v1"
[prices."{MODEL}"]
input = 0.60
output = 3.00
[limits]
budget = {max(100, agents)}
agents = {agents}
concurrency = {agents}
{tools}"""
    )
    return path


async def follow(swarm: Swarm, job: Path, agents: int) -> tuple[Window, int, int]:
    """Run a job: its window from the start of its work to its last outcome, agents that ended ok, and its records."""
    window, ok, open_, records = Window(), 0, agents, 0
    async for item in swarm.stream(job):
        if not isinstance(item, Record):
            continue
        records = item.seq
        match item.event:
            case PhaseStarted(phase="work"):
                window = Window()
            case TaskEnded(outcome=outcome):
                ok += outcome.status is Status.OK and outcome.cost > 0
                open_ -= 1
                if not open_:
                    window.close()
    return window, ok, records


async def main(given: Arguments) -> None:
    _BUILD.mkdir(exist_ok=True)
    # On a real disk, where a commit costs what it costs: temporary folders are often in memory.
    with tempfile.TemporaryDirectory(dir=_BUILD) as name:
        folder = Path(name)
        async with Swarm(runs=folder / "runs", env={"PATH": os.environ["PATH"]}) as swarm:
            await follow(swarm, write_job(folder, given, 1), 1)
            window, ok, records = await follow(swarm, write_job(folder, given, given.agents), given.agents)
    report(window, agents=given.agents, ok=ok, import_s=import_s, records=records)


asyncio.run(main(arguments()))
