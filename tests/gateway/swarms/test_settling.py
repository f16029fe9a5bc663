"""A gateway that takes over a folder of runs while it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from centuria.gateway.keys import digest_of
from centuria.gateway.ports import Document
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.swarms.records import RunsFolder
from centuria.testing.gateway import MemoryStore
from tests.gateway.swarms.kit import ALICE, ROOT, gateway
from tests.waiting import until


class Faltering(MemoryStore):
    """Gives `left` documents, and then none (None: all)."""

    left: int | None = None

    async def get(self, kind: str, owner: str | None, id: str) -> Document | None:
        if self.left is not None:
            if not self.left:
                raise StoreUnavailable("The disk failed.")
            self.left -= 1
        return await super().get(kind, owner, id)


def test_what_was_left_is_taken_up_though_the_store_failed_half_way(tmp_path: Path) -> None:
    async def main() -> None:
        store = Faltering()
        await store.add_key(ALICE, digest_of(ALICE.id))
        async with gateway(tmp_path, store=store, latency=(5, 5)) as one:
            left = [await one.alice.spawn(goal=f"Goal {number}.") for number in range(3)]
            await until(lambda: one.provider.in_flight == 3)
        other = RunsFolder(tmp_path / "runs")
        other.lock()
        async with gateway(tmp_path, store=store) as one:
            assert (await one.alice.post(f"{ROOT}/spawn", {"goal": "Mine."})).status == 503
            other.unlock()
            store.left = 1
            assert (await one.alice.post(f"{ROOT}/spawn", {"goal": "Mine."})).status == 503
            store.left = None
            await one.alice.spawn(goal="Mine.")
            assert [(await one.alice.ended(id))["status"] for id in left] == ["ok"] * 3

    asyncio.run(main())
