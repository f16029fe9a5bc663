"""What callers register: which of the operator's tools, for whom, under which name, with which limit. Pure.

A manifest chooses among what the operator set up, and says nothing of how anything is started or reached: a field that
could is refused by its name. One thing can be reached that the operator did not set up: a server at an address over
HTTPS whose host the operator's list has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from centuria.core.quoting import meant, quoted
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.tools.naming import is_legal

#: Tools in one request.
MOST_AT_ONCE = 500
#: Characters of a description, and of a scope.
MOST_DESCRIBED, MOST_SCOPE = 4_000, 200
MOST_URL = 2_000
#: The scope of what every agent of the key has.
RUN = "run"
#: What runs a swarm at `/mcp`, so that none of a caller's own is taken for it.
RUN_SWARM = "run_swarm"

_FIELDS = frozenset({"name", "tool", "description", "parameters", "input_schema", "scope", "limit", "priority", "type"})
_REMOTE = frozenset({"name", "url", "description", "limit", "priority", "scope", "type"})
#: What would start something, or send somebody's words somewhere.
_NEVER = frozenset(
    {"command", "cmd", "args", "argv", "env", "environment", "cwd", "working_directory", "stdio", "shell", "script"}
    | {"exec", "executable", "path", "transport", "headers", "authorization", "auth", "token", "proxy", "url"}
    | {"server", "servers", "mcpservers", "mcp_servers", "builtin", "roots", "options", "base_url", "endpoint", "host"}
)


@dataclass(frozen=True, slots=True)
class Registered:
    """A tool under a name of the caller's own. `tool` is its full name and `key` its manifest key at that time, or both
    are "" for a server at `url`. `scope`: an agent's id, or `run` for all agents of the key. `limit` None: the
    operator's."""

    name: str
    tool: str = ""
    key: str = ""
    scope: str = RUN
    limit: int | None = None
    priority: int | None = None
    description: str = ""
    url: str = ""

    def is_for(self, agent: str) -> bool:
        """Whether this agent has it; one that says nothing of itself is taken for whoever it was made for."""
        return self.scope == RUN or agent in ("", self.scope)

    def dump(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def load(cls, text: str) -> Registered:
        return cls(**json.loads(text))


def entries_of(body: Any) -> list[Mapping[str, Any]]:
    """The tools of a manifest: one, a list, or `{"tools": [...]}`. Raises `Problem` (400)."""
    if isinstance(body, Mapping) and "tools" in body:
        others = [name for name in body if name != "tools"]
        if others:
            raise _refused(str(others[0]), "tools")
        body = body["tools"]
    entries = body if isinstance(body, list) else [body]
    if not entries or len(entries) > MOST_AT_ONCE:
        raise bad_request(f"A manifest has 1 to {MOST_AT_ONCE} tools, this one has {len(entries)}.", param="tools")
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise bad_request(f"Tool {number} of the manifest is no object.", param=f"tools[{number}]")
    return entries


def read_entry(entry: Mapping[str, Any], place: str) -> Registered:
    """One tool of a manifest, its target not looked up yet. Raises `Problem` (400), naming the field."""
    allowed = _REMOTE if "url" in entry else _FIELDS
    for field in entry:
        if field not in allowed:
            raise _refused(str(field), place, allowed)
    if "name" not in entry:
        raise bad_request("Each tool of a manifest needs a `name`.", param=f"{place}.name")
    name = _text(entry, "name", place, 64)
    if not is_legal(name):
        raise bad_request(
            f"{name[:64]!r} is no name of a tool: letters, digits, `_` and `-`, 3 to 64 of them, no digit first.",
            param=f"{place}.name",
        )
    if name == RUN_SWARM:
        raise bad_request(f"{name} is the gateway's own tool.", param=f"{place}.name", code="name_taken")
    if entry.get("type", "function") != "function":
        raise bad_request("The type of a tool is `function`.", param=f"{place}.type")
    for schema in ("parameters", "input_schema"):
        if schema in entry and not isinstance(entry[schema], Mapping):
            raise bad_request(f"`{schema}` is a JSON Schema, and so an object.", param=f"{place}.{schema}")
    return Registered(
        name,
        tool=_text(entry, "tool", place, 200, missing=""),
        scope=_text(entry, "scope", place, MOST_SCOPE, missing=RUN) or RUN,
        limit=_number(entry, "limit", place, 1, 10_000),
        priority=_number(entry, "priority", place, 0, 9),
        description=_text(entry, "description", place, 100_000, missing="")[:MOST_DESCRIBED],
        url=_text(entry, "url", place, MOST_URL, missing=""),
    )


def target_of(entry: Registered) -> str:
    """The name of the tool that is meant: `tool`, or the name without the scope that it ends with."""
    if entry.tool:
        return entry.tool
    suffix = f"__{entry.scope}"
    return entry.name.removesuffix(suffix) if entry.scope != RUN else entry.name


def check_url(url: str, hosts: Collection[str], place: str) -> None:
    """Raises `Problem` (400) unless it is HTTPS to one of these hosts, and nothing else is hidden in it."""
    where = f"{place}.url"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise bad_request("The URL of the server is not valid.", param=where) from None
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise bad_request("The URL of the server is not valid.", param=where)
    if parts.scheme != "https":
        raise bad_request("A server is reached over HTTPS alone.", param=where)
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise bad_request("The URL of a server has no user, password or fragment.", param=where)
    host, hosts = (parts.hostname or "").lower(), {host.lower() for host in hosts}
    if host not in hosts and f"{host}:{port or 443}" not in hosts:
        raise bad_request(
            f"The operator's list of hosts does not have {host[:100]!r}.",
            param=where,
            code="host_not_allowed",
            remedy="Ask the operator to add it to `hosts` of [remote_tools] in gateway.toml.",
        )
    if port not in (None, 443) and f"{host}:{port}" not in hosts:
        raise bad_request("A server is reached at port 443 alone.", param=where, code="host_not_allowed")


def _refused(field: str, place: str, allowed: Collection[str] = ()) -> Problem:
    shown = field[:60].encode("ascii", "replace").decode()
    if field.lower() in _NEVER:
        why = f"`{shown}` cannot be set by a request: how servers are started and reached is the operator's to say."
    else:
        why = f"A manifest has no field `{shown}`." + meant(shown, allowed, quoted)
    return bad_request(why, param=f"{place}.{shown}", code="field_not_allowed")


def _text(entry: Mapping[str, Any], field: str, place: str, most: int, *, missing: str | None = None) -> str:
    value = entry.get(field, missing)
    if not isinstance(value, str) or len(value) > most:
        raise bad_request(f"`{field}` is a text of at most {most:,} characters.", param=f"{place}.{field}")
    if field != "description" and any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise bad_request(f"`{field}` has control characters in it.", param=f"{place}.{field}")
    return value


def _number(entry: Mapping[str, Any], field: str, place: str, least: int, most: int) -> int | None:
    value = entry.get(field)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise bad_request(f"`{field}` is a whole number from {least} to {most:,}.", param=f"{place}.{field}")
    return value
