"""What the gateway's own tools may not show: its file, its store and the runs of all keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from centuria.errors import CenturiaError, ConfigurationError
from centuria.gateway.exposure import check_exposure
from centuria.gateway.reading import read_gateway

FILE = """
[gateway]
store = "kept/gateway.db"

[[model]]
name = "m"
base_url = "http://127.0.0.1:9/v1"

[swarms]
folder = "runs"

[tools.f]
"""


def check(folder: Path, tool: str, head: str = "") -> None:
    for name in ("kept", "runs/one", "documents"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "gateway.toml").write_text(head + (FILE + tool if tool else FILE.removesuffix("[tools.f]\n")))
    check_exposure(read_gateway(folder / "gateway.toml", {}, rehearse=True), folder / "gateway.toml")


def test_a_file_read_without_roots_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CenturiaError, match=r"\[tools\.f\] has no `roots`"):
        check(tmp_path, 'builtin = "file_read"')


@pytest.mark.parametrize("root", [".", "kept", "runs", "runs/one", "link", "/"])
def test_no_folder_of_a_tool_may_hold_or_lie_in_what_is_the_gateways_own(tmp_path: Path, root: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for tool in (f'builtin = "file_read"\nroots = ["{root}"]', f'builtin = "web_search"\nfolder = "{root}"'):
        with pytest.raises(ConfigurationError, match="The tool server f would show every key"):
            check(tmp_path, tool)


@pytest.mark.parametrize(
    "argument", [".", "..", "kept/gateway.db", "--root=kept", "{folder}/runs/one", "{folder}:/data:ro", "~", "src=link"]
)
def test_no_command_is_given_what_is_the_gateways_own(
    tmp_path: Path, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "gateway.db").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="The tool server f would show every key"):
        check(tmp_path, f'command = "serve-files"\nargs = ["-v", "{argument.format(folder=tmp_path)}"]')


@pytest.mark.parametrize("argument", ["-m", "documents", "--root=documents", "nowhere/at/all", "", "~nobody-here"])
def test_a_command_may_have_any_other_argument(tmp_path: Path, argument: str) -> None:
    check(tmp_path, f'command = "serve-files"\nargs = ["{argument}"]')


def test_a_tools_file_is_kept_from_tools_and_its_commands_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "mcp.json"
    head = 'tools_file = "elsewhere/mcp.json"\n'
    for servers, tool in (
        ({}, 'builtin = "file_read"\nroots = ["elsewhere"]'),
        ({"x": {"command": "c", "args": [".."]}}, ""),
    ):
        file.write_text(json.dumps({"mcpServers": servers}))
        with pytest.raises(ConfigurationError, match="would show every key"):
            check(tmp_path, tool, head)


def test_a_folder_beside_the_gateways_files_is_served(tmp_path: Path) -> None:
    check(tmp_path, 'builtin = "file_read"\nroots = ["documents"]')
