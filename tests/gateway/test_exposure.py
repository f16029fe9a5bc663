"""What the gateway's own tools may not show: its file, its store and the runs of all keys."""

from __future__ import annotations

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


def check(folder: Path, tool: str) -> None:
    for name in ("kept", "runs/one", "documents"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "gateway.toml").write_text(FILE + tool)
    check_exposure(read_gateway(folder / "gateway.toml", {}, rehearse=True), folder / "gateway.toml")


def test_a_file_read_without_roots_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CenturiaError, match=r"\[tools\.f\] has no `roots`"):
        check(tmp_path, 'builtin = "file_read"')


@pytest.mark.parametrize("root", [".", "kept", "runs", "runs/one", "link", "/"])
def test_no_folder_of_a_tool_may_hold_or_lie_in_what_is_the_gateways_own(tmp_path: Path, root: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for tool in (f'builtin = "file_read"\nroots = ["{root}"]', f'builtin = "web_search"\nfolder = "{root}"'):
        with pytest.raises(ConfigurationError, match=r"\[tools\.f\] would show every key"):
            check(tmp_path, tool)


def test_a_folder_beside_the_gateways_files_is_served(tmp_path: Path) -> None:
    check(tmp_path, 'builtin = "file_read"\nroots = ["documents"]')
