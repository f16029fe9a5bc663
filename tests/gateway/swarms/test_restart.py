"""Nothing is lost and nothing paid twice when the gateway stops, is killed, or loses its store for a while."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from centuria.core.prices import cost
from centuria.events import CallClosed
from centuria.gateway.keys import digest_of
from centuria.gateway.ports import Balance, Document
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store.sqlite import SqliteStore
from centuria.gateway.swarms.records import OPEN
from centuria.journal import JournalReader
from centuria.testing.gateway import MemoryStore
from centuria.testing.replies import Text
from centuria.testing.transport import Provider
from centuria.testing.upstream import FakeUpstream
from tests.gateway.swarms.kit import (
    ALICE,
    BOB,
    KIMI,
    MODEL,
    ROOT,
    TARIFF,
    Event,
    gateway,
    numbered,
    parse,
    prompt_of,
    say,
    store_with,
)
from tests.waiting import until


def answered(folder: Path, id: str) -> set[str]:
    """The tasks whose model call the journal holds as done."""
    with JournalReader(folder / "runs" / id / "journal.sqlite") as reader:
        events = [record.event for record in reader.records()]
    return {event.key.task for event in events if isinstance(event, CallClosed) and event.end == "done"}


def test_a_swarm_that_was_interrupted_goes_on_at_the_next_start_and_pays_nothing_twice(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> Text:
        asked[prompt_of(body)] += 1
        return Text(f"Done: {prompt_of(body)}")

    async def main() -> None:
        store, provider = await store_with(ALICE), Provider(script, tariff=TARIFF, latency=(0.05, 0.1))
        async with gateway(tmp_path, store=store, provider=provider) as one:
            id = await one.alice.spawn(tasks=numbered(60), max_agents=10)
            seen: list[Event] = []
            async with one.alice.events(f"{ROOT}/{id}/events") as events:
                async for event in events:
                    seen.append(event)
                    if event.kind == "task_ended" and event.data["outcome"]["status"] == "ok":
                        break
        kept = answered(tmp_path, id)
        assert 1 <= len(kept) < 60
        before = dict(asked)
        async with gateway(tmp_path, store=store, provider=provider) as one:
            facts = [event.id for event in seen if event.id is not None]
            seen += await one.alice.all_events(id, facts[-1])
            facts = [event.id for event in seen if event.id is not None]
            assert facts == list(range(1, len(facts) + 1))
            assert [event.kind for event in seen].count("run_resumed") == 1
            result = await one.alice.ended(id)
            assert result["census"]["ok"] == 60
            for number in range(60):
                prompt = f"Task {number}."
                more = asked[prompt] - before.get(prompt, 0)
                assert more == (0 if f"t{number}" in kept else 1)
            assert one.documents(OPEN) == []

    asyncio.run(main())


def test_a_reader_hears_of_an_interruption_and_a_branch_that_was_cancelled_stays_so(tmp_path: Path) -> None:
    async def main() -> None:
        store = await store_with(ALICE)
        provider = Provider(lambda body: Text("Done."), tariff=TARIFF, latency=(0.3, 0.3))
        async with gateway(tmp_path, store=store, provider=provider) as one:
            id = await one.alice.spawn(tasks=numbered(3))
            await until(lambda: provider.in_flight == 3)
            await one.alice.post(f"{ROOT}/{id}/agents/t1/cancel")
            reading = asyncio.create_task(one.alice.all_events(id))
            await until(lambda: provider.in_flight == 2)
            work = one.service.working(id)
            await until(lambda: work is not None and work.stream is not None and work.stream._readers)
        assert (await reading)[-1].kind == "interrupted"
        async with gateway(tmp_path, store=store, provider=provider) as one:
            result = await one.alice.ended(id)
            assert {end["id"]: end["status"] for end in result["outcomes"]} == {
                "t0": "ok",
                "t1": "cancelled",
                "t2": "ok",
            }
            assert provider.requests == 5

    asyncio.run(main())


@pytest.mark.parametrize("half_made", [False, True])
def test_a_swarm_that_was_accepted_and_never_begun_is_begun_at_the_next_start(tmp_path: Path, half_made: bool) -> None:
    async def main() -> None:
        store = await store_with(ALICE)
        async with gateway(tmp_path, store=store, latency=(5, 5)) as one:
            id = await one.alice.spawn(goal="Begin.")
        folder = tmp_path / "runs" / id
        shutil.rmtree(folder, ignore_errors=True)
        if half_made:  # a crash in the middle of making its journal
            folder.mkdir()
            (folder / "journal.sqlite").touch()
            (folder / "journal.sqlite-journal").touch()
        async with gateway(tmp_path, store=store) as one:
            assert (await one.alice.ended(id))["status"] == "ok"

    asyncio.run(main())


class Full(MemoryStore):
    """Takes no document while it is `full`."""

    full = False

    async def put(self, kind: str, owner: str, document: Document) -> None:
        if self.full:
            raise StoreUnavailable("The disk is full.")
        await super().put(kind, owner, document)


def test_an_end_that_the_store_could_not_keep_is_kept_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        store = Full()
        await store.add_key(ALICE, digest_of(ALICE.id))
        async with gateway(tmp_path, store=store, latency=(0.05, 0.05)) as one:
            id = await one.alice.spawn(goal="End.")
            work = one.service.working(id)
            assert work is not None
            store.full = True
            await work.over.wait()
            assert (await one.alice.get(f"{ROOT}/{id}/result")).json["status"] == "ok"
        assert one.documents(OPEN) == [id]
        store.full = False
        async with gateway(tmp_path, store=store) as one:
            assert (await one.alice.get(f"{ROOT}/{id}/result")).json["status"] == "ok"
            assert one.provider.requests == 0
            assert one.documents(OPEN) == []

    asyncio.run(main())


def test_a_swarm_of_a_key_that_was_revoked_does_not_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        store = await store_with(ALICE)
        async with gateway(tmp_path, store=store, latency=(5, 5)) as one:
            id = await one.alice.spawn(tasks=numbered(2))
            await until(lambda: one.provider.in_flight == 2)
        await store.revoke_key(ALICE.id, 1.0)
        async with gateway(tmp_path, store=store) as one:
            (kept,) = await one.service.listed(ALICE.id, 10)
            assert (kept.id, kept.status) == (id, "cancelled")
            assert one.provider.requests == 0

    asyncio.run(main())


def test_a_swarm_whose_key_is_revoked_while_it_works_ends_soon(tmp_path: Path) -> None:
    async def main() -> None:
        store = await store_with(ALICE, BOB)
        async with gateway(tmp_path, store=store, latency=(0.5, 0.5), look=0.05) as one:
            id, other = await one.alice.spawn(tasks=numbered(2)), await one.bob.spawn(goal="Go on.")
            await until(lambda: one.provider.in_flight == 3)
            work = one.service.working(id)
            assert work is not None
            await store.revoke_key(ALICE.id, 1.0)
            async with asyncio.timeout(10):
                await work.over.wait()
            assert (work.record.status, work.record.cause) == ("cancelled", "its key was revoked")
            assert (await one.bob.ended(other))["status"] == "ok"

    asyncio.run(main())


@pytest.mark.parametrize("rehearsed", [True, False])
def test_a_rehearsal_and_a_real_swarm_never_go_on_as_the_other(tmp_path: Path, rehearsed: bool) -> None:
    async def main() -> None:
        store = await store_with(ALICE, BOB)
        provider = Provider(say, tariff=TARIFF, latency=(30.0, 30.0))
        async with gateway(tmp_path, store=store, provider=provider, rehearsal=rehearsed) as one:
            id = await one.alice.spawn(tasks=numbered(1))
            await until(lambda: bool(provider.in_flight))
        async with gateway(tmp_path, store=store, rehearsal=not rehearsed) as one:
            told = (await one.alice.get(f"{ROOT}/{id}")).json
            assert (told["status"], told["rehearsal"]) == ("interrupted", rehearsed)
            assert not one.calls
        async with gateway(tmp_path, store=store, rehearsal=rehearsed) as one:
            assert (await one.alice.ended(id))["status"] == "ok"

    asyncio.run(main())


def test_a_folder_of_runs_belongs_to_one_gateway_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as second:
            async with gateway(tmp_path) as first:
                id = await first.alice.spawn(goal="Mine.")
                refused = await second.alice.post(f"{ROOT}/spawn", {"goal": "Mine."})
                assert refused.status == 503
                assert "another gateway's" in refused.error
                assert str(tmp_path) not in refused.error
                assert (await first.alice.ended(id))["status"] == "ok"
            id = await second.alice.spawn(goal="Mine.")
            assert (await second.alice.ended(id))["status"] == "ok"

    asyncio.run(main())


def test_a_journal_that_is_damaged_fails_its_swarm_alone_and_shows_no_path(tmp_path: Path) -> None:
    async def main() -> None:
        store = await store_with(ALICE)
        async with gateway(tmp_path, store=store, latency=(5, 5)) as one:
            ids = [await one.alice.spawn(goal=f"Goal {number}.") for number in range(2)]
            await until(lambda: one.provider.in_flight == 2)
        (tmp_path / "runs" / ids[0] / "journal.sqlite").write_bytes(b"no journal at all" * 100)
        async with gateway(tmp_path, store=store) as one:
            assert (await one.alice.ended(ids[1]))["status"] == "ok"
            listed = {row["id"]: row for row in (await one.alice.get(ROOT)).json["data"]}
            assert listed[ids[0]]["status"] == "failed"
            for path in ("", "/events", "/result", "/agents/goal"):
                reply = await one.alice.get(f"{ROOT}/{ids[0]}{path}")
                assert reply.status == 503
                assert str(tmp_path) not in reply.body.decode()
            assert str(tmp_path) not in json.dumps(listed)

    asyncio.run(main())


# -- as a process -----------------------------------------------------------------------------------------------------

_GATEWAY = """
[gateway]
port = 0
store = "gateway.db"

