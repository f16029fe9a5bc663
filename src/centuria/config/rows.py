"""The rows of a job: CSV, JSON Lines, a JSON list, or a list of mappings; and which of them become tasks."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centuria.config.problems import Problems
from centuria.config.reading import LARGE, check_unicode, parse_json, read_text, shown
from centuria.core.quoting import did_you_mean, quoted
from centuria.errors import JobError

#: So many rows become tasks at most; a file may hold more if `where` or `limit` choose among them.
MOST_ROWS = 10_000
_MOST_READ = 500_000

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as read. `places` say where each came from ("line 7"); `name` is the file's, "" for a list."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows become tasks, and in what order. `order_by` is a column, with `-` before it for the largest first."""

    require: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    order_by: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """`rows` are positions in the table, in the order of the tasks; `left_out` are positions and reasons."""

    rows: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...]


def read_rows(path: Path) -> Table:
    """Read `.csv`, `.tsv`, `.jsonl`, `.ndjson` or `.json` (a list of objects). Raises `JobError`."""
    text = read_text(path, limit=LARGE, what="The file of rows")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return _json_lines(text, shown(path))
        case ".json":
            return _json_list(text, shown(path))
        case _:
            return _csv(text, shown(path), tabs=path.suffix.lower() == ".tsv")


