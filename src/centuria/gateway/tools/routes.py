"""The HTTP side of the tools: a registry, and calls.

POST   /v1/mcp/tools                 register: a tool, a list, or {"tools": [..]}
GET    /v1/mcp/tools                 what this key, and this agent of it, may call
DELETE /v1/mcp/tools/{name}          take a registration back
POST   /v1/mcp/tools/{name}/invoke   the body is the arguments
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from centuria.core.arguments import BadArguments, parse_arguments
from centuria.core.names import is_slug
from centuria.gateway.headers import agent_of, idempotency_key_of, priority_of
from centuria.gateway.ports import Key, Store
from centuria.gateway.problems import Problem, bad_request, not_found
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.answered import Answered
from centuria.gateway.tools.calls import Invocation
from centuria.gateway.tools.manifest import Registered, check_url, entries_of, read_entry
from centuria.gateway.tools.service import Chosen, ToolService
from centuria.gateway.tools.turn import shortened
from centuria.gateway.web import Reply, Request, Route
from centuria.messages import safe_text
from centuria.ports import HostedTool
from centuria.toolanswers import plain

#: Characters of a tool's text that a caller is given; the rest is left out in the middle.
MOST_TEXT = 500_000


class ToolRoutes:
    """`store` keeps what was answered under an `Idempotency-Key`."""

    def __init__(self, service: ToolService, store: Store, settings: GatewaySettings) -> None:
        self._service = service
        self._settings = settings
        self._answered = Answered(store)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/mcp/tools", self.listed),
            Route("POST", "/v1/mcp/tools", self.register),
            Route("DELETE", "/v1/mcp/tools/{name}", self.remove),
            Route("POST", "/v1/mcp/tools/{name}/invoke", self.invoke),
        ]

    async def listed(self, request: Request) -> Reply:
        agent = agent_of(request.headers)
        offered = await self._service.offered(request.key, agent)
        registered = await self._service.registry.of(request.key.id)
        data = [self._shown(tool, registered.get(tool.name)) for tool in offered]
        there = {tool.name for tool in offered}
        data += [_waiting(each) for each in registered.values() if each.is_for(agent) and each.name not in there]
        # Why it is not up may tell how it is started: that is for the operator.
        off = [
            {"server": state.server} | ({"reason": state.reason} if request.key.admin else {})
            for state in self._service.down(request.key)
        ]
        return Reply.of({"object": "list", "data": data} | ({"unavailable": off} if off else {}))

    async def register(self, request: Request) -> Reply:
        body = request.json()
        entries = entries_of(body)
        key = request.key
        made: list[tuple[Registered, list[HostedTool]]] = []
        for number, entry in enumerate(entries):
            place = f"tools[{number}]"
            read = read_entry(entry, place)
            if any(read.name == other.name for other, _ in made):
                raise bad_request(f"{read.name} stands twice in the manifest.", param=f"{place}.name")
            made.append(await self._checked(key, read, place))
        await self._service.registry.add(key.id, [entry for entry, _ in made])
        said = [self._made(entry, tools) for entry, tools in made]
        one = isinstance(body, Mapping) and "tools" not in body
        return Reply.of(said[0] if one else {"tools": said}, 201)

    async def _checked(self, key: Key, entry: Registered, place: str) -> tuple[Registered, list[HostedTool]]:
        """The entry with the tool that it means, whose limit it can only lower. Raises `Problem`."""
        names = self._service.names(key)
        if entry.url:
            check_url(entry.url, self._settings.remote_hosts, place)
            taken = {state.slug for state in self._service.servers()}
            if not is_slug(entry.name) or entry.name in taken:
                raise bad_request(
                    f"{entry.name} cannot be the name of a server: a to z, 0 to 9 and `-`, a letter first, 16 at most, "
                    "and none that the gateway has.",
                    param=f"{place}.name",
                )
            calls = await self._service.remotes.reach(key.id, entry)
            return entry, list(calls.host.catalogue())
        try:
            hosted = self._service.target(key, entry)
        except Problem as problem:
            problem.param = f"{place}.{'tool' if entry.tool else 'name'}"
            raise
        other = names.by_name.get(entry.name)
        if other is not None and other.name != hosted.name:
            raise bad_request(f"{entry.name} is the name of another tool.", param=f"{place}.name", code="name_taken")
        most = self._service.limit(hosted)
        if entry.limit is not None and entry.limit > most:
            raise bad_request(
                f"The operator lets {most} calls of {hosted.name} run at once; a limit can only be lower.",
                param=f"{place}.limit",
            )
        return replace(entry, tool=hosted.name, key=hosted.key), [hosted]

    async def remove(self, request: Request) -> Reply:
        name = request.parts["name"]
        if not await self._service.registry.remove(request.key.id, name):
            raise not_found("This key has registered no tool of this name.")
        self._service.remotes.drop(request.key.id, name)
        return Reply(status=204)

    async def invoke(self, request: Request) -> Reply:
        key, name, agent = request.key, request.parts["name"], agent_of(request.headers)
        priority, given = priority_of(request.headers), idempotency_key_of(request.headers)
        try:
            arguments = parse_arguments(request.body.decode())
        except (BadArguments, UnicodeDecodeError) as error:
            text = str(error) if isinstance(error, BadArguments) else "The body is no UTF-8."
            raise bad_request(text, code="invalid_json", remedy="The body is the tool's arguments.") from None
        chosen = await self._service.choose(key, agent, name)
        self._service.check(chosen, arguments)

        async def run() -> Reply:
            done = await self._service.run(key, agent, chosen, arguments, priority=priority)
            return Reply.of(_said(done))

        if given is None:
            return await run()
        asked = [chosen.tool.name, agent, arguments]
        return await self._answered.once(key.id, given, asked, run, rerun=_safe(chosen))

    # -- what is said -------------------------------------------------------------------------------------------------

    def _shown(self, tool: HostedTool, entry: Registered | None) -> dict[str, Any]:
        listed = tool.listed
        shown = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "output_schema": listed.get("outputSchema"),
            "annotations": listed.get("annotations"),
            "key": tool.key,
            "replicas": self._service.replicas(tool),
            "limit": self._service.limit(tool),
        }
        if entry is not None:
            shown |= {"scope": entry.scope, "priority": entry.priority, "tool": entry.tool}
        return {name: value for name, value in shown.items() if value is not None}

    def _made(self, entry: Registered, tools: list[HostedTool]) -> dict[str, Any]:
        if entry.url:
            names = [tool.name for tool in tools]
            return {"name": entry.name, "url": entry.url, "tools": names, "scope": entry.scope, "replicas": 1}
        [hosted] = tools
        return {
            "name": entry.name,
            "key": hosted.key,
            "replicas": self._service.replicas(hosted),
            "limit": self._service.limit(hosted) if entry.limit is None else entry.limit,
            "scope": entry.scope,
        }


def _waiting(entry: Registered) -> dict[str, Any]:
    """A registration that is no tool just now: a server by its address, or a tool that is not there."""
    if entry.url:
        return {"name": entry.name, "url": entry.url, "scope": entry.scope, "description": entry.description}
    return {"name": entry.name, "tool": entry.tool, "scope": entry.scope, "unavailable": "Its tool is not there now."}


def _safe(chosen: Chosen) -> bool:
    """Whether the operator trusts the tool to be safe to run again."""
    return chosen.hosted.rerun


def _said(done: Invocation) -> dict[str, Any]:
    text = shortened(safe_text(done.result.text), MOST_TEXT)
    content: list[Any] = [{"type": "text", "text": text}]
    answer = done.answer
    whole = plain(answer.get("content"), MOST_TEXT) if answer is not None else None
    if isinstance(whole, list):
        note = done.result.text.partition("\n\n")[0]
        content = [{"type": "text", "text": note}, *whole] if done.renewed else whole
    return {
        "content": content,
        "structured_content": plain(done.result.structured),
        "is_error": done.result.is_error,
        "replica": done.replica,
        "slot": done.slot,
        "queued_ms": round(done.queued_ms, 3),
        "ran_ms": round(done.ran_ms, 3),
    }
