"""Tool servers: `[tools.NAME]` of a job file, and those of a `tools_file`, as frozen `ToolServer`s with slugs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from centuria.config.authorization import authorization
from centuria.config.problems import Problems, where
from centuria.config.reading import expand
from centuria.config.shape import AuthShape, ToolShape
from centuria.core.names import slug_of, slugs_of
from centuria.core.quoting import did_you_mean, quoted
from centuria.errors import JobError
from centuria.settings import ToolServer

#: What each built-in server is called in the names of its tools, and its own keys.
BUILTINS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "file_read": ("file", ("roots",)),
    "code_exec": ("code", ("seconds", "memory_mb", "output_chars")),
    "web_search": ("web", ("folder", "searxng")),
}
#: Variables by which `web_search` finds a service to ask.
_SEARCHES = ("BRAVE_API_KEY", "TAVILY_API_KEY", "SEARXNG_URL")
_OPTIONS = tuple(option for _, options in BUILTINS.values() for option in options)
_OF_COMMAND = ("args", "env", "cwd")
_OF_URL = ("headers", "agent_headers", "auth")
#: Headers that say how a message travels and in which session: an agent's own in their place would break both.
_FRAMING = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect"),
        *("host", "keep-alive", "last-event-id", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_PROTOCOL = ("mcp-", "proxy-")


def servers_from(
    tools: Mapping[str, ToolShape],
    included: Sequence[ToolServer],
    *,
    folder: Path,
    env: Mapping[str, str],
    file: str,
) -> tuple[ToolServer, ...]:
    """All servers of a job: those of `[tools]` in their order, then the included ones that they do not name.

    An entry without `builtin`, `command` or `url` tunes the included server of its name. Raises `JobError`.
    """
    problems = Problems(file)
    others = {server.name: server for server in included}
    servers: list[ToolServer] = []
    for name, shape in tools.items():
        try:
            servers.append(_server(name, shape, others.pop(name, None), others, folder, env))
        except JobError as error:
            problems.add(f"{where(('tools', name))} {error.message}", error.remedy)
    problems.check()
    slugs = {server.name: server.slug for server in servers if server.slug}
    return with_slugs([*servers, *others.values()], own=slugs, file=file)


def with_slugs(
    servers: Sequence[ToolServer], *, own: Mapping[str, str] | None = None, file: str = ""
) -> tuple[ToolServer, ...]:
    """The servers with slugs that differ: those given in `own`, then the built-ins' own, then derived ones."""
    problems = Problems(file)
    taken: dict[str, str] = {}
    for name, slug in (own or {}).items():
        if slug in taken:
            problems.add(
                f"{where(('tools', name))} has the slug {quoted(slug)} of {quoted(taken[slug])}.",
                "Choose another.",
            )
        taken[slug] = name
    problems.check()
    slugs = {name: slug for slug, name in taken.items()}
    for server in servers:
        usual = BUILTINS[server.builtin][0] if server.builtin else ""
        if server.name not in slugs and usual and usual not in taken:
            taken[usual] = server.name
            slugs[server.name] = usual
    rest = slugs_of(server.name for server in servers if server.name not in slugs)
    for name, slug in rest.items():
        slugs[name] = slug_of(name, taken={*taken, *rest.values()}) if slug in taken else slug
        taken[slugs[name]] = name
    return tuple(replace(server, slug=slugs[server.name]) for server in servers)


def _server(
    name: str,
    shape: ToolShape,
    included: ToolServer | None,
    others: Mapping[str, ToolServer],
    folder: Path,
    env: Mapping[str, str],
) -> ToolServer:
    """One server. Errors are sentences that begin after the table's name."""
    kind = next((kind for kind in ("builtin", "command", "url") if getattr(shape, kind) is not None), None)
    if kind is not None and included is not None:
        raise JobError("is in the tools file too.", remedy="Rename one, or leave out what it has in common.")
    _check_keys(shape, kind)
    tuning = tuning_of(shape)
    if kind is None:
        if included is None:
            near = f" {did_you_mean(name, others)}" if others else ""
            raise JobError("has no `builtin`, `command` or `url`.", remedy=f"Add one of them.{near}")
        return checked(replace(included, **tuning), shape)
    server = ToolServer(slug="", name=name)
    if shape.builtin is not None:
        server = replace(server, builtin=shape.builtin, options=_options(shape, shape.builtin, folder))
        if (
            shape.builtin == "web_search"
            and not server.options
            and not any(env.get(name, "").strip() for name in _SEARCHES)
        ):
            raise JobError(
                "has nothing to search with.",
                remedy=f'Add folder = "DIR" or searxng = "https://...", or set {" or ".join(_SEARCHES[:2])}.',
            )
    elif shape.command is not None:
        server = process(server, shape.command, shape.args, shape.env, shape.cwd, folder=folder, env=env)
    elif shape.url is not None:
        server = remote(server, shape.url, shape.headers, shape.auth, folder=folder, env=env)
        check_names("agent_headers", shape.agent_headers)
        _check_free(shape.agent_headers)
        server = replace(server, agent_headers=dict(shape.agent_headers))
    return checked(replace(server, **tuning), shape)


def checked(server: ToolServer, shape: ToolShape) -> ToolServer:
    """The server, if its mode and what was written about replicas go together. Raises `JobError`."""
    if server.mode == "shared" and (shape.replicas or 1) > 1:
        raise JobError(
            f"has `replicas = {shape.replicas}` without a mode that uses them.",
            remedy='Add mode = "pool" (any agent uses any of them) or mode = "leased" (an agent has one to itself).',
        )
    if server.mode != "shared" and server.replicas == 1 and shape.replicas is None:
        raise JobError(
            f'has mode = "{server.mode}" without `replicas`.', remedy="Add how many sessions, such as replicas = 4."
        )
    if shape.idle_timeout is not None and server.mode != "leased":
        raise JobError('has `idle_timeout`, which belongs to mode = "leased".', remedy="Remove it, or set the mode.")
    return server


