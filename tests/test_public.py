"""The public names: pinned, found when they are used, and the same for people and for type checkers."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import centuria

NAMES = [
    "BudgetExceeded",
    "CenturiaError",
    "Comparison",
    "ConfigurationError",
    "Gap",
    "GraphError",
    "JournalError",
    "Outcome",
    "Record",
    "Report",
    "Status",
    "Swarm",
    "TextDelta",
    "Usage",
    "__version__",
    "run_sync",
]


def test_the_public_names_are_these() -> None:
    assert centuria.__all__ == NAMES == dir(centuria)


def test_every_public_name_is_found_and_documented() -> None:
    for name in NAMES:
        value = getattr(centuria, name)
        assert name == "__version__" or (callable(value) and inspect.getdoc(value)), name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        centuria.nothing_like_it  # noqa: B018


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(centuria.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"centuria.{module}" for name, module in centuria._PUBLIC.items()}
    assert sorted([*seen, "__version__"]) == NAMES


def test_the_public_methods_of_a_swarm_are_these() -> None:
    methods = [name for name, _ in inspect.getmembers(centuria.Swarm, inspect.isfunction) if not name.startswith("_")]
    steering = ["approve", "cancel", "go_on", "pause", "retry", "set_limit", "set_priority"]
    assert methods == sorted(["compare", "map", "resume", "run", "stream", *steering])


def test_the_exit_codes_and_words_of_a_status_are_these() -> None:
    assert [status.value for status in centuria.Status] == [
        "ok",
        "failed",
        "timeout",
        "cancelled",
        "budget",
        "blocked",
        "skipped",
    ]
