"""Finding tools by words: when it takes the place of the whole list, what it finds, and in how much room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.schemas import PLAIN, legal
from centuria.core.toolsearch import (
    ALWAYS_SHOWN,
    CALL_TOOL,
    MOST_FOUND,
    MOST_FUNCTIONS,
    SEARCH_TOOLS,
    ToolIndex,
    functions,
    why_search,
    words,
)
from centuria.messages import ToolSpec
from tests.core.schema_rules import RULES


def tool(name: str, description: str = "", **parameters: Any) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": parameters})


REPOS = [
    tool("github__create_issue", "Opens a new issue in a repository.", title={}, body={}),
    tool("github__list_issues", "Lists the issues of a repository.", state={}),
    tool("github__createPullRequest", "Opens a pull request.", head={}, base={}),
    tool("files__read_file", "Reads a file from the disk.", path={}),
    tool("files__delete_file", "Removes a file.", path={}),
    tool("mail__send", "Sends a letter.", recipient={}, subject={}),
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open an issue", "github__create_issue"),
        ("list issues", "github__list_issues"),
        ("PULL REQUESTS", "github__createPullRequest"),
        ("read files", "files__read_file"),
        ("github__list_issues", "github__list_issues"),
        ("recipient", "mail__send"),
        ("deleting a file", "files__delete_file"),
        ("issue in repo, create", "github__create_issue"),
    ],
)
def test_the_tool_that_fits_best_comes_first(query: str, first: str) -> None:
    assert ToolIndex(REPOS).search(query)[0].name == first


def test_what_fits_alike_keeps_the_order_of_the_list() -> None:
    alike = [tool(f"s__same_{letter}", "The same.") for letter in "dbca"]
    assert ToolIndex(alike).search("same", 9) == alike


def test_every_real_tool_is_found_by_its_own_name() -> None:
    listed = json.loads((Path(__file__).parent.parent / "servers" / "schemas.json").read_text())
    specs = [ToolSpec(f"s__{one['tool']}", "", legal(one["schema"], PLAIN)) for one in listed]
    index = ToolIndex(specs)
    for spec in specs:
        assert spec.name in [found.name for found in index.search(spec.name)]


@given(st.text(max_size=300), st.integers(-5, 10**9), st.integers(300, 4_000))
def test_whatever_is_asked_the_answer_keeps_its_room_and_is_the_same_again(query: str, limit: int, room: int) -> None:
    long = [tool(f"s__tool_{n}", "word " * 300, **{f"p{k}": {"type": "string"} for k in range(50)}) for n in range(30)]
    index = ToolIndex([*REPOS, *long])
    text = index.answer(query, limit, room)
    assert len(text) <= max(room, 900)
    assert index.answer(query, limit, room) == text
    assert len(index.search(query, limit)) <= MOST_FOUND


def test_an_answer_has_schemas_as_far_as_there_is_room_and_says_which_are_missing() -> None:
    large = {f"parameter_{n}": {"type": "string"} for n in range(20)}
    index = ToolIndex([tool(f"s__find_{n}", "Finds.", **large) for n in range(5)])
    whole = json.loads(index.answer("find", 5, 20_000))
    assert [set(entry) for entry in whole["tools"]] == [{"name", "description", "parameters"}] * 5
    tight = json.loads(index.answer("find", 5, 2_500))
    assert [entry["name"] for entry in tight["tools"]] == [f"s__find_{n}" for n in range(5)]
    assert 0 < sum("parameters" in entry for entry in tight["tools"]) < 5
    assert "no room" in tight["note"]


def test_where_nothing_fits_the_first_tools_are_named() -> None:
    said = ToolIndex(REPOS).answer("xyzzy", 5, 5_000)
    assert "No tool fits" in said and "files__read_file" in said


def test_names_are_taken_apart_into_words() -> None:
    assert words("createPullRequest HTTPServer2 list_issues-été 你好") == [
        *("create", "pull", "request", "http", "server", "2", "list", "issue", "été", "你好"),
    ]


def test_more_than_128_functions_or_three_percent_of_the_context_are_searched() -> None:
    assert why_search(MOST_FUNCTIONS, 1_000, 262_144) == ""
    assert "128" in why_search(MOST_FUNCTIONS + 1, 1_000, 262_144)
    assert why_search(20, 4 * 3_000, 100_000) == ""
    assert "3,001 tokens" in why_search(20, 4 * 3_001, 100_000)
    assert why_search(ALWAYS_SHOWN, 4 * 3_001, 100_000) == "", "a few tools are never worth a search"


def test_the_two_functions_are_legal_everywhere_and_name_the_servers() -> None:
    search, call = functions(300, ["a", "b"])
    assert (search.name, call.name) == (SEARCH_TOOLS, CALL_TOOL)
    assert "300 tools, of: a, b." in search.description
    for spec in (search, call):
        assert all(rules(legal(spec.schema, PLAIN)) == [] for rules in RULES.values())
    assert len(functions(300, [f"server-{n}" for n in range(5_000)])[0].description) < 1_024
