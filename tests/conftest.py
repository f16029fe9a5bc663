"""What all tests share: the system tests run only when they are asked for (`make test-system`)."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A property has to hold on a busy machine too: how long it takes is nothing to assert.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

SYSTEM = Path(__file__).parent / "system"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--system", action="store_true", help="also the tests that need Debian packages")


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the programs that the tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """All that was imported stays: whoever looks for garbage need not look there, which takes a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Three for two processors: many tests wait for a process or a time-out."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else max(2, (os.cpu_count() or 1) * 3 // 2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `tests/system` out unless it was asked for; `make test-system` installs what it needs, then asks."""
    return True if collection_path == SYSTEM and not config.getoption("--system") else None
