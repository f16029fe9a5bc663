"""The SDK's OAuth flow, and what it leaves to its user.

The SDK (mcp 2.3) discovers (RFC 9728, 8414), registers (RFC 7591, or a client ID metadata document), checks resource,
issuer and state, and steps up. It does not: keep when a token ends or who issued it, renew on a 401, leave the
operator's scopes alone, refuse plain http, bound an answer, or keep what an authorization server said out of its log.
Nor could one flow serve many callers: it holds a lock while the server works. So it is driven from here, for one
challenge at a time, and its requests go out by a client of their own.
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    issuers_match,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl, ValidationError

from centuria.settings import Authorization, ToolServer
from centuria.toolhost.tokens import Grant

_MAX_BODY = 1 << 20

# The SDK logs what went wrong with its traceback, in which an answer, and so a token, can stand. We say it ourselves.
logging.getLogger("mcp.client.auth.oauth2").addFilter(lambda record: False)


class Consent(Protocol):
    """A person, and the way back from their browser."""

    @property
    def redirect_uri(self) -> str: ...

    async def ask(self, url: str) -> Mapping[str, str]:
        """Send a person to `url`; the query with which their browser came back. Raises `TimeoutError`."""
        ...


class GrantRefused(OAuthFlowError):
    """The token endpoint said no. `final`: it will say so again."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


class PersonNeeded(OAuthFlowError):
    """Only a person can go on from here, and there is none."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """A refusal that asks for a (better) token. `version` is the MCP version of the request that was refused."""

    status: int
    header: str = ""
    version: str = ""

    @classmethod
    def of(cls, request: httpx2.Request, response: httpx2.Response) -> Challenge | None:
        if response.status_code == 403:
            if extract_field_from_www_auth(response, "error") != "insufficient_scope":
                return None
        elif response.status_code != 401:
            return None
        header = response.headers.get("www-authenticate", "")
        return cls(response.status_code, header, request.headers.get(MCP_PROTOCOL_VERSION_HEADER, ""))

    @property
    def response(self) -> httpx2.Response:
        return httpx2.Response(self.status, headers={"www-authenticate": self.header} if self.header else {})

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset((extract_scope_from_www_auth(self.response) or "").split())


class NoStorage:
    """The SDK's storage. A grant is kept as a whole, once it is there."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None: ...

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None: ...


class Flow(OAuthClientProvider):
    """The parts that every flow has in common. `begin` comes first; `grant` is what it came to."""

    settings = Authorization()
    held = Grant()
    challenged: frozenset[str] = frozenset()
    #: Whether the next answer of the token endpoint renews what was granted before.
    renewing = False

    def begin(self, settings: Authorization, held: Grant, challenged: frozenset[str] = frozenset()) -> None:
        self.settings, self.held, self.challenged = settings, held, challenged

    @property
    def grant(self) -> Grant:
        """What is held now. When the token ends is for who knows the time to say."""
        context = self.context
        held = (context.client_info, context.oauth_metadata, context.protected_resource_metadata)
        client, issuer, resource = (
            item.model_dump(mode="json", exclude_none=True) if item is not None else None for item in held
        )
        token = context.current_tokens
        kept = token.model_dump(mode="json", exclude_none=True) if token is not None else None
        return Grant(client, issuer, resource, kept)

    async def _initialize(self) -> None:
        context, held = self.context, self.held
        context.current_tokens = OAuthToken.model_validate(held.token) if held.access else None
        context.oauth_metadata = OAuthMetadata.model_validate(held.issuer) if held.issuer else None
        if held.resource:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(held.resource)
            advertised = [str(url) for url in context.protected_resource_metadata.authorization_servers]
            context.auth_server_url = self._select_authorization_server(advertised)
        context.client_info = self._client()
        self._initialized = True

    def _client(self) -> OAuthClientInformationFull | None:
        """Who we are to the authorization server, where that is known; each flow says how."""
        raise NotImplementedError

    def _select_authorization_server(self, advertised: list[str]) -> str:
        """The one that was set, or the first. What was registered with one is for no other to see."""
        wanted = self.settings.issuer
        if wanted is None:
            return advertised[0]
        for server in advertised:
            if issuers_match(server, wanted):
                return server
        raise OAuthFlowError(f"It names the authorization server {advertised[0]}, not {wanted}, which `issuer` says.")

    def _choose_scopes(self) -> None:
        """The operator's scopes in place of all that the server offers, with those that it asked for just now."""
        context, chosen = self.context, self.settings.scopes
        if chosen:
            extra = sorted((self.challenged | self._granted()) - set(chosen))
            context.client_metadata.scope = get_client_metadata_scopes(
                " ".join([*chosen, *extra]), None, context.oauth_metadata, context.client_metadata.grant_types
            )

    def _granted(self) -> frozenset[str]:
        token = self.context.current_tokens
        return frozenset((token.scope or "").split()) if token is not None else frozenset()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if response.status_code not in (200, 201):
            raise _refusal(response)
        context = self.context
        before = context.current_tokens if self.renewing else None
        try:
            token = OAuthToken.model_validate_json(response.content)
        except ValidationError:
            raise OAuthFlowError("The authorization server answered with something that is no token.") from None
        # RFC 6749 5.1, 6: what is left out stays as it was, or is as it was asked for.
        if token.scope is None:
            token.scope = before.scope if before is not None else context.client_metadata.scope
        if token.refresh_token is None and before is not None:
            token.refresh_token = before.refresh_token
        context.current_tokens = token


