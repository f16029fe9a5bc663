"""One MCP session and the one task that owns it: opens it, serves, closes it, and opens it again with backoff.

Callers on any task talk to it through `call`; nobody but the owner enters or leaves the SDK's client, whose cancel
scopes may not cross tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Protocol

import mcp_types as types
from mcp import MCPError
from mcp.client import session as sdk
from mcp.client.session import ClientSession, IncomingMessage
from pydantic import ValidationError

from centuria import __version__
from centuria.core.blotting import Blotter
from centuria.errors import ToolUnavailable
from centuria.messages import ToolEnd, ToolResult
from centuria.ports import Listener
from centuria.toolhost.calling import call_tool
from centuria.toolhost.catalogue import follow_changes, list_tools, subscribes
from centuria.toolhost.elicitation import Policy, elicitation
from centuria.toolhost.negotiation import negotiate
from centuria.toolhost.results import Facts, denied, has_expired, is_closed, lost_in_transport, result_of, trouble_of
from centuria.toolhost.wire import Dispatch, Wire

logger = logging.getLogger(__name__)
# For each message of a server's that is not valid, the SDK logs a traceback that shows it. Such a message is dropped.
sdk.logger.addFilter(lambda record: record.exc_info is None or record.pathname != sdk.__file__)

#: Full-jitter backoff between attempts to open a session: dice() * min(cap, first * 2 ** failures).
BACKOFF_FIRST, BACKOFF_CAP = 0.25, 30.0
#: Seconds that closing a session may take.
CLOSING = 1.7
#: A session that served this long starts its backoff afresh.
PROVEN = 30.0
#: Seconds between two looks at a catalogue that keeps changing.
CALM = 1.0

OpenTransport = Callable[[Wire], AbstractAsyncContextManager[Dispatch]]


class Phase(Enum):
    STARTING = "starting"
    UP = "up"
    RETURNING = "returning"  # it was up a moment ago: calls wait for it
    DOWN = "down"  # it failed to come up: calls are refused at once, attempts go on
    STOPPED = "stopped"


class Login(Protocol):
    """What is wrong with our authorization ("" for nothing that is known), and whether that may pass."""

    trouble: str
    passing: bool


class Session:
    """A session with one server. `phase` says whether calls can be sent now, `reason` why not.

    `elicit` is what the server hears that asks a person; `login` knows what is wrong with our authorization; `blotter`
    knows what a server must not tell of us: it stands in no reason and in no error, whatever the server says.
    """

    def __init__(
        self,
        name: str,
        open_transport: OpenTransport,
        *,
        start_timeout: float,
        starts: asyncio.Semaphore,
        dice: Callable[[], float],
        on_change: Callable[[], None],
        elicit: Policy = "decline",
        login: Login | None = None,
        blotter: Blotter | None = None,
    ) -> None:
        self.name = name
        self.phase = Phase.STARTING
        self.reason = "It is still starting."
        self.tools: Sequence[types.Tool] = ()
        self.wire = Wire()
        self.protocol = ""
        self.opened = 0
        self._open_transport = open_transport
        self._start_timeout = start_timeout
        self._starts = starts
        self._dice = dice
        self._on_change = on_change
        self._elicit: Policy = elicit
        self._login = login
        self._blotter = blotter or Blotter(())
        self._link: tuple[Dispatch, ClientSession] | None = None
        self._in_flight: dict[object, float] = {}
        self._listing = asyncio.Lock()
        self._listed = 0
        self._turned = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._anew = False

    def start(self, group: asyncio.TaskGroup) -> None:
        self._owner = group.create_task(self._own(), name=f"session {self.name}")

    @property
    def up(self) -> bool:
        """Calls can be sent now: it is open, and its connection was not lost in this very moment."""
        return self.phase is Phase.UP and not self.wire.lost.is_set()

    @property
    def stopped(self) -> bool:
        return self.phase is Phase.STOPPED

    async def settled(self) -> None:
        """Return once it is up or its first attempt has failed."""
        while self.phase is Phase.STARTING:
            await self._turned.wait()

    def stop(self) -> None:
        """Have the owner close the session and end."""
        was_up = self.phase is Phase.UP
        self._turn(Phase.STOPPED, "It was stopped.")
        self.wire.news.set()
        if not was_up and self._owner is not None:
            self._owner.cancel()

    def reset(self) -> None:
        """End this session, and open another at once: nothing of what it held is left."""
        if self.up:
            self._anew = True
            self._turn(Phase.RETURNING, "It is being opened anew.")
            self.wire.lose()

    def _turn(self, phase: Phase, reason: str = "") -> None:
        if not self.stopped:
            self.phase, self.reason = phase, reason
            turned, self._turned = self._turned, asyncio.Event()
            turned.set()

    # -- the owner ----------------------------------------------------------------------------------------------------

    async def _own(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self.stopped:
            began, opened, before = loop.time(), self.opened, self.phase
            error: Exception | None = None
            try:
                await self._open_and_serve()
            except Exception as caught:  # the edge: whatever a server does, it costs this server alone
                logger.debug("Session with %s ended", self.name, exc_info=True)
                error = caught
            served = self.opened > opened
            failures = 0 if self._anew or (served and loop.time() - began > PROVEN) else failures + 1
            self._turn(Phase.RETURNING if served else Phase.DOWN, self._why(error, served=served))
            if served or before is not Phase.DOWN:
                self._on_change()
            anew, self._anew = self._anew, False
            if not (self.stopped or anew):
                await asyncio.sleep(self._dice() * min(BACKOFF_CAP, BACKOFF_FIRST * 2 ** min(failures, 10)))

    async def _open_and_serve(self) -> None:
        """One session from start to end. The time-out counts from its launch, not from its wait for a turn."""
        loop = asyncio.get_running_loop()
        await self._starts.acquire()
        with ExitStack() as launching:
            launching.callback(self._starts.release)
            wire = self.wire = Wire()
            async with asyncio.timeout(self._start_timeout) as deadline, self._open_transport(wire) as dispatch:
                dispatch.wire = wire
                async with self._new_client(dispatch) as client:
                    await negotiate(client)
                    self.tools = await list_tools(client)
                    deadline.reschedule(None)
                    launching.close()
                    self.protocol = client.protocol_version or ""
                    self._link = dispatch, client
                    self.opened += 1
                    self._turn(Phase.UP)
                    self._on_change()
                    try:
                        await self._serve(client, wire)
                    finally:
                        self._link = None
                        if wire.expired and not self.stopped:
                            dispatch.retire()
                        wire.lose()
                        self._turn(Phase.RETURNING, "It closed the connection.")
                        deadline.reschedule(loop.time() + CLOSING)

    def _new_client(self, dispatch: Dispatch) -> ClientSession:
        return ClientSession(
            dispatcher=dispatch,
            message_handler=partial(_heard, dispatch.wire),
            client_info=types.Implementation(name="centuria", version=__version__),
            elicitation_callback=elicitation(self._elicit),
        )

    async def _serve(self, client: ClientSession, wire: Wire) -> None:
        """Return when the session is to end; raise when it turns out to be dead."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_errands(client, wire))]
            if subscribes(client):
                tasks.append(group.create_task(self._follow(client, wire)))
            try:
                while not (self.stopped or wire.over):
                    await wire.news.wait()
                    wire.news.clear()
            finally:
                for task in tasks:
                    task.cancel()

    async def _run_errands(self, client: ClientSession, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        calm = loop.time()
        while True:
            await wire.errands.wait()
            wire.errands.clear()
            if wire.doubted:
                wire.doubted = False
                await self._probe(client, wire)
            if wire.changed:
                await asyncio.sleep(calm - loop.time())
                calm = loop.time() + CALM
                wire.changed = False  # what is said from here on may be news
                await self._list_again(client, wire, self._listed)

    async def _follow(self, client: ClientSession, wire: Wire) -> None:
        """Subscribe to changes of the catalogue, again where that breaks off; what came between is looked up."""
        failures = 0
        while await follow_changes(client, wire.change):
            await asyncio.sleep(self._dice() * min(BACKOFF_CAP, BACKOFF_FIRST * 2 ** min(failures, 10)))
            failures += 1

    async def _probe(self, client: ClientSession, wire: Wire) -> None:
        """A call had no answer: is the server there at all? Raises where it is not.

        One that is silent while it works on calls that have time left is not dead.
        """
        since, heard = asyncio.get_running_loop().time(), wire.heard
        try:
            async with asyncio.timeout(self._start_timeout):
                await client.list_tools()
        except MCPError as error:
            if _is_gone(error) or denied(error):
                raise
        except TimeoutError:
            if wire.heard == heard and all(began > since for began in self._in_flight.values()):
                raise
        except ValidationError:
            pass  # it is there

    async def _list_again(self, client: ClientSession, wire: Wire, seen: int) -> None:
        """Fetch the catalogue, unless somebody has since edition `seen`; it stays as it is where that fails."""
        async with self._listing:
            if self._listed != seen:
                return
            try:
                async with asyncio.timeout(self._start_timeout):
                    tools = await list_tools(client)
            except (MCPError, TimeoutError, ValidationError) as error:
                logger.debug("The catalogue of %s could not be fetched again: %s", self.name, error)
                if isinstance(error, TimeoutError) or (isinstance(error, MCPError) and lost_in_transport(error)):
                    wire.doubt()
                return
            self._listed += 1
            if tools != self.tools and not wire.over:
                self.tools = tools
                self._on_change()

    def _why(self, error: BaseException | None, *, served: bool) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        code, gone = self.wire.code, error is None or (isinstance(error, MCPError) and _is_gone(error))
        if isinstance(error, ToolUnavailable):
            what = self._said(error.message)
        elif isinstance(error, TimeoutError) and not served:
            what = f"It did not answer within {self._start_timeout:g} s."
        elif isinstance(error, TimeoutError):
            what = "It stopped answering."
        elif code is not None and gone:  # else it was ended here, for what it had said
            what = f"It ended with code {code}." if code >= 0 else f"It was killed by signal {-code}."
        elif error is None or (isinstance(error, MCPError) and is_closed(error)):
            what = "It closed the connection."
        elif isinstance(error, MCPError) and denied(error):
            what = self._said(self._login.trouble) if self._login is not None else ""
            what = what or f"It did not let us in: {self._said(error.message, 300)}."
        elif isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            told = f"at {self._said(place, 100)}: {self._said(first['msg'], 200)}"
            what = f"What it answered is not valid: {error.title}, {told}."
        else:
            what = f"{type(error).__name__}: {self._said(str(error), 300)}"
        if not served and self.wire.junk:
            what += f" Of what it sent, {self.wire.junk:,} lines or messages are not of the protocol."
        last = self._said(self.wire.last_line, 300)
        return f"{what} Its last words: {last}" if last else what

    def _said(self, text: str, most: int | None = None) -> str:
        """What a server said, at most so many characters of it, without what it must not tell of us."""
        return self._blotter.text(text)[:most]

    # -- callers ------------------------------------------------------------------------------------------------------

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, timeout: float, listener: Listener | None = None
    ) -> ToolResult:
        """Call one tool, `timeout` seconds from now at most.

        While a server that was up comes back, the call waits for it; one that failed to come up refuses at once.
        Raises `ToolUnavailable`, `OutcomeUnknown`, `TimeoutError`.
        """
        loop = asyncio.get_running_loop()
        call, wire = object(), None
        try:
            async with asyncio.timeout(timeout):
                dispatch, client = await self._connected()
                await dispatch.room()
                wire = dispatch.wire
                self._in_flight[call] = loop.time()
                list_again = partial(self._list_again, client, wire, self._listed)
                progress = None if listener is None else listener.progress
                answer = await call_tool(client, tool, dict(arguments), list_again, progress)
        except TimeoutError:
            if wire is None:
                raise self._unavailable() from None
            wire.doubt()
            raise
        except MCPError as error:
            met = self._met(tool, error, wire or self.wire)
            if listener is not None and not isinstance(error.data, Facts):
                listener.error = (error.code, error.message, error.data)
            return met
        except (RuntimeError, ValidationError) as error:
            # It ran, and what it answered is not what the protocol, or its own output schema, says.
            text = f"The tool ran, but its answer is not valid: {self._said(str(error), 500)}"
            return ToolResult(text, ToolEnd.ERROR)
        except ValueError as error:
            return ToolResult(f"The arguments cannot be sent as JSON: {str(error)[:500]}", ToolEnd.ERROR)
        finally:
            self._in_flight.pop(call, None)
        result, failed = result_of(answer), isinstance(answer, types.CallToolResult) and answer.is_error
        if listener is not None:
            told = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
            listener.answer = self._blotter.data(told) if failed else told
        if failed:
            return replace(result, text=self._said(result.text), structured=self._blotter.data(result.structured))
        return result

    async def _connected(self) -> tuple[Dispatch, ClientSession]:
        while (link := self._link) is None or link[0].wire.over:
            if self.phase in (Phase.DOWN, Phase.STOPPED):
                raise self._unavailable()
            await self._turned.wait()
        return link

    def _met(self, tool: str, error: MCPError, wire: Wire) -> ToolResult:
        """What an error of the protocol means for the call that met it."""
        error = MCPError(error.code, self._said(error.message), error.data)
        if has_expired(error):
            wire.expire()  # the owner opens another, once for all who meet this
            raise ToolUnavailable(f"The session with {self.name} had expired.") from error
        if denied(error) and self._login is not None and self._login.trouble:
            wire.doubt()
            text = f"The server {self.name} did not let us in, and nothing ran. {self._said(self._login.trouble)}"
            if self._login.passing:
                raise ToolUnavailable(text) from error
            return ToolResult(text, ToolEnd.UNAVAILABLE)
        if lost_in_transport(error):
            wire.doubt()
        trouble = trouble_of(self.name, error)
        if trouble is not None:
            raise trouble from error
        return ToolResult(error.message[:2000] or f"Error {error.code}.", ToolEnd.ERROR)

    def _unavailable(self) -> ToolUnavailable:
        return ToolUnavailable(f"The server {self.name} is not available. {self.reason}")


def _is_gone(error: MCPError) -> bool:
    """Whether this error says that the connection is gone, and nothing else."""
    return is_closed(error) or lost_in_transport(error)


async def _heard(wire: Wire, message: IncomingMessage) -> None:
    if isinstance(message, types.ToolListChangedNotification):
        wire.change()
