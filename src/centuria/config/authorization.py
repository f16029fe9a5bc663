"""`auth = {...}` of a tool server, in a job file or in an `mcpServers` file, as a frozen `Authorization`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from centuria.config.reading import expand
from centuria.config.shape import AuthShape
from centuria.core.quoting import did_you_mean, quoted
from centuria.errors import JobError
from centuria.settings import Authorization, Secret

_REFERENCE = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*\}")
#: How other MCP hosts spell our keys (Cursor, Claude Code, Gemini CLI).
_SPELLINGS = {
    "clientid": "client_id",
    "clientsecret": "client_secret",
    "callbackport": "redirect_port",
    "redirectport": "redirect_port",
    "clientmetadataurl": "client_metadata_url",
    "privatekey": "private_key",
}


def authorization(shape: AuthShape, *, folder: Path, env: Mapping[str, str]) -> Authorization:
    """The settings with `${VAR}` filled in. Errors are sentences that begin after the server's name."""

    def filled(key: str) -> str | None:
        text = getattr(shape, key)
        return None if text is None else expand(text, env, folder=folder, place=f"auth {key}")

    key, secret, client = filled("private_key"), filled("client_secret"), filled("client_id")
    _check_client(shape)
    if secret == "":
        raise JobError("auth client_secret is empty.", remedy="Set its variable to the secret.")
    _check_urls(shape)
    return Authorization(
        grant=shape.grant,
        client_id=client,
        client_secret=Secret(secret) if secret is not None else None,
        method=shape.method,
        private_key=(folder / Path(key).expanduser()).absolute() if key is not None else None,
        algorithm=shape.algorithm,
        issuer=shape.issuer,
        scopes=tuple(dict.fromkeys(scope for text in shape.scopes for scope in text.split())),
        client_metadata_url=shape.client_metadata_url,
        redirect_port=shape.redirect_port,
    )


def _check_client(shape: AuthShape) -> None:
    if shape.client_secret is not None and not _REFERENCE.fullmatch(shape.client_secret):
        raise JobError(
            "auth client_secret is written out, and files are copied and shared.",
            remedy='Set a variable, and write client_secret = "${NAME}".',
        )
    machine = shape.grant == "client_credentials"
    if machine and (shape.private_key is None) == (shape.client_secret is None):
        raise JobError("auth needs a `client_secret` or a `private_key`.", remedy="Give one of them.")
    if shape.private_key is not None and not machine:
        raise JobError("auth has a `private_key`.", remedy='Add grant = "client_credentials".')
    if shape.client_id is None and (machine or shape.client_secret is not None):
        raise JobError("auth has no `client_id`.", remedy="Say whose secret or key it is.")


def _check_urls(shape: AuthShape) -> None:
    for name in ("issuer", "client_metadata_url"):
        url = getattr(shape, name)
        if url is not None and not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise JobError(f"auth {name} is not an https URL.", remedy="Write https://HOST/PATH.")
    document = shape.client_metadata_url
    if document is not None and (not document.startswith("https://") or len(document.split("/", 3)) < 4):
        raise JobError("auth client_metadata_url has no path.", remedy="Name the document itself.")


def shape_of(written: Any) -> AuthShape | None:
    """An `auth` or `oauth` of an `mcpServers` file; keys of other hosts that mean the same are taken, others are not.

    Errors are sentences that begin after the server's name.
    """
    if written is None or isinstance(written, bool | str):
        return None  # other hosts' ways to switch it on
    if not isinstance(written, dict):
        raise JobError("needs `auth` as an object.", remedy='Write "auth": {"client_id": "..."}.')
    values: dict[str, Any] = {}
    for key, value in written.items():
        lower = str(key).lower()
        name = _SPELLINGS.get(lower.replace("_", ""), lower)
        if name in AuthShape.model_fields:
            values[name] = value.split() if name == "scopes" and isinstance(value, str) else value
    try:
        return AuthShape.model_validate(values)
    except ValidationError as error:
        place = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
        right = did_you_mean(place[0], AuthShape.model_fields) if place else ""
        raise JobError(f"has an `auth` whose {quoted(' '.join(place))} is not valid.", remedy=right) from None
