"""The client that the conformance suite runs: `python -m tests.conformance.client URL`, one scenario at a time.

The suite names the scenario, and what the client is to know, in `MCP_CONFORMANCE_SCENARIO` and
`MCP_CONFORMANCE_CONTEXT`. It starts all scenarios at once, and they have deadlines: so as many go ahead as there are
processors, and the others wait before they import anything.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO


def turn() -> BinaryIO:
    """Wait for a turn; it lasts as long as the file that it gives is open."""
    folder = Path(tempfile.gettempdir()) / f"centuria-conformance-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = [(folder / str(slot)).open("wb") for slot in range(os.cpu_count() or 1)]
    while True:
        for file in files:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                time.sleep(0.02)


if __name__ == "__main__":
    with turn():
        from tests.conformance.scenario import main

        asyncio.run(main(sys.argv[-1]))
