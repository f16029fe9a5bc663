"""Gateways side by side: Centuria's with everything on, a bare ASGI proxy, and LiteLLM's and Portkey's.

Each is one process (with its children) on one core; the mock upstream and the load are on the other.
    python bench/gateways.py [--rounds 3] [--peers]

Exit codes: 0 every target is met, 1 one is missed, 2 it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from setups import BENCH, BUILD, NAMES, STREAMED, WHOLE, Gateway, free_port, gateways

CONNECTIONS, BURST, SECONDS = 32, 100, 3.0
#: Targets: microseconds of CPU a request, requests a second, and milliseconds.
MOST_CPU_US, LEAST_RATE, MOST_ADDED_MS, MOST_FIRST_MS = 400, 2_000, 0.5, 100
#: The one rate at which all are measured that can do it.
HALF_OF_REQUIRED = LEAST_RATE // 2
#: What is measured, its head in the table, and how it is written.
COLUMNS = (
    ("cpu_us", "CPU us", "{:.0f}"),
    ("x_bare", "x bare", "{:.2f}"),
    ("rate", "requests/s", "{:,.0f}"),
    ("own_p50", "p50 own half", "{:.2f} ms"),
    ("own_p99", "p99 own half", "{:.2f} ms"),
    ("common_p50", f"p50 {HALF_OF_REQUIRED:,}/s", "{:.2f} ms"),
    ("common_p99", f"p99 {HALF_OF_REQUIRED:,}/s", "{:.2f} ms"),
    ("first_p99", "first token p99", "{:.0f} ms"),
    ("rss_mb", "MB", "{:.0f}"),
)
_TICK = os.sysconf("SC_CLK_TCK")
_STARTS = 90.0


class Failed(Exception):
    """A gateway could not be measured."""


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """The medians of one gateway, by the columns' names; one that it could not be measured in is not there."""

    name: str
    rounds: int
    figures: Mapping[str, float]


# -- measuring -------------------------------------------------------------------------------------------------------


def cores() -> tuple[set[int], set[int]]:
    """One core for what is measured, the others for the upstream and the load. Raises `Failed`."""
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        raise Failed("Gateways are measured on two cores: one for the gateway, one for what drives it.")
    return {there[0]}, set(there[1:])


