"""What the measured processes share: their arguments, the window in which they are measured, and how they report it."""

from __future__ import annotations

import argparse
import json
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Milliseconds that the mock takes for one model call, and calls an agent makes one after the other.
LATENCY_MS, CALLS = 420, 2
#: Pieces of text in a streamed answer.
CHUNKS = 20
MODEL = f"kimi-mock_k1_l{LATENCY_MS}_c{CHUNKS}_techo"
SYSTEM = "You are one of many subagents that work in parallel on one job. Use the tools that you are given."
PROMPT = "Analysis task #{n}: a market report for customer {n} covering size, growth, competitors, pricing and risks."


@dataclass(frozen=True, slots=True)
class Arguments:
    """`url` is the mock's; `tools` says whether its tool server is offered; `stream` is the floor's alone."""

    url: str
    agents: int
    tools: bool
    stream: bool


def arguments() -> Arguments:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--stream", action="store_true")
    return Arguments(**vars(parser.parse_args()))


def cpu_seconds() -> float:
    """This process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_rss_mb() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


class Window:
    """Wall and CPU seconds from its making to `close`."""

    def __init__(self) -> None:
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()
        self.wall = self.cpu = 0.0

    def close(self) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, cpu_seconds() - self._cpu


def report(window: Window, *, agents: int, ok: int, import_s: float, **more: Any) -> None:
    """The one line that the driver reads."""
    found = {
        "wall": window.wall,
        "cpu_ms": 1000 * window.cpu / agents,
        "rss_mb": peak_rss_mb(),
        "import_s": import_s,
        "ok": ok,
        **more,
    }
    print(json.dumps(found), flush=True)
