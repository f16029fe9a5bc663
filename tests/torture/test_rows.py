"""Centuria's own client does right in every row of the table, and the table can tell who does not."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from centuria.messages import ToolCall, Usage
from centuria.model.direct import DirectTransport
from centuria.model.http import HttpTransport
from centuria.testing.replies import Calls, HttpError, Stall, Text
from centuria.testing.torture import (
    KEY,
    KINDS,
    ROWS,
    CenturiaClient,
    ClientResult,
    Row,
    seeded,
    try_row,
)
from centuria.testing.torture.centuria_client import PRICE
from centuria.testing.torture.row import ANSWER, OK, USAGE, Forbidden, answered, both, called, failed, streamed
from centuria.testing.torture.runner import MESSAGES, TOOLS
from centuria.testing.upstream import FakeUpstream
from tests.torture.conftest import Table


@pytest.mark.alone
@pytest.mark.parametrize("kind", list(KINDS), ids=lambda kind: KINDS[kind])
def test_centurias_client_does_right_in_every_row(kind: int, table: Table) -> None:
    mine = [verdict for verdict in table.verdicts if verdict.row.kind == kind]
    assert mine, "a kind without a row"
    assert [(verdict.row.name, verdict.mode, verdict.wrong) for verdict in mine if not verdict.right] == []


@pytest.mark.alone
def test_no_row_costs_more_than_what_the_ledger_has_spent_or_holds(table: Table) -> None:
    assert table.short == []


def test_every_row_has_a_name_of_its_own_and_a_known_kind() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) and {row.kind for row in ROWS} == set(KINDS)


@pytest.mark.parametrize("transport", [HttpTransport, DirectTransport])
@pytest.mark.parametrize("seed", range(2))
async def test_a_crowd_that_meets_faults_at_random_is_answered_and_pays_for_everything(
    seed: int, transport: type[HttpTransport] | type[DirectTransport]
) -> None:
    client = CenturiaClient(transport)
    async with FakeUpstream(seeded(seed, 0.2)) as upstream:
        calls = (client.chat(upstream.base_url, KEY, MESSAGES, TOOLS, True) for _ in range(60))
        results = await asyncio.gather(*calls)
        fine = [result for result in results if result.text == ANSWER]
        assert len(fine) >= 55, "three retries against one fault in five"
        assert {result.error_kind for result in results} <= {"", "unavailable"}
        assert upstream.charged(PRICE) <= client.accounted()
    await client.aclose()


# -- the table can tell --------------------------------------------------------------------------------------


class Told:
    """A client that asks as often as it is told and says what it is told."""

    def __init__(self, *results: ClientResult, asks: int = 1, raises: Exception | None = None) -> None:
        self._results = list(results)
        self._asks = asks
        self._raises = raises

    async def chat(
        self,
        base_url: str,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        stream: bool,
    ) -> ClientResult:
        inner = CenturiaClient()
        try:
            for _ in range(self._asks):
                await inner.chat(base_url, key, messages, tools, stream)
        finally:
            await inner.aclose()
        if self._raises is not None:
            raise self._raises
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]

    async def aclose(self) -> None:
        pass


RIGHT = ClientResult(ANSWER, usage=USAGE)
ROW = streamed("plain", 0, answered(), OK)
CALL = ToolCall("x", "search", '{"q": "a"}')
CALLED = streamed(
    "call", 0, called(("search", {"q": "a"}), usage=USAGE), Calls((("search", '{"q": "a"}'),), usage=USAGE)
)


@pytest.mark.parametrize(
    ("row", "client", "wrong"),
    [
        (ROW, Told(RIGHT), ""),
        (ROW, Told(replace(RIGHT, text="The answer")), "the text is"),
        (ROW, Told(replace(RIGHT, tool_calls=(CALL,))), "the calls are"),
        (ROW, Told(replace(RIGHT, usage=None)), "usage is none"),
        (ROW, Told(replace(RIGHT, usage=Usage(21, 16, output=7))), "usage is 21 (16 cached) + 7"),
        (ROW, Told(RIGHT, asks=2), "2 requests, not 1"),
        (ROW, Told(ClientResult(error_kind="refused")), "refused instead of an answer"),
        (ROW, Told(RIGHT, raises=KeyError("choices")), "crash: \"KeyError: 'choices'\""),
        (CALLED, Told(ClientResult("", (CALL,), USAGE)), ""),
        (CALLED, Told(ClientResult("", (CALL, CALL), USAGE)), "the calls are"),
        (CALLED, Told(ClientResult("", (replace(CALL, arguments='{"q": "a'),), USAGE)), "the calls are"),
        (streamed("no", 0, failed("denied"), HttpError(401)), Told(RIGHT), "an answer instead of denied"),
        (streamed("no", 0, failed("denied"), HttpError(401)), Told(ClientResult(error_kind="denied")), ""),
        (streamed("no", 0, failed("denied"), HttpError(401)),
         Told(ClientResult(error_kind="denied", said=f"Bearer {KEY}")), "the key is shown"),
        (streamed("no", 0, answered(usage="none"), OK), Told(RIGHT), "although none was told"),
        (streamed("late", 0, answered(requests=2, waits=5), HttpError(503), OK), Told(RIGHT), "asked again after"),
        (streamed("never", 0, answered(), OK, forbids=(Forbidden("it was asked", bool),)), Told(RIGHT), "it was asked"),
    ],
)  # fmt: skip
async def test_a_row_says_what_a_client_does_wrong(row: Row, client: Told, wrong: str) -> None:
    verdict = await try_row(client, row, "streamed")
    assert verdict.right == (wrong == "") and wrong in "; ".join(verdict.wrong)


class Forgetful(Told):
    """Leaves its request running, or never comes back."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__(RIGHT)
        self.returns = returns
        self.left: list[asyncio.Task[Any]] = []

    async def chat(self, *call: Any) -> ClientResult:
        self.left.append(asyncio.create_task(super().chat(*call)))
        await asyncio.sleep(0 if self.returns else 60)
        return RIGHT

    async def aclose(self) -> None:
        for task in self.left:
            task.cancel()
        await asyncio.gather(*self.left, return_exceptions=True)


@pytest.mark.parametrize(("returns", "wrong"), [(True, "requests, not 1"), (False, "no end within 0.05 s")])
async def test_a_request_left_running_or_no_end_at_all_is_seen(returns: bool, wrong: str) -> None:
    client = Forgetful(returns=returns)
    row = streamed("stall", 36, answered(within=0.05), Stall(Text(ANSWER)))
    verdict = await try_row(client, row, "streamed")
    assert wrong in "; ".join(verdict.wrong)
    await client.aclose()


async def test_a_whole_answer_is_a_document_in_the_mode_that_streams_nothing() -> None:
    seen = []
    for mode in ("streamed", "whole"):
        client = Told(RIGHT)
        verdict = await try_row(client, both("x", 0, answered(), OK), mode)  # type: ignore[arg-type]
        seen.append((verdict.right, verdict.mode))
    assert seen == [(True, "streamed"), (True, "whole")]
    row = both("x", 0, answered(), OK)
    assert row.steps("streamed") == (OK,) and row.steps("whole") != (OK,)
