"""Gateways side by side: Centuria's with everything on, a bare ASGI proxy, and LiteLLM's and Portkey's.

Each is one process (with its children) on one core; the mock upstream and the load are on the other.
    python bench/gateways.py [--rounds 3] [--peers]

Exit codes: 0 every target is met, 1 one is missed, 2 it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

BENCH = Path(__file__).parent
BUILD = BENCH / "build"
WHOLE, STREAMED = "kimi-mock_k0_l0_c0", "kimi-mock_k0_l0_c20"
CONNECTIONS, BURST, SECONDS = 32, 100, 3.0
#: Targets: microseconds of CPU a request, requests a second, and milliseconds.
MOST_CPU_US, LEAST_RATE, MOST_ADDED_MS, MOST_FIRST_MS = 400, 2_000, 0.5, 100
NAMES = {
    "bare": "bare ASGI + aiohttp",
    "centuria": "Centuria's gateway",
    "litellm": "LiteLLM proxy",
    "portkey": "Portkey",
}
#: It listens on this machine alone, so it needs no key.
_LITELLM = {"LITELLM_TELEMETRY": "False", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
_TICK = os.sysconf("SC_CLK_TCK")
_STARTS = 90.0


class Failed(Exception):
    """A gateway could not be measured."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How a gateway is started, and what a request to it needs. `missing` says why it is not there."""

    name: str
    command: Sequence[str]
    port: int
    path: str = "/v1/chat/completions"
    headers: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """The medians of one gateway. `added_*` is beyond the upstream itself, at half of its own rate; milliseconds."""

    name: str
    rounds: int
    cpu_us: float
    rate: float
    added_p50: float
    added_p99: float
    first_p99: float
    rss_mb: float
    grown_mb: float


# -- the gateways ----------------------------------------------------------------------------------------------------


def gateways(upstream: str, *, peers: bool, say: Callable[[str], None]) -> list[Gateway]:
    found = [
        Gateway("bare", [sys.executable, str(BENCH / "proxy.py"), str(port := free_port()), upstream], port),
        centuria(upstream),
    ]
    if peers:
        found += [litellm(upstream, say), portkey(upstream, say)]
    return found


def centuria(upstream: str) -> Gateway:
    """A key with a budget and limits by the minute, a price, a governor, and a row on disk for each attempt."""
    folder, port = fresh(BUILD / "gateway"), free_port()
    models = "".join(
        f'[[model]]\nname = "{name}"\nprovider = "custom"\nbase_url = "{upstream}/v1"\n'
        f'concurrency = 1000\nmax_tokens = 1000\n[prices."{name}"]\ninput = 0.6\noutput = 3.0\n'
        for name in (WHOLE, STREAMED)
    )
    (folder / "gateway.toml").write_text(f'[gateway]\nport = {port}\nstore = "gateway.db"\n{models}')
    program = str(Path(sys.executable).parent / "centuria")
    limits = ["--budget", "100000", "--rpm", "100000000", "--tpm", "1000000000000"]
    made = subprocess.run(
        [program, "keys", "add", "bench", *limits, "--json", "--config", str(folder / "gateway.toml")],
        capture_output=True,
        text=True,
        check=True,
    )
    token = json.loads(made.stdout)["token"]
    return Gateway(
        "centuria",
        [program, "serve", "--config", str(folder / "gateway.toml")],
        port,
        headers=[f"Authorization: Bearer {token}"],
    )


