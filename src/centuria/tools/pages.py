"""One page of a file as data: rows of CSV, TSV and JSON Lines, or lines of text. Never the whole file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from centuria.tools.serving import Refusal, nearest

#: Bytes of JSON in one answer.
MAX_ANSWER = 256 * 1024
#: Bytes of one line (of a row of CSV: of each of its lines).
MAX_LINE = 1024 * 1024
#: Bytes that are read on, only to count, once the page is full.
MAX_COUNTED = 64 * 1024 * 1024

Where = Mapping[str, frozenset[str]]


@dataclass(slots=True)
class Lines:
    """The file's lines, decoded. `read` is the number of bytes so far; `stopped` says to leave off early.

    Raises `Refusal` for what is no UTF-8 text and for a line that is longer than `MAX_LINE`.
    """

    file: BinaryIO
    path: str
    stopped: Callable[[], bool] = lambda: False
    read: int = 0
    number: int = 0

    def __iter__(self) -> Iterator[str]:
        while raw := self.file.readline(MAX_LINE + 1):
            self.number += 1
            if self.number % 1024 == 0 and self.stopped():
                raise Refusal("The call was cancelled.")
            if self.read == 0:
                raw = self._without_mark(raw)
            self.read += len(raw)
            if len(raw) > MAX_LINE:
                raise Refusal(f"Line {self.number:,} of {self.path} is longer than {MAX_LINE:,} bytes.")
            if b"\0" in raw:
                raise Refusal(f"{self.path} is not text: line {self.number:,} has a NUL byte.")
            try:
                yield raw.decode()
            except UnicodeDecodeError as error:
                raise Refusal(
                    f"{self.path} is not UTF-8: byte {error.start + 1} of line {self.number:,} is "
                    f"0x{error.object[error.start]:02x}. Convert the file to UTF-8."
                ) from None

    def _without_mark(self, raw: bytes) -> bytes:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise Refusal(f"{self.path} is UTF-16. Convert the file to UTF-8.")
        return raw.removeprefix(b"\xef\xbb\xbf")


@dataclass(slots=True)
class Notes:
    """What was odd about the file, each kind once with its first line and its count."""

    seen: dict[str, list[int]] = field(default_factory=dict)

    def add(self, kind: str, line: int) -> None:
        self.seen.setdefault(kind, [line, 0])[1] += 1

    def sentences(self) -> list[str]:
        return [
            f"{kind} (line {line:,}{f', and {count - 1:,} more' if count > 1 else ''})"
            for kind, (line, count) in self.seen.items()
        ]


def where_of(where: Mapping[str, str | Sequence[str]]) -> Where:
    return {column: frozenset([value] if isinstance(value, str) else value) for column, value in where.items()}


def table_page(
    lines: Lines, kind: str, *, where: Where, columns: Sequence[str], offset: int, limit: int
) -> dict[str, Any]:
    """Rows `offset` .. of those that match `where`. `kind` is csv, tsv or jsonl.

    `total` counts all that match; it is None where the rest of a large file was not read. Values of CSV are
    the strings of the file, "" where a row is short. Raises `Refusal`.
    """
    notes = Notes()
    page = _Page(offset, limit)
    names: Sequence[str]
    if kind == "jsonl":
        fields: dict[str, None] = {}
        _fill(page, _noting(fields, _json_rows(lines, notes)), lines, where, columns)
        names = list(fields)
        if page.matched == 0:
            _known(where, names, lines.path)
    else:
        names, rows = _csv_rows(lines, kind, notes)
        _known([*where, *columns], names, lines.path)
        _fill(page, rows, lines, where, columns)
    return page.answer(lines.path, kind, columns or names, notes)


def _fill(page: _Page, rows: Iterable[Mapping[str, Any]], lines: Lines, where: Where, columns: Sequence[str]) -> None:
    for row in rows:
        if all(_as_text(row.get(column)) in values for column, values in where.items()):
            page.add({column: row.get(column, "") for column in columns} if columns else row)
        if page.full_at is None and page.full:
            page.full_at = lines.read
        if page.full_at is not None and lines.read - page.full_at > MAX_COUNTED:
            page.uncounted = True
            return


def _noting(fields: dict[str, None], rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The same rows; the names of their fields are kept, up to a thousand or so."""
    for row in rows:
        if len(fields) < 1000:
            fields.update(dict.fromkeys(list(row)[:1000]))
        yield row


