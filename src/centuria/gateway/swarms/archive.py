"""What is kept of swarms in their folders, read beside the loop: their requests, and journals of those that ended."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from centuria.errors import JournalError
from centuria.folder import RunFolder
from centuria.gateway.problems import unavailable
from centuria.gateway.settings import SwarmLimits
from centuria.gateway.swarms.past import Past, conversation, read_past, result_of
from centuria.gateway.swarms.records import RunsFolder, SwarmRecord
from centuria.gateway.swarms.request import SwarmRequest, parse_request

_log = logging.getLogger("centuria.gateway")
#: How many swarms that have ended are held in memory, for those who look at them again.
_HELD = 8
#: Tasks and agents of a request that is read again: what was allowed when it came may be too much now.
_MOST_THEN = 100_000


class Archive:
    """Each method raises `Problem` (503) for what cannot be read; the log says which file that is."""

    def __init__(self, runs: RunsFolder, limits: SwarmLimits) -> None:
        self._runs = runs
        self._limits = replace(limits, tasks=_MOST_THEN, agents=_MOST_THEN)
        self._held: OrderedDict[str, Past] = OrderedDict()

    def folder(self, record: SwarmRecord) -> RunFolder:
        return self._runs.folder(record.id)

    async def past(self, record: SwarmRecord) -> Past | None:
        """The facts of a swarm that does not work; None where there are none."""
        found = self._held.get(record.id)
        if found is None:
            found = await self._read(read_past, self.folder(record))
            if found is not None and record.ended:
                self._held[record.id] = found
                if len(self._held) > _HELD:
                    self._held.popitem(last=False)
        return found

    async def request(self, record: SwarmRecord) -> SwarmRequest:
        """What was asked for."""
        return parse_request(await self._read(self._runs.read_request, record), self._limits)

    async def result(self, record: SwarmRecord) -> tuple[str, list[dict[str, Any]]]:
        """The merged answer, and the outcome of each task."""
        found: tuple[str, list[dict[str, Any]]] = await self._read(result_of, self.folder(record))
        return found

    async def conversation(self, record: SwarmRecord, agent: str) -> dict[str, Any] | None:
        """One agent's conversation so far; None where there is no such agent."""
        if not self.folder(record).journal.is_file():
            return None
        prompts = (await self.request(record)).prompts()
        found: dict[str, Any] | None = await self._read(conversation, self.folder(record), prompts, agent)
        return found

    async def _read(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(work, *arguments)
        except (OSError, ValueError, JournalError) as error:
            _log.warning("what a swarm left cannot be read: %s", error)
            raise unavailable("What the swarm left cannot be read.") from None
