"""What the tests of the promises share: jobs on disk, the command as a process, and questions about a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from centuria import Swarm
from centuria.core.calls import CallLedger
from centuria.core.graph import TaskGraph
from centuria.core.landing import SoftLanding
from centuria.core.money import Ledger
from centuria.core.prices import Price, cost
from centuria.core.progress import Progress
from centuria.ending import Report
from centuria.journal import JournalReader
from centuria.journal.reading import CallRow
from centuria.messages import Pico
from centuria.testing.upstream import FakeUpstream

MODEL = "kimi-k2.5"
#: Kimi K2.5 at Moonshot, in dollars per million tokens.
KIMI = {"input": 0.60, "output": 3.00}
RAW_SERVER = Path(__file__).parent.parent / "toolhost" / "servers" / "raw.py"
_START = "import sys; from centuria.cli import main; sys.exit(main())"
_SECONDS = 60.0

Body = dict[str, Any]


# -- jobs ------------------------------------------------------------------------------------------------------------


def write_job(
    folder: Path,
    upstream: FakeUpstream | str,
    *,
    job: Mapping[str, Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | int | None = None,
    tasks: Sequence[Mapping[str, Any]] = (),
    price: Mapping[str, float] | None = None,
    model: Mapping[str, Any] | None = None,
    name: str = "job.toml",
    **tables: Mapping[str, Any],
) -> Path:
    """A job file beside its rows. `rows` as a number makes rows n0, n1, ... in a column Name."""
    url = upstream if isinstance(upstream, str) else upstream.base_url
    whole: dict[str, Any] = {"job": {"name": "promise", **(job or {})}}
    if rows is not None:
        listed = [{"Name": f"n{number}"} for number in range(rows)] if isinstance(rows, int) else rows
        (folder / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in listed))
        whole["job"] = {"prompt": "Report on {Name}.", "rows": "rows.jsonl", "id": "Name", **whole["job"]}
    whole["model"] = {"name": MODEL, "provider": "custom", "base_url": url, **(model or {})}
    whole["prices"] = {MODEL: price or KIMI}
    whole |= tables
    text = "".join(_table((key,), value) for key, value in whole.items())
    text += "".join("[[task]]\n" + _pairs(task) for task in tasks)
    path = folder / name
    path.write_text(text)
    return path


def _table(keys: tuple[str, ...], table: Mapping[str, Any]) -> str:
    inner = "".join(_table((*keys, key), value) for key, value in table.items() if isinstance(value, Mapping))
    head = ".".join(json.dumps(key) for key in keys)
    return f"[{head}]\n{_pairs({k: v for k, v in table.items() if not isinstance(v, Mapping)})}{inner}"


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def raw_server(*modes: str, script: Path = RAW_SERVER, **fields: Any) -> dict[str, Any]:
    """A real MCP server over stdio, as a job file's table."""
    return {"command": sys.executable, "args": [str(script), *modes], **fields}


def swarm(folder: Path, env: Mapping[str, str] | None = None, **more: Any) -> Swarm:
    """A swarm whose runs go below `folder`, in an environment without keys."""
    return Swarm(runs=folder / "runs", env={"PATH": os.environ["PATH"], **(env or {})}, **more)


# -- requests --------------------------------------------------------------------------------------------------------


def prompt(body: Body) -> str:
    """The first thing that the user said in this conversation."""
    return next(str(message["content"]) for message in body["messages"] if message["role"] == "user")


def turn(body: Body) -> int:
    """How often the model has answered in this conversation."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def tool_texts(body: Body) -> list[str]:
    """What the tools have answered in this conversation."""
    return [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def tool_names(body: Body) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


def bodies(upstream: FakeUpstream) -> list[Body]:
    return [seen.json for seen in upstream.requests]


def billed(upstream: FakeUpstream, price: Mapping[str, float]) -> Pico:
    """What the upstream charges, by its own books."""
    exact = Price(input=round(price["input"] * 10**6), output=round(price["output"] * 10**6))
    return sum(cost(exact, usage) for usage in upstream.billed)


# -- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """All of standard output as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """`centuria ARGUMENTS` as a process of its own, in `folder`, its runs below `folder/runs`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._ended = asyncio.ensure_future(process.communicate())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    async def end(self, within: float = _SECONDS) -> Ended:
        """Wait for its end. Raises `TimeoutError`, having killed it."""
        try:
            async with asyncio.timeout(within):
                out, err = await asyncio.shield(self._ended)
        finally:
            self.kill()
        assert self.process.returncode is not None
        return Ended(self.process.returncode, out.decode(), err.decode())


async def begin(
    folder: Path, *arguments: str | Path, env: Mapping[str, str] | None = None, start: str = _START
) -> Command:
    """Start a command and go on. `start` is the Python text that runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        start,
        *map(str, arguments),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "CENTURIA_RUNS": str(folder / "runs"), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return Command(process)


async def centuria(folder: Path, *arguments: str | Path, **more: Any) -> Ended:
    """Run a command to its end."""
    return await (await begin(folder, *arguments, **more)).end()


async def until(holds: Callable[[], object], within: float = 20.0) -> None:
    """Wait until something holds, looking again and again. Raises `TimeoutError`."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - files and processes of others give no event to wait for
            await asyncio.sleep(0.01)


def run_folders(folder: Path) -> list[Path]:
    runs = folder / "runs"
    return sorted(runs.iterdir()) if runs.is_dir() else []


def the_run(folder: Path) -> Path:
    (only,) = run_folders(folder)
    return only


def processes_naming(text: str) -> list[int]:
    """Every other process that has this text on its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


# -- what a run left -------------------------------------------------------------------------------------------------


def results(run: Path) -> dict[str, dict[str, Any]]:
    """`results.jsonl`, by task."""
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return {line["id"]: line for line in lines}


def calls(run: Path) -> list[CallRow]:
    with JournalReader(run / "journal.sqlite") as reader:
        return reader.calls()


def census(report: Report) -> dict[str, int]:
    """Statuses and their number, in words."""
    return dict(Counter(outcome.status.value for outcome in report.outcomes.values()))


@dataclass(slots=True)
class Folded:
    """A run's journal, read by another reader and folded again."""

    progress: Progress
    ledger: Ledger
    calls: CallLedger
    graph: TaskGraph
    landing: SoftLanding


def fold(run: Path) -> Folded:
    folded = Folded(Progress(), Ledger(), CallLedger(), TaskGraph(), SoftLanding())
    with JournalReader(run / "journal.sqlite") as reader:
        for record in reader.records():
            folded.progress.record(record)
            for core in (folded.ledger, folded.calls, folded.graph, folded.landing):
                core.apply(record.event)
    return folded