class PersonFlow(Flow):
    """Authorization code with PKCE: a grant that is there is renewed, and a person is asked where that cannot be."""

    def __init__(self, server: ToolServer, consent: Consent | None) -> None:
        settings = server.auth or Authorization()
        self._consent = consent
        self._url = ""
        assert server.url is not None
        super().__init__(
            server.url,
            OAuthClientMetadata(
                client_name="Centuria",
                redirect_uris=[AnyUrl(consent.redirect_uri)] if consent is not None else None,
                scope=" ".join(settings.scopes) or None,
            ),
            NoStorage(),
            self._remember_url,
            self._asked,
            settings.client_metadata_url,
        )

    def _client(self) -> OAuthClientInformationFull | None:
        settings, consent = self.settings, self._consent
        uris = self.context.client_metadata.redirect_uris
        if settings.client_id is not None:
            secret = settings.client_secret.value if settings.client_secret is not None else None
            issuer = settings.issuer or (self.held.issuer or {}).get("issuer")
            return OAuthClientInformationFull(
                issuer=issuer,
                client_id=settings.client_id,
                client_secret=secret,
                redirect_uris=uris,
                token_endpoint_auth_method=settings.method or ("client_secret_basic" if secret else "none"),
            )
        if not self.held.client:
            return None
        client = OAuthClientInformationFull.model_validate(self.held.client)
        known = {str(uri) for uri in client.redirect_uris or ()}
        if consent is not None and known and consent.redirect_uri not in known:
            return None  # registered for another way back
        return client

    async def _perform_authorization(self) -> httpx2.Request:
        context = self.context
        if self.renewing and context.can_refresh_token():
            return await self._refresh_token()
        self.renewing = False
        if self._consent is None:
            raise PersonNeeded
        methods = context.oauth_metadata.code_challenge_methods_supported if context.oauth_metadata else None
        if methods is not None and "S256" not in methods:
            raise OAuthFlowError("Its authorization server does not support PKCE with S256.")
        self._choose_method()
        self._choose_scopes()
        return await super()._perform_authorization()

    def _choose_method(self) -> None:
        """A secret that was set goes the way that the authorization server takes."""
        context, settings = self.context, self.settings
        offered = context.oauth_metadata.token_endpoint_auth_methods_supported if context.oauth_metadata else None
        if settings.client_secret is None or settings.method is not None or not offered or not context.client_info:
            return
        if "client_secret_basic" not in offered and "client_secret_post" in offered:
            context.client_info.token_endpoint_auth_method = "client_secret_post"  # noqa: S105 - the name of a method

    async def _remember_url(self, url: str) -> None:
        self._url = url

    async def _asked(self) -> AuthorizationCodeResult:
        assert self._consent is not None
        check_url(self._url, self.context.server_url)
        query = await self._consent.ask(self._url)
        if "error" in query:
            said = f"{query['error']} {query.get('error_description', '')}".strip()
            raise OAuthFlowError(f"The login was refused: {said[:300]}.")
        return AuthorizationCodeResult(code=query.get("code", ""), state=query.get("state"), iss=query.get("iss"))


Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