[swarms]
folder = "runs"

[[model]]
name = "kimi-k2.5"
provider = "custom"
base_url = "{url}"
concurrency = 100

[prices."kimi-k2.5"]
input = 0.60
output = 2.50
"""


async def prepare(folder: Path, url: str) -> None:
    """A gateway.toml, and a store with a key whose token is its id."""
    (folder / "gateway.toml").write_text(_GATEWAY.format(url=url))
    store = SqliteStore(folder / "gateway.db")
    await store.add_key(ALICE, digest_of(ALICE.id))
    await store.aclose()


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`centuria serve`, once it listens, and its address."""
    start = "import sys; from centuria.cli import main; sys.exit(main())"
    one = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", start, "serve", "--config", str(folder / "gateway.toml")),
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )
    said: list[str] = []
    try:
        assert one.stderr is not None
        async with asyncio.timeout(30):
            while (found := re.search(r"http://\S+", "".join(said))) is None:
                line = await one.stderr.readline()
                assert line, said
                said.append(line.decode())
        yield one, found[0]
    finally:
        with suppress(ProcessLookupError):
            one.kill()
        await one.wait()


async def balance(folder: Path) -> Balance:
    store = SqliteStore(folder / "gateway.db")
    try:
        return next(balance for key, balance in await store.keys() if key.id == ALICE.id)
    finally:
        await store.aclose()


