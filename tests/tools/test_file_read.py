"""`file_read`: pages equal what the csv module says, and nothing outside the roots is ever read."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.tools import pages
from centuria.tools.file_read import FileReader
from centuria.tools.rooted import Roots
from centuria.tools.serving import Refusal

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    (folder / "plain.txt").write_text("one\ntwo\nthree\n")
    (folder / "table.csv").write_text("Symbol,Sector\nA,x\nB,y\nC,x\n")
    return folder


@pytest.fixture
def reader(root: Path) -> Iterator[FileReader]:
    roots = Roots([root])
    yield FileReader(roots)
    roots.close()


def read(reader: FileReader, path: str, **arguments: Any) -> dict[str, Any]:
    return reader.read({"path": path, **arguments}, lambda: False)


def refused(reader: FileReader, path: str, **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        read(reader, path, **arguments)
    assert SECRET not in str(caught.value)
    return str(caught.value)


# -- what is read ----------------------------------------------------------------------------------------------------


def test_rows_of_a_table_are_filtered_counted_and_paged(reader: FileReader) -> None:
    first = read(reader, "table.csv", where={"Sector": "x"}, columns=["Symbol"], limit=1)
    assert first == {
        "path": "table.csv",
        "format": "csv",
        "columns": ["Symbol"],
        "rows": [{"Symbol": "A"}],
        "total": 2,
        "offset": 0,
        "next_offset": 1,
    }
    rest = read(reader, "table.csv", where={"Sector": ["x", "z"]}, offset=1)
    assert (rest["rows"], rest["next_offset"]) == ([{"Symbol": "C", "Sector": "x"}], None)


def test_text_is_paged_by_lines(reader: FileReader) -> None:
    page = read(reader, "plain.txt", offset=1, limit=1)
    assert (page["text"], page["lines"], page["next_offset"]) == ("two\n", 1, 2)
    assert read(reader, "plain.txt", offset=2)["next_offset"] is None


def test_an_absolute_path_inside_a_root_is_read(reader: FileReader, root: Path) -> None:
    assert read(reader, str(root / "plain.txt"))["text"] == "one\ntwo\nthree\n"


def test_a_link_that_stays_inside_is_followed(reader: FileReader, root: Path) -> None:
    (root / "link.txt").symlink_to("plain.txt")
    assert read(reader, "link.txt")["path"] == "plain.txt"


def test_a_relative_path_belongs_to_the_first_root_that_has_it(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "only.txt").write_text("here")
    roots = Roots([root, second])
    assert read(FileReader(roots), "only.txt")["text"] == "here"
    roots.close()


def test_json_lines_keep_their_types_and_say_which_lines_are_none(reader: FileReader, root: Path) -> None:
    (root / "a.jsonl").write_text('{"n": 1, "s": "x"}\nnot json\n[1]\n\n{"n": 2, "s": null}\n{"n": NaN}\n')
    page = read(reader, "a.jsonl", where={"n": "2"})
    assert page["rows"] == [{"n": 2, "s": None}]
    assert page["notes"] == [
        "A line is not JSON and is left out (line 2, and 1 more)",
        "A line is JSON but not an object and is left out (line 3)",
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_column(reader: FileReader, root: Path) -> None:
    (root / "bom.csv").write_bytes(b"\xef\xbb\xbfName,Age\nEve,3\n")
    assert read(reader, "bom.csv", where={"Name": "Eve"})["rows"] == [{"Name": "Eve", "Age": "3"}]


def test_duplicate_columns_and_ragged_rows_are_read_and_said(reader: FileReader, root: Path) -> None:
    (root / "odd.csv").write_text("a,a,\n1,2,3\n1\n1,2,3,4\n")
    page = read(reader, "odd.csv")
    assert page["columns"] == ["a", "a_2", "column_3"]
    assert page["rows"][1] == {"a": "1", "a_2": "", "column_3": ""}
    assert page["rows"][2] == {"a": "1", "a_2": "2", "column_3": "3"}
    assert len(page["notes"]) == 4


def test_a_semicolon_table_is_understood(reader: FileReader, root: Path) -> None:
    (root / "de.csv").write_text("Name;Preis\nA;1,5\n")
    assert read(reader, "de.csv")["rows"] == [{"Name": "A", "Preis": "1,5"}]


def test_an_empty_table_has_no_rows(reader: FileReader, root: Path) -> None:
    (root / "empty.csv").write_text("")
    assert read(reader, "empty.csv")["total"] == 0


names = st.lists(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=5), min_size=1, max_size=4, unique=True
)
cells = st.text(
    st.one_of(st.sampled_from('ab, "\n\r;\té–'), st.characters(codec="utf-8", exclude_characters="\0")),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_walk_over_the_pages_equals_the_csv_module(data: st.DataObject) -> None:
    header = data.draw(names)
    rows = data.draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), max_size=12))
    column = data.draw(st.sampled_from(header))
    wanted = data.draw(
        st.lists(st.one_of(cells, st.sampled_from([r[header.index(column)] for r in rows] or [""])), max_size=3)
    )
    limit = data.draw(st.integers(1, 5))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    expected = [row for row in csv.DictReader(io.StringIO(out.getvalue(), newline="")) if row[column] in wanted]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t.csv").write_bytes(out.getvalue().encode())
        roots = Roots([Path(folder)])
        reader, got, offset = FileReader(roots), [], 0
        while offset is not None:
            page = read(reader, "t.csv", where={column: wanted}, offset=offset, limit=limit)
            assert page["total"] == len(expected)
            got += page["rows"]
            offset = page["next_offset"]
        roots.close()
    assert got == expected


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff")), limit=st.integers(1, 4))
def test_a_walk_over_the_lines_gives_the_text_back(text: str, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t.txt").write_bytes(text.encode())
        roots = Roots([Path(folder)])
        reader, got, offset = FileReader(roots), "", 0
        while offset is not None:
            page = read(reader, "t.txt", offset=offset, limit=limit)
            got += page["text"]
            offset = page["next_offset"]
        roots.close()
    assert got == text


# -- caps ------------------------------------------------------------------------------------------------------------


def test_an_answer_never_exceeds_its_cap_and_says_where_to_go_on(reader: FileReader, root: Path) -> None:
    (root / "wide.csv").write_text("a\n" + ("x" * 1000 + "\n") * 1000)
    page = read(reader, "wide.csv", limit=1000)
    assert len(json.dumps(page)) < pages.MAX_ANSWER * 1.05
    assert page["next_offset"] == len(page["rows"]) < 1000
    assert page["total"] == 1000


def test_more_than_a_thousand_rows_are_not_given_at_once(reader: FileReader, root: Path) -> None:
    (root / "long.csv").write_text("a\n" + "x\n" * 3000)
    assert len(read(reader, "long.csv", limit=5000)["rows"]) == 1000
    assert len(read(reader, "long.csv")["rows"]) == 50


def test_a_huge_line_is_refused(reader: FileReader, root: Path) -> None:
    (root / "huge.txt").write_text("x" * (pages.MAX_LINE + 1))
    assert "longer than" in refused(reader, "huge.txt")
    (root / "big.txt").write_text("x" * (pages.MAX_ANSWER + 1))
    assert "alone is longer than an answer may be" in refused(reader, "big.txt")
    (root / "big.jsonl").write_text(json.dumps({"a": "x" * pages.MAX_ANSWER}))
    assert "Ask for fewer columns" in refused(reader, "big.jsonl")


def test_a_quotation_mark_that_is_never_closed_does_not_swallow_the_file(reader: FileReader, root: Path) -> None:
    (root / "open.csv").write_text('a,b\n1,"2\n' + "x,y\n" * 100_000)
    assert "never closed" in refused(reader, "open.csv")


def test_a_file_that_is_too_large_is_refused_unread(reader: FileReader, root: Path) -> None:
    with open(root / "sparse.txt", "wb") as file:
        file.truncate(600 * 1024 * 1024)
    assert "bytes; at most" in refused(reader, "sparse.txt")


def test_a_reading_that_nobody_waits_for_stops(reader: FileReader, root: Path) -> None:
    (root / "long.csv").write_text("a\n" + "x\n" * 5000)
    with pytest.raises(Refusal, match="cancelled"):
        reader.read({"path": "long.csv"}, lambda: True)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../secret.txt", "a/../../secret.txt", "/etc/passwd", "//etc/passwd", "..", "/"])
def test_paths_that_lead_out_are_refused(reader: FileReader, path: str) -> None:
    assert "outside the folders" in refused(reader, path)


def test_a_folder_next_to_the_root_with_the_same_beginning_is_outside(reader: FileReader, tmp_path: Path) -> None:
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "secret.txt").write_text(SECRET)
    assert "outside the folders" in refused(reader, "../root2/secret.txt")


@pytest.mark.parametrize("path", ["", "plain.txt\0.png", "\0", "x" * 5000])
def test_paths_that_are_no_paths_are_refused(reader: FileReader, path: str) -> None:
    assert "path" in refused(reader, path).lower()


def test_a_link_to_a_file_outside_is_refused(reader: FileReader, root: Path, tmp_path: Path) -> None:
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").symlink_to(tmp_path)
    assert "outside the folders" in refused(reader, "out.txt")
    assert "outside the folders" in refused(reader, "folder/secret.txt")


def test_a_loop_of_links_is_refused(reader: FileReader, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    refused(reader, "a")


def test_a_link_that_is_put_there_in_between_never_leads_out(reader: FileReader, root: Path, tmp_path: Path) -> None:
    """Another thread keeps replacing the file, and its folder, by links to the secret while we read."""
    inside, target = root / "inside", root / "inside" / "file.txt"
    (root / "kept").mkdir()
    (root / "kept" / "file.txt").write_text("fine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file.txt").write_text(SECRET)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for victim in (root / "kept", elsewhere):
                new = root / "new"
                new.symlink_to(victim)
                os.replace(new, inside)
            os.unlink(inside)
            os.mkdir(inside)
            target.write_text("fine")
            new = root / "new"
            new.symlink_to(tmp_path / "secret.txt")
            os.replace(new, target)
            os.unlink(target)
            os.rmdir(inside)

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(read(reader, "inside/file.txt")["text"])
            except Refusal as refusal:
                assert SECRET not in str(refusal)
    finally:
        done.set()
        thread.join()
    assert seen <= {"fine", ""}


def test_the_walk_itself_follows_no_link(root: Path, tmp_path: Path) -> None:
    """What the race above may hit by chance, hit for certain: the path was resolved, then became a link."""
    (root / "plain.txt").unlink()
    (root / "plain.txt").symlink_to(tmp_path / "secret.txt")
    roots = Roots([root])
    descriptor = os.open(root, os.O_RDONLY)
    with pytest.raises(Refusal, match="leads out"):
        Roots._walk(descriptor, "plain.txt", "plain.txt")
    os.close(descriptor)
    roots.close()


def test_a_pipe_is_refused_at_once_though_nobody_writes_to_it(reader: FileReader, root: Path) -> None:
    os.mkfifo(root / "pipe.txt")
    assert "named pipe" in refused(reader, "pipe.txt")


def test_a_socket_is_refused(reader: FileReader, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock.txt")
        assert "socket" in refused(reader, "sock.txt")


def test_a_folder_is_refused_with_the_way_to_list_it(reader: FileReader, root: Path) -> None:
    (root / "sub").mkdir()
    for path in ("sub", ".", str(root)):
        assert "file_list" in refused(reader, path)


def test_system_files_are_refused_even_below_a_root_that_holds_them() -> None:
    roots = Roots([Path("/")])
    reader = FileReader(roots)
    for path in (
        "/proc/self/environ",
        "proc/self/environ",
        "/dev/zero",
        "/sys/kernel/profiling",
        "/proc/self/fd/0",
    ):
        with pytest.raises(Refusal, match=r"belongs to the system|no file|is a device|socket|pipe"):
            read(reader, path)
    with pytest.raises(Refusal, match="belongs to the system"):
        read(reader, "/proc/self/environ")
    roots.close()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a,b\n1,\0\n", "NUL"),
        (b"a\n\xe9t\xe9\n", "not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8|NUL"),
    ],
)
def test_what_is_no_text_is_refused_in_words(reader: FileReader, root: Path, content: bytes, sentence: str) -> None:
    for name in ("binary.csv", "binary.bin"):
        (root / name).write_bytes(content)
        with pytest.raises(Refusal, match=sentence):
            read(reader, name)


def test_an_unknown_column_is_answered_with_the_nearest_right_name(reader: FileReader) -> None:
    assert 'Did you mean "Sector"?' in refused(reader, "table.csv", where={"sector": "x"})
    assert 'Did you mean "Symbol"?' in refused(reader, "table.csv", columns=["Symbols"])
    assert 'There is: "Symbol", "Sector".' in refused(reader, "table.csv", columns=["zzz"])


def test_an_unknown_field_of_json_lines_is_said_where_nothing_matches(reader: FileReader, root: Path) -> None:
    (root / "a.jsonl").write_text('{"name": 1}\n')
    assert 'Did you mean "name"?' in refused(reader, "a.jsonl", where={"names": "1"})


def test_a_filter_on_text_is_refused(reader: FileReader) -> None:
    assert "`where` and `columns` are for" in refused(reader, "plain.txt", where={"a": "b"})


def test_a_missing_file_is_said(reader: FileReader) -> None:
    assert "There is no file" in refused(reader, "nope.csv")
    assert "not a folder" in refused(reader, "plain.txt/x")


@contextmanager
def as_nobody(root: Path) -> Iterator[None]:
    """The block without the right to read everything, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    for folder in [root, *root.parents]:
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_without_permission_is_said(reader: FileReader, root: Path) -> None:
    (root / "closed.txt").write_text("x")
    (root / "closed.txt").chmod(0)
    with as_nobody(root):
        assert "permissions" in refused(reader, "closed.txt")