async def answer(flow: Flow, challenge: Challenge, send: Send) -> None:
    """Drive a flow from a challenge to a token. Raises `OAuthFlowError`, `httpx2.HTTPError`, `ValueError`."""
    context = flow.context
    headers = {MCP_PROTOCOL_VERSION_HEADER: challenge.version} if challenge.version else {}
    refused = httpx2.Request("POST", context.server_url, headers=headers)
    running = flow.async_auth_flow(refused)
    try:
        outgoing = await anext(running)
        response = challenge.response
        while True:
            outgoing = await running.asend(response)
            if outgoing is refused:
                return
            if outgoing.method == "POST":
                _check_prepared(flow, outgoing)
            response = await send(outgoing)
    finally:
        await running.aclose()


def _check_prepared(flow: Flow, request: httpx2.Request) -> None:
    """Before anything is told to an authorization server: do we know it, and is somebody there to log in?"""
    context = flow.context
    if context.auth_server_url is not None and context.oauth_metadata is None:
        raise OAuthFlowError(f"The authorization server {context.auth_server_url} does not tell about itself.")
    if isinstance(flow, PersonFlow) and request.headers.get("content-type") == "application/json":
        if not context.client_metadata.redirect_uris:
            raise PersonNeeded  # a registration that nobody would use
        if flow.settings.client_id is not None:
            raise OAuthFlowError("The client that `client_id` names belongs to another authorization server.")


async def renew(flow: Flow, send: Send) -> None:
    """A new token for one that has ended, from where the last one came. Raises as `answer` does."""
    await flow._initialize()
    flow.renewing = True
    await flow._handle_token_response(await send(await flow._perform_authorization()))


async def send_small(client: httpx2.AsyncClient, request: httpx2.Request, server: str) -> httpx2.Response:
    """Send one request of a flow for the server at this URL; its answer whole, and bounded."""
    check_url(str(request.url), server)
    response = await client.send(request, stream=True, follow_redirects=False)
    body = b""
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_BODY:
                raise OAuthFlowError(f"{request.url.host} sent more than {_MAX_BODY:,} bytes.")
    finally:
        await response.aclose()
    kept = {name: value for name, value in response.headers.items() if name in ("content-type", "location")}
    whole = httpx2.Response(response.status_code, headers=kept, content=body, request=request)
    whole.next_request = response.next_request
    return whole


def check_url(url: str, server: str) -> None:
    """Tokens travel by https; by http only on this machine, for a server on it. Raises `OAuthFlowError`."""
    parts = urlsplit(url)
    local = is_local(parts.hostname) and is_local(urlsplit(server).hostname)
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise OAuthFlowError(f"{parts.scheme}://{parts.hostname or ''} is not https, and a login must not go by it.")


def is_local(host: str | None) -> bool:
    """Whether a host is this machine."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refusal(response: httpx2.Response) -> GrantRefused:
    """What a token endpoint said (RFC 6749 5.2), without anything else of its answer."""
    said: Any = None
    try:
        said = json.loads(response.content)
    except (ValueError, RecursionError):
        pass
    words = [said.get(key) for key in ("error", "error_description")] if isinstance(said, dict) else []
    told = ": ".join(word[:200] for word in words if isinstance(word, str)) or f"HTTP {response.status_code}"
    final = 400 <= response.status_code < 500 and response.status_code not in (408, 425, 429)
    return GrantRefused(f"The authorization server refused: {told}.", final=final)
