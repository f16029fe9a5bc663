"""The page of the twelve wishes names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_wish_names_a_test_that_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "wishes.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 12
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text())
            there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in there, f"{file} has no {test}"