@contextmanager
def running(gateway: Gateway, core: set[int]) -> Iterator[int]:
    """The gateway on its core, answering: its process id."""
    log = (BUILD / f"{gateway.name}.log").open("wb")
    process = subprocess.Popen(
        gateway.command,
        stdout=log,
        stderr=log,
        env={**os.environ, **gateway.env},
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    try:
        wait_for(gateway, process)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def wait_for(gateway: Gateway, process: subprocess.Popen[bytes]) -> None:
    """Until it answers a request. Raises `Failed`."""
    until = time.monotonic() + _STARTS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            headers = dict(header.split(": ", 1) for header in gateway.headers) | {"content-type": "application/json"}
            url = f"http://127.0.0.1:{gateway.port}{gateway.path}"
            with urllib.request.urlopen(urllib.request.Request(url, body(WHOLE), headers), timeout=10) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise Failed(f"{NAMES[gateway.name]} does not answer; see {gateway.name}.log in the build folder.")


def body(model: str) -> bytes:
    message = {"role": "user", "content": "A market report on one company, in two sentences."}
    return json.dumps({"model": model, "messages": [message], "max_tokens": 200, "stream": model == STREAMED}).encode()


def load(port: int, gateway: Gateway, model: str, connections: int, seconds: float, *more: str) -> dict[str, float]:
    file = BUILD / f"{model}.json"
    file.write_bytes(body(model))
    headers = [flag for header in gateway.headers for flag in ("--header", header)]
    command = [str(BUILD / "load"), str(port), gateway.path, str(file), str(connections), str(seconds), *more, *headers]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    found: dict[str, float] = json.loads(ended.stdout)
    if found["failed"] or found["refused"] or not found["ok"]:
        counts = f"{found['failed']} requests failed, {found['refused']} were refused, {found['ok']} were answered"
        raise Failed(f"{counts} ({NAMES[gateway.name]}, {model})")
    return found


def measure(gateway: Gateway, mock_port: int, core: set[int]) -> tuple[dict[str, float], list[str]]:
    """One gateway, and what it could not do: that much of a peer is a remark, and the rest is measured all the same."""
    found: dict[str, float] = {}
    remarks: list[str] = []
    with running(gateway, core) as pid:
        for step in (as_it_can, at_half_of_its_own, at_the_common_rate, a_burst, after_all):
            try:
                found |= step(gateway, mock_port, pid, found)
            except (Failed, OSError) as error:
                if not gateway.peer:
                    raise
                remarks.append(f"{NAMES[gateway.name]}, {step.__name__.replace('_', ' ')}: {error}")
    return found, remarks


def as_it_can(gateway: Gateway, _mock_port: int, pid: int, _found: Mapping[str, float]) -> dict[str, float]:
    """As much as it takes."""
    load(gateway.port, gateway, WHOLE, CONNECTIONS, 1.5)
    before = cpu_of(pid)
    full = load(gateway.port, gateway, WHOLE, CONNECTIONS, SECONDS)
    return {"cpu_us": 1e6 * (cpu_of(pid) - before) / full["ok"], "rate": full["rate"]}


def at_half_of_its_own(gateway: Gateway, mock_port: int, _pid: int, found: Mapping[str, float]) -> dict[str, float]:
    if "rate" not in found:
        return {}
    p50, p99 = added(gateway, mock_port, found["rate"] / 2)
    return {"own_p50": p50, "own_p99": p99}


def at_the_common_rate(gateway: Gateway, mock_port: int, _pid: int, found: Mapping[str, float]) -> dict[str, float]:
    if found.get("rate", 0) < HALF_OF_REQUIRED:
        return {}
    p50, p99 = added(gateway, mock_port, HALF_OF_REQUIRED)
    return {"common_p50": p50, "common_p99": p99}


def a_burst(gateway: Gateway, _mock_port: int, _pid: int, _found: Mapping[str, float]) -> dict[str, float]:
    """Streams that begin at once, after a burst that is not counted."""
    load(gateway.port, gateway, STREAMED, BURST, 20, "--once")
    bursts = [load(gateway.port, gateway, STREAMED, BURST, 20, "--once")["first_p99"] for _ in range(3)]
    return {"first_p99": median(bursts)}


def after_all(_gateway: Gateway, _mock_port: int, pid: int, _found: Mapping[str, float]) -> dict[str, float]:
    return {"rss_mb": rss_of(pid)}


def added(gateway: Gateway, mock_port: int, rate: float) -> tuple[float, float]:
    """Milliseconds beyond the upstream itself at this rate: p50 and p99."""
    at = ("--rate", f"{rate:.0f}")
    through = load(gateway.port, gateway, WHOLE, CONNECTIONS, SECONDS, *at)
    direct = load(mock_port, Gateway("bare", (), mock_port), WHOLE, CONNECTIONS, 1.0, *at)
    return through["p50"] - direct["p50"], through["p99"] - direct["p99"]


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process and its children so far."""
    total = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


def rss_of(pid: int) -> float:
    """Megabytes in memory."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def compare(
    mock: str, rounds: int, say: Callable[[str], None], *, peers: bool = False
) -> tuple[list[GatewayRow], list[str]]:
    """All gateways, alternating, and remarks about what could not be measured."""
    core, rest = cores()
    build_load()
    port = free_port()
    upstream = subprocess.Popen([mock, str(port)], stdout=subprocess.DEVNULL)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(upstream.pid, rest)
        os.sched_setaffinity(0, rest)
        every = gateways(f"http://127.0.0.1:{port}", peers=peers, say=say)
        remarks = [f"{NAMES[each.name]} is not measured: {each.missing}" for each in every if each.missing]
        there = [each for each in every if not each.missing]
        found: dict[str, list[dict[str, float]]] = {each.name: [] for each in there}
        for number in range(rounds):
            for each in there:
                say(f"round {number + 1} of {rounds}: gateways, {NAMES[each.name]}")
                figures, more = attempt(each, port, core)
                if upstream.poll() is not None:
                    raise Failed(f"The mock upstream ended with {upstream.returncode}, so nothing can be measured.")
                found[each.name].append(figures)
                remarks += more
    finally:
        os.sched_setaffinity(0, before)
        upstream.kill()
        upstream.wait()
    return [medians(name, runs) for name, runs in found.items() if any(runs)], list(dict.fromkeys(remarks))


