"""Many results become one: concatenated, as a table, or as a summary that the model writes. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from centuria.core.merge_tree import Part
from centuria.core.templates import fill
from centuria.core.window import shorten
from centuria.messages import Message, Outcome, Status
from centuria.settings import Job, LeftOut, Task

#: A cell that begins so is a formula to a spreadsheet.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_TOP = 10
#: Bytes of a prompt that surely fit one token of context; English text needs about four a token.
_BYTES_PER_TOKEN = 3

SUMMARY_SYSTEM = """\
You write the one answer of a job that many subagents worked on in parallel. Use only what their results say. Name \
what is missing or failed; never invent a figure."""

WRITTEN = """\
Here are the results of {count} tasks of the job "{job}". Write its one answer: merge what they found, say where they \
disagree, and name what is missing.

{results}

{failed}"""

PART = """\
Here are some of the results of the job "{job}". They are too many for one request: merge these into one text of at \
most {words} words, from which the answer will be written together with the texts of the others. Keep every figure, \
name and finding that the answer may need, with the name of the result that it is from; leave out what repeats.

{results}"""


@dataclass(frozen=True, slots=True)
class Results:
    """What there is to merge, in the order of the tasks."""

    job: Job
    tasks: Sequence[Task]
    outcomes: Mapping[str, Outcome]

    def finished(self) -> list[tuple[Task, Outcome]]:
        """The tasks that ended ok, with their outcomes."""
        pairs = ((task, self.outcomes.get(task.id)) for task in self.tasks)
        return [(task, end) for task, end in pairs if end is not None and end.status is Status.OK]

    def unfinished(self) -> list[tuple[Task, Outcome | None]]:
        pairs = ((task, self.outcomes.get(task.id)) for task in self.tasks)
        return [(task, end) for task, end in pairs if end is None or end.status is not Status.OK]


def report_text(outcome: Outcome, text_property: str | None) -> str:
    """The text of one result as it is written to its own file: Markdown, or the JSON that the schema asked for."""
    if isinstance(outcome.structured, Mapping):
        if text_property and isinstance(outcome.structured.get(text_property), str):
            return _ending(str(outcome.structured[text_property]))
        return "```json\n" + json.dumps(outcome.structured, ensure_ascii=False, indent=2) + "\n```\n"
    return _ending(outcome.text)


def concatenate(results: Results) -> str:
    """All results one after the other under their names, then what is missing and why."""
    parts = [f"# {_title(task)}\n\n{report_text(end, results.job.merge.text)}" for task, end in results.finished()]
    missing = failures(results)
    if missing:
        parts.append(f"# Missing\n\n{missing}\n")
    return "\n".join(parts)


def of_one(results: Results) -> str:
    """The answer of a job that was one task: what that task said, and what is missing of those that it assigned.

    Where it came to no end of its own, what they found stands for it.
    """
    [root] = results.job.tasks
    end = results.outcomes.get(root.id)
    if end is None or end.status is not Status.OK:
        return concatenate(results) if results.finished() else ""
    missing = failures(results)
    return report_text(end, results.job.merge.text) + (f"\n# Missing\n\n{missing}\n" if missing else "")


def columns(results: Results) -> list[str]:
    """The table's columns: the schema's properties in their order, without the long text.

    The task's id comes first, unless one of them tells it already.
    """
    schema = results.job.merge.schema or {}
    names = [name for name in schema.get("properties", {}) if name != results.job.merge.text]
    finished = [(task.id, end.structured) for task, end in results.finished()]
    told = any(
        all(isinstance(values, Mapping) and values.get(name) == identity for identity, values in finished)
        for name in names
    )
    return names if told and finished else ["id", *(name for name in names if name != "id")]


def rows(results: Results) -> list[dict[str, Any]]:
    """One row for each result that ended ok."""
    names = columns(results)
    table = []
    for task, end in results.finished():
        values = end.structured if isinstance(end.structured, Mapping) else {}
        table.append({name: task.id if name == "id" else values.get(name) for name in names})
    return table


def to_csv(results: Results) -> str:
    """The table as CSV (RFC 4180, comma, UTF-8). Missing values are empty; texts never begin a formula."""
    out = io.StringIO()
    names = columns(results)
    writer = csv.DictWriter(out, names, lineterminator="\r\n")
    writer.writeheader()
    for row in rows(results):
        writer.writerow({name: _cell(row[name]) for name in names})
    return out.getvalue()


def to_markdown(results: Results, *, most: int | None = None) -> str:
    """The table as Markdown, its first `most` rows."""
    names = columns(results)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in rows(results)[:most]:
        cells = (_cell(row[name]).replace("|", "\\|").replace("\n", " ") for name in names)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failures(results: Results) -> str:
    """The tasks without a result, one line each, with the cause."""
    lines = []
    for task, end in results.unfinished():
        status, cause = (end.status.value, end.cause) if end is not None else ("not run", "")
        lines.append(f"- {_title(task)}: {status}" + (f" ({cause})" if cause else ""))
    return "\n".join(lines)


def variables(results: Results) -> dict[str, Any]:
    """What a summary's prompt, and a rehearsal's scripted summary, may name."""
    left_out = results.job.left_out
    return {
        "job": results.job.name,
        "count": len(results.finished()),
        "total": len(results.tasks),
        "table": to_markdown(results),
        "top": to_markdown(results, most=_TOP),
        "rows": rows(results),
        "left_out": _left_out(left_out),
        "left_out_count": len(left_out),
        "failed": failures(results) or "none",
    }


def parts(results: Results) -> list[Part]:
    """What a written merge is made of: each result under its title."""
    text = results.job.merge.text
    return [Part(_title(task), report_text(end, text).strip(), (task.id,)) for task, end in results.finished()]


def room(context: int, max_tokens: int) -> int:
    """Bytes of results that surely fit into one request of the merge."""
    return max(4_000, (context - min(max_tokens, context // 2)) * _BYTES_PER_TOKEN - 4_000)


def part_messages(results: Results, group: Sequence[Part], most: int) -> tuple[Message, ...]:
    """The conversation that asks for the one text of a group of parts, of at most `most` bytes."""
    prompt = PART.format(job=results.job.name, results=_headed(group), words=max(50, most // 8))
    return (Message("system", SUMMARY_SYSTEM), Message("user", prompt))


def written_messages(results: Results, last: Sequence[Part]) -> tuple[Message, ...]:
    """The conversation that asks for the written merge, of all results or of the texts that they became."""
    missing = failures(results)
    prompt = WRITTEN.format(
        count=len(results.finished()),
        job=results.job.name,
        results=_headed(last),
        failed=f"These ended without a result:\n{missing}" if missing else "",
    )
    return (Message("system", SUMMARY_SYSTEM), Message("user", prompt))


def summary_messages(results: Results, *, room: int) -> tuple[tuple[Message, ...], int]:
    """The conversation that asks for the job's own summary, and how many rows of its table had to be left out."""
    prompt = results.job.merge.summary or ""
    there = variables(results)
    rows_there = len(there["rows"])

    def filled(most: int) -> str:
        cut = {"table": to_markdown(results, most=most), "rows": there["rows"][:most]}
        return fill(prompt, there if most >= rows_there else {**there, **cut})

    low, high = 0, rows_there  # the most rows with which it fits
    while low < high:
        middle = (low + high + 1) // 2
        if len(filled(middle).encode("utf-8", "replace")) <= room:
            low = middle
        else:
            high = middle - 1
    return (Message("system", SUMMARY_SYSTEM), Message("user", shorten(filled(low), room))), rows_there - low


def _headed(group: Sequence[Part]) -> str:
    return "\n\n".join(f"## {part.name}\n\n{part.text}" for part in group)


def _left_out(rows_left: Sequence[LeftOut]) -> str:
    by_reason: dict[str, list[str]] = {}
    for row in rows_left:
        by_reason.setdefault(row.reason, []).append(f"{row.label or row.id} ({row.id})")
    return "; ".join(f"{reason}: {', '.join(names)}" for reason, names in by_reason.items()) or "none"


def _title(task: Task) -> str:
    return task.label or task.id


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return "'" + value if value.startswith(_FORMULA_STARTS) else value
    if isinstance(value, bool | int | float):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _ending(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