def test_descriptors_are_given_back(reader: FileReader, root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (root / "out.txt").symlink_to("/etc/passwd")
    for path in ("plain.txt", "table.csv", "nope", "out.txt", "..", "table.csv/x"):
        for _ in range(5):
            try:
                read(reader, path)
            except Refusal:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


# -- listing ---------------------------------------------------------------------------------------------------------


async def test_a_listing_shows_files_and_folders_but_nothing_hidden_or_linked(reader: FileReader, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a.txt").write_text("xyz")
    (root / ".hidden").write_text("x")
    (root / "out").symlink_to("/etc")
    answer = await reader.file_list({})
    assert answer.structured is not None
    assert answer.structured["entries"] == [
        {"path": "plain.txt", "bytes": 14},
        {"path": "sub/"},
        {"path": "sub/a.txt", "bytes": 3},
        {"path": "table.csv", "bytes": 26},
    ]
    assert (await reader.file_list({"path": "sub"})).structured["entries"] == [{"path": "sub/a.txt", "bytes": 3}]  # type: ignore[index]
    with pytest.raises(Refusal, match="outside"):
        await reader.file_list({"path": "out"})


def test_a_listing_is_capped(reader: FileReader, root: Path) -> None:
    for number in range(20):
        (root / f"f{number:02}.txt").write_text("")
    entries, more = reader.roots.listing(".", 5)
    assert (len(entries), more) == (5, True)