def attempt(gateway: Gateway, mock_port: int, core: set[int]) -> tuple[dict[str, float], list[str]]:
    """A peer that does not start has no figures; one of ours is a failure of the whole. Raises `Failed`."""
    try:
        return measure(gateway, mock_port, core)
    except Failed as error:
        if not gateway.peer:
            raise
        return {}, [str(error)]


def medians(name: str, runs: Sequence[Mapping[str, float]]) -> GatewayRow:
    names = dict.fromkeys(name for run in runs for name in run)
    figures = {what: median(run[what] for run in runs if what in run) for what in names}
    return GatewayRow(name, len(runs), figures)


def build_load() -> None:
    """Compile the load generator if its source is newer. Raises `Failed`."""
    source, program = BENCH / "load.cpp", BUILD / "load"
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return
    command = ["g++", "-O2", "-std=c++20", "-o", str(program), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Failed(f"g++ cannot build bench/load.cpp:\n{built.stderr}")


# -- judging and telling ---------------------------------------------------------------------------------------------


def judge(rows: Sequence[GatewayRow]) -> list[tuple[str, str, str, bool]]:
    """Targets: what, measured, wanted, met."""
    own = next(row for row in rows if row.name == "centuria").figures
    most = (
        ("gateway, CPU a request", "cpu_us", "{:.0f} us", MOST_CPU_US),
        ("gateway, added p50 at half of its own rate", "own_p50", "{:.2f} ms", MOST_ADDED_MS),
        (f"gateway, added p50 at {HALF_OF_REQUIRED:,}/s", "common_p50", "{:.2f} ms", MOST_ADDED_MS),
        (f"gateway, first token of {BURST} streams, p99", "first_p99", "{:.0f} ms", MOST_FIRST_MS),
    )
    rate = ("gateway, requests on one core", f"{own['rate']:,.0f}/s", f">= {LEAST_RATE:,}/s", own["rate"] >= LEAST_RATE)
    limits = [
        (what, written(own, name, form), f"<= {limit} {form[-2:]}", own.get(name, float("inf")) <= limit)
        for what, name, form, limit in most
    ]
    return [rate, *limits]


def written(figures: Mapping[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else "-"


def table(rows: Sequence[GatewayRow], remarks: Sequence[str]) -> list[str]:
    lines = [
        "",
        f"Gateways on one core: {CONNECTIONS} connections, an upstream that answers at once; {BURST} streams at once.",
        f"p50 and p99: added latency, at half of what each took at most, and at {HALF_OF_REQUIRED:,}/s for all.",
        "",
        f"{'':<22}" + "".join(f"{head:>17}" for _, head, _ in COLUMNS),
    ]
    bare = next(row.figures["cpu_us"] for row in rows if row.name == "bare")
    for row in rows:
        beside = {"x_bare": row.figures["cpu_us"] / bare} if "cpu_us" in row.figures else {}
        cells = (written({**row.figures, **beside}, name, form) for name, _, form in COLUMNS)
        lines.append(f"{NAMES[row.name]:<22}" + "".join(f"{cell:>17}" for cell in cells))
    return lines + [f"  {remark}" for remark in remarks]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/gateways.py", description="Gateways side by side, each on one core.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the medians are taken (default 3)")
    parser.add_argument("--peers", action="store_true", help="LiteLLM and Portkey too (installs them once)")
    options = parser.parse_args()
    from run import CannotMeasure, build_mock

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        rows, remarks = compare(str(build_mock()), options.rounds, say, peers=options.peers)
    except (CannotMeasure, Failed) as error:
        say(f"bench: {error}")
        return 2
    targets = judge(rows)
    print("\n".join(table(rows, remarks)))
    for what, value, wanted, met in targets:
        print(f"  {'ok ' if met else 'NOT'}  {what}: {value} (wanted {wanted})")
    return 0 if all(met for *_, met in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
