"""`LocalToolHost`: plain Python functions behind the port that MCP servers are behind."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from centuria.core.leases import LeaseTable
from centuria.core.names import manifest_key, qualify
from centuria.errors import ToolError, ToolUnavailable
from centuria.messages import ToolEnd, ToolResult
from centuria.ports import Caller, HostedTool, Listener, ServerState


class LocalTool(NamedTuple):
    """A function, sync or async, called with the arguments as keywords, and the JSON Schema of its arguments.

    It returns text, a `ToolResult`, or anything that is JSON. `options` are fields of `HostedTool`: slug ("local"),
    description, limit (10), rerun, ask, timeout.
    """

    function: Callable[..., Any]
    schema: Mapping[str, Any]
    options: Mapping[str, Any] = {}


@dataclass(slots=True)
class LocalToolHost:
    """Implements `ports.ToolHost`. `down` maps a slug to the reason why its tools are not available just now.

    `calls` records what was run, in order, and `callers` for whom; `most` is how many calls of a slug were ever in
    service at once. `sessions` maps a slug to how many sessions it leases out, one to an agent (its tools need a
    `lease`); `used` records which agent used which, in order, each once. `remote` are the slugs of servers
    that count as remote.
    """

    functions: Mapping[str, LocalTool | tuple[Any, ...]]
    down: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    callers: list[Caller | None] = field(default_factory=list)
    most: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    remote: frozenset[str] = frozenset()
    used: list[tuple[str, str]] = field(default_factory=list)
    _leases: dict[str, LeaseTable] = field(default_factory=dict)
    _editions: Counter[tuple[str, int]] = field(default_factory=Counter)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _tickets: Iterator[int] = field(default_factory=lambda: count(1))
    _running: dict[str, int] = field(default_factory=dict)
    _tools: dict[str, HostedTool] = field(init=False)

    def __post_init__(self) -> None:
        tools = [self._hosted(name, LocalTool(*tool)) for name, tool in sorted(self.functions.items())]
        self._tools = {tool.name: tool for tool in tools}
        for slug, size in self.sessions.items():
            self._leases[slug] = LeaseTable(size)
            for number in range(size):
                self._leases[slug].opened(number, now=0.0)

    def catalogue(self) -> Sequence[HostedTool]:
        return tuple(self._tools.values())

    def _hosted(self, name: str, tool: LocalTool) -> HostedTool:
        options = {"slug": "local", "limit": 10, "description": inspect.getdoc(tool.function) or "", **tool.options}
        slug = options["slug"]
        return HostedTool(
            name=qualify(slug, name),
            server=slug,
            tool=name,
            schema=tool.schema,
            key=manifest_key(slug, name, tool.schema),
            **options,
        )

    def servers(self) -> Sequence[ServerState]:
        tools: dict[str, list[HostedTool]] = {}
        for tool in self.catalogue():
            tools.setdefault(tool.slug, []).append(tool)
        return tuple(
            ServerState(
                slug,
                slug,
                up=slug not in self.down,
                tools=len(own),
                limit=max(tool.limit for tool in own),
                reason=self.down.get(slug, ""),
                remote=slug in self.remote,
                mode="leased" if slug in self.sessions else "shared",
                replicas=(self.down.get(slug, ""),) * self.sessions.get(slug, 1),
            )
            for slug, own in tools.items()
        )

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        caller: Caller | None = None,
        listener: Listener | None = None,
    ) -> ToolResult:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolUnavailable(f"No server has a tool named {name}.")
        if tool.slug in self.down:
            raise ToolUnavailable(f"The server {tool.server} is not available. {self.down[tool.slug]}")
        if tool.slug in self._leases:
            if caller is None:
                raise ToolUnavailable(f"{name} needs a session of its own, and nobody said for which agent it is.")
            await self.lease(name, caller=caller, timeout=timeout)
        self.calls.append((name, dict(arguments)))
        self.callers.append(caller)
        running = self._running[tool.slug] = self._running.get(tool.slug, 0) + 1
        self.most[tool.slug] = max(running, self.most.get(tool.slug, 0))
        try:
            async with asyncio.timeout(timeout):
                answer = LocalTool(*self.functions[tool.tool]).function(**arguments)
                if inspect.isawaitable(answer):
                    answer = await answer
        except (ToolError, TimeoutError):
            raise
        except Exception as error:  # the edge: a tool's own error is a value
            return ToolResult(f"{type(error).__name__}: {error}", ToolEnd.ERROR)
        finally:
            self._running[tool.slug] -= 1
        if isinstance(answer, ToolResult):
            return answer
        if isinstance(answer, str):
            return ToolResult(answer)
        return ToolResult(json.dumps(answer, ensure_ascii=False), structured=answer)

    async def lease(self, name: str, *, caller: Caller, timeout: float) -> str:
        tool = self._tools.get(name)
        leases = self._leases.get(tool.slug) if tool is not None else None
        if tool is None or leases is None:
            return ""
        if tool.slug in self.down:
            raise ToolUnavailable(f"The server {tool.server} is not available. {self.down[tool.slug]}")
        ticket, agent = next(self._tickets), caller.key.task
        try:
            async with asyncio.timeout(timeout):
                while (number := leases.session_of(agent)) is None:
                    if ticket not in leases.waiting:
                        leases.ask(ticket, agent, now=0.0)
                        continue
                    await self._freed.wait()
        except TimeoutError:
            raise ToolUnavailable(f"No session of {tool.server} came free within {timeout:g} s.") from None
        finally:
            leases.leave(ticket)
        session = f"{number + 1}.{self._editions[tool.slug, number]}"
        if (agent, session) not in self.used:
            self.used.append((agent, session))
        return session

    def release(self, agent: str, slug: str | None = None) -> None:
        for each, leases in self._leases.items():
            number = leases.release(agent) if slug in (None, each) else None
            if number is not None:
                self.renew(each, number)

    def renew(self, slug: str, number: int) -> None:
        """Session `number` (0..) is a new one now, as after a release or a crash."""
        self._editions[slug, number] += 1
        self._leases[slug].opened(number, now=0.0)
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()
