"""Client credentials: the program itself is known to the authorization server, and no person is asked."""

from __future__ import annotations

import warnings
from pathlib import Path

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull
from mcp.shared.exceptions import MCPDeprecationWarning

from centuria.errors import ConfigurationError
from centuria.settings import ToolServer
from centuria.toolhost.flows import Flow, NoStorage

_LARGEST_KEY = 1 << 16


class _MachineFlow(Flow):
    def _client(self) -> OAuthClientInformationFull | None:
        client: OAuthClientInformationFull = self._fixed_client_info  # type: ignore[attr-defined]
        return client

    async def _perform_authorization(self) -> httpx2.Request:
        self.renewing = False
        self._choose_scopes()
        return await super()._perform_authorization()


class _SecretFlow(_MachineFlow, ClientCredentialsOAuthProvider):
    pass


class _KeyFlow(_MachineFlow, PrivateKeyJWTOAuthProvider):
    pass


def machine_flow(server: ToolServer) -> Flow:
    """The flow of a server with `grant = "client_credentials"`. Raises `ConfigurationError` for a key file."""
    settings = server.auth
    assert settings is not None and settings.client_id is not None and server.url is not None
    scope = " ".join(settings.scopes) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)  # `issuer` may be unknown; the docs say what that means
        if settings.private_key is not None:
            signer = SignedJWTParameters(
                issuer=settings.client_id,
                subject=settings.client_id,
                signing_key=_key(settings.private_key),
                signing_algorithm=settings.algorithm,
            )
            return _KeyFlow(
                server.url,
                NoStorage(),
                client_id=settings.client_id,
                assertion_provider=signer.create_assertion_provider(),
                scope=scope,
                issuer=settings.issuer,
            )
        assert settings.client_secret is not None
        return _SecretFlow(
            server.url,
            NoStorage(),
            client_id=settings.client_id,
            client_secret=settings.client_secret.value,
            token_endpoint_auth_method=settings.method or "client_secret_basic",
            scope=scope,
            issuer=settings.issuer,
        )


def _key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_KEY + 1)
        text = data.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no PEM file"
        raise ConfigurationError(
            f"The private key {path.name} cannot be read: {reason}.", remedy="Check `private_key` and its permissions."
        ) from error
    if len(data) > _LARGEST_KEY or "PRIVATE KEY" not in text:
        raise ConfigurationError(f"{path.name} is no private key in PEM.", remedy="Give a PEM file (PKCS #8).")
    return text
