"""`centuria serve` and SIGTERM: what streams has its end, the ledger is whole, the exit is 0."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from centuria.core.prices import Price, cost
from centuria.testing import FakeUpstream
from centuria.testing.replies import Text
from tests.gateway.command import HEADERS, balance, command
from tests.gateway.served import usage

ANSWER = Text("word " * 30, usage=usage(100, 30), piece=5)


async def stream(session: aiohttp.ClientSession, url: str, begun: Callable[[], None], user: str) -> list[str]:
    body = {"model": "kimi", "messages": [{"role": "user", "content": user}], "max_tokens": 50, "stream": True}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=HEADERS) as response:
        assert response.status == 200
        data = await response.content.readany()
        begun()
        data += await response.content.read()
        return [event.removeprefix("data: ") for event in data.decode().split("\n\n") if event]


async def fifty(session: aiohttp.ClientSession, url: str, users: list[str]) -> list[asyncio.Task[list[str]]]:
    """Streams that have all begun."""
    all_begun = asyncio.Event()
    number = 0

    def begun() -> None:
        nonlocal number
        number += 1
        if number == len(users):
            all_begun.set()

    tasks = [asyncio.create_task(stream(session, url, begun, user)) for user in users]
    async with asyncio.timeout(20):
        await all_begun.wait()
    return tasks


def script(body: dict[str, Any]) -> Text:
    quick = body["messages"][0]["content"] == "quick"
    return replace(ANSWER, gap=0.03) if quick else replace(ANSWER, text="word " * 3_000, gap=0.03)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_as_soon_as_the_address_is_told_ends_the_gateway(tmp_path: Path, number: signal.Signals) -> None:
    async with FakeUpstream(script) as upstream, command(tmp_path, upstream, 1.5) as served:
        served.process.send_signal(number)
        assert await served.ended() == 0
        assert served.process.stderr is not None
        assert b"centuria: the gateway ends\n" in await served.process.stderr.read()


async def test_fifty_streams_at_sigterm_each_finish_or_are_told_and_the_ledger_is_whole(tmp_path: Path) -> None:
    async with FakeUpstream(script) as upstream, command(tmp_path, upstream, 1.5) as served:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            tasks = await fifty(session, served.url, ["quick", "slow"] * 25)
            served.terminate()
            ends = await asyncio.gather(*tasks)
        assert await served.ended() == 0
        for number, events in enumerate(ends):
            if number % 2:
                assert "shutting down" in events[-1]
                assert "[DONE]" not in events
            else:
                assert events[-1] == "[DONE]"
        rows, spent, held, leased = await balance(tmp_path)
        done = 25 * cost(Price(input=10**6, output=10**7), usage(100, 30))
        assert (rows, leased) == (50, 0)
        assert spent >= done
        assert held > 0
        assert upstream.connections == 0


async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    async with FakeUpstream(script) as upstream, command(tmp_path, upstream, 3_000) as served:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            tasks = await fifty(session, served.url, ["slow"] * 10)
            served.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await asyncio.gather(*(asyncio.shield(task) for task in tasks))
            assert not any(task.done() for task in tasks)
            served.terminate()
            for events in await asyncio.gather(*tasks):
                assert "shutting down" in events[-1]
        assert await served.ended() == 0
        assert (await balance(tmp_path))[0] == 10
