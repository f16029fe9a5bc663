"""The run folder: whole files, safe names, and runs that are found by what a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ConfigurationError
from centuria.folder import RunFolder, file_stem, find_run, list_runs, register


@given(st.text(min_size=1, max_size=200))
def test_every_identity_has_a_safe_file_name(identity: str) -> None:
    stem = file_stem(identity)
    assert 0 < len(stem) < 100
    assert "/" not in stem
    assert not stem.startswith(".")


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_identities_never_share_a_file_name(one: str, other: str) -> None:
    safe = one.encode("utf-8", "replace") != other.encode("utf-8", "replace")
    assert not safe or file_stem(one) != file_stem(other)


@pytest.mark.parametrize("name", ["../out.md", "/etc/passwd", "reports/../../x"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    with pytest.raises(ConfigurationError, match="out of the run folder"):
        folder.write(name, "x")


def test_a_folder_that_holds_a_run_is_refused_with_the_way_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(ConfigurationError, match="centuria resume"):
        RunFolder(tmp_path).create()


def test_a_folder_with_other_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(ConfigurationError, match="not empty"):
        RunFolder(tmp_path).create()


def test_a_run_is_found_by_id_by_its_start_by_path_and_as_the_last(tmp_path: Path) -> None:
    for name in ("20260101-a", "20260102-b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.sqlite").touch()
    root = tmp_path / "runs"
    assert find_run("20260101-a", root).path == root / "20260101-a"
    assert find_run("20260102", root).path == root / "20260102-b"
    assert find_run("last", root).path == root / "20260102-b"
    assert find_run(str(root / "20260101-a"), Path("nowhere")).path == root / "20260101-a"
    with pytest.raises(ConfigurationError, match="start of 2 runs"):
        find_run("2026", root)
    with pytest.raises(ConfigurationError, match="The latest there are: 20260101-a, 20260102-b"):
        find_run("nothing", root)


def test_a_run_elsewhere_is_listed_too(tmp_path: Path) -> None:
    elsewhere = RunFolder(tmp_path / "reports")
    elsewhere.create()
    elsewhere.journal.touch()
    register(elsewhere, tmp_path / "runs", "20260103-c")
    assert [run.path for run in list_runs(tmp_path / "runs")] == [elsewhere.path]


def test_text_that_is_no_valid_unicode_is_still_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write("a.md", "half \ud800 a character")
    assert folder.read("a.md") == "half ? a character"
