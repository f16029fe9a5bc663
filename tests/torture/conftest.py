"""The whole table, tried once on Centuria's own client, over each of its transports."""

import asyncio
from typing import Any

import pytest

from centuria.core.prices import cost
from centuria.model.direct import DirectTransport
from centuria.model.http import HttpTransport
from centuria.testing.torture import CenturiaClient, Verdict, torture
from centuria.testing.torture.centuria_client import PRICE


class Table:
    """`short` are the rows in which less money was known than the provider charged."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.short: list[str] = []

    def hear(self, verdict: Verdict, client: Any) -> None:
        billed = sum(cost(PRICE, usage) for usage in verdict.billed)
        if billed > client.accounted():
            self.short.append(f"{verdict.row.name} ({verdict.mode}): {billed} billed, {client.accounted()} known")


@pytest.fixture(scope="session", params=[HttpTransport, DirectTransport])
def table(request: pytest.FixtureRequest) -> Table:
    """Its rows have deadlines of a second or two: the tests that ask for it run alone."""
    table = Table()
    table.verdicts = asyncio.run(torture(lambda: CenturiaClient(request.param), at_once=24, told=table.hear))
    return table