def rows_from(items: Iterable[Row]) -> Table:
    """Rows given as mappings. Raises `JobError` for what is not plain data."""
    rows: list[Row] = []
    for number, item in enumerate(items, 1):
        place = f"Row {number}"
        if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
            raise JobError(f"{place} is not a mapping of names to values.", remedy='Pass {"Name": "..."} for each row.')
        try:
            plain = json.loads(json.dumps(dict(item), allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise JobError(
                f"{place} holds a value that is not plain data (text, finite numbers, lists, mappings).",
                remedy="Turn dates, decimals and the like into text.",
            ) from None
        check_unicode(plain, place)
        rows.append(plain)
    return _uniform("", rows, [f"row {number}" for number in range(1, len(rows) + 1)])


def choose(table: Table, choice: Choice) -> Chosen:
    """Pick rows: `where`, then `require`, then the order, then `limit`.

    Rows without a required value are left out with a reason; the others that are not picked were not asked
    for. Raises `JobError` for a column that is not there and for more than 10,000 rows.
    """
    _check_columns(table, choice)
    picked = [
        number
        for number, row in enumerate(table.rows)
        if all(_matches(row[column], wanted) for column, wanted in choice.where.items())
    ]
    left_out: list[tuple[int, str]] = []
    kept: list[int] = []
    for number in picked:
        empty = [column for column in choice.require if _is_empty(table.rows[number][column])]
        if empty:
            left_out.append((number, f"no {', no '.join(empty)}"))
        else:
            kept.append(number)
    if choice.order_by:
        kept = _ordered(table, kept, choice.order_by)
    if choice.limit is not None:
        kept = kept[: choice.limit]
    if len(kept) > MOST_ROWS:
        raise JobError(
            f"{table.name or 'The list of rows'} gives {len(kept):,} rows; a job has at most {MOST_ROWS:,}.",
            remedy="Choose with `limit` or `where`, or split the job.",
        )
    if not kept:
        why = f"all {len(left_out)} that were chosen lack a required value" if left_out else "`where` matches none"
        raise JobError(
            f"{table.name or 'The list of rows'} leaves no row: {why}.", remedy="Loosen `where` or `require`."
        )
    return Chosen(tuple(kept), tuple(left_out))


def _check_columns(table: Table, choice: Choice) -> None:
    problems = Problems(table.name)
    named = [("require", column) for column in choice.require] + [("where", column) for column in choice.where]
    if choice.order_by:
        named.append(("order_by", _order_column(table, choice.order_by)[0]))
    for key, column in named:
        if column not in table.columns:
            problems.add(
                f"`{key}` names the column {quoted(column)}, which is not there.",
                did_you_mean(column, table.columns),
            )
    problems.check()


def _order_column(table: Table, order_by: str) -> tuple[str, bool]:
    # A column's own name may begin with a minus.
    if order_by.startswith("-") and order_by not in table.columns:
        return order_by[1:], True
    return order_by, False


def _ordered(table: Table, numbers: Sequence[int], order_by: str) -> list[int]:
    """Sorted by a column, as numbers if all its values are numbers; rows without a value come last."""
    column, falling = _order_column(table, order_by)
    filled = [number for number in numbers if not _is_empty(table.rows[number][column])]
    empty = [number for number in numbers if _is_empty(table.rows[number][column])]
    values = {number: _number(table.rows[number][column]) for number in filled}
    if all(value is not None for value in values.values()):
        filled.sort(key=lambda number: values[number] or 0.0, reverse=falling)
    else:
        filled.sort(key=lambda number: _text(table.rows[number][column]), reverse=falling)
    return filled + empty


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _matches(value: Any, wanted: Sequence[Any]) -> bool:
    return any(value == item or _text(value).strip() == _text(item).strip() for item in wanted)


# -- formats ---------------------------------------------------------------------------------------------------------


def _csv(text: str, name: str, *, tabs: bool) -> Table:
    if not text.strip():
        raise JobError(f"{name} is empty.", remedy="Its first line names the columns.")
    first = text.lstrip("\r\n").split("\n", 1)[0]
    # Spreadsheets write `;` or tabs in some locales; nobody has to say so.
    other = next((mark for mark in (";", "\t") if mark in first and "," not in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else other, strict=True)
    header: tuple[str, ...] = ()
    rows: list[Row] = []
    places: list[str] = []
    try:
        for cells in reader:
            if not any(cells) and len(cells) <= 1:
                continue
            if not header:
                header = _header(cells, name)
                continue
            _check_width(cells, header, name, reader.line_num)
            _check_count(rows, name)
            rows.append(dict(zip(header, cells, strict=True)))
            places.append(f"line {reader.line_num}")
    except csv.Error as error:
        raise JobError(
            f"{name} cannot be read at line {reader.line_num}: {error}.", remedy=_csv_remedy(str(error))
        ) from None
    if not rows:
        raise JobError(f"{name} has a header but no rows.", remedy="Add one line for each task.")
    return Table(name, header, tuple(rows), tuple(places))


def _header(cells: Sequence[str], name: str) -> tuple[str, ...]:
    header = tuple(cell.strip() for cell in cells)
    problems = Problems(name)
    for number, column in enumerate(header, 1):
        if not column:
            problems.add(f"column {number} has no name.", "Name it in the first line.")
        elif header.index(column) + 1 < number:
            problems.add(f"two columns are called {quoted(column)}.", "Give each column a name of its own.")
    problems.check()
    return header


def _check_width(cells: Sequence[str], header: Sequence[str], name: str, line: int) -> None:
    if len(cells) != len(header):
        raise JobError(
            f"{name} has {len(cells)} cells in line {line}, but {len(header)} columns.",
            remedy='Put text that holds a comma into quotes: "a, b".',
        )


def _check_count(rows: Sequence[Row], name: str) -> None:
    if len(rows) >= _MOST_READ:
        raise JobError(f"{name} has more than {_MOST_READ:,} rows.", remedy="Split it.")


def _csv_remedy(error: str) -> str:
    if "field larger" in error:
        return "Is a quote not closed? A cell holds at most 131,072 characters."
    return 'Close every quote, and write a quote inside of quotes twice: "say ""hi""".'


def _json_lines(text: str, name: str) -> Table:
    rows: list[Row] = []
    places: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        _check_count(rows, name)
        place = f"{name}, line {number},"
        rows.append(_object(parse_json(line, place), place))
        places.append(f"line {number}")
    if not rows:
        raise JobError(f"{name} is empty.", remedy="Write one JSON object a line.")
    return _uniform(name, rows, places)


def _json_list(text: str, name: str) -> Table:
    value = parse_json(text, name)
    if not isinstance(value, list) or not value:
        raise JobError(f"{name} is not a list of objects.", remedy='Write [{"Name": "..."}, ...].')
    rows: list[Row] = []
    for number, item in enumerate(value, 1):
        _check_count(rows, name)
        rows.append(_object(item, f"{name}, item {number},"))
    return _uniform(name, rows, [f"item {number}" for number in range(1, len(rows) + 1)])


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise JobError(f"{place} is not an object.", remedy='Write {"Name": "..."}.')
    return value


def _uniform(name: str, rows: Sequence[Row], places: Sequence[str]) -> Table:
    """All rows with the same columns, in the order of their first appearance; what is missing or null is empty text."""
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        raise JobError(f"{name or 'The list of rows'} has no columns.", remedy="Give each row at least one value.")
    full = tuple({column: "" if row.get(column) is None else row[column] for column in columns} for row in rows)
    return Table(name, columns, full, tuple(places))
