"""The rack stands whatever is put on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from centuria.testing.torture import ROWS, ClientResult, as_text, torture
from centuria.testing.upstream import FakeUpstream


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


# -- the fake upstream -------------------------------------------------------------------------------------------

_POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


async def answer_to(data: bytes) -> bytes:
    """What a fake upstream says to these bytes."""
    async with FakeUpstream() as upstream:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(upstream.base_url).port)
        writer.write(data)
        async with asyncio.timeout(5):
            line = await reader.readline()
        writer.close()
        assert [seen.body for seen in upstream.requests] in ([], [b'{"a":1}'])
        return line


@pytest.mark.parametrize("size", [b"-5", b"abc", b"+7", b"1_0", b"\xb2", b"9" * 30])
async def test_a_request_of_no_sensible_length_is_refused(size: bytes) -> None:
    assert (await answer_to(_POST + b"content-length: " + size + b"\r\n\r\n{}")).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("data", [b"X\r\n\r\n", b"\r\n\r\n", b"A" * 2_000_000])
async def test_what_is_no_request_is_refused(data: bytes) -> None:
    assert (await answer_to(data)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "chunks", [b'7\r\n{"a":1}\r\n0\r\n\r\n', b'3;x=y\r\n{"a\r\n4\r\n":1}\r\n0\r\nx-trailer: 1\r\n\r\n']
)
async def test_a_request_may_come_in_chunks(chunks: bytes) -> None:
    assert (await answer_to(_POST + b"transfer-encoding: chunked\r\n\r\n" + chunks)).startswith(b"HTTP/1.1 200")


async def test_a_chunk_of_no_sensible_length_is_refused() -> None:
    assert (await answer_to(_POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n")).startswith(b"HTTP/1.1 400")