def _known(asked: Iterable[str], names: Sequence[str], path: str) -> None:
    for name in asked:
        if name not in names:
            raise Refusal(f'{path} has no column "{name[:100]}". {nearest(name[:100], names)}')


@dataclass(slots=True)
class _Page:
    offset: int
    limit: int
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    matched: int = 0
    size: int = 0
    full: bool = False
    full_at: int | None = None
    uncounted: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        self.matched += 1
        if self.matched <= self.offset or self.full:
            return
        self.size += len(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")) + 2
        if self.size > MAX_ANSWER and not self.rows:
            raise Refusal(
                f"Row {self.matched - 1:,} alone is longer than an answer may be ({MAX_ANSWER:,} bytes). "
                "Ask for fewer columns."
            )
        if self.size > MAX_ANSWER or len(self.rows) >= self.limit:
            self.full = True
            return
        self.rows.append(row)

    def answer(self, path: str, kind: str, columns: Sequence[str], notes: Notes) -> dict[str, Any]:
        end = self.offset + len(self.rows)
        answer: dict[str, Any] = {
            "path": path,
            "format": kind,
            "columns": list(columns),
            "rows": self.rows,
            "total": None if self.uncounted else self.matched,
            "offset": self.offset,
            "next_offset": end if self.full else None,
        }
        sentences = notes.sentences()
        if self.uncounted:
            sentences.append("The file is large: the rows behind this page were not counted")
        if sentences:
            answer["notes"] = sentences
        return answer


def _csv_rows(lines: Lines, kind: str, notes: Notes) -> tuple[list[str], Iterator[dict[str, str]]]:
    feed = iter(lines)
    first = next(feed, "")
    delimiter = "\t" if kind == "tsv" else ";" if ";" in first and "," not in first else ","

    def chained() -> Iterator[str]:
        yield first
        yield from feed

    reader = csv.reader(chained(), delimiter=delimiter)
    header = _next(reader, lines)
    names = _names(header or [], notes)

    def rows() -> Iterator[dict[str, str]]:
        while True:
            fields = _next(reader, lines)
            if fields is None:
                return
            if not fields:
                continue
            if len(fields) < len(names):
                notes.add("A row has fewer fields than the header; the missing ones are empty", lines.number)
                fields += [""] * (len(names) - len(fields))
            elif len(fields) > len(names):
                notes.add("A row has more fields than the header; the last ones are left out", lines.number)
            yield dict(zip(names, fields, strict=False))

    return names, rows()


def _next(reader: Any, lines: Lines) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        raise Refusal(
            f"{lines.path} is not well-formed CSV near line {lines.number:,}: {error}. "
            "A quotation mark that is never closed is the usual cause."
        ) from None


def _names(header: Sequence[str], notes: Notes) -> list[str]:
    """The column names, each once: an empty one is called column_N, a second "Name" is called Name_2."""
    names: dict[str, None] = {}
    for position, given in enumerate(header, 1):
        name = given if given.strip() else f"column_{position}"
        count = 1
        while name in names:
            count += 1
            name = f"{given or 'column'}_{count}"
        if name != given:
            notes.add(f'Column {position} of the header is "{given[:50]}" and is called "{name[:60]}" here', 1)
        names[name] = None
    return list(names)


def _json_rows(lines: Lines, notes: Notes) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            notes.add("A line is not JSON and is left out", lines.number)
            continue
        if isinstance(value, dict):
            yield value
        else:
            notes.add("A line is JSON but not an object and is left out", lines.number)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _as_text(value: Any) -> str:
    """A value as `where` compares it: strings as they are, everything else as its JSON, nothing as ""."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def text_page(lines: Lines, *, offset: int, limit: int) -> dict[str, Any]:
    """Lines `offset` .. of a text, as they are. Raises `Refusal`."""
    taken: list[str] = []
    size = 0
    more = False
    for number, line in enumerate(lines):
        if number < offset:
            continue
        size += len(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace"))
        if size > MAX_ANSWER and not taken:
            raise Refusal(f"Line {number + 1:,} alone is longer than an answer may be ({MAX_ANSWER:,} bytes).")
        if size > MAX_ANSWER or len(taken) >= limit:
            more = True
            break
        taken.append(line)
    return {
        "path": lines.path,
        "format": "text",
        "text": "".join(taken),
        "lines": len(taken),
        "offset": offset,
        "next_offset": offset + len(taken) if more else None,
    }
