"""`server-filesystem`, `mcp-server-git` and `mcp-server-time`: effects on disk, refusals that are values."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from centuria.messages import ToolEnd
from tests.servers.kit import Bench, clock, filesystem, git, host_of, kept, server

pytestmark = pytest.mark.asyncio(loop_scope="module")


def run_git(repository: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", "-C", str(repository), *arguments], text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`first` and `second` are allowed, `outside` is not; `repository` is one of git, with one commit."""
    place = tmp_path_factory.mktemp("files").resolve()
    for name in ("first", "second", "outside", "repository"):
        (place / name).mkdir()
    (place / "outside" / "secret.txt").write_text("not for agents")
    (place / "first" / "way-out").symlink_to(place / "outside")
    (place / "repository" / "poem.txt").write_text("roses\n")
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "A first line"]):
        run_git(place / "repository", *command)
    return place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(place: Path) -> AsyncIterator[Bench]:
    author = {"GIT_AUTHOR_NAME": "Bea", "GIT_AUTHOR_EMAIL": "bea@example.org"}
    author |= {"GIT_COMMITTER_NAME": "Bea", "GIT_COMMITTER_EMAIL": "bea@example.org"}
    servers = [
        server("files", filesystem(place / "first", place / "second")),
        server("git", git() | {"env": author}),
        server("time", clock()),
    ]
    async with kept(host_of(*servers)) as host:
        yield Bench(host)


async def test_what_is_written_is_on_disk_and_is_read_back(bench: Bench, place: Path) -> None:
    path = place / "first" / "note.txt"
    await bench.text("files__write_file", {"path": str(path), "content": "one\ntwo\n"})
    await bench.text("files__edit_file", {"path": str(path), "edits": [{"oldText": "two", "newText": "zwei \u2713"}]})
    assert path.read_text() == "one\nzwei \u2713\n"
    assert await bench.text("files__read_text_file", {"path": str(path)}) == "one\nzwei \u2713\n"
    assert await bench.text("files__read_text_file", {"path": str(path), "head": 1}) == "one"
    assert "[FILE] note.txt" in await bench.text("files__list_directory", {"path": str(path.parent)})
    await bench.text("files__move_file", {"source": str(path), "destination": str(place / "second" / "note.txt")})
    assert not path.exists() and (place / "second" / "note.txt").exists()


@pytest.mark.parametrize("way", ["outside/secret.txt", "first/../outside/secret.txt", "first/way-out/secret.txt"])
async def test_a_path_outside_is_refused_by_the_server_and_the_model_sees_its_words(
    bench: Bench, place: Path, way: str
) -> None:
    read = await bench.call("files__read_text_file", {"path": f"{place}/{way}"})
    assert read.end is ToolEnd.ERROR
    assert "Access denied" in read.text and "not for agents" not in read.text
    write = await bench.call("files__write_file", {"path": f"{place}/{way}", "content": "mine now"})
    assert write.end is ToolEnd.ERROR
    assert (place / "outside" / "secret.txt").read_text() == "not for agents"


async def test_a_long_text_is_cut_for_the_model_and_kept_whole(bench: Bench, place: Path) -> None:
    (place / "first" / "long.txt").write_text("0123456789" * 5_000)
    result = await bench.call("files__read_text_file", {"path": str(place / "first" / "long.txt")})
    assert result.end is ToolEnd.OK and len(result.text) < 21_000 and "30,000 of 50,000 characters" in result.text
    assert "0123456789" * 5_000 in bench.spilled.values()


async def test_a_picture_is_a_mark_and_not_its_bytes(bench: Bench, place: Path) -> None:
    (place / "first" / "dot.png").write_bytes(b"\x89PNG" + bytes(2_000))
    text = await bench.text("files__read_media_file", {"path": str(place / "first" / "dot.png")})
    assert text == "[image image/png, 2 kB]"


async def test_a_repository_is_looked_at_changed_and_committed(bench: Bench, place: Path) -> None:
    where = {"repo_path": str(place / "repository")}
    assert "A first line" in await bench.text("git__git_log", where)
    (place / "repository" / "poem.txt").write_text("roses\nviolets\n")
    assert "+violets" in await bench.text("git__git_diff_unstaged", where)
    await bench.text("git__git_create_branch", {**where, "branch_name": "side"})
    await bench.text("git__git_checkout", {**where, "branch_name": "side"})
    await bench.text("git__git_add", {**where, "files": ["poem.txt"]})
    assert "+violets" in await bench.text("git__git_diff_staged", where)
    assert "committed" in await bench.text("git__git_commit", {**where, "message": "A second line"})
    assert "* side" in await bench.text("git__git_branch", {**where, "branch_type": "local"})
    log = run_git(place / "repository", "log", "--format=%an %s")
    assert log.splitlines() == ["Bea A second line", "Ann A first line"]
    shown = await bench.call("git__git_show", {**where, "revision": "nonsense"})
    assert shown.end is ToolEnd.ERROR and "'nonsense'" in shown.text


async def test_a_time_is_told_and_a_zone_that_is_none_is_a_value(bench: Bench) -> None:
    noon = {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Seoul"}
    result = await bench.call("time__convert_time", noon)
    assert isinstance(result.structured, dict)
    assert result.structured["time_difference"] == "+9.0h"
    assert "T21:00:00+09:00" in result.structured["target"]["datetime"]
    wrong = await bench.call("time__get_current_time", {"timezone": "Nowhere/Land"})
    assert wrong.end is ToolEnd.ERROR and "Nowhere/Land" in wrong.text
