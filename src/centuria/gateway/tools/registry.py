"""The tools that keys registered: documents of their own, which outlive the process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from centuria.gateway.ports import Document, Store
from centuria.gateway.problems import bad_request
from centuria.gateway.tools.manifest import Registered

KIND = "tool"
#: Registered tools of one key.
MOST = 2_000
#: Keys whose tools are remembered, and for how many seconds before the store is asked again: another gateway may have
#: been told.
_REMEMBERED, _FRESH = 512, 5.0


class Registry:
    """`wall` gives seconds since 1970."""

    def __init__(self, store: Store, *, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        self._known: OrderedDict[str, tuple[float, Mapping[str, Registered]]] = OrderedDict()
        self._door = asyncio.Lock()
        self._edition = 0

    async def of(self, key: str) -> Mapping[str, Registered]:
        """By name. Raises `StoreUnavailable`."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            self._known.move_to_end(key)
            return known[1]
        edition = self._edition
        found = await self._store.find(KIND, key, limit=MOST)
        tools = {document.id: Registered.load(document.body) for _, document in found}
        if edition != self._edition:
            return tools  # something was changed meanwhile: whoever asks next asks the store
        self._known[key] = (now + _FRESH, tools)
        self._known.move_to_end(key)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return tools

    async def add(self, key: str, tools: Iterable[Registered]) -> None:
        """Register, or register anew. Raises `Problem` (400) where there are too many, `StoreUnavailable`."""
        tools = list(tools)
        async with self._door:
            self._forget(key)
            there = await self.of(key)
            if len(there.keys() | {tool.name for tool in tools}) > MOST:
                raise bad_request(
                    f"A key has {MOST:,} registered tools at most, and this one has {len(there):,}.",
                    code="too_many_tools",
                    remedy="Remove some first: DELETE /v1/mcp/tools/NAME.",
                )
            try:
                for tool in tools:
                    await self._store.put(KIND, key, Document(tool.name, tool.dump(), self._wall()))
            finally:
                self._forget(key)

    async def remove(self, key: str, name: str) -> bool:
        """False: there is none."""
        try:
            return await self._store.delete(KIND, key, name)
        finally:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._edition += 1
        self._known.pop(key, None)
