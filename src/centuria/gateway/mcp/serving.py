"""`/mcp`: both eras of the protocol by the SDK's server, every call of it through `ToolService`.

A session belongs to the key that opened it; with another key there is no such session. Host and Origin were checked,
and the key identified, before a request comes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from centuria import __version__
from centuria.core.arguments import ArgumentCheck
from centuria.errors import CenturiaError
from centuria.gateway.headers import agent_of, priority_of, value_of
from centuria.gateway.mcp.telling import described, refused, result_of, said
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, not_found, rate_limited
from centuria.gateway.settings import Caps, GatewaySettings
from centuria.gateway.tools.manifest import RUN_SWARM
from centuria.gateway.tools.service import ToolService
from centuria.gateway.web import CALLER, Mount, Receive, Scope, Send
from centuria.ports import Listener

#: Runs a goal as a swarm and gives its result as text. Raises `Problem`.
RunSwarm = Callable[[Key, Mapping[str, Any]], Awaitable[str]]
PATH = "/mcp"
_SWARM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "goal": {"type": "string", "minLength": 1, "description": "What is to be achieved, in full."},
        "model": {"type": "string", "description": "The model that works on it."},
        "budget_usd": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "The most that it may cost, in dollars.",
        },
        "max_agents": {"type": "integer", "minimum": 1, "description": "How many subagents may work at once."},
    },
    "required": ["goal", "model"],
    "additionalProperties": False,
}
_log = logging.getLogger("centuria.gateway")
#: Of a call's progress what waits for a slow client; the newest is dropped beyond that.
_NEWS = 64
#: Seconds after which a session without a request is ended, and until one that found no room may ask again.
_RESTING, _SOON = 300.0, 30.0

Context = ServerRequestContext[Any, Any]
_asking: ContextVar[Key | None] = ContextVar("the key whose request this is", default=None)


class _Sessions(StreamableHTTPSessionManager):
    """The SDK's, which knows one cap for all: here nobody's sessions keep another key out."""

    def __init__(self, server: Server[Any], caps: Caps) -> None:
        super().__init__(server, max_request_body_size=caps.body, session_idle_timeout=_RESTING)
        self._most_each = caps.mcp_sessions

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Raises `Problem` (429)."""
        if sum(owner == requestor for owner in self._session_owners.values()) >= self._most_each:
            raise rate_limited(
                f"This key has {self._most_each:,} MCP sessions open, as many as it may.",
                _SOON,
                remedy="End those that are done with (DELETE), or raise `mcp_sessions` in gateway.toml.",
            )
        return super()._admit_session(requestor)