def litellm(upstream: str, say: Callable[[str], None]) -> Gateway:
    folder, port = fresh(BUILD / "litellm-run"), free_port()
    python = BUILD / "litellm" / "bin" / "python"
    missing = install([sys.executable, "-m", "venv", str(BUILD / "litellm")], python, say, "LiteLLM")
    marker = BUILD / "litellm" / "bin" / "litellm"
    missing = missing or install([str(python), "-m", "pip", "install", "-q", "litellm[proxy]"], marker, say, "LiteLLM")
    models = "".join(
        f"  - model_name: {name}\n"
        f"    litellm_params: {{model: openai/{name}, api_base: {upstream}/v1, api_key: none}}\n"
        for name in (WHOLE, STREAMED)
    )
    (folder / "config.yaml").write_text(f"model_list:\n{models}")
    command = [str(marker), "--config", str(folder / "config.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    return Gateway("litellm", command, port, env=_LITELLM, missing=missing)


def portkey(upstream: str, say: Callable[[str], None]) -> Gateway:
    port, folder = free_port(), BUILD / "portkey"
    npm, node = shutil.which("npm"), shutil.which("node")
    start = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    if npm is None or node is None:
        return Gateway("portkey", [], port, missing="Node.js is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    missing = install(
        [npm, "install", "--silent", "--prefix", str(folder), "@portkey-ai/gateway"], start, say, "Portkey"
    )
    headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: {upstream}/v1", "Authorization: Bearer none"]
    command = [str(node), str(start), f"--port={port}", "--headless"]
    return Gateway("portkey", command, port, headers=headers, env={"NODE_ENV": "production"}, missing=missing)


def install(command: Sequence[str], made: Path, say: Callable[[str], None], name: str) -> str:
    """Install a peer once. Returns why it cannot be, "" if it is there."""
    if made.exists():
        return ""
    say(f"installing {name} (once)")
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return "" if made.exists() else (ended.stderr.strip().splitlines() or ["it did not install"])[-1][:200]


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    if found["failed"] or found["refused"]:
        raise Failed(f"{NAMES[gateway.name]}: {found['failed']} requests failed, {found['refused']} were refused.")
    return found


def measure(gateway: Gateway, mock_port: int, core: set[int]) -> dict[str, float]:
    """One gateway: as much as it takes, then half of that, then a burst of streams."""
    direct = Gateway("bare", (), mock_port)
    with running(gateway, core) as pid:
        load(gateway.port, gateway, WHOLE, CONNECTIONS, 1.5)
        before, memory = cpu_of(pid), rss_of(pid)
        full = load(gateway.port, gateway, WHOLE, CONNECTIONS, SECONDS)
        used, grown = cpu_of(pid) - before, rss_of(pid) - memory
        rate = ("--rate", f"{full['rate'] / 2:.0f}")
        half = load(gateway.port, gateway, WHOLE, CONNECTIONS, SECONDS, *rate)
        beside = load(mock_port, direct, WHOLE, CONNECTIONS, 1.0, *rate)
        load(gateway.port, gateway, STREAMED, BURST, 20, "--once")
        bursts = [load(gateway.port, gateway, STREAMED, BURST, 20, "--once")["first_p99"] for _ in range(3)]
        return {
            "cpu_us": 1e6 * used / full["ok"],
            "rate": full["rate"],
            "added_p50": half["p50"] - beside["p50"],
            "added_p99": half["p99"] - beside["p99"],
            "first_p99": median(bursts),
            "rss_mb": rss_of(pid),
            "grown_mb": 100_000 * grown / full["ok"],
        }


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
    """All gateways, alternating, and remarks about those that are not there."""
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
                try:
                    found[each.name].append(measure(each, port, core))
                except Failed as error:
                    if each.name in ("bare", "centuria"):
                        raise
                    remarks.append(str(error))
    finally:
        os.sched_setaffinity(0, before)
        upstream.kill()
        upstream.wait()
    names = ("cpu_us", "rate", "added_p50", "added_p99", "first_p99", "rss_mb", "grown_mb")
    rows = [
        GatewayRow(name, len(runs), *(median(run[what] for run in runs) for what in names))
        for name, runs in found.items()
        if runs
    ]
    return rows, remarks


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
    own = next(row for row in rows if row.name == "centuria")
    return [
        ("gateway, CPU a request", f"{own.cpu_us:.0f} us", f"<= {MOST_CPU_US} us", own.cpu_us <= MOST_CPU_US),
        ("gateway, requests on one core", f"{own.rate:,.0f}/s", f">= {LEAST_RATE:,}/s", own.rate >= LEAST_RATE),
        (
            "gateway, added p50 at half load",
            f"{own.added_p50:.2f} ms",
            f"<= {MOST_ADDED_MS} ms",
            own.added_p50 <= MOST_ADDED_MS,
        ),
        (
            f"gateway, first token of {BURST} streams, p99",
            f"{own.first_p99:.0f} ms",
            f"<= {MOST_FIRST_MS} ms",
            own.first_p99 <= MOST_FIRST_MS,
        ),
    ]


def table(rows: Sequence[GatewayRow], remarks: Sequence[str]) -> list[str]:
    lines = [
        "",
        f"Gateways on one core: {CONNECTIONS} connections, an upstream that answers at once; {BURST} streams at once",
        "",
    ]
    head = ("", "CPU us", "x bare", "requests/s", "added p50", "added p99", "first token p99", "MB", "MB/100k")
    lines.append(f"{head[0]:<22}" + "".join(f"{cell:>16}" for cell in head[1:]))
    bare = next(row.cpu_us for row in rows if row.name == "bare")
    for row in rows:
        cells = (
            f"{row.cpu_us:.0f}",
            f"{row.cpu_us / bare:.2f}",
            f"{row.rate:,.0f}",
            f"{row.added_p50:.2f} ms",
            f"{row.added_p99:.2f} ms",
            f"{row.first_p99:.0f} ms",
            f"{row.rss_mb:.0f}",
            f"{row.grown_mb:.1f}",
        )
        lines.append(f"{NAMES[row.name]:<22}" + "".join(f"{cell:>16}" for cell in cells))
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
