"""An MCP server that wants a login, and its authorization server, both on loopback: real HTTP, strict, and with books.

    async with FakeOAuth() as oauth:
        server = ToolServer("web", "web", url=oauth.url)
        ...
    assert oauth.events["token refresh_token"] == 1

It holds to the letter what a client can get wrong: PKCE (S256) is verified, redirect URIs and clients must be known, a
code serves once, and a refresh token that was rotated away and comes again ends the whole grant. Its attributes make
it misbehave; `secrets` are all codes and tokens that it ever gave.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

_TOOLS = ("echo", "write")


@dataclass(slots=True)
class _Code:
    client: str
    challenge: str
    redirect: str
    scope: str


@dataclass(slots=True, eq=False)
class _Family:
    """What one login led to. `refresh` is the one refresh token that may still be used."""

    client: str
    scope: str
    refresh: str = ""
    alive: bool = True
    access: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class FakeOAuth:
    """`url` is the MCP server's (tools `echo`, and `write`, which needs the scope `write`), `issuer` the other's.

    `life` is the seconds that an access token says it lives (None: it does not say). `metadata` replaces members of the
    authorization server's metadata, `resource` of the server's; `iss` is what its redirects say in place of the issuer.
    `rotate` False: a refresh token serves again and again. `registered` replaces members of what a registration gives.
    `open`: it asks for no login and knows of none; `deaf`: no token is good enough.
    `refuse` is a status with which the token endpoint answers everything; `gate`, where it is not set, holds it.
    `clients` are known beforehand: id to secret. `events` counts requests by kind, `asked` are the queries of logins,
    `granted` the bodies of token requests with the method by which the client showed itself.
    """

    def __init__(self, *, life: int | None = 3600, clients: Mapping[str, str] | None = None) -> None:
        self.life = life
        self.metadata: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.iss: str | None = None
        self.rotate = True
        self.registered: dict[str, Any] = {}
        self.open = False
        self.deaf = False
        self.refuse: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.events: Counter[str] = Counter()
        self.asked: list[dict[str, str]] = []
        self.granted: list[dict[str, str]] = []
        self.secrets: set[str] = set()
        self.issuer = ""
        self._clients: dict[str, str] = dict(clients or {})
        self._redirects: dict[str, set[str]] = {}
        self._codes: dict[str, _Code] = {}
        self._families: list[_Family] = []
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"{self.issuer}/mcp"

    def end_access(self) -> None:
        """No access token is worth anything any more; refresh tokens are."""
        for family in self._families:
            family.access.clear()

    def revoke(self) -> None:
        """Nothing that was ever granted is worth anything any more."""
        for family in self._families:
            family.alive = False

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeOAuth:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._listening())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks: set[asyncio.Task[None]] = set()

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = group.create_task(self._serve(reader, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield
            finally:
                server.close()
                for task in tasks:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.partition(":") for line in lines[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, target, _ = lines[0].split(" ")
                reply = await self._route(method, target, headers, body.decode())
                payload = json.dumps(reply.body).encode() if reply.body is not None else b""
                kind = {"Content-Type": "application/json"} if reply.body is not None else {}
                fields = {**kind, "Content-Length": str(len(payload)), "Connection": "close", **reply.headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                writer.write(f"HTTP/1.1 {reply.status} X\r\n{head}\r\n".encode() + payload)
                await writer.drain()
            finally:
                writer.close()

    async def _route(self, method: str, target: str, headers: Mapping[str, str], body: str) -> _Reply:
        parts = urlsplit(target)
        if self.open and parts.path != "/mcp":
            return _Reply(404)
        match method, parts.path:
            case "GET", "/.well-known/oauth-protected-resource/mcp":
                self.events["resource metadata"] += 1
                return _Reply(200, {"resource": self.url, "authorization_servers": [self.issuer], **self.resource})
            case "GET", "/.well-known/oauth-authorization-server":
                self.events["metadata"] += 1
                return _Reply(200, self._metadata())
            case "POST", "/register":
                return self._register(json.loads(body))
            case "GET", "/authorize":
                return self._authorize(dict(parse_qsl(parts.query)))
            case "POST", "/token":
                return await self._token(headers, dict(parse_qsl(body)))
            case "POST", "/mcp":
                return self._mcp(headers, json.loads(body))
            case _, "/mcp":
                return _Reply(405)
        return _Reply(404)

    # -- the authorization server -------------------------------------------------------------------------------------

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }

    def _register(self, wanted: Mapping[str, Any]) -> _Reply:
        self.events["register"] += 1
        client = f"client-{len(self._redirects)}"
        self._clients[client] = ""
        self._redirects[client] = set(wanted["redirect_uris"])
        known = {"client_id": client, "token_endpoint_auth_method": "none", **self.registered}
        return _Reply(201, {**wanted, **known})

    def _authorize(self, query: dict[str, str]) -> _Reply:
        self.events["authorize"] += 1
        self.asked.append(query)
        client, redirect = query.get("client_id", ""), query.get("redirect_uri", "")
        if client not in self._clients or redirect not in self._redirects.get(client, {redirect}):
            return _Reply(400, {"error": "invalid_request"})  # never sent on: it could be anybody's
        back = {"state": query.get("state", ""), "iss": self.iss or self.issuer}
        if query.get("response_type") != "code" or query.get("code_challenge_method") != "S256":
            back["error"] = "invalid_request"
        else:
            back["code"] = self._secret("code")
            scope = query.get("scope", "")
            self._codes[back["code"]] = _Code(client, query.get("code_challenge", ""), redirect, scope)
        return _Reply(302, headers={"Location": f"{redirect}?{urlencode(back)}"})

    async def _token(self, headers: Mapping[str, str], form: dict[str, str]) -> _Reply:
        kind = form.get("grant_type", "")
        self.events[f"token {kind}"] += 1
        await self.gate.wait()
        if self.refuse is not None:
            return _Reply(self.refuse, {"error": "temporarily_unavailable"})
        client, method = self._client(headers, form)
        self.granted.append({**form, "method": method})
        if client is None:
            return _Reply(401, {"error": "invalid_client"})
        match kind:
            case "authorization_code":
                return self._exchange(client, form)
            case "refresh_token":
                return self._refresh(client, form.get("refresh_token", ""))
            case "client_credentials" if method != "none":
                return self._grant(_Family(client, form.get("scope", "")), refresh=False)
        return _Reply(400, {"error": "unsupported_grant_type"})

    def _client(self, headers: Mapping[str, str], form: Mapping[str, str]) -> tuple[str | None, str]:
        given = headers.get("authorization", "")
        if given.startswith("Basic "):
            name, _, secret = base64.b64decode(given[6:]).decode().partition(":")
            client, secret, method = unquote(name), unquote(secret), "client_secret_basic"
        else:
            client, secret = form.get("client_id", ""), form.get("client_secret", "")
            method = "client_secret_post" if secret else "none"
        known = self._clients.get(client)
        return (client if known is not None and secrets.compare_digest(known, secret) else None), method

    def _exchange(self, client: str, form: Mapping[str, str]) -> _Reply:
        code = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if code is None or (code.client, code.redirect, code.challenge) != (client, form.get("redirect_uri"), proof):
            return _Reply(400, {"error": "invalid_grant"})
        return self._grant(_Family(client, code.scope))

    def _refresh(self, client: str, token: str) -> _Reply:
        for family in self._families:
            if family.client == client and family.alive and family.refresh == token:
                return self._grant(family)
        for family in self._families:
            family.alive = family.alive and token not in self.secrets
        return _Reply(400, {"error": "invalid_grant", "error_description": "The refresh token is not valid."})

    def _grant(self, family: _Family, *, refresh: bool = True) -> _Reply:
        access = self._secret("access")
        family.access.add(access)
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": family.scope}
        if refresh and (self.rotate or not family.refresh):
            family.refresh = answer["refresh_token"] = self._secret("refresh")
        if self.life is not None:
            answer["expires_in"] = self.life
        if family not in self._families:
            self._families.append(family)
        return _Reply(200, answer, {"Cache-Control": "no-store"})

    def _secret(self, kind: str) -> str:
        made = f"{kind}-{secrets.token_urlsafe(24)}"
        self.secrets.add(made)
        return made

    # -- the MCP server -----------------------------------------------------------------------------------------------

    def _mcp(self, headers: Mapping[str, str], message: Mapping[str, Any]) -> _Reply:
        self.events["mcp"] += 1
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        alive = [family for family in self._families if family.alive and not self.deaf]
        family = next((family for family in alive if bearer in family.access), None)
        family = _Family("", "write") if self.open else family
        metadata = f'resource_metadata="{self.issuer}/.well-known/oauth-protected-resource/mcp"'
        if family is None:
            return _Reply(401, {"error": "invalid_token"}, {"WWW-Authenticate": f"Bearer {metadata}"})
        params = message.get("params") or {}
        if params.get("name") == "write" and "write" not in family.scope.split():
            wanted = f'Bearer error="insufficient_scope", scope="write", {metadata}'
            return _Reply(403, {"error": "insufficient_scope"}, {"WWW-Authenticate": wanted})
        if "id" not in message:
            return _Reply(202)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                info = {"name": "oauth", "version": "1"}
                version = params["protocolVersion"]
                answer["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in _TOOLS]
                answer["result"] = {"tools": tools}
            case "tools/call":
                text = str((params.get("arguments") or {}).get("text", params["name"]))
                self.events[f"call {params['name']}"] += 1
                answer["result"] = {"content": [{"type": "text", "text": text}], "isError": False}
            case _:
                answer["error"] = {"code": -32601, "message": "Method not found"}
        return _Reply(200, answer)
