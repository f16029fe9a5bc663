"""What the model sees of tools: each agent's own view, the same object and the same bytes for all who see alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from centuria.core.arguments import BadArguments, parse_arguments
from centuria.core.grants import Grant
from centuria.core.names import unknown_tool
from centuria.core.quoting import meant
from centuria.core.schemas import Dialect, Unlawful, legal, shortened
from centuria.core.toolsearch import (
    CALL_TOOL,
    MOST_FUNCTIONS,
    SEARCH_TOOLS,
    SHARE,
    USUAL_FOUND,
    ToolIndex,
    functions,
    why_search,
)
from centuria.errors import ToolsNotGranted
from centuria.events import Notice
from centuria.messages import Fault, ToolCall, ToolEnd, ToolResult, ToolSpec, safe_text
from centuria.ports import Caller, HostedTool, ToolHost

#: Characters of what a search answers.
_SEARCH_ROOM = 16_000


class Calls(Protocol):
    """What carries a view's calls out: the scheduler."""

    async def call(self, call: ToolCall, caller: Caller, view: ToolView) -> ToolResult: ...


@dataclass(frozen=True, slots=True)
class ToolView:
    """What one agent may see and call now. `specs` is what goes into its requests: its tools, or, where they are too
    many, the two functions that search and call them (`index`)."""

    specs: tuple[ToolSpec, ...]
    tools: Mapping[str, HostedTool] = field(repr=False)
    grant: Grant
    views: Views = field(repr=False, compare=False)
    index: ToolIndex | None = field(default=None, repr=False, compare=False)

    def resolve(self, name: str) -> HostedTool | None:
        """The tool of this name, if it is in this view."""
        return self.tools.get(name)

    def call(self, call: ToolCall, caller: Caller) -> Coroutine[Any, Any, ToolResult]:
        """`ToolScheduler.call` within this view."""
        return self.views.scheduler.call(call, caller, self)

    async def call_all(self, calls: Sequence[tuple[ToolCall, Caller]]) -> list[ToolResult]:
        """The calls of one turn."""
        return await in_parallel(self.call, calls)

    def narrow(
        self,
        *,
        servers: Collection[str] | None = None,
        tools: Collection[str] | None = None,
        trusted: Collection[str] | None = None,
    ) -> ToolView:
        """The view of a child: these servers, and these tools by their full names (neither said: all of this view).

        Its hints count only for the `trusted` tools (None: as here). Raises `ToolsNotGranted`, naming what there is,
        for a server or tool that this view does not have.
        """
        known = self.views.servers_of(self.grant)
        for name in servers or ():
            if name not in known:
                raise ToolsNotGranted(_not_granted("server", name, sorted(known)))
        for name in [*(tools or ()), *(trusted or ())]:
            if name not in self.tools:
                raise ToolsNotGranted(_not_granted("tool", name, sorted(self.tools)))
        return self.views.of(self.grant.narrow(servers=servers, tools=tools, trusted=trusted))

    def slug_of(self, server: str) -> str:
        """The slug of a server that is named by it or by its own name."""
        return self.views.slugs().get(server, server)

    def meant(self, name: str) -> HostedTool | None:
        """The one tool of this view whose full name, or whose server's own name for it, this is."""
        own = [tool for tool in self.tools.values() if tool.tool == name]
        return self.tools.get(name) or (own[0] if len(own) == 1 else None)

    def refusal(self, name: str) -> str:
        """What a model is told that called what this view does not have."""
        text = unknown_tool(name, self.tools)
        return f"{text} Find others with {SEARCH_TOOLS}." if self.index is not None else text

    def fault(self, call: ToolCall) -> Fault:
        """What is wrong with a call that leads to no tool of this view."""
        if call.name != CALL_TOOL or self.index is None:
            return "unknown_tool"
        try:
            parse_arguments(call.arguments)
        except BadArguments as error:
            return error.fault
        return "schema"

    def search(self, arguments: str, room: int) -> ToolResult:
        """The answer to a call of `search_tools`."""
        if self.index is None:
            return ToolResult(self.refusal(SEARCH_TOOLS), ToolEnd.REFUSED, fault="unknown_tool")
        try:
            asked = parse_arguments(arguments)
        except BadArguments as error:
            return ToolResult(f"{SEARCH_TOOLS} was not called. {error}", ToolEnd.REFUSED, fault=error.fault)
        limit = asked.get("limit")
        count = limit if isinstance(limit, int) and not isinstance(limit, bool) else USUAL_FOUND
        return ToolResult(safe_text(self.index.answer(str(asked.get("query", "")), count, min(room, _SEARCH_ROOM))))


async def in_parallel(
    call_one: Callable[[ToolCall, Caller], Awaitable[ToolResult]], calls: Sequence[tuple[ToolCall, Caller]]
) -> list[ToolResult]:
    """Run calls side by side; the results come back in the order of the calls."""

    async def one(call: ToolCall, caller: Caller) -> ToolResult:
        return await call_one(call, caller)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(call, caller)) for call, caller in calls]
    return [task.result() for task in running]