class McpServing:
    """Serves for as long as the `async with` lasts. `run_swarm` None: there are no swarms."""

    def __init__(self, service: ToolService, settings: GatewaySettings, run_swarm: RunSwarm | None = None) -> None:
        self._service = service
        self._run_swarm = run_swarm
        self._swarm_check = ArgumentCheck(_SWARM_SCHEMA)
        server: Server[Any] = Server(
            "centuria",
            version=__version__,
            instructions="Tools that are shared by many agents: a call may wait for its turn.",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_prompts=_no_prompts,
            on_get_prompt=_no_prompt,
            on_list_resources=_no_resources,
            on_list_resource_templates=_no_templates,
            on_read_resource=_no_resource,
            get_tool_input_schema=self._schema,
        )
        self._manager = _Sessions(server, settings.caps)
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> McpServing:
        await self._stack.enter_async_context(self._manager.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def stop(self) -> None:
        """The gateway ends: streams that only wait for news are closed, so that nobody waits for them."""
        self._stopping.set()

    def mount(self) -> Mount:
        return Mount(PATH, self.app)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in (PATH, f"{PATH}/"):
            raise not_found()
        key: Key = scope[CALLER]
        # As the SDK knows people: so a session is its opener's alone.
        user = AuthenticatedUser(AccessToken(token="", client_id=key.id, scopes=[]))
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        token = _asking.set(key)
        asked = {**scope, "user": user, "headers": headers}
        try:
            if scope["method"] == "GET":
                await self._stream(asked, receive, send)
            else:
                await self._manager.handle_request(asked, receive, send)
        finally:
            _asking.reset(token)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream of a session's own, which is open until its client goes or the gateway ends."""
        ended = True

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal ended
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        await self._manager.handle_request(scope, self._until_stopped(receive), sending)
        if not ended and self._stopping.is_set():
            await send({"type": "http.response.body", "body": b""})

    def _until_stopped(self, receive: Receive) -> Receive:
        """As if the client went away once the gateway ends."""

        async def receive_or_stop() -> MutableMapping[str, Any]:
            heard = asyncio.ensure_future(receive())
            stopped = asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait({heard, stopped}, return_when=asyncio.FIRST_COMPLETED)
                return heard.result() if heard.done() else {"type": "http.disconnect"}
            finally:
                heard.cancel()
                stopped.cancel()

        return receive_or_stop

    # -- what the SDK asks --------------------------------------------------------------------------------------------

    async def _list(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        key, agent = _who(context)
        try:
            offered = await self._service.offered(key, agent)
        except CenturiaError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        tools = [tool for tool in map(described, offered) if tool is not None]
        if self._run_swarm is not None and all(tool.name != RUN_SWARM for tool in tools):
            tools.append(_swarm_tool())
        return types.ListToolsResult(tools=tools)

    def _schema(self, name: str) -> Mapping[str, Any] | None:
        """The SDK holds the headers of a call against it: some arguments travel as such."""
        key = _asking.get()
        tool = None if key is None else self._service.names(key).by_name.get(name)
        return None if tool is None else tool.schema

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        key, agent = _who(context)
        arguments = params.arguments or {}
        try:
            if params.name == RUN_SWARM and self._run_swarm is not None and not self._has(key, RUN_SWARM):
                return await self._swarm(key, arguments)
            async with _progress(context) as listener:
                done = await self._service.invoke(
                    key, agent, params.name, arguments, priority=_priority(context), listener=listener
                )
            if done.error is not None:
                raise refused(*done.error)
            return result_of(done)
        except Problem as problem:
            if problem.code == "tool_not_found":
                raise MCPError(types.INVALID_PARAMS, str(problem)) from None
            return said(str(problem), is_error=True)
        except CenturiaError as error:
            return said(str(error), is_error=True)

    def _has(self, key: Key, name: str) -> bool:
        return name in self._service.names(key).by_name

    async def _swarm(self, key: Key, arguments: Mapping[str, Any]) -> types.CallToolResult:
        complaint = self._swarm_check.complaint(arguments)
        if complaint is not None:
            return said(f"The arguments do not fit the schema of {RUN_SWARM}: {complaint}.", is_error=True)
        assert self._run_swarm is not None
        return said(await self._run_swarm(key, arguments))


# Hosts ask for these whatever a server says that it has: there are none.


async def _no_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[])


async def _no_prompt(_: Context, __: types.GetPromptRequestParams) -> types.GetPromptResult:
    raise MCPError(types.INVALID_PARAMS, "There are no prompts here.")


async def _no_resources(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[])


async def _no_templates(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[])


async def _no_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    raise MCPError(types.INVALID_PARAMS, "There are no resources here.", {"uri": str(params.uri)})


def _swarm_tool() -> types.Tool:
    return types.Tool(
        name=RUN_SWARM,
        title="Run a swarm",
        description="Have many subagents work on a goal side by side, within a budget; gives their joint result.",
        input_schema=dict(_SWARM_SCHEMA),
        annotations=types.ToolAnnotations(read_only_hint=False, open_world_hint=True),
    )


def _who(context: Context) -> tuple[Key, str]:
    """The key, and which agent of it: `X-Agent-Id`, else its session. Raises `MCPError`."""
    request = context.request
    if request is None or not isinstance(request.scope.get(CALLER), Key):
        raise MCPError(types.INTERNAL_ERROR, "Nobody said whose request this is.")
    with _as_mcp_error():
        return request.scope[CALLER], agent_of(request.headers) or value_of(request.headers, "Mcp-Session-Id")


def _priority(context: Context) -> int | None:
    with _as_mcp_error():
        return None if context.request is None else priority_of(context.request.headers)


@contextmanager
def _as_mcp_error() -> Iterator[None]:
    """A header that cannot be is told in the protocol's words."""
    try:
        yield
    except Problem as problem:
        raise MCPError(types.INVALID_PARAMS, problem.message) from None


@asynccontextmanager
async def _progress(context: Context) -> AsyncIterator[Listener]:
    """A listener whose news go to the caller, if it wants any; a slow caller holds nobody up and misses some."""
    if context.meta is None or context.meta.get("progress_token") is None:
        yield Listener()
        return
    news: asyncio.Queue[tuple[float, float | None, str | None] | None] = asyncio.Queue(_NEWS)

    def tell(done: float, total: float | None, message: str | None) -> None:
        if not news.full():
            news.put_nowait((done, total, message))

    async def pass_on() -> None:
        try:
            while (item := await news.get()) is not None:
                await context.session.report_progress(*item)
        except Exception:  # the edge: whoever does not take the news has its answer all the same
            _log.debug("Progress could not be told", exc_info=True)

    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(pass_on())
        try:
            yield Listener(progress=tell)
        except Exception as error:  # not to come out as a group of one
            failed = error
        if news.full():
            pump.cancel()
        else:
            news.put_nowait(None)
    if failed is not None:
        raise failed
