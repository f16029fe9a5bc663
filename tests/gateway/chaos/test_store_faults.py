"""A store that fails in the middle of traffic: a clear 503, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import aiohttp
import pytest

from centuria.core.prices import cost
from centuria.gateway.problems import StoreUnavailable
from centuria.messages import DOLLAR
from centuria.testing import FakeUpstream
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Text
from tests.gateway.command import HEADERS, balance, command
from tests.gateway.served import ASKED, PRICE, Reply, Served, one, serving, usage
from tests.waiting import until

ANSWER = Text("Hello there.", usage=usage(100, 10))


async def until_served(served: Served, key: dict[str, str]) -> None:
    async with asyncio.timeout(10):
        while (await served.ask(key)).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_the_store_is_read_only_requests_are_503_and_what_was_answered_is_kept(stream: bool) -> None:
    store = MemoryStore()
    slow = Text("word " * 20, usage=usage(100, 10), piece=5, gap=0.02)
    async with FakeUpstream(lambda body: slow, latency=0.2) as upstream, serving(one(upstream), store) as served:
        key = await served.add_key("a", budget=100 * DOLLAR)
        await until_served(served, key)
        await served.until_quiet()
        under_way = [asyncio.create_task(served.ask(key, stream=stream)) for _ in range(20)]
        await upstream.until(lambda: upstream.in_flight == 20)
        store.fault = StoreUnavailable(
            "The store gateway.db cannot be used: it is read-only.", remedy="Make it writable."
        )
        assert {reply.status for reply in await asyncio.gather(*under_way)} == {200}  # they were paid for before
        await until(lambda: served.gateway.books.failing_since is not None)
        sent = len(upstream.requests)
        for reply in await asyncio.gather(*(served.ask(key, stream=stream) for _ in range(30))):
            assert (reply.status, reply.code) == (503, "store_unavailable")
            assert "it is read-only. Make it writable." in reply.error["message"]
            assert reply.headers["retry-after"] == "1"
        assert len(upstream.requests) == sent == 21
        assert served.gateway.books.pending() == 20
        assert (await served.get("/readyz", {})).status == 503
        assert (await served.get("/healthz", {})).status == 200
        stranger = {"Authorization": "Bearer ck-stranger"}  # whether it is one nobody can say now
        for path in ("/v1/models", "/mcp"):
            assert (await served.get(path, stranger)).code == "store_unavailable"
        store.fault = None
        await until_served(served, key)
        await served.until_quiet()
        kept = [row for each in served.rows for row in await store.attempts(each.request)]
        assert len(kept) == len(upstream.requests) == 22
        ((_, money),) = await store.keys()
        assert (money.spent, money.held) == (22 * cost(PRICE, usage(100, 10)), 0)
        assert served.gateway.books.reserved() == 0


async def test_a_store_that_hangs_is_a_503_too_and_no_request_waits_for_ever() -> None:
    store = MemoryStore()
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream), store) as served:
        key = await served.add_key("a", budget=DOLLAR)
        await until_served(served, key)
        await served.until_quiet()
        store.gate.clear()
        assert (await served.ask(key, max_tokens=1_000_000)).status == 429  # more than the budget: it need not be asked
        got = await served.ask(key, max_tokens=50_000)  # the lease does not reach so far
        assert (got.status, got.code) == (503, "store_unavailable")
        store.gate.set()
        assert (await served.ask(key, max_tokens=50_000)).status == 200


async def test_a_disk_that_is_full_in_mid_traffic_loses_nothing_and_is_used_again(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, command(tmp_path, upstream, 5) as served:
        pid = served.process.pid
        url = f"{served.url}/v1/chat/completions"
        good = 0

        async def ask(session: aiohttp.ClientSession) -> Reply:
            nonlocal good
            body = {**ASKED, "stream": bool(good % 2)}
            async with session.post(url, json=body, headers=HEADERS) as response:
                reply = Reply(response.status, response.headers, await response.read())
            good += reply.status == 200
            return reply

        async with aiohttp.ClientSession() as session:
            for _ in range(5):
                assert (await ask(session)).status == 200
            unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4_096, unlimited[1]))  # no file of it may grow
            async with asyncio.timeout(20):
                while (reply := await ask(session)).status == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (reply.status, reply.code) == (503, "store_unavailable")
            assert "gateway.db cannot be used" in reply.error["message"]
            for _ in range(3):
                assert (await ask(session)).status == 503
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
            async with asyncio.timeout(20):
                while (await ask(session)).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        served.terminate()
        assert await served.ended() == 0
        assert good == len(upstream.requests)
        assert await balance(tmp_path) == (good, good * cost(PRICE, usage(100, 10)), 0, 0)
