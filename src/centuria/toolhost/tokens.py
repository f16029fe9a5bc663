"""Where logins are kept: one file for each server and client, readable by its owner alone, replaced in one step.

Refresh tokens rotate: whoever uses one spoils it for all others. So a grant is renewed under the lock of its file, by
one process of all, and whoever waited for the lock looks into the file first. The lock is the kernel's (flock): it
goes with its holder, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from centuria.errors import ConfigurationError, ToolUnavailable
from centuria.settings import ToolServer

_SCHEMA = 1
_LARGEST = 1 << 20
#: Seconds between looks at a lock that another process holds, and in all.
_LOOK, _PATIENCE = 0.05, 70.0
_UNSAFE = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a server's authorization server gave us, as JSON objects of the OAuth specifications.

    `client` is who we are there (RFC 7591), `issuer` and `resource` its and the server's metadata (RFC 8414, 9728),
    `token` its last answer (RFC 6749); `expires` is when the access token ends, in seconds since 1970, None: not said.
    """

    client: Mapping[str, Any] | None = field(default=None, repr=False)
    issuer: Mapping[str, Any] | None = None
    resource: Mapping[str, Any] | None = None
    token: Mapping[str, Any] | None = field(default=None, repr=False)
    expires: float | None = None

    @property
    def access(self) -> str:
        """The access token; "" for none."""
        return _text(self.token, "access_token")

    @property
    def renewable(self) -> bool:
        return bool(_text(self.token, "refresh_token"))

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(_text(self.token, "scope").split())


def _text(held: Mapping[str, Any] | None, key: str) -> str:
    value = (held or {}).get(key)
    return value if isinstance(value, str) else ""


class TokenStore:
    """The logins of one user. Nothing is written before the first login.

    Raises `ConfigurationError` where the folder or a file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, server: ToolServer) -> Grant | None:
        """What is kept for a server; None for nothing. A file that is damaged counts as none."""
        path = self._file(server)
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(path, "read", error) from error
        try:
            held = json.loads(data)
            if held.pop("schema") != _SCHEMA or held.pop("server") != _canonical(server.url):
                return None
            grant = Grant(**held)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        objects = (grant.client, grant.issuer, grant.resource, grant.token)
        sound = all(item is None or isinstance(item, dict) for item in objects)
        return grant if sound and isinstance(grant.expires, int | float | None) else None

    def write(self, server: ToolServer, grant: Grant) -> None:
        """Keep a grant in place of the one before."""
        path = self._file(server)
        text = json.dumps({"schema": _SCHEMA, "server": _canonical(server.url), **asdict(grant)}, indent=1)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._make_folder()
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._trouble(path, "written", error) from error

    def remove(self, server: ToolServer) -> bool:
        """Forget a server's login. Returns whether there was one."""
        path = self._file(server)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._trouble(path, "removed", error) from error
        return True

    @asynccontextmanager
    async def locked(self, server: ToolServer) -> AsyncIterator[None]:
        """Hold a server's grant against all other processes. Raises `ToolUnavailable` where one does not let go."""
        path = self._file(server).with_suffix(".lock")
        try:
            self._make_folder()
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._trouble(path, "written", error) from error
        try:
            for _ in range(round(_PATIENCE / _LOOK)):
                with suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_LOOK)
            else:
                raise ToolUnavailable(f"Another process renews the login of {server.name} and does not end.")
            yield
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _file(self, server: ToolServer) -> Path:
        """One file for each server and, where it was set, client. Its name tells people the host."""
        client = server.auth.client_id if server.auth is not None else None
        digest = hashlib.sha256(f"{_canonical(server.url)}\n{client or ''}".encode()).hexdigest()[:16]
        host = _UNSAFE.sub("-", (urlsplit(server.url or "").hostname or "server").lower())[:60].strip(".-")
        return self.folder / f"{host or 'server'}-{digest}.json"

    @staticmethod
    def _trouble(path: Path, what: str, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"The login file {path} cannot be {what}: {error.strerror or type(error).__name__}.",
            remedy="Make its folder yours, or set XDG_CONFIG_HOME to another.",
        )


def store_of(env: Mapping[str, str]) -> TokenStore:
    """The store of the user whose environment this is."""
    root = env.get("XDG_CONFIG_HOME", "")
    base = Path(root) if Path(root).is_absolute() else Path(env.get("HOME") or Path.home()) / ".config"
    return TokenStore(base / "centuria" / "tokens")


def _canonical(url: str | None) -> str:
    """A server's URL as the resource that tokens are for (RFC 8707): no fragment, no login, scheme and host small."""
    parts = urlsplit(url or "")
    netloc = parts.netloc.rpartition("@")[2].lower()
    return urlunsplit((parts.scheme.lower(), netloc, parts.path.rstrip("/"), parts.query, ""))
