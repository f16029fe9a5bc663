"""The rack stands whatever is put on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from centuria.testing.torture import ROWS, ClientResult, as_text, torture


def bad(answer: Callable[[], Any], close: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
    """A client that does this in each call, and that when it is closed."""

    class Bad:
        async def chat(self, *_: Any) -> Any:
            found = answer()
            return await found if asyncio.isfuture(found) else found

        async def aclose(self) -> None:
            found = close()
            if asyncio.isfuture(found):
                await found

    return Bad


def raising(error: BaseException) -> Callable[[], Any]:
    def throw() -> Any:
        raise error

    return throw


def for_ever() -> Any:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (bad(lambda: None), "NoneType"),
        (bad(lambda: ClientResult(tool_calls=({"name": "x"},))), "ToolCall"),  # type: ignore[arg-type]
        (bad(lambda: ClientResult(usage="7")), "Usage"),  # type: ignore[arg-type]
        (bad(raising(asyncio.CancelledError())), "CancelledError"),
        (bad(raising(RuntimeError("Oh."))), "Oh."),
        (bad(ClientResult, raising(RuntimeError("Ah."))), "cannot be closed: RuntimeError: Ah."),
        (bad(ClientResult, for_ever), "cannot be closed: TimeoutError"),
    ],
)
async def test_a_client_that_breaks_its_contract_is_wrong_and_ends_nothing(
    client: Callable[[], Any], said: str
) -> None:
    verdicts = await torture(client, ROWS[:2])
    assert len(verdicts) == 4 and not any(verdict.right for verdict in verdicts)
    assert said in as_text(verdicts)


async def test_whoever_stops_the_torture_is_obeyed() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await torture(bad(for_ever), ROWS[:1])
