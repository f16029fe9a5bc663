"""Verdicts as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from centuria.testing.torture.row import KINDS, Mode, Row, describe
from centuria.testing.torture.runner import Verdict


def as_text(verdicts: Sequence[Verdict], *, every: bool = False) -> str:
    """The rows that went wrong, or every row; the count at the end."""
    lines = [
        f"{'right' if verdict.right else 'WRONG'}  {verdict.mode:<8}  {verdict.row.name}"
        + "".join(f"\n{'':17}{item}" for item in verdict.wrong)
        for verdict in verdicts
        if every or not verdict.right
    ]
    return "\n".join([*lines, count(verdicts)])


def count(verdicts: Sequence[Verdict]) -> str:
    """How many are right, and how many requests it took."""
    right = sum(verdict.right for verdict in verdicts)
    requests = sum(verdict.requests for verdict in verdicts)
    return f"{right} of {len(verdicts)} right, {requests:,} requests"


def as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """One object for each verdict."""
    return [
        {
            "row": verdict.row.name,
            "kind": verdict.row.kind,
            "mode": verdict.mode,
            "right": verdict.right,
            "wrong": list(verdict.wrong),
            "seen": verdict.seen,
            "requests": verdict.requests,
            "seconds": round(verdict.seconds, 3),
        }
        for verdict in verdicts
    ]


def results(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], bool]:
    """Row and mode, and whether the client did right."""
    return {(verdict.row.name, verdict.mode): verdict.right for verdict in verdicts}


def as_markdown(rows: Sequence[Row], clients: Mapping[str, Mapping[tuple[str, str], bool]]) -> str:
    """A table for each kind of fault: the row, the right behaviour, and a column for the `results` of each client.

    Two marks a cell: streamed, then whole. `✓` right, `✗` wrong, `·` not for this mode, `?` not tried.
    """
    parts = []
    for kind, title in KINDS.items():
        mine = [row for row in rows if row.kind == kind]
        if not mine:
            continue
        head = f"| The upstream | A right client | {' | '.join(clients)} |"
        rule = "|---|---|" + ":-:|" * len(clients)
        parts.append("\n".join([f"### {title[0].upper()}{title[1:]}", "", head, rule, *_lines(mine, clients)]))
    return "\n\n".join(parts)


def _lines(rows: Sequence[Row], clients: Mapping[str, Mapping[tuple[str, str], bool]]) -> list[str]:
    return [
        f"| {_cell(row.name)} | {_cell(describe(row))} | {' | '.join(_marks(row, got) for got in clients.values())} |"
        for row in rows
    ]


def _marks(row: Row, results: Mapping[tuple[str, str], bool]) -> str:
    modes: tuple[Mode, ...] = ("streamed", "whole")
    marks = {True: "✓", False: "✗", None: "?"}
    return " ".join(marks[results.get((row.name, mode))] if mode in row.modes else "·" for mode in modes)


def _cell(text: str) -> str:
    shown = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    return shown.replace("|", "\\|").replace("<", "&lt;")
