"""A hundred servers whose start costs a second of processor time each: it takes a minute on two cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promises.kit import fold, swarm, write_job
from tests.promises.test_tools import NOWHERE, table


@pytest.mark.timeout(600)
async def test_a_hundred_servers_whose_start_costs_a_second_all_register_and_none_times_out(tmp_path: Path) -> None:
    tools = {f"s{number}": table("busy-start=1") for number in range(100)}
    async with swarm(tmp_path, rehearse=True) as hundred:
        report = await hundred.run(write_job(tmp_path, NOWHERE, rows=1, tools=tools))
    servers = fold(report.folder).progress.servers
    assert [(row.slug, row.reason) for row in servers.values() if not row.up] == []
    assert len(servers) == 100
