"""The MCP server `file_read`: rows and lines of files below given folders.

python -m centuria.tools.file_read --root DIR
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from centuria.tools.pages import Lines, table_page, text_page, where_of
from centuria.tools.rooted import Roots
from centuria.tools.serving import Answer, Refusal, ServedTool, build, serve

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
MAX_LISTED = 1000

_TABLES = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_T = TypeVar("_T")

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "The file, relative to a readable folder, or absolute inside one.",
        },
        "where": {
            "type": "object",
            "description": "Tables only: keep the rows whose column has exactly this value, or one of these "
            'values. Example: {"Sector": "Biotechnology"}. "" finds empty cells.',
            "additionalProperties": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            },
        },
        "columns": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Tables only: give just these columns, in this order. Default: all.",
        },
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "Skip so many (matching) rows or lines. Default: 0.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": f"Give so many rows or lines. Default: {DEFAULT_LIMIT}, at most {MAX_LIMIT}.",
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}

_DESCRIPTION = (
    "Read a file. CSV, TSV and JSON Lines are read as a table: filter with `where`, choose `columns`, page "
    "with `offset` and `limit`; JSON answer {path, format, columns, rows, total, offset, next_offset}: "
    '`total` counts all matching rows; cells of CSV are text as in the file ("" = missing). Anything else is '
    "read as lines of UTF-8: {path, format, text, lines, offset, next_offset}. next_offset null: that was "
    "the last page."
)

_LIST_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A folder. Default: the first readable folder."},
    },
    "additionalProperties": False,
}


class FileReader:
    """The tools of the server, bound to the folders that they may read. Blocking work runs in threads."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    def tools(self) -> list[ServedTool]:
        return [
            ServedTool("file_read", "Read a file", _DESCRIPTION, _SCHEMA, self.file_read),
            ServedTool(
                "file_list",
                "List files",
                f"List the files and folders below a folder, at most {MAX_LISTED}: JSON {{folder, entries: "
                "[{path, bytes}], more}}. Folders end in /. Hidden files are left out.",
                _LIST_SCHEMA,
                self.file_list,
            ),
        ]

    async def file_read(self, arguments: Mapping[str, Any]) -> Answer:
        return Answer.of(await _in_thread(lambda stopped: self.read(arguments, stopped)))

    async def file_list(self, arguments: Mapping[str, Any]) -> Answer:
        path = arguments.get("path", ".")
        entries, more = await _in_thread(lambda _stopped: self.roots.listing(path, MAX_LISTED))
        listed = [
            {"path": entry.path} if entry.path.endswith("/") else {"path": entry.path, "bytes": entry.size}
            for entry in entries
        ]
        return Answer.of({"folder": path, "entries": listed, "more": more})

    def read(self, arguments: Mapping[str, Any], stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """One page of one file. Raises `Refusal`."""
        where, columns = arguments.get("where") or {}, arguments.get("columns") or []
        offset = arguments.get("offset", 0)
        limit = min(arguments.get("limit", DEFAULT_LIMIT), MAX_LIMIT)
        with self.roots.open(arguments["path"]) as (file, path):
            lines = Lines(file, path, stopped)
            kind = _TABLES.get(PurePosixPath(path).suffix.lower())
            if kind is not None:
                return table_page(lines, kind, where=where_of(where), columns=columns, offset=offset, limit=limit)
            if where or columns:
                raise Refusal(f"{path} is read as text: `where` and `columns` are for {', '.join(_TABLES)} files.")
            return text_page(lines, offset=offset, limit=limit)


async def _in_thread(work: Callable[[Callable[[], bool]], _T]) -> _T:
    """Run blocking work in a thread that is told to stop when the caller goes away."""
    gone = threading.Event()
    try:
        return await asyncio.to_thread(work, gone.is_set)
    finally:
        gone.set()


def server(folders: Sequence[Path]) -> Server[Any]:
    """The server over these folders. Raises `OSError` for one that cannot be opened."""
    roots = Roots(folders)
    return build(
        "file_read",
        FileReader(roots).tools(),
        instructions=f"Files below {', '.join(roots.folders)} can be read.",
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m centuria.tools.file_read",
        description="An MCP server over stdio that reads CSV, TSV, JSON Lines and text below given folders.",
    )
    parser.add_argument(
        "--root",
        action="append",
        type=Path,
        metavar="DIR",
        help="a folder that may be read (repeatable; default: the current folder)",
    )
    folders = parser.parse_args(argv).root or [Path()]
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"--root {folder}: there is no such folder")
    serve(lambda: server(folders))


if __name__ == "__main__":
    main()
