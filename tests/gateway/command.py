"""`centuria serve` as a process of its own, in front of a fake upstream, with a key and a store in a folder."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from centuria.gateway.keys import digest_of
from centuria.gateway.ports import Key
from centuria.gateway.store.sqlite import SqliteStore
from centuria.testing import FakeUpstream

TOKEN = "ck-shutdown-0123456789"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CONFIG = """
[gateway]
port = 0
store = "gateway.db"

[[model]]
name = "kimi"
base_url = "{url}"
key_env = "UPSTREAM_KEY"
concurrency = 100

[prices.kimi]
input = 1.0
output = 10.0

[caps]
grace = {grace}
"""


class Command:
    """The running command, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def command(
    folder: Path, upstream: FakeUpstream, grace: float, *, more: str = "", flags: Sequence[str] = ()
) -> AsyncIterator[Command]:
    (folder / "gateway.toml").write_text(CONFIG.format(url=upstream.base_url, grace=grace) + more)
    store = SqliteStore(folder / "gateway.db")
    await store.add_key(Key("key-a", "a", budget=10**13), digest_of(TOKEN))
    await store.aclose()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from centuria.cli import main; sys.exit(main())",
        "serve", "--config", str(folder / "gateway.toml"), *flags,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "UPSTREAM_KEY": "sk-abcdef0123456789"}, cwd=folder,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            line = await process.stderr.readline()
        assert " is at http://" in line.decode(), line + await process.stderr.read()
        yield Command(process, line.decode().partition(" at ")[2].partition(" ")[0])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def balance(folder: Path) -> tuple[int, int, int, int]:
    """Rows, spent, held and leased, as the store has them afterwards."""
    store = SqliteStore(folder / "gateway.db")
    ((_, money),) = await store.keys()
    rows = sum(line.attempts for line in await store.usage())
    await store.aclose()
    return rows, money.spent, money.held, money.leased