async def read(session: aiohttp.ClientSession, url: str, seen: list[Event], most: int) -> None:
    """Read on where `seen` ends, until the end or until there are so many."""
    last = max((event.id for event in seen if event.id is not None), default=0)
    async with session.get(f"{url}/events", headers={"Last-Event-ID": str(last)}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        block = ""
        async for line in response.content:
            block += line.decode()
            if block.endswith("\n\n"):
                event = parse(block[:-2])
                block = ""
                if event is not None:
                    seen.append(event)
                    if event.kind in ("end", "interrupted") or len(seen) >= most:
                        return


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_kill_minus_nine_and_after_a_stop_a_hundred_tasks_go_on_and_nothing_is_paid_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    asked: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> Text:
        asked[prompt_of(body)] += 1
        return Text(f"Done: {prompt_of(body)}")

    async def main() -> None:
        seen: list[Event] = []
        headers = {"Authorization": f"Bearer {ALICE.id}"}
        async with FakeUpstream(script, latency=0.2, models=(MODEL,)) as upstream:
            await prepare(tmp_path, upstream.base_url)
            async with aiohttp.ClientSession(headers=headers) as session:
                async with process(tmp_path) as (one, url):
                    body = {"tasks": numbered(100), "max_agents": 25, "budget_usd": 4}
                    async with session.post(f"{url}{ROOT}/spawn", json=body) as response:
                        assert response.status == 202
                        own = (await response.json())["links"]["self"]
                    await read(session, url + own, seen, 700)
                    reading = asyncio.create_task(read(session, url + own, seen, 100_000))
                    await until(lambda: len(seen) >= 720)
                    one.send_signal(number)
                    async with asyncio.timeout(25):  # streams of swarms end at once, and wait for no grace
                        assert await one.wait() == (0 if number == signal.SIGTERM else -signal.SIGKILL)
                    (broken,) = await asyncio.gather(reading, return_exceptions=True)
                    if number == signal.SIGTERM:
                        assert broken is None
                        assert seen[-1].kind == "interrupted"
                kept, before = answered(tmp_path, own.rpartition("/")[2]), dict(asked)
                assert 0 < len(kept) < 100
                async with process(tmp_path) as (one, url):
                    await read(session, url + own, seen, 100_000)
                    async with session.get(f"{url}{own}/result") as response:
                        result = await response.json()
                    one.send_signal(signal.SIGTERM)
                    await one.wait()
                    assert one.returncode == 0
        facts = [event.id for event in seen if event.id is not None]
        assert facts == list(range(1, len(facts) + 1))
        assert result["census"]["ok"] == 100
        assert len(result["outcomes"]) == 100
        again = {name for name in kept if asked[f"Task {name[1:]}."] != before[f"Task {name[1:]}."]}
        assert again == set()
        assert result["cost_usd"] + result["held_usd"] <= 4
        spent = sum(event.data["cost"] for event in seen if event.kind == "call_closed" and event.data["end"] == "done")
        assert round(result["cost_usd"] * 10**12) == spent
        books = await balance(tmp_path)
        charged = sum(cost(KIMI, usage) for usage in upstream.billed)
        assert charged <= books.spent + books.held <= (ALICE.budget or 0)  # what was under way at the kill is held
        assert spent <= books.spent + books.held
        assert books.leased == 0

    asyncio.run(main())