def unwrapped(call: ToolCall) -> ToolCall:
    """The call that a `call_tool` is for; any other, and one that cannot be read, as it is."""
    if call.name != CALL_TOOL:
        return call
    try:
        asked = parse_arguments(call.arguments)
    except BadArguments:
        return call
    name, arguments = asked.get("name"), asked.get("arguments", {})
    if not isinstance(name, str) or not name:
        return call
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return replace(call, name=name, arguments=text)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A tool as this model is told of it, and its bytes; or why it cannot be."""

    spec: ToolSpec | None
    size: int = 0
    why_not: str = ""


class Views:
    """Makes the views of a run, for one model. What cannot be offered is left out alone, and said once."""

    def __init__(
        self,
        host: ToolHost,
        scheduler: Calls,
        *,
        dialect: Dialect,
        context: int,
        publish: Callable[[Notice], object],
    ) -> None:
        self.scheduler = scheduler
        self._host = host
        self._dialect = dialect
        self._context = context
        self._publish = publish
        self._catalogue: Sequence[HostedTool] = ()
        self._offers: dict[tuple[str, str, str], _Offer] = {}
        self._views: dict[tuple[Grant, int], ToolView] = {}
        self._told: set[str] = set()

    def of(self, grant: Grant, beside: int = 0) -> ToolView:
        """The view of this grant: the same object for all who ask alike, until the catalogue changes.

        `beside` is the number of functions that a request holds besides.
        """
        catalogue = self._host.catalogue()
        if catalogue != self._catalogue:  # tools that stayed are the same objects: that is soon seen
            self._views.clear()
        self._catalogue = catalogue
        view = self._views.get((grant, beside))
        if view is None:
            view = self._views[grant, beside] = self._made(grant, beside)
        return view

    def servers_of(self, grant: Grant) -> frozenset[str]:
        """The slugs and names of the servers of which a grant may have something."""
        states = [state for state in self._host.servers() if grant.reaches(state.slug, state.server)]
        return frozenset(name for state in states for name in (state.slug, state.server))

    def slugs(self) -> dict[str, str]:
        """The slugs of all servers, by slug and by name."""
        states = self._host.servers()
        return {state.server: state.slug for state in states} | {state.slug: state.slug for state in states}

    def usable(self, slug: str) -> list[HostedTool]:
        """A server's tools, each that cannot be offered being left out with a notice."""
        found = []
        for tool in self._host.catalogue():
            if tool.slug != slug:
                continue
            offer = self._offer(tool)
            if offer.spec is not None:
                found.append(tool)
            else:
                self._tell(left_out(tool.tool, tool.server, offer.why_not))
        return found

    def left_out(self, server: str, reasons: Mapping[str, str]) -> None:
        """Say of a server's tools why no agent can have them."""
        for name, why in reasons.items():
            self._tell(left_out(name, server, why))

    def _tell(self, text: str, level: str = "warning") -> None:
        if text not in self._told:
            self._told.add(text)
            self._publish(Notice(safe_text(text), "warning" if level == "warning" else "info"))

    def _offer(self, tool: HostedTool) -> _Offer:
        key = (tool.key, tool.name, tool.description)
        offer = self._offers.get(key)
        if offer is None:
            offer = self._offers[key] = self._offered(tool)
        return offer

    def _offered(self, tool: HostedTool) -> _Offer:
        try:
            schema = legal(tool.schema, self._dialect)
        except Unlawful as error:
            return _Offer(None, why_not=str(error))
        spec = ToolSpec(tool.name, shortened(tool.description, self._dialect.description), schema)
        written = {"name": spec.name, "description": spec.description, "parameters": spec.schema}
        return _Offer(
            spec, len(json.dumps(written, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))
        )

    def _made(self, grant: Grant, beside: int) -> ToolView:
        specs: list[ToolSpec] = []
        tools: dict[str, HostedTool] = {}
        size = 0
        for tool in self._catalogue:
            if not grant.allows(tool.slug, tool.server, tool.name):
                continue
            offer = self._offer(tool)
            if offer.spec is not None:
                trusted = grant.trusts(tool.name)
                tools[tool.name] = tool if trusted else replace(tool, rerun=False)
                specs.append(offer.spec)
                size += offer.size
        self._tell_missing(grant)
        why = why_search(len(specs), size, self._context, beside=beside)
        self._tell_way(len(specs), size, why)
        if not why:
            return ToolView(tuple(specs), tools, grant, self)
        slugs = sorted({tool.slug for tool in tools.values()})
        return ToolView(functions(len(specs), slugs), tools, grant, self, ToolIndex(specs))

    def _tell_way(self, count: int, size: int, why: str) -> None:
        """Say which of the two ways was chosen, where it is not plain."""
        if why:
            text = (
                f"Agents search their {count:,} tools ({SEARCH_TOOLS}, {CALL_TOOL}) instead of being shown all: {why}."
            )
            self._tell(text, "info")
        elif count > MOST_FUNCTIONS // 2 or size / 4 > SHARE * self._context / 2:
            share = f"{100 * size / 4 / self._context:.1f} %"
            self._tell(f"Agents are shown all their {count:,} tools: some {share} of the model's context.", "info")

    def _tell_missing(self, grant: Grant) -> None:
        """Say which tools were granted by name and are not there, though their server is up."""
        up = {state.slug for state in self._host.servers() if state.up}
        there = {tool.name for tool in self._catalogue}
        for name in sorted(grant.tools - there):
            if name.partition("__")[0] in up:
                self._tell(unknown_grant(name, sorted(there)))


def left_out(tool: str, server: str, why: str) -> str:
    """The sentence on a tool that no agent can have."""
    return f"The tool {tool[:80]} of {server} is left out: {why[:300]}"


def unknown_grant(name: str, there: Sequence[str]) -> str:
    """The sentence on a tool that was granted and that no server has."""
    return f"No server has the tool {name}, which `tools` names." + meant(name, there)


def _not_granted(what: str, name: str, there: Sequence[str]) -> str:
    shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return f"There is no {what} {name[:80]!r} to hand down. There is: {shown or 'none'}."
