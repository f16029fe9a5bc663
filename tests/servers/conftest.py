"""The tests of this folder run MCP servers that others wrote."""

from __future__ import annotations

import pytest

from tests.servers.installed import require


@pytest.fixture(autouse=True, scope="session")
def _installed() -> None:
    require("node", "old")
