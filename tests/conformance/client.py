"""The client that the conformance suite runs: `python -m tests.conformance.client URL`, a process for each scenario.

The suite names the scenario, and what the client is to know, in `MCP_CONFORMANCE_SCENARIO` and
`MCP_CONFORMANCE_CONTEXT`. It starts all scenarios at once, and they have deadlines: so as many go ahead as there are
processors. Where `CENTURIA_CONFORMANCE_WARM` names the socket of `warm.py`, a fork of that process is the client, which
saves a second of imports for each.
"""

from __future__ import annotations

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


def main(url: str) -> int:
    warm = os.environ.get("CENTURIA_CONFORMANCE_WARM")
    with turn():
        if warm:
            from tests.conformance.warm import ask

            return ask(warm, url)
        from tests.conformance.scenario import play

        play(url)
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
