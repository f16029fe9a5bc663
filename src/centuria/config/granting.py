"""`tools = ["file", "web__search"]`: which servers, and which of their tools, a task sees. A task narrows the job's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from centuria.config.problems import did_you_mean, quoted
from centuria.core.grants import EVERYTHING, Grant
from centuria.core.templates import fill, look_up, placeholders
from centuria.errors import JobError
from centuria.settings import ToolServer

_ONE = re.compile(r"\{([^{}]+)\}")


def grant_of(names: Sequence[str], servers: Sequence[ToolServer], place: str, within: Grant = EVERYTHING) -> Grant:
    """What these names, of servers or of tools, grant: slugs and full names. Raises `JobError` for a name that is
    neither, and for what `within`, the job's own, does not have."""
    slugs = {server.slug: server.slug for server in servers} | {server.name: server.slug for server in servers}
    whole: set[str] = set()
    tools: set[str] = set()
    for name in names:
        slug, _, tool = name.partition("__")
        if name in slugs:
            whole.add(slugs[name])
            allowed = within.reaches(slugs[name], name)
        elif tool and slug in slugs.values():
            tools.add(name)
            allowed = within.allows(slug, "", name)
        else:
            known = [server.name for server in servers]
            advice = did_you_mean(slug if tool else name, known) or "Add a table [tools.NAME]."
            raise JobError(
                f"{place}: there is no server {quoted(slug if tool else name)}.",
                remedy=advice,
            )
        if not allowed:
            raise JobError(
                f"{place}: {quoted(name)} is not among the `tools` of [job].", remedy="Add it there, or remove it here."
            )
    return within.part(servers=whole, tools=tools)


def literal(names: Sequence[str] | None) -> list[str] | None:
    """The names that ask for no column: what a task gets that is made of no row."""
    return None if names is None else [name for name in names if not placeholders(name)]


def filled(names: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    """The names, with a row's values put in. A column alone may hold several: a list, or a text with commas."""
    found: list[str] = []
    for name in names:
        alone = _ONE.fullmatch(name)
        value = look_up(alone[1].strip(), row) if alone else fill(name, row)
        several = value if isinstance(value, list) else re.split(r"[,\s]+", value if isinstance(value, str) else "")
        found += [one for one in several if isinstance(one, str) and one] if alone else [str(value)]
    return list(dict.fromkeys(found))
