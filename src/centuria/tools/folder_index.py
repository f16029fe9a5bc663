"""Full-text search in the text files of a folder, with SQLite's FTS5. Only what changed is read again."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from centuria.tools.serving import Refusal

SUFFIXES = frozenset({".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".csv", ".tsv"})
MAX_FILES = 20_000
MAX_FILE = 8 * 1024 * 1024
MAX_TERMS = 32

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One hit. `where` is the file's path in the folder."""

    title: str
    where: str
    snippet: str


class FolderIndex:
    """The index of one folder, in memory; safe to use from several threads, which take turns.

    Links are not followed and hidden files are left out. Every search first looks at what changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._rows: dict[str, int] = {}
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE pages USING fts5(title, body, path UNINDEXED, "
            "tokenize='unicode61 remove_diacritics 2')"
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def search(self, query: str, limit: int) -> list[Found]:
        """The best hits first; all words, or where nothing has all of them, any. Raises `Refusal`."""
        terms = _terms(query)
        if not terms:
            raise Refusal("The query has no letters or digits to search for.")
        with self._lock:
            self._refresh()
            for joined in (" ".join(terms), " OR ".join(terms)):
                rows = self._database.execute(
                    "SELECT title, path, snippet(pages, 1, '', '', ' ... ', 40) FROM pages "
                    "WHERE pages MATCH ? ORDER BY bm25(pages, 4.0, 1.0), path LIMIT ?",
                    (joined, limit),
                ).fetchall()
                if rows:
                    break
        return [Found(title, path, " ".join(snippet.split())) for title, path, snippet in rows]

    def _refresh(self) -> None:
        there: dict[str, tuple[int, int, int]] = {}
        for path, info in self._files():
            there[path] = (info.st_mtime_ns, info.st_size, info.st_ino)
        for path in self._seen.keys() - there.keys():
            self._forget(path)
        for path, mark in there.items():
            if self._seen.get(path) == mark:
                continue
            self._forget(path)
            title, body = _page(self.folder / path)
            if body:
                row = self._database.execute(
                    "INSERT INTO pages (title, body, path) VALUES (?, ?, ?)", (title or path, body, path)
                ).lastrowid
                self._rows[path] = row or 0
        self._seen = there

    def _forget(self, path: str) -> None:
        row = self._rows.pop(path, None)
        if row is not None:
            self._database.execute("DELETE FROM pages WHERE rowid = ?", (row,))

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        count = 0
        for top, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(top, name)
                if name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                    continue
                try:
                    info = path.lstat()
                except OSError:
                    continue
                if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                yield path.relative_to(self.folder).as_posix(), info


def _terms(query: str) -> list[str]:
    """The words of a query, each quoted, so that nothing in it is query syntax."""
    words = "".join(letter if letter.isalnum() else " " for letter in query[:2000]).split()
    return [f'"{word}"' for word in dict.fromkeys(words)][:MAX_TERMS]


def _page(path: Path) -> tuple[str, str]:
    """Title and text of a file; both empty where it cannot be read or is no text."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return "", ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "", ""
        raw = file.read(MAX_FILE)
    if b"\0" in raw:
        return "", ""
    text = raw.decode("utf-8-sig", "replace")
    if path.suffix.lower() in (".html", ".htm"):
        reader = _Html()
        reader.feed(text)
        reader.close()
        return " ".join("".join(reader.title).split())[:200], "".join(reader.body)
    first = next((line for line in text.splitlines() if line.strip()), "")
    is_heading = path.suffix.lower() in (".md", ".markdown", ".rst", ".txt")
    return (first.lstrip("# ").strip()[:200] if is_heading else ""), text


class _Html(HTMLParser):
    """The text of a page and its title, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.body: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "title", "template"):
            self._inside.append(tag)
        self.body.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            self._inside.remove(tag)
        self.body.append(" ")

    def handle_data(self, data: str) -> None:
        if self._inside == ["title"]:
            self.title.append(data)
        elif not self._inside:
            self.body.append(data)
