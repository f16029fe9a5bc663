"""Where the swarms of these tests keep their runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory: a swarm waits for its journal to be on disk, and another program can keep a disk busy for longer than
    these tests wait for anything."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="swarms-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
