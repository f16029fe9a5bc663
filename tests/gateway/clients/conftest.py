"""The clients of this folder are programs that others wrote, each run once with all of its cases."""

from __future__ import annotations

import pytest

from tests.servers.installed import require


@pytest.fixture(autouse=True, scope="session")
def _installed() -> None:
    require("node", "clients")
