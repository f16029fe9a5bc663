"""`tools = ["file", "web__search"]`: which servers, and which of their tools, a task sees. A task narrows the job's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from centuria.config.problems import where
from centuria.core.grants import EVERYTHING, Grant
from centuria.core.quoting import did_you_mean, quoted
from centuria.core.templates import fill, fits_header, look_up, placeholders
from centuria.errors import JobError
from centuria.settings import Task, ToolServer

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


def check_agent_headers(tasks: Sequence[Task], servers: Sequence[ToolServer], file: str) -> None:
    """Refuse a task that would call a server in nobody's name, or in a name that is none. Raises `JobError`."""
    for server in servers:
        place = f"{file}: {where(('tools', server.name))}" if file else where(("tools", server.name))
        for task in tasks if server.agent_headers else ():
            if not Grant(task.servers, task.tools).reaches(server.slug, server.name):
                continue
            for header, template in server.agent_headers.items():
                told = f"{place} agent_headers {quoted(header)}"
                try:
                    value = fill(template, task.variables)
                except JobError as error:
                    remedy = error.remedy if task.variables else "It has no row: take the server out of its `tools`."
                    raise JobError(f"{told} cannot be made for the task {quoted(task.id)}.", remedy=remedy) from None
                if not fits_header(value):
                    raise JobError(
                        f"{told} of the task {quoted(task.id)} would be empty, or no line of plain characters.",
                        remedy="Mend its row, or leave it out with `require`.",
                    )


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
