"""The bearer token of one server, for all its callers: kept, renewed once for everybody, asked for where it is missing.

Whatever fails here ends no session: the server's own refusal (401, 403) goes on to the caller, and `trouble` says what
a person can do. A renewal is a task of the host's: a caller that gives up must not take a rotated refresh token along.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx2
from mcp.client.auth import OAuthFlowError
from pydantic import ValidationError

from centuria.errors import CenturiaError, ConfigurationError, ToolUnavailable
from centuria.settings import Authorization, ToolServer
from centuria.toolhost.flows import (
    Challenge,
    Consent,
    Flow,
    GrantRefused,
    PersonFlow,
    PersonNeeded,
    Send,
    answer,
    is_local,
    renew,
    send_small,
)
from centuria.toolhost.tokens import Grant, TokenStore

#: A token counts as ended so many seconds before it does, or a tenth of its life.
_EARLY = 30.0
#: Seconds for the requests of one renewal; each may take `_REQUEST` of them.
_RENEWAL, _REQUEST = 60.0, 20.0
#: How often a person is asked on behalf of one server: a server that never has enough must not ask for ever.
MAX_CONSENTS = 3


def authorized(server: ToolServer) -> bool:
    """Whether a server's requests carry tokens of ours: over HTTP, and not let in by a header or its URL already."""
    if server.url is None:
        return False
    named = any(name.lower() == "authorization" for name in server.headers)
    return not named and httpx2.URL(server.url).userinfo == b""


