"""The scripted model of a dry run, from the job file's shape."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from centuria.config.problems import Problems
from centuria.config.shape import RehearsalShape, TurnShape
from centuria.core.quoting import did_you_mean, quoted
from centuria.settings import Rehearsal, ScriptedCall, ScriptedRole, ScriptedTurn


def rehearsal_from(shape: RehearsalShape, tasks: Collection[str], *, file: str) -> Rehearsal:
    """The scripts; one for a task that is not there is refused with a `JobError`."""
    problems = Problems(file)
    for name in shape.task:
        if name not in tasks:
            problems.add(f"[rehearsal.task] names {quoted(name)}, which is not a task.", did_you_mean(name, tasks))
    problems.check()
    written = shape.model_dump(exclude_none=True, include={"latency_ms", "chunk_ms", "seed"})
    return Rehearsal(
        faults={str(kind): share for kind, share in shape.faults.items()},
        turns=_turns(shape.turn),
        agents={name: ScriptedRole(_turns(role.turn), role.reads or "") for name, role in shape.agent.items()},
        tasks={name: _turns(script.turn) for name, script in shape.task.items()},
        summary=shape.merge.text if shape.merge else "",
        **written,
    )


def _turns(turns: Sequence[TurnShape]) -> tuple[ScriptedTurn, ...]:
    return tuple(
        ScriptedTurn(
            tuple(
                ScriptedCall(call.tool, dict(call.arguments), call.name or call.tool, call.each or "")
                for call in turn.calls
            ),
            turn.text or "",
        )
        for turn in turns
    )
