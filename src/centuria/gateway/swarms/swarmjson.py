"""What is told of a swarm, as JSON values: dollars, and moments in seconds since 1970. Pure."""

from __future__ import annotations

from typing import Any

from centuria.core.progress import Progress
from centuria.core.rows import TaskRow
from centuria.core.tallies import AGENTS
from centuria.gateway.swarms.records import SwarmRecord
from centuria.views.digest import tokens, usd

ROOT = "/v1/agents/swarm"
_NOTICES = 50


def links(id: str) -> dict[str, str]:
    own = f"{ROOT}/{id}"
    return {"self": own, "events": f"{own}/events", "result": f"{own}/result", "cancel": f"{own}/cancel"}


def brief(record: SwarmRecord, status: str, progress: Progress | None = None) -> dict[str, Any]:
    """One line of the list. `progress`: of a swarm that works."""
    live = progress is not None and not record.ended
    census = {state.value: number for state, number in progress.census().items()} if progress is not None else {}
    money = progress.money() if progress is not None else None
    return {
        "id": record.id,
        "object": "swarm",
        "name": record.name,
        "model": record.model,
        "status": status,
        "cause": record.cause,
        "rehearsal": record.rehearsal,
        "created_at": record.at,
        "ended_at": record.ended_at,
        "tasks": len(progress.tasks) if live and progress is not None else record.tasks,
        "ok": census.get("ok", 0) if live else record.ok,
        "cost_usd": usd(money.spent if live and money is not None else record.cost),
        "held_usd": usd(money.held if live and money is not None else record.held),
        "budget_usd": usd(record.budget),
        "links": links(record.id),
    }


def snapshot(record: SwarmRecord, status: str, progress: Progress | None) -> dict[str, Any]:
    """All that there is to see now."""
    told = brief(record, status, progress)
    if progress is None:
        return told | {"agents": [], "slots": [], "queues": [], "census": {}, "unfinished": 0}
    money = progress.money()
    agents = progress.resources.get(AGENTS)
    slots: list[str | None] = [None] * (agents.limit if agents is not None else 0)
    for slot, task in progress.slots.items():
        slots += [None] * (slot + 1 - len(slots))  # a limit that was lowered while it was taken
        slots[slot] = task
    return told | {
        "phase": progress.phase,
        "paused": None in progress.paused,
        "resumes": len(progress.resumes),
        "started_at": progress.started_at,
        "seconds": progress.elapsed(),
        "seq": progress.seq,
        "tasks": len(progress.tasks),
        "census": {state.value: number for state, number in progress.census().items()},
        "unfinished": progress.unfinished_count,
        "money": {
            "spent_usd": usd(money.spent),
            "reserved_usd": usd(money.reserved),
            "held_usd": usd(money.held),
            "cap_usd": usd(money.cap),
        },
        "tokens": tokens(progress.usage),
        "agents": [_agent(row, progress) for row in progress.tasks.values()],
        "slots": slots,
        "queues": [
            {
                "resource": row.resource,
                "limit": row.limit,
                "in_use": row.in_use,
                "waiting": row.waiting,
                "peak": row.peak,
                "granted": row.granted,
                "rejected": row.rejected,
            }
            for row in progress.resources.values()
        ],
        "servers": [
            {"slug": row.slug, "up": row.up, "tools": row.tools, "limit": row.limit, "reason": row.reason}
            for row in progress.servers.values()
        ],
        "notices": [{"at": row.at, "level": row.level, "text": row.text} for row in list(progress.notices)[-_NOTICES:]],
    }


def _agent(row: TaskRow, progress: Progress) -> dict[str, Any]:
    return {
        "id": row.task,
        "label": row.label,
        "state": row.state,
        "doing": row.doing,
        "status": row.status.value if row.status is not None else None,
        "cause": row.cause,
        "parent": row.parent,
        "needs": list(row.needs),
        "depth": row.depth,
        "priority": row.priority,
        "slot": row.slot,
        "paused": row.task in progress.paused,
        "turns": row.steps or row.turn,
        "attempts": row.attempts,
        "tool_calls": row.tool_calls,
        "tokens": tokens(row.usage),
        "cost_usd": usd(row.cost),
        "held_usd": usd(row.held),
        "started_at": row.started_at,
        "ended_at": row.ended_at,
    }
