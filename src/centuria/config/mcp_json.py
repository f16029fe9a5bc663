"""The file of tool servers that MCP hosts share: `{"mcpServers": {NAME: {...}}}`, or `servers` as VS Code writes it.

Fields that other hosts keep for themselves are ignored. Sources: code.claude.com/docs/en/mcp,
cursor.com/docs/context/mcp, code.visualstudio.com/docs/copilot/reference/mcp-configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from centuria.config.problems import Problems, quoted
from centuria.config.reading import SMALL, parse_json, read_text, shown
from centuria.config.servers import process, remote, with_slugs
from centuria.errors import JobError
from centuria.settings import ToolServer

MOST_SERVERS = 500
_KEYS = ("mcpServers", "servers")
_STDIO = frozenset({"stdio", "local"})
_HTTP = frozenset({"http", "streamable-http", "streamable_http", "streamablehttp", "remote"})


def read_mcp_json(path: Path, env: Mapping[str, str]) -> tuple[ToolServer, ...]:
    """The servers of a file, in its order, those with `"disabled": true` left out.

    `${VAR}` and `${VAR:-default}` are taken from `env`. Raises `JobError` with all that is wrong.
    """
    name = shown(path)
    entries = _entries(parse_json(read_text(path, limit=SMALL, what="The tools file"), name), name)
    problems = Problems(name)
    servers: list[ToolServer] = []
    for server, entry in entries.items():
        try:
            if not _is_off(entry):
                servers.append(_server(server, entry, path.absolute().parent, env))
        except JobError as error:
            problems.add(f"the server {quoted(server)} {error.message}", error.remedy)
    problems.check()
    return with_slugs(servers, file=name)


def _entries(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        for key in _KEYS:
            if isinstance(value.get(key), dict):
                entries: dict[str, Any] = value[key]
                if len(entries) > MOST_SERVERS:
                    raise JobError(f"{name} has more than {MOST_SERVERS} servers.", remedy="Split it.")
                if any(not server.strip() or len(server) > 200 for server in entries):
                    raise JobError(
                        f"{name} has a server without a name, or with one of over 200 characters.",
                        remedy="Rename it.",
                    )
                return entries
    raise JobError(f"{name} has no `mcpServers`.", remedy='Write {"mcpServers": {"NAME": {"command": "..."}}}.')


def _is_off(entry: Any) -> bool:
    if not isinstance(entry, dict):
        raise JobError("is not an object.", remedy='Write {"command": "..."} or {"url": "..."}.')
    return entry.get("disabled") is True or entry.get("enabled") is False


def _server(name: str, entry: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> ToolServer:
    server = ToolServer(slug="", name=name)
    if _kind(entry) == "stdio":
        command, args = _text(entry, "command"), _texts(entry, "args")
        cwd = _text(entry, "cwd") if entry.get("cwd") is not None else None
        return process(server, command, args, _mapping(entry, "env"), cwd, folder=folder, env=env)
    url = _text(entry, _url_key(entry))
    return remote(server, url, _mapping(entry, "headers"), folder=folder, env=env)


def _url_key(entry: Mapping[str, Any]) -> str:
    return next((key for key in ("url", "serverUrl", "httpUrl") if entry.get(key) is not None), "url")


def _kind(entry: Mapping[str, Any]) -> str:
    """stdio or http. Raises `JobError` for the transports that are not spoken, by name."""
    said = entry.get("type", entry.get("transport"))
    if isinstance(said, dict):
        said = said.get("type")
    word = said.lower() if isinstance(said, str) else ""
    if word == "sse":
        raise JobError(
            "uses the transport sse, which MCP has replaced.",
            remedy='Use the server\'s streamable HTTP URL (often /mcp in place of /sse) with "type": "http".',
        )
    if word and word not in _STDIO | _HTTP:
        raise JobError(f"uses the transport {quoted(word)}, which is not known.", remedy='Use "stdio" or "http".')
    has_command, has_url = entry.get("command") is not None, entry.get(_url_key(entry)) is not None
    if has_command and has_url and not word:
        raise JobError("has a `command` and a `url`.", remedy='Keep one, or add "type".')
    if word in _STDIO or (not word and has_command):
        return "stdio"
    if word in _HTTP or has_url:
        return "http"
    raise JobError("has neither `command` nor `url`.", remedy="Add one of them.")


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise JobError(f"needs `{key}` as text.", remedy=f'Write "{key}": "...".')
    return value


def _texts(entry: Mapping[str, Any], key: str) -> list[str]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise JobError(f"needs `{key}` as a list of texts.", remedy=f'Write "{key}": ["..."].')
    return value


def _mapping(entry: Mapping[str, Any], key: str) -> dict[str, str]:
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JobError(f"needs `{key}` as an object.", remedy=f'Write "{key}": {{"NAME": "..."}}.')
    plain: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, bool):
            plain[name] = "true" if item else "false"
        elif isinstance(item, str | int | float):
            plain[name] = str(item)
        else:
            raise JobError(f"needs `{key}` {quoted(name)} as text.", remedy="Put it into quotes.")
    return plain
