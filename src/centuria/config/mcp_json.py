"""The file of tool servers that MCP hosts share: `{"mcpServers": {NAME: {...}}}`, or `servers` as VS Code writes it.

Fields that other hosts keep for themselves are ignored; ours are in an object of our own, which those ignore:
`"centuria": {"mode": "pool", "replicas": 4}`, with keys of a job file's `[tools.NAME]`.
Sources: code.claude.com/docs/en/mcp, cursor.com/docs/context/mcp,
code.visualstudio.com/docs/copilot/reference/mcp-configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, create_model

from centuria.config.authorization import shape_of
from centuria.config.problems import Problems, from_validation
from centuria.config.reading import SMALL, expand, parse_json, read_text, shown, without_comments
from centuria.config.servers import checked, process, remote, tuning_of, with_slugs
from centuria.config.shape import ToolShape
from centuria.core.quoting import did_you_mean, nearest, quoted
from centuria.errors import JobError
from centuria.settings import ToolServer

MOST_SERVERS = 500
_KEYS = ("mcpServers", "servers")
OURS = "centuria"
#: The keys of `[tools.NAME]` that say how a server is used, not what it is.
TUNING = (
    *("limit", "tool_limits", "mode", "replicas", "idle_timeout"),
    *("required", "allow", "ask", "trusted", "timeout"),
)
_Ours = create_model("_Ours", **{OURS: (ToolShape, ...)})  # type: ignore[call-overload]
#: Keys that say what a server is, and all that are known: a slip of the pen is near to one of the first.
_REACH = ("command", "url", "serverUrl", "httpUrl")
_KNOWN = frozenset(
    {*_REACH, *("args", "env", "cwd", "envFile", "headers", "type", "transport", "auth", "oauth", "elicit", OURS)}
)
_STDIO = frozenset({"stdio", "local"})
#: An `sse` server is asked over streamable HTTP first, as other hosts do.
_HTTP = frozenset({"http", "streamable-http", "streamable_http", "streamablehttp", "remote", "sse"})
_ENV_LINE = re.compile(
    r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:(?P<mark>[\"'])(?P<quoted>.*)(?P=mark)|(?P<plain>[^\0]*))"
)
#: Folders of editors in a workspace: what is in them is relative to the workspace.
_EDITORS = frozenset({".vscode", ".cursor"})


def read_mcp_json(path: Path, env: Mapping[str, str]) -> tuple[ToolServer, ...]:
    """The servers of a file, in its order, those with `"disabled": true` left out.

    `${VAR}` and `${VAR:-default}` are taken from `env`. Raises `JobError` with all that is wrong.
    """
    name = shown(path)
    whole = _parsed(read_text(path, limit=SMALL, what="The tools file"), name)
    entries, inputs = _entries(whole, name), _inputs(whole)
    folder = path.absolute().parent
    folder = folder.parent if folder.name in _EDITORS else folder
    problems = Problems(name)
    servers: list[ToolServer] = []
    for server, entry in entries.items():
        try:
            if not _is_off(entry):
                servers.append(_tuned(_server(server, entry, folder, env, inputs), entry.get(OURS)))
        except JobError as error:
            problems.add(f"the server {quoted(server)} {error.message}", error.remedy)
    problems.check()
    return with_slugs(servers, file=name)


def _parsed(text: str, name: str) -> Any:
    """JSON, or JSON with comments and trailing commas as editors write it. Raises `JobError`."""
    try:
        return parse_json(text, name)
    except JobError:
        plain = without_comments(text)
        if plain == text:
            raise
        return parse_json(plain, name)


def _inputs(whole: Mapping[str, Any]) -> dict[str, str]:
    """What the file would have an editor ask for, by id, with the defaults."""
    listed = whole.get("inputs")
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item["id"]): str(item.get("default") or "") for item in found if "id" in item}


def _tuned(server: ToolServer, ours: Any) -> ToolServer:
    """The server as our own object in its entry says that it is used."""
    if ours is None:
        return server
    if not isinstance(ours, dict):
        raise JobError(f"needs `{OURS}` as an object.", remedy='Write "centuria": {"limit": 4}.')
    for key in ours:
        if key not in TUNING:
            raise JobError(f"has no key {quoted(key)} in `{OURS}`.", remedy=did_you_mean(key, TUNING))
    try:
        shape: ToolShape = getattr(_Ours.model_validate({OURS: ours}), OURS)
    except ValidationError as error:
        problems = Problems("")
        from_validation(error, _Ours, problems)
        problems.check()
        raise
    return checked(replace(server, **tuning_of(shape)), shape)


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
    near = [(key, nearest(key, _KEYS)) for key in value if nearest(key, _KEYS)] if isinstance(value, dict) else []
    meant = f"Did you mean {quoted(near[0][1])} by {quoted(near[0][0])}? " if near else ""
    raise JobError(
        f"{name} has no `mcpServers`.", remedy=f'{meant}Write {{"mcpServers": {{"NAME": {{"command": "..."}}}}}}.'
    )


def _is_off(entry: Any) -> bool:
    if not isinstance(entry, dict):
        raise JobError("is not an object.", remedy='Write {"command": "..."} or {"url": "..."}.')
    return entry.get("disabled") is True or entry.get("enabled") is False


def _server(
    name: str, entry: Mapping[str, Any], folder: Path, env: Mapping[str, str], inputs: Mapping[str, str]
) -> ToolServer:
    server = ToolServer(slug="", name=name, elicit=_elicit(entry))
    if _kind(entry) == "stdio":
        command, args = _text(entry, "command"), _texts(entry, "args")
        cwd = _text(entry, "cwd") if entry.get("cwd") is not None else None
        server = process(server, command, args, _mapping(entry, "env"), cwd, folder=folder, env=env, inputs=inputs)
        return replace(server, env={**_env_file(entry, folder, env), **server.env})
    url = _text(entry, _url_key(entry))
    auth = shape_of(entry.get("auth", entry.get("oauth")))
    return remote(server, url, _mapping(entry, "headers"), auth, folder=folder, env=env, inputs=inputs)


def _env_file(entry: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of VS Code's `envFile`: lines NAME=VALUE, taken as they are."""
    if entry.get("envFile") is None:
        return {}
    path = folder / Path(expand(_text(entry, "envFile"), env, folder=folder, place="envFile")).expanduser()
    try:
        text = read_text(path, limit=SMALL, what="The file")
    except JobError as error:
        raise JobError(f"envFile: {error.message}", remedy=error.remedy) from None
    found = (_ENV_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {line["name"]: line["quoted"] or line["plain"] or "" for line in found if line}


def _elicit(entry: Mapping[str, Any]) -> Literal["decline", "defaults"]:
    said = entry.get("elicit", "decline")
    if said not in ("decline", "defaults"):
        raise JobError("has an `elicit` that is not known.", remedy='Write "decline" or "defaults".')
    return "defaults" if said == "defaults" else "decline"


def _url_key(entry: Mapping[str, Any]) -> str:
    return next((key for key in ("url", "serverUrl", "httpUrl") if entry.get(key) is not None), "url")


def _kind(entry: Mapping[str, Any]) -> str:
    """stdio or http. Raises `JobError` for a transport that nobody knows, by name."""
    said = entry.get("type", entry.get("transport"))
    if isinstance(said, dict):
        said = said.get("type")
    word = said.lower() if isinstance(said, str) else ""
    if word and word not in _STDIO | _HTTP:
        raise JobError(f"uses the transport {quoted(word)}, which is not known.", remedy='Use "stdio" or "http".')
    has_command, has_url = entry.get("command") is not None, entry.get(_url_key(entry)) is not None
    if has_command and has_url and not word:
        raise JobError("has a `command` and a `url`.", remedy='Keep one, or add "type".')
    if word in _STDIO or (not word and has_command):
        return "stdio"
    if word in _HTTP or has_url:
        return "http"
    raise JobError("has neither `command` nor `url`.", remedy=_meant(entry))


def _meant(entry: Mapping[str, Any]) -> str:
    """What to do about an entry that says neither how its server is started nor where it is."""
    if "builtin" in entry:
        return "Built-in tools belong in a job file, as [tools.NAME] with `builtin`; other hosts do not have them."
    for key in entry:
        near = nearest(key, _REACH) if key not in _KNOWN else ""
        if near:
            return f"Did you mean {quoted(near)} by {quoted(key)}?"
    return "Add one of them."


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
