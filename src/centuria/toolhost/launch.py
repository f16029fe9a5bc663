"""From settings to a running server: its command line, its environment, its limit. Pure but for the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from centuria.errors import ConfigurationError
from centuria.settings import ToolServer

#: Calls at once: of the built-in tools, of servers that somebody vouched for or that speak HTTP, of any other.
BUILTIN_LIMITS = {"file_read": 30, "code_exec": 5, "web_search": 20}
DECLARED_SAFE_LIMIT = 10
UNKNOWN_LIMIT = 1

_CODE_FLAGS = {"seconds": "--seconds", "memory_mb": "--memory-mb", "output_chars": "--output-chars"}
#: What a built-in server may see of the program's environment, beside the SDK's default.
_BUILTIN_ENV: Mapping[str, tuple[str, ...]] = {"web_search": ("BRAVE_API_KEY", "TAVILY_API_KEY", "SEARXNG_URL")}


def limit_of(server: ToolServer) -> int:
    """How many calls of this server may run at once."""
    if server.limit is not None:
        return server.limit
    if server.builtin is not None:
        return BUILTIN_LIMITS[server.builtin]
    return UNKNOWN_LIMIT if server.command is not None else DECLARED_SAFE_LIMIT


def limit_reason(server: ToolServer) -> str:
    """Why that is its limit, for people."""
    if server.limit is not None:
        return "set by the job"
    if server.builtin is not None:
        return "built-in tool"
    return "unknown stdio server" if server.command is not None else "HTTP server"


def argv_of(server: ToolServer) -> list[str]:
    """The command line of a server that runs as a process."""
    if server.builtin is None:
        assert server.command is not None
        return [server.command, *server.args]
    # -P: what lies in the working directory is not imported.
    argv = [sys.executable, "-P", "-m", f"centuria.tools.{server.builtin}"]
    return [*argv, *_flags(server.builtin, server.options)]


def _flags(builtin: str, options: Mapping[str, Any]) -> list[str]:
    match builtin:
        case "file_read":
            return [flag for root in options.get("roots", ()) for flag in ("--root", str(root))]
        case "code_exec":
            known = {name: options[name] for name in _CODE_FLAGS if name in options}
            return [flag for name, value in known.items() for flag in (_CODE_FLAGS[name], str(value))]
        case "web_search" if "folder" in options:
            return ["--folder", str(options["folder"])]
        case "web_search" if "url" in options:
            return ["--searxng", str(options["url"])]
        case "web_search":
            return []
    raise ConfigurationError(
        f"There is no built-in tool {builtin}.", remedy="Choose one of file_read, code_exec, web_search."
    )


def secrets_of(server: ToolServer) -> set[str]:
    """What we give a server and it must not tell of us: its variables, headers and client secret, and what its URL
    holds beside the address."""
    values = {value for name, value in env_of(server).items() if name != "PYTHONPATH"} | set(server.headers.values())
    values |= {value.partition(" ")[2].strip() for value in server.headers.values()}  # without the scheme
    if server.auth is not None and server.auth.client_secret is not None:
        values.add(server.auth.client_secret.value)
    if server.url is not None:
        parts = urlsplit(server.url)
        values |= {unquote(value) for value in (parts.username, parts.password) if value}
        values |= {value for _, value in parse_qsl(parts.query)}
    return values


def env_of(server: ToolServer) -> dict[str, str]:
    """The variables that a server gets beside the SDK's default environment."""
    names = _BUILTIN_ENV.get(server.builtin or "", ())
    if server.builtin is not None:
        names += ("PYTHONPATH",)
    return {name: os.environ[name] for name in names if name in os.environ} | dict(server.env)
