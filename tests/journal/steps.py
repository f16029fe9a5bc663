"""What several tests do with a journal."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from centuria.events import Fact, Record
from centuria.journal import SqliteJournal


async def keep(journal: SqliteJournal, *events: Fact) -> None:
    first = journal.last_seq + 1
    journal.append([Record(seq, float(seq), event) for seq, event in enumerate(events, first)])
    await journal.durable(journal.last_seq)


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()
