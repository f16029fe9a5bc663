"""The tools of one swarm's run, which are those that all share: implements `ports.ToolHost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from centuria.errors import SlotRefused, ToolUnavailable
from centuria.gateway.tools.calls import ToolCalls
from centuria.gateway.tools.naming import Names
from centuria.messages import ToolResult
from centuria.ports import Caller, HostedTool, Listener, ServerState


class SharedTools:
    """`owner` is put before the names of agents, so that no two runs take each other's for their own. `shown` are the
    tools by the names that the run knows; a call waits `queue` seconds for its turn at most, before its time-out runs.
    """

    def __init__(
        self, calls: ToolCalls, owner: str, shown: Mapping[str, HostedTool], known: Names, *, queue: float
    ) -> None:
        self._calls = calls
        self._owner = owner
        self._shown = shown
        self._known = known
        self._queue = queue

    def catalogue(self) -> Sequence[HostedTool]:
        return tuple(self._shown.values())

    def servers(self) -> Sequence[ServerState]:
        mine = {tool.slug for tool in self._shown.values()}
        return tuple(state for state in self._calls.host.servers() if state.slug in mine)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        caller: Caller | None = None,
        listener: Listener | None = None,
    ) -> ToolResult:
        """Raises as the port says; one that had no turn in time surely did not run."""
        hosted = self._hosted(name)
        if caller is None:
            raise ToolUnavailable("Nobody said for which agent this is.")
        try:
            done = await self._calls.call(
                hosted, arguments, self._scoped(caller), patience=self._queue, timeout=timeout, listener=listener
            )
        except SlotRefused as error:
            raise ToolUnavailable(error.message) from None
        return done.result

    async def lease(self, name: str, *, caller: Caller, timeout: float) -> str:
        hosted = self._hosted(name)
        return await self._calls.host.lease(hosted.name, caller=self._scoped(caller), timeout=timeout)

    def release(self, agent: str, slug: str | None = None) -> None:
        self._calls.release(self._of(agent))
        self._calls.host.release(self._of(agent), slug)

    def _hosted(self, name: str) -> HostedTool:
        """The tool under its full name."""
        shown = self._shown.get(name)
        hosted = None if shown is None else self._known.by_name.get(name)
        if hosted is None:
            raise ToolUnavailable(f"No server has a tool named {name}.")
        return hosted

    def _scoped(self, caller: Caller) -> Caller:
        return replace(caller, key=replace(caller.key, task=self._of(caller.key.task)))

    def _of(self, agent: str) -> str:
        return f"{self._owner}/{agent}"