class ServerAuth(httpx2.Auth):
    """The authorization of one server. `group` runs renewals; `clock` gives seconds since 1970.

    With `consent` a person is asked, and what they grant replaces what the store holds; without, the store is read,
    and a server that needs more is left alone, with the remedy in `trouble`.
    """

    def __init__(
        self,
        server: ToolServer,
        *,
        group: asyncio.TaskGroup,
        store: TokenStore,
        consent: Consent | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.trouble = ""
        self.passing = False  # whether the trouble may go by itself
        self.needs_login = False  # whether a person could mend it
        self.consents = 0
        self._server = server
        self._settings = server.auth or Authorization()
        self._group = group
        self._store = store
        self._consent = consent
        self._clock = clock
        self._own = consent is not None or self._machine  # whether what the store holds does not matter
        self._grant: Grant | None = None
        self._asked: frozenset[str] = frozenset()
        self._fresh = ""  # a token that was just got in answer to a 401, and that no server has taken yet
        self._flight: asyncio.Task[None] | None = None
        assert server.url is not None
        self._origin = _origin(httpx2.URL(server.url))

    @property
    def _machine(self) -> bool:
        return self._settings.grant == "client_credentials"

    @property
    def state(self) -> str:
        """In a word or two, for people: is there a token?"""
        if self._machine:
            return "client credentials"
        return "logged in" if self._access else "not logged in"

    def stop(self) -> None:
        """Stop waiting for a person; a renewal that is under way ends by itself."""
        if self._flight is not None and self._consent is not None:
            self._flight.cancel()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if _origin(request.url) != self._origin:
            yield request  # a token is for its own server alone
            return
        bearer = await self._bearer()
        for again in (False, True):
            _carry(request, bearer)
            response = yield request
            challenge = Challenge.of(request, response)
            if challenge is None:
                self._proven(bearer)
                return
            if again:
                return
            stale, bearer = bearer, await self._answered(challenge, bearer)
            if bearer in ("", stale):
                return

    async def log_in(self) -> None:
        """Ask for a login as if the server had."""
        await self._answered(Challenge(401), self._access)

    # -- one flight for all callers -----------------------------------------------------------------------------------

    async def _bearer(self) -> str:
        """The token to send; "" for none."""
        if not self._access and not self._own:
            self._look()  # perhaps somebody has logged in by now
        if self._access and self._ended:
            if self._held.renewable or self._machine:
                await self._fly(self._access, self._renewal)
            else:
                self._grant = self._without_token()
        return self._access

    async def _answered(self, challenge: Challenge, stale: str) -> str:
        """The token after a challenge to one that was stale; the same one where nothing better could be had."""
        await self._fly(stale, lambda: self._answer(challenge, stale))
        return self._access

    async def _fly(self, stale: str, work: Callable[[], Awaitable[None]]) -> None:
        """Join the renewal that is under way, or begin one, unless the token is no longer the stale one."""
        if self._flight is None:
            if self._access != stale:
                return
            self._flight = self._group.create_task(self._flown(work), name=f"authorize {self._server.name}")
        await asyncio.shield(self._flight)

    async def _flown(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # the edge: it costs this server alone
            self.trouble = " ".join(self._words(error).split())
            passing = isinstance(error, TimeoutError | httpx2.TransportError | ToolUnavailable)
            self.needs_login = isinstance(error, PersonNeeded | _NeedsScopes) and not self._own
            self.passing = passing or (isinstance(error, GrantRefused) and not error.final)
        else:
            self.trouble, self.passing, self.needs_login = "", False, False
        finally:
            self._flight = None

    # -- flights ------------------------------------------------------------------------------------------------------

    async def _renewal(self) -> None:
        """Another token for one that has ended."""
        if self._own:
            await self._renew()
            return
        stale = self._access
        async with self._store.locked(self._server):
            self._look()
            if self._access in ("", stale):
                await self._renew()

    async def _renew(self) -> None:
        flow = self._flow()
        try:
            async with asyncio.timeout(_RENEWAL), self._sender() as send:
                await renew(flow, send)
        except GrantRefused as error:
            if error.final:
                await self._forget()
                raise PersonNeeded from error
            raise
        await self._keep(flow)

    async def _answer(self, challenge: Challenge, stale: str) -> None:
        if self._own:
            await self._authorize(challenge, stale)
            return
        self._look()
        if self._access not in ("", stale):
            return
        if challenge.status == 403:
            raise _NeedsScopes(challenge.scopes)
        if not self._held.renewable or stale == self._fresh:
            raise PersonNeeded
        async with self._store.locked(self._server):
            self._look()
            if self._access in ("", stale):
                await self._authorize(challenge, stale)

    async def _authorize(self, challenge: Challenge, stale: str) -> None:
        """From a challenge to a token: by renewal where there is something to renew, else by a person or a secret."""
        if challenge.status == 403 and challenge.scopes <= self._asked:
            raise _NeedsScopes(challenge.scopes)
        if self._machine and challenge.status == 401 and stale and stale == self._fresh:
            raise OAuthFlowError("It refuses the token that its authorization server has just given.")
        flow = self._flow(challenge)
        flow.renewing = challenge.status == 401 and self._held.renewable and stale != self._fresh
        async with asyncio.timeout(None if self._consent is not None else _RENEWAL), self._sender() as send:
            try:
                await answer(flow, challenge, send)
            except GrantRefused as error:
                if not (flow.renewing and error.final):
                    raise
                await self._forget()
                if self._consent is None:
                    raise PersonNeeded from error
                flow = self._flow(challenge)
                await answer(flow, challenge, send)
        self._asked = frozenset((flow.context.client_metadata.scope or "").split()) | challenge.scopes
        await self._keep(flow)
        self._fresh = self._access

    def _flow(self, challenge: Challenge | None = None) -> Flow:
        flow: Flow
        if self._machine:
            from centuria.toolhost.machine import machine_flow

            flow = machine_flow(self._server)
        else:
            flow = PersonFlow(self._server, self if self._consent is not None else None)
        flow.begin(self._settings, self._held, challenge.scopes if challenge is not None else frozenset())
        return flow

    @asynccontextmanager
    async def _sender(self) -> AsyncIterator[Send]:
        """A client for a flow's own requests: nothing of the server's headers is in it, and no firewall.

        Proxies of the environment are used, but not for a server on this machine.
        """
        url = self._server.url
        assert url is not None
        away = not is_local(httpx2.URL(url).host)
        async with httpx2.AsyncClient(timeout=httpx2.Timeout(_REQUEST), trust_env=away) as client:
            yield lambda request: send_small(client, request, url)

    # -- the person, as a flow sees them ------------------------------------------------------------------------------

    @property
    def redirect_uri(self) -> str:
        assert self._consent is not None
        return self._consent.redirect_uri

    async def ask(self, url: str) -> Mapping[str, str]:
        assert self._consent is not None
        if self.consents >= MAX_CONSENTS:
            raise OAuthFlowError(f"It asked for a login {MAX_CONSENTS} times and is not content.")
        self.consents += 1
        return await self._consent.ask(url)

    # -- what is held -------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> Grant:
        return self._grant if self._grant is not None else Grant()

    @property
    def _access(self) -> str:
        return self._held.access

    @property
    def _ended(self) -> bool:
        """Whether the token ends, or is about to."""
        held = self._held
        life = (held.token or {}).get("expires_in")
        early = min(_EARLY, life / 10) if isinstance(life, int | float) else _EARLY
        return held.expires is not None and self._clock() >= held.expires - early

    def _look(self) -> None:
        """Take what the store holds now. A store that cannot be read holds nothing."""
        try:
            self._grant = self._store.read(self._server) or Grant()
        except ConfigurationError as error:
            self._grant, self.trouble = Grant(), str(error)

    def _without_token(self) -> Grant:
        return replace(self._held, token=None, expires=None)

    async def _forget(self) -> None:
        """The token and what would renew it are worth nothing any more."""
        self._grant = self._without_token()
        if not self._own:
            await asyncio.to_thread(self._store.write, self._server, self._grant)

    async def _keep(self, flow: Flow) -> None:
        grant = flow.grant
        life = (grant.token or {}).get("expires_in")
        self._grant = replace(grant, expires=self._clock() + life if isinstance(life, int | float) else None)
        if not self._machine:
            await asyncio.to_thread(self._store.write, self._server, self._grant)

    def _proven(self, bearer: str) -> None:
        """A server took this token: if it refuses it later, a renewal may help."""
        if bearer == self._fresh:
            self._fresh = ""

    # -- words --------------------------------------------------------------------------------------------------------

    def _words(self, error: Exception) -> str:
        """What went wrong, for people, without anything that could be a secret."""
        name = shlex.quote(self._server.name)
        match error:
            case PersonNeeded():
                return f"It needs a login. Run: centuria login {name}"
            case _NeedsScopes(scopes=scopes):
                wanted = shlex.quote(" ".join(sorted(scopes | self._held.scopes)))
                if self._machine or self._consent is not None:
                    return f"It wants more than it grants: the scopes {wanted}."
                return f"It wants more rights. Run: centuria login {name} --scopes {wanted}"
            case CenturiaError():
                return str(error)
            case TimeoutError():
                return "The login took too long." if self._consent else "Its authorization server took too long."
            case httpx2.HTTPError():
                return f"Its authorization server cannot be reached: {type(error).__name__}."
            case OAuthFlowError() if not isinstance(error.__cause__, ValidationError):
                return f"It could not be authorized. {str(error)[:500]}"
            case _:  # the text of a validation error holds what it could not read
                return f"Its authorization server answered what is not valid ({type(error).__name__})."


class _NeedsScopes(OAuthFlowError):
    def __init__(self, scopes: frozenset[str]) -> None:
        super().__init__("more scopes")
        self.scopes = scopes


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _carry(request: httpx2.Request, bearer: str) -> None:
    if bearer:
        request.headers["authorization"] = f"Bearer {bearer}"
    else:
        request.headers.pop("authorization", None)