def _check_keys(shape: ToolShape, kind: str | None) -> None:
    right: dict[str | None, tuple[str, ...]] = {"command": _OF_COMMAND, "url": _OF_URL, None: ()}
    right["builtin"] = BUILTINS[shape.builtin][1] if shape.builtin else ()
    for key in (*_OF_COMMAND, *_OF_URL, *_OPTIONS):
        if key in shape.model_fields_set and key not in right[kind]:
            owner = next((builtin for builtin, (_, options) in BUILTINS.items() if key in options), None)
            of = f'builtin = "{owner}"' if owner else "a `command`" if key in _OF_COMMAND else "a `url`"
            raise JobError(f"has `{key}`, which belongs to a server with {of}.", remedy="Remove it.")
    if shape.folder is not None and shape.searxng is not None:
        raise JobError("has `folder` and `searxng`.", remedy="Keep the one that is to be searched.")


def tuning_of(shape: ToolShape) -> dict[str, Any]:
    """What was written about how a server is used."""
    tuning: dict[str, Any] = {
        key: getattr(shape, key)
        for key in ("limit", "mode", "replicas", "idle_timeout", "required", "timeout", "slug", "elicit")
        if getattr(shape, key) is not None
    }
    for key in ("allow", "ask", "trusted"):
        if getattr(shape, key) is not None:
            tuning[key] = frozenset(getattr(shape, key))
    if shape.tool_limits:
        tuning["tool_limits"] = dict(shape.tool_limits)
    return tuning


def _options(
    shape: ToolShape, builtin: Literal["file_read", "code_exec", "web_search"], folder: Path
) -> dict[str, Any]:
    options = {key: getattr(shape, key) for key in BUILTINS[builtin][1] if getattr(shape, key) is not None}
    if builtin == "file_read":
        options["roots"] = [str(_folder(root, folder, "roots")) for root in options.get("roots", ["."])]
    if "folder" in options:
        options["folder"] = str(_folder(options["folder"], folder, "folder"))
    if "searxng" in options:
        options["url"] = _checked_url(options.pop("searxng"), "searxng")
    return options


def _folder(written: str, folder: Path, key: str) -> Path:
    if "\0" in written:
        raise JobError(f"{key} holds a NUL character.", remedy="Remove it.")
    path = (folder / Path(written).expanduser()).resolve()
    if not path.is_dir():
        raise JobError(
            f"{key} names {quoted(written)}, which is not a folder.", remedy="Paths are relative to this file."
        )
    return path


def process(
    server: ToolServer,
    command: str,
    args: Sequence[str],
    variables: Mapping[str, str],
    cwd: str | None,
    *,
    folder: Path,
    env: Mapping[str, str],
    inputs: Mapping[str, str] | None = None,
) -> ToolServer:
    """The server as a child process; it starts in `cwd`, or beside the file that names it."""

    def filled(text: str, place: str) -> str:
        return expand(text, env, folder=folder, place=place, inputs=inputs)

    program = filled(command, "command")
    if not program.strip():
        raise JobError("command is empty.", remedy="Name a program.")
    if "/" in program:
        program = str(folder / Path(program).expanduser())
    for name in variables:
        if not name or "=" in name or "\0" in name:
            raise JobError(f"env has the name {quoted(name)}, which is none.", remedy="Rename it.")
    return replace(
        server,
        command=program,
        args=tuple(filled(item, f"args, item {number},") for number, item in enumerate(args, 1)),
        env={name: filled(value, f"env {name}") for name, value in variables.items()},
        cwd=_folder(filled(cwd, "cwd"), folder, "cwd") if cwd is not None else folder.resolve(),
    )


def remote(
    server: ToolServer,
    url: str,
    headers: Mapping[str, str],
    auth: AuthShape | None,
    *,
    folder: Path,
    env: Mapping[str, str],
    inputs: Mapping[str, str] | None = None,
) -> ToolServer:
    """The server at a URL (streamable HTTP)."""

    def fill(text: str, place: str) -> str:
        return expand(text, env, folder=folder, place=place, inputs=inputs)

    filled = {name: fill(value, f"headers {name}") for name, value in headers.items()}
    check_names("headers", filled)
    if auth is not None and any(name.lower() == "authorization" for name in filled):
        raise JobError("has `auth` and an Authorization header.", remedy="Keep one of them.")
    return replace(
        server,
        url=_checked_url(fill(url, "url"), "url"),
        headers=filled,
        auth=authorization(auth, folder=folder, env=env) if auth is not None else None,
    )


def check_names(key: str, headers: Mapping[str, str]) -> None:
    """Refuse what is no header. Raises `JobError`."""
    for name, value in headers.items():
        if any(char in name + value for char in "\r\n") or not name.isascii() or not name.strip() or ":" in name:
            raise JobError(
                f"{key} {quoted(name)} is not a header of one line.", remedy="Remove line breaks and colons."
            )


def _check_free(headers: Mapping[str, str]) -> None:
    """Refuse headers of agents that belong to the connection or the protocol. Raises `JobError`."""
    for name in headers:
        if name.strip().lower() in _FRAMING or name.strip().lower().startswith(_PROTOCOL):
            raise JobError(
                f"agent_headers {quoted(name)} belongs to the connection that all agents share.",
                remedy="Remove it, or give it another name.",
            )


def _checked_url(url: str, key: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise JobError(f"{key} is not an http(s) URL.", remedy="Write https://HOST/PATH.")
    return url
