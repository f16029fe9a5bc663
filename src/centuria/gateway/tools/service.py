"""`ToolService`: one set of the operator's tool servers, for all keys and all their agents.

a name -> the tool (`naming`, or a registration of the key) -> its arguments checked -> a slot of the registration,
where it has a limit of its own -> slots of the tool and its server (`calls`) -> the call
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from centuria.admission import Slots
from centuria.core.arguments import ArgumentCheck
from centuria.core.slots import SlotTable
from centuria.errors import OutcomeUnknown, SlotRefused, ToolUnavailable
from centuria.gateway.headers import USUAL_PRIORITY
from centuria.gateway.ports import Key, Store
from centuria.gateway.problems import (
    Problem,
    bad_request,
    conflict,
    not_found,
    overloaded,
    rate_limited,
    unavailable,
    upstream_failed,
)
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.calls import Invocation, ToolCalls, caller_of
from centuria.gateway.tools.gauges import Gauge, Gauges
from centuria.gateway.tools.manifest import Registered, target_of
from centuria.gateway.tools.naming import Names, unknown
from centuria.gateway.tools.outages import Outages, down, missed
from centuria.gateway.tools.registry import Registry
from centuria.gateway.tools.remote import Remotes
from centuria.gateway.tools.shared import SharedTools
from centuria.leasing import lease_resource
from centuria.ports import Caller, HostedTool, Listener, ServerState, ToolHost
from centuria.settings import ToolServer
from centuria.toolanswers import MAY_HAVE_HAPPENED
from centuria.toolgates import server_resource
from centuria.toolhost import McpToolHost
from centuria.turns import tool_resource

#: Calls at once of tools that go by these names, where the operator says nothing else.
USUAL_LIMITS: Mapping[str, int] = {"web_search": 20, "code_exec": 5, "file_read": 30}
#: Compiled schemas, and views of keys, that are remembered.
_CHECKS, _VIEWS = 1_000, 1_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """A tool as one agent of a key has it. `tool` goes by the name that the caller knows, `hosted` by its own;
    `limit`: that of its registration, where that is less, and `resource` what it is a limit of."""

    tool: HostedTool
    hosted: HostedTool
    calls: ToolCalls
    priority: int | None = None
    limit: int | None = None
    resource: str = ""


class ToolService:
    """The servers run for as long as the `async with` lasts. `host`: these tools in place of the settings' servers.

    `dice` gives numbers in [0, 1). Raises `ConfigurationError` on entering where a required server is not up.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        *,
        dice: Callable[[], float] = random.random,
        host: ToolHost | None = None,
    ) -> None:
        self._settings = settings
        self._given = host
        self._dice = dice
        self._stack = AsyncExitStack()
        self._calls: ToolCalls | None = None
        self.registry = Registry(store)
        self.remotes = Remotes(settings, dice=dice)
        self._own_gauges = Gauges()
        self._own = Slots(SlotTable(queue_cap=settings.caps.waiting), self._own_gauges)
        self._views: OrderedDict[frozenset[str] | None, Names] = OrderedDict()
        self._catalogue: Sequence[HostedTool] = ()
        self._checks: OrderedDict[str, ArgumentCheck] = OrderedDict()
        self._waiting: Counter[str] = Counter()
        self._outages = Outages(())

    async def __aenter__(self) -> ToolService:
        async with AsyncExitStack() as stack:
            host = self._given
            if host is None:
                servers = [_with_usual_limits(server) for server in self._settings.servers]
                host = await stack.enter_async_context(
                    McpToolHost(servers, timeouts=self._settings.timeouts, dice=self._dice)
                )
            await stack.enter_async_context(self.remotes)
            waiting = self._settings.caps.waiting_all
            self._calls = ToolCalls(host, timeouts=self._settings.timeouts, dice=self._dice, waiting=waiting)
            stack.callback(self._calls.close)
            if isinstance(host, McpToolHost):
                self._outages = Outages(host.servers())
                host.on_change = self._changed
                stack.callback(setattr, host, "on_change", self._calls.server_changed)  # that it ends is no outage
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def calls(self) -> ToolCalls:
        """Every call to the operator's servers."""
        if self._calls is None:
            raise RuntimeError("The service does not run: use `async with`.")
        return self._calls

    # -- what there is ------------------------------------------------------------------------------------------------

    def names(self, key: Key) -> Names:
        """The operator's tools that this key may use, by every name that leads to one."""
        catalogue = self.calls.host.catalogue()
        if catalogue != self._catalogue:
            self._views.clear()
            self._catalogue = catalogue
        names = self._views.get(key.tools)
        if names is None:
            names = self._views[key.tools] = Names.of(catalogue, key.tools, bare=self._settings.bare_names)
            if len(self._views) > _VIEWS:
                self._views.popitem(last=False)
        return names

    def visible(self, key: Key) -> Sequence[HostedTool]:
        """The operator's tools that this key may use, under the names by which they are listed."""
        return self.names(key).shown

    async def offered(self, key: Key, agent: str = "") -> Sequence[HostedTool]:
        """All that this agent of the key may call: the operator's tools, and what the key registered for it."""
        registered = await self.registry.of(key.id)
        mine = [entry for entry in registered.values() if entry.is_for(agent)]
        tools = {tool.name: tool for tool in self.visible(key)}
        for entry in mine:
            if entry.url:
                tools |= {tool.name: tool for tool in self.remotes.catalogue(key.id, entry)}
            elif (hosted := self._target(key, entry)) is not None:
                tools[entry.name] = _as(hosted, entry)
        return tuple(tools.values())

    def servers(self) -> Sequence[ServerState]:
        return self.calls.host.servers()

    def down(self, key: Key) -> Sequence[ServerState]:
        """The operator's servers that are not up and whose tools this key may have."""
        return down(self.servers(), key.tools)

    def _changed(self, state: ServerState) -> None:
        self.calls.server_changed(state)
        self._outages.see(state)

    def _unknown(self, name: str, key: Key, others: Sequence[str] = ()) -> str:
        return unknown(name, self.names(key), others) + missed(name, self.down(key))

    def occupancy(self) -> Sequence[Gauge]:
        """How busy the operator's servers and tools are, and have been: those that are there now."""
        resources = {tool_resource(tool.name) for tool in self.calls.host.catalogue()}
        for state in self.servers():
            resources |= {server_resource(state.slug), lease_resource(state.slug)}
        return [gauge for gauge in self.calls.gauges.all() if gauge.resource in resources]

    def limit(self, tool: HostedTool) -> int:
        """How many calls of it the operator lets run at once: its own limit, or that of its server if that is less."""
        return min([tool.limit, *(state.limit for state in self.servers() if state.slug == tool.slug)])

    def replicas(self, tool: HostedTool) -> int:
        """How many sessions its server has."""
        return next((len(state.replicas) or 1 for state in self.servers() if state.slug == tool.slug), 1)

    def host_for(self, key: Key, names: Sequence[str] | None = None, *, run: str = "") -> ToolHost:
        """The tools of a run: these (None: all that the key may use). Every call of it takes the slots that all share.

        `run` keeps its agents apart from those of others ("": some name that no other has). Raises `Problem` (400) for
        a name that leads to no tool.
        """
        known = self.names(key)
        shown = {tool.name: tool for tool in known.shown}
        if names is not None:
            shown = {}
            for name in names:
                hosted = known.by_name.get(name)
                if hosted is None:
                    raise bad_request(self._unknown(name, key), param="mcp_tools", code="tool_not_found")
                shown[name] = replace(hosted, name=name)
        owner = f"{key.id}/{run or secrets.token_hex(6)}"
        return SharedTools(self.calls, owner, shown, known, queue=self._settings.caps.queue)

    # -- a call -------------------------------------------------------------------------------------------------------

    async def choose(self, key: Key, agent: str, name: str) -> Chosen:
        """The tool that this agent means. Raises `Problem`: 404, 409 where it is another than was registered."""
        registered = await self.registry.of(key.id)
        entry = registered.get(name)
        if entry is not None and not entry.url and entry.is_for(agent):
            return self._chosen_registered(key, entry)
        names = self.names(key)
        hosted = names.by_name.get(name)
        if hosted is not None:
            return Chosen(replace(hosted, name=name), hosted, self.calls)
        remote = registered.get(name.partition("__")[0])
        if remote is not None and remote.url and remote.is_for(agent):
            calls, tool = await self.remotes.find(key.id, remote, name)
            return Chosen(tool, tool, calls, remote.priority)
        others = [entry.name for entry in registered.values() if entry.is_for(agent)]
        raise not_found(self._unknown(name, key, others), code="tool_not_found", param="name")

    def _chosen_registered(self, key: Key, entry: Registered) -> Chosen:
        hosted = self._target(key, entry)
        if hosted is None:
            raise not_found(
                f"{entry.name} was registered for a tool that this key does not have now.", code="tool_not_found"
            )
        if hosted.key != entry.key:
            raise conflict(
                f"The tool behind {entry.name} has another schema than when it was registered.",
                code="tool_changed",
                remedy="Look at it, and register it again.",
            )
        limit = entry.limit if entry.limit is not None and entry.limit < hosted.limit else None
        return Chosen(_as(hosted, entry), hosted, self.calls, entry.priority, limit, f"own:{key.id}:{entry.name}")

    def _target(self, key: Key, entry: Registered) -> HostedTool | None:
        return self.names(key).by_name.get(entry.tool)

    def target(self, key: Key, entry: Registered) -> HostedTool:
        """The operator's tool that an entry of a manifest means. Raises `Problem` (400)."""
        name = target_of(entry)
        hosted = self.names(key).by_name.get(name)
        if hosted is None:
            raise bad_request(self._unknown(name, key), param="tool", code="tool_not_found")
        return hosted

    def check(self, chosen: Chosen, arguments: Mapping[str, Any]) -> None:
        """Raises `Problem` (400), saying what does not fit the tool's own schema."""
        hosted = chosen.hosted
        check = self._checks.get(hosted.key)
        if check is None:
            check = self._checks[hosted.key] = ArgumentCheck(hosted.schema)
            if len(self._checks) > _CHECKS:
                self._checks.popitem(last=False)
        complaint = check.complaint(arguments)
        if complaint is not None:
            raise bad_request(
                f"The arguments do not fit the schema of {chosen.tool.name}: {complaint}.",
                param="arguments",
                code="invalid_arguments",
            )

    async def invoke(
        self,
        key: Key,
        agent: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        priority: int | None = None,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Invocation:
        """Call a tool for one agent of a key, in its turn. `timeout` is in seconds, from when it is sent.

        What the tool says is a value, its own errors too. Raises `Problem`: 400 (arguments), 404 (no such tool), 429
        or 503 with `Retry-After` (not run), 502 and 504 (it may have run).
        """
        chosen = await self.choose(key, agent, name)
        self.check(chosen, arguments)
        return await self.run(key, agent, chosen, arguments, priority=priority, timeout=timeout, listener=listener)

    async def run(
        self,
        key: Key,
        agent: str,
        chosen: Chosen,
        arguments: Mapping[str, Any],
        *,
        priority: int | None = None,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> Invocation:
        """`invoke`, once it is known which tool that is and that the arguments fit."""
        rank = next(each for each in (priority, chosen.priority, USUAL_PRIORITY) if each is not None)
        caller = caller_of(key.id, agent, rank)
        if self._waiting[key.id] >= self._settings.caps.waiting:
            raise overloaded(f"{self._waiting[key.id]:,} tool calls of this key are on their way, which is the cap.")
        self._waiting[key.id] += 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        queue = self._settings.caps.queue
        try:
            async with AsyncExitStack() as stack:
                if chosen.limit is not None:
                    await stack.enter_async_context(self._own_slot(chosen, chosen.limit, caller))
                waited = loop.time() - began
                done = await chosen.calls.answered(
                    chosen.hosted,
                    arguments,
                    caller,
                    patience=max(0.0, queue - waited),
                    timeout=timeout,
                    listener=listener,
                )
                return replace(done, queued_ms=done.queued_ms + waited * 1000) if waited else done
        except (SlotRefused, ToolUnavailable, OutcomeUnknown, TimeoutError) as error:
            raise self._told(chosen, error) from None
        finally:
            self._waiting[key.id] -= 1
            if not self._waiting[key.id]:
                del self._waiting[key.id]

    def _told(self, chosen: Chosen, error: Exception) -> Problem:
        name, seconds = chosen.tool.name, chosen.calls.free_in(chosen.hosted)
        match error:
            case SlotRefused():
                why = chosen.calls.turns.gates.why_closed(chosen.hosted.slug)
                if why:
                    return rate_limited(f"{name} was not called: its server refuses calls as too many: {why}", seconds)
                return overloaded(f"{name} was not called: {error.message}", seconds)
            case ToolUnavailable(throttled=True):
                return rate_limited(f"{name} was not called: {error.message}", error.retry_after or seconds)
            case ToolUnavailable():
                return unavailable(
                    f"{name} is not available and did not run. {error.message}",
                    code="tool_unavailable",
                    seconds=error.retry_after or 1.0,
                )
            case TimeoutError():
                text = f"{name} did not answer in time. {MAY_HAVE_HAPPENED}"
                return upstream_failed(504, text, code="tool_timeout")
            case _:
                return upstream_failed(
                    502, f"{name} gave no answer: {error} {MAY_HAVE_HAPPENED}", code="outcome_unknown"
                )

    # -- limits of registrations --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _own_slot(self, chosen: Chosen, limit: int, caller: Caller) -> AsyncIterator[None]:
        """A slot of the registration itself; nothing is kept of its limit while nobody calls it."""
        resource, table = chosen.resource, self._own.table
        if resource not in table.resources() or table.limit(resource) != limit:
            self._own.set_limit(resource, limit, "as registered")
        try:
            async with self._own.hold(
                resource,
                agent=caller.key.task,
                index=caller.index,
                priority=caller.priority,
                patience=self._settings.caps.queue,
            ):
                yield
        finally:
            if table.forget(resource):
                self._own_gauges.forget(resource)


def _as(hosted: HostedTool, entry: Registered) -> HostedTool:
    """The tool under the name that it was registered with."""
    limit = hosted.limit if entry.limit is None else min(entry.limit, hosted.limit)
    description = entry.description or hosted.description
    return replace(hosted, name=entry.name, description=description, limit=limit)


def _with_usual_limits(server: ToolServer) -> ToolServer:
    return replace(server, tool_limits={**USUAL_LIMITS, **server.tool_limits})
