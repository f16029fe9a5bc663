"""`LocalToolHost`: plain Python functions behind the port that MCP servers are behind."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from centuria.core.names import manifest_key, qualify
from centuria.errors import ToolError, ToolUnavailable
from centuria.messages import ToolEnd, ToolResult
from centuria.ports import Caller, HostedTool, ServerState


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
    service at once.
    """

    functions: Mapping[str, LocalTool | tuple[Any, ...]]
    down: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    callers: list[Caller | None] = field(default_factory=list)
    most: dict[str, int] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)
    _tools: dict[str, HostedTool] = field(init=False)

    def __post_init__(self) -> None:
        tools = [self._hosted(name, LocalTool(*tool)) for name, tool in sorted(self.functions.items())]
        self._tools = {tool.name: tool for tool in tools}

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
            )
            for slug, own in tools.items()
        )

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, timeout: float, caller: Caller | None = None
    ) -> ToolResult:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolUnavailable(f"No server has a tool named {name}.")
        if tool.slug in self.down:
            raise ToolUnavailable(f"The server {tool.server} is not available. {self.down[tool.slug]}")
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
