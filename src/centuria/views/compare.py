"""A comparison of models: a table in words, Markdown, CSV and JSON, and a page with plots. Reads a `Table`, no more."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from centuria.core.comparison import CURVE, HTTP_FAILURES, Agreement, Proportion, Row, Spread, Table
from centuria.messages import Fault
from centuria.views.digest import usd
from centuria.views.report import embedded
from centuria.views.text import table as columns
from centuria.views.words import clean, counted, dollars, percent, seconds

_LABEL = 40
_FAULTS: tuple[tuple[Fault, str], ...] = (
    ("unknown_tool", "unknown tool"),
    ("json", "no JSON"),
    ("schema", "against the schema"),
)
_NOTES = (
    "First attempt: answers whose every tool call names a tool that there is, is JSON and fits its schema, of those "
    "that call tools; calls that repair earlier ones are not among them. After one repair: also those whose wrong "
    "calls were right the next time. In brackets the 95 % Wilson interval. Valid is not yet right: nobody judged the "
    "values.",
    "Trigger F1: whether tools are called at all, against the reference, over answers to the very same conversation.",
    "Wall time holds the waits for rate limits and for money that the runs share.",
)


# -- cells -----------------------------------------------------------------------------------------------------------


def share(part: Proportion) -> str:
    """`95.0 % (19 of 20) [76.4–99.1]`."""
    if part.share is None or part.interval is None:
        return "–"
    low, high = part.interval
    return f"{part.share * 100:.1f} % ({part.good:,} of {part.total:,}) [{low * 100:.1f}–{high * 100:.1f}]"


def outcomes(row: Row) -> str:
    """`96 ok, 4 timeout of 100`."""
    parts = [f"{number:,} {status}" for status, number in row.census.items()]
    if row.unfinished:
        parts.append(f"{row.unfinished:,} unfinished")
    return f"{', '.join(parts)} of {row.tasks:,}" if parts else "–"


def cost(row: Row) -> str:
    if not row.candidate.priced:
        return "unpriced"
    if row.candidate.rehearsal:
        return f"about {dollars(row.spent)}, not paid"
    return dollars(row.spent) + (f", {dollars(row.held)} held" if row.held else "")


def _status(row: Row) -> str:
    return row.status + (", REHEARSAL" if row.candidate.rehearsal else "")


def _times(times: Spread) -> str:
    return f"{seconds(times.p50)} / {seconds(times.p99)}" if times.count else "–"


def _tokens(row: Row) -> str:
    if not row.prompt_tokens and not row.output_tokens:
        return "–"
    cached = f" ({percent(row.cached_tokens / row.prompt_tokens)} cached)" if row.cached_tokens else ""
    return f"{row.prompt_tokens:,}{cached} / {row.output_tokens:,}"


def _steps(row: Row) -> str:
    return f"{row.critical_steps:,} of {row.serial_steps:,}" if row.serial_steps else "–"


def _fault(fault: Fault) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        calls = row.accuracy.calls
        return f"{row.accuracy.faults.get(fault, 0):,} of {counted(calls, 'call')}" if calls else "–"

    return cell


def _truncated(row: Row) -> str:
    cut = row.accuracy.truncated
    return f"{cut.good:,} of {counted(cut.total, 'answer')}" if cut.total else "–"


def _http(row: Row) -> str:
    if not row.requests:
        return "–"
    failed = {kind: row.attempts.get(kind, 0) for kind in HTTP_FAILURES}
    kinds = ", ".join(f"{number:,} x {kind}" for kind, number in failed.items() if number)
    return f"{sum(failed.values()):,} of {counted(row.requests, 'request')}" + (f": {kinds}" if kinds else "")


def _trigger(row: Row) -> str:
    if row.agreement is None:
        return "reference"
    return f1(row.agreement)


def f1(agreement: Agreement) -> str:
    """`0.952 (n = 20)`."""
    if not agreement.pairs:
        return "– (n = 0)"
    return f"{'–' if agreement.f1 is None else f'{agreement.f1:.3f}'} (n = {agreement.pairs:,})"


_LINES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("status", _status),
    ("tasks", outcomes),
    ("cost", cost),
    ("wall time", lambda row: seconds(row.seconds) if row.seconds else "–"),
    ("first token p50 / p99", lambda row: _times(row.first_token)),
    ("whole call p50 / p99", lambda row: _times(row.total)),
    ("tokens in / out", _tokens),
    ("critical steps", _steps),
    ("tool calls: first attempt", lambda row: share(row.accuracy.first)),
    ("tool calls: after one repair", lambda row: share(row.accuracy.repaired)),
    *((f"  {words}", _fault(fault)) for fault, words in _FAULTS),
    ("  answers not judged", lambda row: f"{row.accuracy.unjudged:,}"),
    ("cut off by max_tokens", _truncated),
    ("HTTP failures", _http),
    ("trigger F1", _trigger),
)


def _headline(table: Table) -> str:
    budget = "no cap" if table.budget is None else f"of {dollars(table.budget)} together"
    line = f"{clean(table.name, 60)}: {counted(len(table.rows), 'model')}, {dollars(table.spent)} {budget}"
    rehearsals = sum(row.candidate.rehearsal for row in table.rows)
    if rehearsals:
        line += f" · REHEARSAL of {'all' if rehearsals == len(table.rows) else rehearsals}: a scripted model, no cost"
    return line


def _causes(table: Table) -> list[str]:
    told = [row for row in table.rows if row.cause]
    return [f"{clean(row.candidate.label, _LABEL)}: {row.status}: {clean(row.cause, 400)}" for row in told]


# -- as text ---------------------------------------------------------------------------------------------------------


def as_text(table: Table) -> str:
    """The table for a terminal: a line for each measure, a column for each model."""
    head = ("", *(clean(row.candidate.label, _LABEL) for row in table.rows))
    lines = columns(head, [(words, *(cell(row) for row in table.rows)) for words, cell in _LINES])
    lines = [line.rstrip() for line in lines]
    reference = f"reference: {clean(table.reference, _LABEL)}"
    return "\n".join([_headline(table), "", *lines, "", reference, *_causes(table)]) + "\n"


def as_markdown(table: Table) -> str:
    """The same for a document."""
    head = ["", *(_cell(row.candidate.label) for row in table.rows)]
    lines = [f"# {_cell(table.name)}", "", _headline(table), ""]
    lines += [_markdown_row(head), _markdown_row(["---", *("---:" for _ in table.rows)])]
    lines.append(_markdown_row(["model", *(_cell(row.candidate.model) for row in table.rows)]))
    lines.append(_markdown_row(["at", *(_cell(row.candidate.base_url) for row in table.rows)]))
    lines += [_markdown_row([words.strip(), *(cell(row) for row in table.rows)]) for words, cell in _LINES]
    lines += ["", f"Reference: {_cell(table.reference)}.", ""]
    lines += [f"- {_cell(words, 500)}" for words in _causes(table)]
    return "\n".join([*lines, *([""] if _causes(table) else []), *_NOTES]) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str, most: int = 80) -> str:
    """Untrusted text inside a table of Markdown."""
    shown = clean(text, most)
    return "".join(f"\\{char}" if char in "|\\`*_<>[]#" else char for char in shown)


# -- as values -------------------------------------------------------------------------------------------------------


def flat(row: Row) -> dict[str, str | int | float | None]:
    """One model as one line of a table: dollars, seconds, shares from 0 to 1, None where nothing is known."""
    one, accuracy = row.candidate, row.accuracy
    first, repaired = accuracy.first.interval or (None, None), accuracy.repaired.interval or (None, None)
    agreed = row.agreement
    return {
        "label": one.label,
        "provider": one.provider,
        "model": one.model,
        "base_url": one.base_url,
        "run": one.run,
        "rehearsal": int(one.rehearsal),
        "status": row.status,
        "exit_code": row.exit_code,
        "tasks": row.tasks,
        **{status: row.census.get(status, 0) for status in _STATUSES},
        "unfinished": row.unfinished,
        "cost": usd(row.spent) if one.priced else None,
        "held": usd(row.held) if one.priced else None,
        "seconds": round(row.seconds, 3),
        "first_token_p50": row.first_token.p50,
        "first_token_p99": row.first_token.p99,
        "call_p50": row.total.p50,
        "call_p99": row.total.p99,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "critical_steps": row.critical_steps,
        "serial_steps": row.serial_steps,
        "attempts": accuracy.first.total,
        "first_attempt_valid": accuracy.first.good,
        "first_attempt_share": accuracy.first.share,
        "first_attempt_low": first[0],
        "first_attempt_high": first[1],
        "repaired_valid": accuracy.repaired.good,
        "repaired_share": accuracy.repaired.share,
        "repaired_low": repaired[0],
        "repaired_high": repaired[1],
        "tool_calls": accuracy.calls,
        **{f"{fault}_failures": accuracy.faults.get(fault, 0) for fault, _ in _FAULTS},
        "unjudged_answers": accuracy.unjudged,
        "answers": accuracy.truncated.total,
        "truncated_answers": accuracy.truncated.good,
        "requests": row.requests,
        **{f"http_{kind.replace(' ', '_')}": row.attempts.get(kind, 0) for kind in HTTP_FAILURES},
        "trigger_f1": None if agreed is None else agreed.f1,
        "trigger_pairs": None if agreed is None else agreed.pairs,
        "trigger_tp": None if agreed is None else agreed.tp,
        "trigger_fp": None if agreed is None else agreed.fp,
        "trigger_fn": None if agreed is None else agreed.fn,
        "trigger_tn": None if agreed is None else agreed.tn,
    }


_STATUSES = ("ok", "failed", "timeout", "cancelled", "budget", "blocked", "skipped")


def as_csv(table: Table) -> str:
    """A line for each model."""
    lines = [flat(row) for row in table.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_json(table: Table) -> dict[str, Any]:
    """All of it as JSON values; untrusted text as it is."""
    return {
        "name": table.name,
        "reference": table.reference,
        "budget": usd(table.budget),
        "spent": usd(table.spent),
        "exit_code": table.exit_code,
        "models": [{**flat(row), "rehearsal": row.candidate.rehearsal, "cause": row.cause} for row in table.rows],
    }


# -- as a page -------------------------------------------------------------------------------------------------------


def as_html(table: Table) -> str:
    """The page as HTML, fetching nothing. What models and servers wrote is data in it: never markup, never script."""
    page, report = _resource("compare.html"), _resource("report.html")
    style = report.partition("<style>")[2].partition("</style>")[0]
    return page.replace("{{STYLE}}", style, 1).replace("{{DATA}}", embedded(_data(table)), 1)


def _resource(name: str) -> str:
    return files("centuria.views").joinpath(name).read_text(encoding="utf-8")


def _data(table: Table) -> dict[str, Any]:
    return {
        "name": clean(table.name, 300),
        "headline": _headline(table),
        "reference": clean(table.reference, _LABEL),
        "curve": list(CURVE),
        "lines": [[words, [cell(row) for row in table.rows]] for words, cell in _LINES],
        "causes": _causes(table),
        "notes": list(_NOTES),
        "models": [_model(row) for row in table.rows],
    }


def _model(row: Row) -> dict[str, Any]:
    one, accuracy = row.candidate, row.accuracy
    return {
        "label": clean(one.label, _LABEL),
        "model": clean(one.model, 80),
        "at": clean(one.base_url, 120),
        "folder": one.folder if row.status != "not begun" and not one.error else "",
        "rehearsal": one.rehearsal,
        "status": row.status,
        "census": dict(row.census),
        "unfinished": row.unfinished,
        "tasks": row.tasks,
        "cost": None if not one.priced else [usd(row.spent), usd(row.held)],
        "seconds": row.seconds,
        "first": list(row.first_token.curve),
        "total": list(row.total.curve),
        "attempt": _whiskers(accuracy.first),
        "repaired": _whiskers(accuracy.repaired),
        "failures": _failures(row),
    }


def _whiskers(part: Proportion) -> list[float] | None:
    """Share, low and high."""
    return None if part.share is None or part.interval is None else [part.share, *part.interval]


def _failures(row: Row) -> Mapping[str, float]:
    """Each class of failure as a share of what could have failed so."""
    accuracy = row.accuracy
    found = {words: _part(accuracy.faults.get(fault, 0), accuracy.calls) for fault, words in _FAULTS}
    found["cut off"] = _part(accuracy.truncated.good, accuracy.truncated.total)
    found["HTTP"] = _part(sum(row.attempts.get(kind, 0) for kind in HTTP_FAILURES), row.requests)
    return found


def _part(number: int, of: int) -> float:
    return number / of if of else 0.0
