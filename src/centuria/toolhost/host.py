"""`McpToolHost`: the connected tool servers of a run, each with its sessions, over stdio and streamable HTTP.

The MCP SDK takes most of a second to import: it is when the first server is opened, and never in a job without tools.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from centuria.core.blotting import Blotter
from centuria.core.names import manifest_key, qualify
from centuria.errors import ConfigurationError, ToolUnavailable
from centuria.messages import ToolResult, safe_text
from centuria.ports import Caller, HostedTool, LeaseTerms, Listener, ServerState
from centuria.settings import Timeouts, ToolServer
from centuria.toolhost.addresses import Guard
from centuria.toolhost.launch import argv_of, env_of, limit_of, limit_reason, secrets_of
from centuria.toolhost.on_behalf import on_behalf
from centuria.toolhost.processes import Warden
from centuria.toolhost.tokens import TokenStore, store_of

if TYPE_CHECKING:
    import mcp_types as types

    from centuria.toolhost.flows import Consent
    from centuria.toolhost.oauth import ServerAuth
    from centuria.toolhost.replicas import ServerSessions
    from centuria.toolhost.session import OpenTransport, Session
    from centuria.toolhost.wire import Dispatch, Wire

logger = logging.getLogger(__name__)

MAX_DESCRIPTION = 4_000


class McpToolHost:
    """Tool servers for as long as the `async with` lasts; implements `ports.ToolHost`.

    `dice` gives numbers in [0, 1). `on_change`, which may be set later, is told of a server whenever it, or one of its
    replicas, comes up or goes down; it must not block. `tokens` are the user's logins (None: those of this process's
    user). With `consent` a person is asked to log in where a server wants that; without, such a server is not up, and
    why not. `rows(task)` is the row that fills the `agent_headers` of a task's calls. With a `guard` the servers are
    not the operator's: only HTTP is spoken, to addresses that it lets pass, and nothing of the user's is shown to them.
    Entering returns when each session is up or has failed once; those that failed are tried again in the background.
    Raises `ConfigurationError` where a required server is not up. Once left, none of its processes is left.
    """

    def __init__(
        self,
        servers: Sequence[ToolServer],
        *,
        timeouts: Timeouts,
        dice: Callable[[], float],
        on_change: Callable[[ServerState], None] | None = None,
        tokens: TokenStore | None = None,
        consent: Consent | None = None,
        rows: Callable[[str], Mapping[str, Any]] = lambda task: {},
        guard: Guard | None = None,
    ) -> None:
        self._servers = {server.slug: server for server in servers}
        if len(self._servers) < len(servers):
            raise ConfigurationError("Two tool servers have one name.", remedy="Give one of them another `slug`.")
        if guard is not None and any(server.url is None for server in servers):
            raise ConfigurationError("Servers that are not the operator's are reached over HTTP alone.")
        self._guard = guard
        self._timeouts = timeouts
        self._dice = dice
        self.on_change = on_change
        self._tokens = tokens or store_of(os.environ)
        self._consent = consent
        self._auths: dict[str, ServerAuth] = {}
        self._rows = rows
        self._sessions: dict[str, ServerSessions] = {}
        self._tools: dict[str, HostedTool] = {}
        #: By server: tools that no agent can have, and why.
        self._left_out: dict[str, dict[str, str]] = {}
        self._warden: Warden | None = None
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> McpToolHost:
        async with AsyncExitStack() as stack:
            if any(server.url is None for server in self._servers.values()):
                self._warden = await stack.enter_async_context(Warden())
            await self._group.__aenter__()
            stack.push_async_callback(self._close)
            starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))
            for slug, server in self._servers.items():
                sessions = self._sessions[slug] = self._of(server, starts)
                sessions.start(self._group)
            for sessions in self._sessions.values():
                await sessions.settled()
            self._check_required()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def _close(self) -> None:
        for sessions in self._sessions.values():
            sessions.stop()
        for auth in self._auths.values():
            auth.stop()
        await self._group.__aexit__(None, None, None)

    def _of(self, server: ToolServer, starts: asyncio.Semaphore) -> ServerSessions:
        from centuria.toolhost.replicas import ServerSessions
        from centuria.toolhost.session import Session

        auth, blotter = self._auth(server), Blotter(secrets_of(server))

        def make(name: str, on_change: Callable[[], None]) -> Session:
            return Session(
                name,
                self._opener(server, auth),
                start_timeout=self._timeouts.server_start,
                starts=starts,
                dice=self._dice,
                on_change=on_change,
                elicit=server.elicit,
                login=auth,
                blotter=blotter,
            )

        return ServerSessions(server, make, limit=limit_of(server), on_change=partial(self._changed, server.slug))

    def _auth(self, server: ToolServer) -> ServerAuth | None:
        if server.url is None or self._guard is not None:
            return None
        from centuria.toolhost.oauth import ServerAuth, authorized

        if not authorized(server):
            return None
        auth = ServerAuth(server, group=self._group, store=self._tokens, consent=self._consent)
        self._auths[server.slug] = auth
        return auth

    async def log_in(self, slug: str) -> int:
        """Ask a person to log in to a server that did not want it yet. Returns how often a person was asked so far."""
        auth = self._auths[slug]
        if not auth.consents:
            await auth.log_in()
        return auth.consents

    def _opener(self, server: ToolServer, auth: ServerAuth | None) -> OpenTransport:
        from centuria.toolhost.http import http_transport
        from centuria.toolhost.stdio import stdio_transport

        def open_transport(wire: Wire) -> AbstractAsyncContextManager[Dispatch]:
            if server.url is not None:
                connect, slots = self._timeouts.connect, limit_of(server)
                return http_transport(server, connect=connect, slots=slots, auth=auth, guard=self._guard)
            assert self._warden is not None
            return stdio_transport(self._warden, argv_of(server), env=env_of(server), cwd=server.cwd, wire=wire)

        return open_transport

    def _check_required(self) -> None:
        for slug, sessions in self._sessions.items():
            server = self._servers[slug]
            if server.required and not sessions.up:
                auth = self._auths.get(slug)
                where = f"its `url` ({_shown(server.url)})" if server.url else f"its command ({argv_of(server)[0]})"
                first = "Log in" if auth is not None and auth.needs_login else f"Check {where}"
                raise ConfigurationError(
                    f"The required tool server {server.name} did not start: {sessions.reason}{_sse_remark(server)}",
                    remedy=f"{first}, or set `required = false` to go on without it.",
                )

    # -- the catalogue ------------------------------------------------------------------------------------------------

    def catalogue(self) -> Sequence[HostedTool]:
        """All tools of servers that have been up: in the order of the servers, then by name."""
        return tuple(self._tools.values())

    def servers(self) -> Sequence[ServerState]:
        return tuple(self._state(slug) for slug in self._servers)

    def _state(self, slug: str) -> ServerState:
        server, sessions = self._servers[slug], self._sessions.get(slug)
        if sessions is None:
            return ServerState(slug, server.name, up=False, limit=limit_of(server), reason="It has not started yet.")
        first, reasons = sessions.sessions[0], sessions.reasons()
        live = reasons.count("") or len(reasons)
        why = limit_reason(server)
        detail: dict[str, Any] = {
            "limit_reason": why if len(reasons) == 1 else _times(live, len(reasons), sessions.limit, why),
            "opened": sum(session.opened for session in sessions.sessions),
            "protocol": first.protocol,
        }
        if left_out := self._left_out.get(slug):
            detail["left_out"] = dict(left_out)
        if slug in self._auths:
            auth = self._auths[slug]
            detail |= {"login": auth.state, "needs_login": auth.needs_login}
        if server.url is None:
            wires = [session.wire for session in sessions.sessions]
            warden = self._warden
            orphans = "ended" if warden is not None and warden.subreaper else "ended with their process group only"
            detail |= {"pid": first.wire.pid, "pids": [wire.pid for wire in wires], "orphans": orphans}
            detail |= {"junk": sum(wire.junk for wire in wires), "oversize": sum(wire.oversize for wire in wires)}
        return ServerState(
            slug,
            server.name,
            up=sessions.up,
            tools=sum(tool.slug == slug for tool in self._tools.values()),
            limit=live * sessions.limit,
            reason=sessions.reason + _sse_remark(server) if sessions.reason else "",
            detail=detail,
            mode=server.mode,
            replicas=reasons,
            remote=server.url is not None,
        )

    def _changed(self, slug: str) -> None:
        if slug in self._sessions and self._sessions[slug].up:
            self._tools = self._catalogue()
        if self.on_change is not None:
            self.on_change(self._state(slug))

    def _catalogue(self) -> dict[str, HostedTool]:
        tools: dict[str, HostedTool] = {}
        for slug, sessions in self._sessions.items():
            server = self._servers[slug]
            there = {listed.name for listed in sessions.tools}
            bad = sessions.sessions[0].wire.bad_tools
            left_out = {name: why for name, why in bad.items() if name not in there}
            for listed in sessions.tools:
                if server.allow is not None and listed.name not in server.allow:
                    continue
                try:
                    tool = self._hosted(server, listed)
                except ValueError as error:
                    left_out[listed.name] = str(error)
                    continue
                if tools.setdefault(tool.name, tool) is not tool:
                    left_out[listed.name] = "Its name is taken."
            if left_out != self._left_out.get(slug, {}):
                for name, why in left_out.items():
                    logger.warning("Tool %r of server %s is left out: %s", name, server.name, why)
            self._left_out[slug] = left_out
        return tools

    def _hosted(self, server: ToolServer, listed: types.Tool) -> HostedTool:
        """Raises `ValueError` where it cannot be called."""
        if listed.execution is not None and listed.execution.task_support == "required":
            raise ValueError("It runs only as a task of the protocol, which is not spoken.")
        trusted = server.builtin is not None or bool(server.trusted & {"*", listed.name})
        description = (listed.description or listed.title or "")[:MAX_DESCRIPTION]
        return HostedTool(
            name=qualify(server.slug, listed.name),
            slug=server.slug,
            server=server.name,
            tool=listed.name,
            description=safe_text(description),
            schema=listed.input_schema,
            key=manifest_key(server.name, listed.name, listed.input_schema),
            limit=server.tool_limits.get(listed.name, limit_of(server) * server.replicas),
            rerun=trusted,
            ask=bool(server.ask & {"*", listed.name}),
            timeout=server.timeout,
            personal=bool(server.agent_headers),
            listed=listed.model_dump(by_alias=True, mode="json", exclude_none=True),
            lease=LeaseTerms(limit_of(server), server.idle_timeout) if server.mode == "leased" else None,
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        caller: Caller | None = None,
        listener: Listener | None = None,
    ) -> Coroutine[Any, Any, ToolResult]:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolUnavailable(f"No server has a tool named {name}.")
        sessions = self._sessions[tool.slug]
        if not tool.personal:
            return sessions.call(tool, arguments, timeout=timeout, caller=caller, listener=listener)
        call = partial(sessions.call, tool, arguments, timeout=timeout, caller=caller, listener=listener)
        return self._on_behalf(tool, call, caller)

    async def _on_behalf(
        self, tool: HostedTool, call: Callable[[], Coroutine[Any, Any, ToolResult]], caller: Caller | None
    ) -> ToolResult:
        templates = self._servers[tool.slug].agent_headers
        with on_behalf(templates, self._rows(caller.key.task) if caller is not None else {}):
            return await call()

    async def lease(self, name: str, *, caller: Caller, timeout: float) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolUnavailable(f"No server has a tool named {name}.")
        return await self._sessions[tool.slug].lease(caller.key.task, timeout)

    def release(self, agent: str, slug: str | None = None) -> None:
        for each, sessions in self._sessions.items():
            if slug in (None, each):
                sessions.release(agent)


def _times(live: int, all_of_them: int, each: int, why: str) -> str:
    """Why a server with replicas takes as many calls as it does."""
    of = "" if live == all_of_them else f" of {all_of_them}"
    return f"{live}{of} replicas x {each} ({why})"


def _shown(url: str) -> str:
    """A URL without what may be secret in it: no user, no password, no query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _sse_remark(server: ToolServer) -> str:
    """What is likely wrong with a URL that ends as those of the SSE transport did, which MCP has replaced."""
    if server.url is None or not urlsplit(server.url).path.rstrip("/").endswith("/sse"):
        return ""
    return " If it speaks only the older SSE transport here, use its streamable HTTP URL (often /mcp in place of /sse)."
