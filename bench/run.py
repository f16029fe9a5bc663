"""`make bench`: Centuria beside a bare aiohttp loop, in one run, on this machine. See README.md for what is measured.

    python bench/run.py [--rounds 3] [--agents 100] [--quick] [--json]

Exit codes: 0 every target is met, 1 one is missed, 2 it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from worker import CALLS, LATENCY_MS

import tools

BENCH = Path(__file__).parent
BUILD, RESULTS = BENCH / "build", BENCH / "results"
#: Seconds that one agent's model calls take, whatever runs them.
CRITICAL_PATH = CALLS * LATENCY_MS / 1000
#: The most that wall time may be, as a multiple of the critical path.
WALL = {"a": 1.3, "b": 1.5}
WORKLOADS = {
    "a": "two model calls, no tool (the tool that the model asks for does not exist, and it is told so)",
    "b": "model call, one MCP tool call over streamable HTTP, model call",
}
SYSTEMS = {"floor": "aiohttp loop", "streaming floor": "aiohttp loop, streamed", "centuria": "Centuria"}
IMPORT_S, HELP_S = 0.3, 0.4
MANY = 1000
_PATIENCE = 600


class CannotMeasure(Exception):
    """Something is missing; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process. `wall` and `cpu_ms` (an agent) are of the window, `whole_*` of the process, exec to exit."""

    wall: float
    cpu_ms: float
    rss_mb: float
    import_s: float
    ok: int
    inflight_peak: int
    whole_wall: float
    whole_cpu: float


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one system on one workload."""

    workload: str
    system: str
    agents: int
    rounds: int
    wall: float
    cpu_ms: float
    rss_mb: float
    import_s: float
    inflight_peak: int
    whole_wall: float
    whole_cpu: float

    @property
    def ratio(self) -> float:
        return self.wall / CRITICAL_PATH


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    measured: str
    wanted: str
    met: bool


@dataclass(slots=True)
class Results:
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    tool_calls: list[tools.ToolRow] = field(default_factory=list)
    startup: dict[str, float] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)


# -- the mock --------------------------------------------------------------------------------------------------------


