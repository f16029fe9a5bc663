"""File names for any identity, and files that no tool gives away."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.folder import Stems, file_stem
from centuria.tools.file_read import FileReader
from centuria.tools.rooted import Roots
from centuria.tools.serving import Refusal

NAMES = st.lists(st.text(st.sampled_from("aA/-.ſK\u212a"), min_size=1, max_size=5), unique=True, max_size=12)


@given(NAMES)
def test_no_two_tasks_share_a_file_also_where_case_does_not_count(identities: list[str]) -> None:
    names = Stems(identities)
    stems = {identity: names.of(identity) for identity in identities}
    assert list(stems) == identities
    assert len({stem.casefold() for stem in stems.values()}) == len(identities)
    assert all(0 < len(stem) < 140 and "/" not in stem for stem in stems.values())


def test_an_identity_that_is_written_like_the_file_name_of_another_one_gets_its_own() -> None:
    identities = ["a/b", file_stem("a/b"), "NVDA"]
    names = Stems(identities)
    stems = {identity: names.of(identity) for identity in identities}
    assert len(set(stems.values())) == 3
    assert stems["NVDA"] == "NVDA"


@pytest.mark.parametrize("path", [".env", ".git/config", "sub/.ssh/key", "sub/../.env", "seen.txt"])
def test_hidden_files_are_not_read_under_any_spelling(tmp_path: Path, path: str) -> None:
    for folder in (".git", "sub/.ssh"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (".env", ".git/config", "sub/.ssh/key"):
        (tmp_path / name).write_text("KEY=secret")
    (tmp_path / "seen.txt").symlink_to(".env")
    roots = Roots([tmp_path])
    try:
        with pytest.raises(Refusal, match="hidden"):
            FileReader(roots).read({"path": path})
    finally:
        roots.close()


def test_a_root_that_is_hidden_itself_was_chosen_by_the_user(tmp_path: Path) -> None:
    (tmp_path / ".data").mkdir()
    (tmp_path / ".data" / "a.txt").write_text("here")
    roots = Roots([tmp_path / ".data"])
    try:
        assert FileReader(roots).read({"path": "a.txt"})["text"] == "here"
    finally:
        roots.close()
