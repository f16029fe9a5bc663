"""The built-in tools as MCP servers: listed with their hints, called over stdio, in both protocol eras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from centuria.tools.serving import Answer, Refusal, ServedTool, build, check
from tests.tools.stdio import session, text

MODULES = ["file_read", "code_exec", "web_search"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("module", MODULES)
def test_a_server_lists_its_tool_as_read_only_in_both_eras(module: str, mode: str) -> None:
    with session(module, mode=mode) as opened:
        tools = {tool.name: tool for tool in opened.tools()}
        hints = tools[module].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.idempotent_hint, hints.destructive_hint) == (True, True, False)
        assert hints.open_world_hint is (module == "web_search")
        assert tools[module].input_schema["type"] == "object"


def test_files_are_read_over_stdio_as_structure_and_as_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,é\n")
    (tmp_path / "s.jsonl").write_text('{"a": "\\ud800"}\n')
    with session("file_read", "--root", str(tmp_path)) as opened:
        result = opened.call("file_read", path="t.csv")
        assert result.structured_content == json.loads(text(result))
        assert result.structured_content["rows"] == [{"a": "1", "b": "é"}]
        lone = opened.call("file_read", path="s.jsonl")
        assert lone.structured_content["rows"] == [{"a": "?"}]
        refused = opened.call("file_read", path="../x")
        assert refused.is_error
        assert "outside the folders" in text(refused)
        many = opened.calls("file_read", [{"path": "t.csv", "where": {"a": str(n)}} for n in range(100)])
        assert [r.structured_content["total"] for r in many] == [0, 1] + [0] * 98


def test_a_folder_is_searched_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Title\nneedle in the text\n")
    with session("web_search", "--folder", str(tmp_path)) as opened:
        result = opened.call("web_search", query='"needle AND (')
        assert result.structured_content["results"] == [
            {"title": "Title", "path": "a.md", "snippet": "# Title needle in the text"}
        ]
        assert "no letters" in text(opened.call("web_search", query="* - ("))


def test_a_search_that_is_not_set_up_still_starts_and_says_so() -> None:
    with session("web_search") as opened:
        result = opened.call("web_search", query="x")
        assert result.is_error
        assert "BRAVE_API_KEY" in text(result)


@pytest.mark.parametrize("module", MODULES)
def test_help_is_answered_without_the_mcp_package(module: str) -> None:
    code = (
        f"import sys, runpy; sys.argv = ['x', '--help']\ntry:\n    runpy.run_module('centuria.tools.{module}', "
        "run_name='__main__')\nexcept SystemExit:\n    print('mcp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "usage: python -m centuria.tools." in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["file_read", "--root", "/nowhere/at/all"],
        ["web_search", "--folder", "/nowhere/at/all"],
        ["web_search", "--searxng", "ftp://x"],
        ["code_exec", "--seconds", "0"],
    ],
)
def test_a_flag_that_cannot_work_is_refused_at_the_start(argv: list[str]) -> None:
    command = [sys.executable, "-m", f"centuria.tools.{argv[0]}", *argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input="")
    assert done.returncode == 2
    assert argv[1] in done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_a_server_ends_cleanly_when_its_input_ends(module: str) -> None:
    command = [sys.executable, "-m", f"centuria.tools.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer", "minimum": 1},
        "where": {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, 'The argument "name" is missing.'),
        ({"nam": "x"}, 'Did you mean "name"?'),
        ({"name": 3}, 'The argument "name" must be string, not int.'),
        ({"name": None}, "must be string, not NoneType"),
        ({"name": "x", "count": True}, "must be integer, not bool"),
        ({"name": "x", "count": 0}, "must be at least 1"),
        ({"name": "x", "where": {"a": 1}}, '"a" in the argument "where" must be string or array, not int'),
        ({"name": "x", "where": {"a": [1]}}, "Each item of"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_would(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(Refusal) as caught:
        check(arguments, SCHEMA)
    assert sentence in str(caught.value)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_an_answer_can_always_be_sent(value: object) -> None:
    answer = Answer.of({"value": value})
    answer.text.encode()
    assert json.loads(answer.text) == answer.structured


async def test_a_server_can_be_used_in_process_too() -> None:
    async def echo(arguments: object) -> Answer:
        return Answer("\ud800", {"got": arguments})

    tool = ServedTool("echo", "Echo", "Echo.", {"type": "object", "properties": {"a": {"type": "string"}}}, echo)
    async with Client(build("echo", [tool])) as client:
        result = await client.call_tool("echo", {"a": "b"})
    assert (text(result), result.structured_content) == ("?", {"got": {"a": "b"}})