def build_mock() -> Path:
    """Compile the mock if its source is newer."""
    source, program = BENCH / "mock.cpp", BUILD / "mock"
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    if sys.platform != "linux":
        raise CannotMeasure("The mock server uses epoll: the benchmark runs on Linux only.")
    compiler = shutil.which("g++")
    if compiler is None:
        raise CannotMeasure("g++ is missing, which builds bench/mock.cpp. Install it: sudo apt-get install g++")
    BUILD.mkdir(exist_ok=True)
    built = subprocess.run(
        [compiler, "-O2", "-std=c++20", "-o", str(program), str(source)], capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise CannotMeasure(f"g++ cannot build bench/mock.cpp (version 10 or newer is needed):\n{built.stderr}")
    return program


@contextmanager
def mock() -> Iterator[str]:
    """The mock on a free port, for as long as the block lasts: its URL."""
    process = subprocess.Popen([build_mock(), "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise CannotMeasure("The mock server did not start.")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def ask(url: str, *, post: bool = False) -> Any:
    with urllib.request.urlopen(url, data=b"" if post else None, timeout=10) as answer:
        return json.load(answer)


# -- measuring -------------------------------------------------------------------------------------------------------


def measure(url: str, workload: str, system: str, agents: int) -> Run:
    """One system on one workload, as a process of its own."""
    script = "swarm.py" if system == "centuria" else "floor.py"
    command = [sys.executable, str(BENCH / script), "--url", url, "--agents", str(agents)]
    command += ["--tools"] if workload == "b" else []
    command += ["--stream"] if system == "streaming floor" else []
    ask(f"{url}/reset", post=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    whole, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise CannotMeasure(f"{SYSTEMS[system]} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    if found["ok"] != agents:
        raise CannotMeasure(f"Only {found['ok']} of {agents} agents of {SYSTEMS[system]} ended well.")
    return Run(
        wall=found["wall"],
        cpu_ms=found["cpu_ms"],
        rss_mb=found["rss_mb"],
        import_s=found["import_s"],
        ok=found["ok"],
        inflight_peak=ask(f"{url}/stats")["inflight_peak"],
        whole_wall=whole,
        whole_cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def medians(workload: str, system: str, agents: int, runs: Sequence[Run]) -> Row:
    middle = {
        name: median(getattr(run, name) for run in runs)
        for name in ("wall", "cpu_ms", "rss_mb", "import_s", "whole_wall", "whole_cpu")
    }
    peak = min(run.inflight_peak for run in runs)
    return Row(workload, system, agents, len(runs), inflight_peak=peak, **middle)


def compare(url: str, agents: int, rounds: int) -> list[Row]:
    """All systems on all workloads, alternating, so that whatever else the machine does meets all of them."""
    runs: dict[tuple[str, str], list[Run]] = {(workload, system): [] for workload in WORKLOADS for system in SYSTEMS}
    for number in range(rounds):
        for workload, system in runs:
            say(f"round {number + 1} of {rounds}: {agents} agents, ({workload}), {SYSTEMS[system]}")
            runs[workload, system].append(measure(url, workload, system, agents))
    return [medians(workload, system, agents, found) for (workload, system), found in runs.items()]


def startup(rounds: int) -> dict[str, float]:
    """Median seconds of whole processes, from exec to exit."""
    python = sys.executable
    commands = {
        "python, doing nothing": [python, "-c", ""],
        "import centuria": [python, "-c", "import centuria"],
        "centuria --help": [str(Path(python).parent / "centuria"), "--help"],
        "from centuria import Swarm": [python, "-c", "from centuria import Swarm"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(max(5, rounds)):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
            seconds[name].append(time.perf_counter() - began)
    return {name: median(found) for name, found in seconds.items()}


def judge(results: Results, agents: int) -> list[Target]:
    targets = []
    for row in results.rows:
        if row.system != "centuria" or row.agents != agents:
            continue
        peak, most = row.inflight_peak, WALL[row.workload]
        targets.append(Target(f"({row.workload}) peak in flight", str(peak), f"= {agents}", peak == agents))
        wall = Target(f"({row.workload}) wall / critical path", f"{row.ratio:.2f}", f"<= {most}", row.ratio <= most)
        targets.append(wall)
    targets += [Target(*target) for target in tools.judge(results.tool_calls)]
    for name, most in (("import centuria", IMPORT_S), ("centuria --help", HELP_S)):
        took = results.startup[name]
        targets.append(Target(f"{name}, whole process", f"{took:.2f} s", f"< {most} s", took < most))
    return targets


# -- telling ---------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(results: Results) -> str:
    head = (
        "",
        "wall s",
        "/ critical path",
        "CPU ms/agent",
        "x floor",
        "peak MB",
        "peak in flight",
        "import s",
        "whole s",
    )
    lines: list[str] = []
    for workload, agents in dict.fromkeys((row.workload, row.agents) for row in results.rows):
        rows = [row for row in results.rows if (row.workload, row.agents) == (workload, agents)]
        floor = next(row.cpu_ms for row in rows if row.system == "floor")
        once = ", once, as information" if agents == MANY else ""
        lines += ["", f"({workload}) {agents:,} agents: {WORKLOADS[workload]}{once}", ""]
        cells = [head] + [
            (
                SYSTEMS[row.system],
                f"{row.wall:.2f}",
                f"{row.ratio:.2f}",
                f"{row.cpu_ms:.2f}",
                f"{row.cpu_ms / floor:.1f}",
                f"{row.rss_mb:.0f}",
                str(row.inflight_peak),
                f"{row.import_s:.2f}",
                f"{row.whole_wall:.2f}",
            )
            for row in rows
        ]
        widths = [max(len(cell[column]) for cell in cells) for column in range(len(head))]
        for cell in cells:
            lines.append(
                "  ".join([cell[0].ljust(widths[0])] + [t.rjust(w) for t, w in zip(cell[1:], widths[1:], strict=True)])
            )
    lines += tools.table(results.tool_calls)
    lines += [
        "",
        "Startup, whole processes: " + " · ".join(f"{name} {took:.2f} s" for name, took in results.startup.items()),
    ]
    lines += ["", f"Targets (critical path {CRITICAL_PATH:.2f} s):"]
    lines += [f"  {'ok ' if t.met else 'NOT'}  {t.what}: {t.measured} (wanted {t.wanted})" for t in results.targets]
    lines += ["", NOTE]
    return "\n".join(lines)


NOTE = """\
wall and CPU are those of a window in a warm process (one agent has run before): from the start of the fan-out to its
last outcome. For Centuria that is from the start of the run's work, tool servers connected, to the last outcome in the
event stream, with the run's journal, slots, ledger and result files. "whole s" is the process from exec to exit:
imports, the warm-up, opening and closing the session and the tool host, merge and report.html. Compare the ratios:
absolute times hold for one machine."""


def machine() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Centuria beside a bare aiohttp loop.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the medians are taken (default 3)")
    parser.add_argument("--agents", type=int, default=100, help="agents at once (default 100)")
    parser.add_argument("--quick", action="store_true", help="one round, and no thousand agents")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    if options.rounds < 1 or options.agents < 1:
        parser.error("--rounds and --agents must be 1 or more")
    return options


def main() -> int:
    options = arguments()
    rounds = 1 if options.quick else options.rounds
    results = Results(machine())
    try:
        with mock() as url:
            results.rows += compare(url, options.agents, rounds)
            if not options.quick and options.agents < MANY:
                say(f"{MANY:,} agents, once")
                results.rows += compare(url, MANY, 1)
            results.tool_calls = tools.compare(url, build_mock(), rounds, say)
        results.startup = startup(rounds)
    except (CannotMeasure, tools.Failed) as error:
        say(f"bench: {error}")
        return 2
    results.targets = judge(results, options.agents)
    text = json.dumps(asdict(results), indent=1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(text + "\n")
    print(text if options.json else table(results))
    return 0 if all(target.met for target in results.targets) else 1


if __name__ == "__main__":
    sys.exit(main())
