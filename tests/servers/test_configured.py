"""An `mcp.json` as other hosts write it: names that are no identifiers, `npx -y`, both eras of the protocol."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from centuria.config import read_mcp_json
from centuria.messages import ToolEnd
from centuria.settings import Timeouts
from centuria.toolhost import McpToolHost
from tests.servers.collect import SCHEMAS
from tests.servers.installed import NODE as NODE_FOLDER
from tests.servers.installed import OLD_PYTHON
from tests.servers.kit import NODE, PATH, Bench, all_servers, everything, host_of, server
from tests.toolhost.kit import left_after, processes_with

ASKING = str(Path(__file__).with_name("asking.py"))


def written(folder: Path, servers: dict[str, Any]) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def hosted(path: Path) -> McpToolHost:
    return McpToolHost(read_mcp_json(path, os.environ), timeouts=Timeouts(), dice=lambda: 0.0)


#: The servers under names as people give them.
NAMED = {
    "brave_search": "everything",
    "sequential-thinking": "filesystem",
    "GitHub": "git",
    "chrome-devtools-mcp": "memory",
    "testkit": "testkit",
    "\u65f6\u95f4": "time",
}


async def test_one_file_of_six_servers_works_unedited_whatever_their_names_and_eras(tmp_path: Path) -> None:
    entries = all_servers(tmp_path)
    async with hosted(written(tmp_path, {name: entries[what] for name, what in NAMED.items()})) as host:
        states = {state.server: state for state in host.servers()}
        assert list(states) == list(NAMED)
        assert {NAMED[name]: state.detail["protocol"] for name, state in states.items() if state.up} == {
            "everything": "2025-11-25",
            "filesystem": "2025-11-25",
            "git": "2026-07-28",
            "memory": "2025-11-25",
            "testkit": "2025-11-25",
            "time": "2026-07-28",
        }
        names = [tool.name for tool in host.catalogue()]
        assert len(set(names)) == len(names) == 116
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
        listed = {(NAMED[tool.server], tool.tool) for tool in host.catalogue()}
        kept = {(tool["server"], tool["tool"]) for tool in json.loads(SCHEMAS.read_text())}
        assert listed == kept, "python -m tests.servers.collect writes the fixture anew"

        bench, slugs = Bench(host), {name: state.slug for name, state in states.items()}
        assert await bench.text(f"{slugs['brave_search']}__echo", {"message": "hi"}) == "Echo: hi"
        assert await bench.text(f"{slugs['testkit']}__echo", {"message": "hi"}) == '{"result": "hi"}'
        allowed = await bench.text(f"{slugs['sequential-thinking']}__list_allowed_directories")
        assert str(tmp_path) in allowed
        await bench.text(f"{slugs['chrome-devtools-mcp']}__read_graph")
        status = await bench.call(f"{slugs['GitHub']}__git_status", {"repo_path": str(tmp_path)})
        assert status.end is ToolEnd.ERROR
        clock = slugs["\u65f6\u95f4"]
        assert "Asia/Seoul" in await bench.text(f"{clock}__get_current_time", {"timezone": "Asia/Seoul"})


async def test_npx_starts_a_server_that_is_installed_without_a_network_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    env = {"PATH": PATH, "HOME": str(tmp_path), "npm_config_offline": "true", "MEMORY_FILE_PATH": str(file)}
    package = "@modelcontextprotocol/server-memory"
    entry = {"command": "npx", "args": ["-y", package], "env": env, "cwd": str(NODE_FOLDER)}
    async with hosted(written(tmp_path, {"memory": entry})) as host:
        (state,) = host.servers()
        assert state.up, state.reason
        bench = Bench(host)
        await bench.text(
            "memory__create_entities", {"entities": [{"name": "a", "entityType": "t", "observations": []}]}
        )
        group = [pid for pid in processes_with("server-memory") if os.getpgid(pid) == state.detail["pid"]]
        assert len(group) >= 2  # npx, and what it started
    assert left_after(group, 5.0) == []
    assert "memory.jsonl" in os.listdir(tmp_path)


async def test_npx_that_cannot_find_its_package_says_so_in_the_census(tmp_path: Path) -> None:
    env = {"PATH": PATH, "HOME": str(tmp_path), "npm_config_offline": "true"}
    entry = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"], "env": env}
    async with hosted(written(tmp_path, {"memory": entry})) as host:
        (state,) = host.servers()
    assert not state.up
    assert "ended with code 1" in state.reason
    assert "cache mode is 'only-if-cached'" in state.reason


async def test_a_script_that_is_not_there_is_named_in_the_census(tmp_path: Path) -> None:
    entry = {"command": str(NODE), "args": [str(tmp_path / "no-such.js")]}
    async with host_of(server("gone", entry)) as host:
        (state,) = host.servers()
    assert "Cannot find module" in state.reason and "no-such.js" in state.reason


async def test_a_server_sees_the_variables_of_its_entry_and_no_key_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONSHOT_API_KEY", "sk-ours")
    monkeypatch.setenv("THEIRS", "sk-theirs")
    entry = everything() | {"env": {"TOKEN": "${THEIRS}"}}
    async with hosted(written(tmp_path, {"every": entry})) as host:
        seen = json.loads(await Bench(host).text("every__get-env"))
    assert seen["TOKEN"] == "sk-theirs"
    assert "MOONSHOT_API_KEY" not in seen and "THEIRS" not in seen


@pytest.mark.parametrize(
    ("python", "era"), [(sys.executable, "2026-07-28"), (str(OLD_PYTHON), "2025-11-25")], ids=["new", "old"]
)
async def test_a_server_that_asks_its_client_back_is_declined_at_once_and_goes_on(python: str, era: str) -> None:
    async with host_of(server("asking", {"command": python, "args": [ASKING]})) as host:
        (state,) = host.servers()
        assert state.detail["protocol"] == era
        bench = Bench(host)
        for tool in ("ask_the_user", "ask_the_model", "ask_for_roots"):
            result = await bench.call(f"asking__{tool}")
            if tool == "ask_the_user" and era == "2025-11-25":  # it may ask, and hears our policy's answer
                assert (result.end, result.text) == (ToolEnd.OK, "the user said decline")
                continue
            assert result.end is ToolEnd.ERROR and ("not supported" in result.text or "no back-channel" in result.text)
        assert await bench.text("asking__echo", {"text": "still here"}) == "still here"
