"""By which names a key's tools go: `slug__tool` always, a tool's own name where only one of them has it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from centuria.core.names import LONGEST
from centuria.core.quoting import meant
from centuria.ports import HostedTool

#: Names that every provider takes for a function (Kimi: 3 to 64 characters, no digit or `-` first).
_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{2,63}", re.ASCII)


def is_legal(name: str) -> bool:
    """Whether a tool may be called so, by every model."""
    return _LEGAL.fullmatch(name) is not None


def may_use(tools: Collection[str] | None, tool: HostedTool) -> bool:
    """Whether a key with these `tools` may use it: by its full name, its own, or all of its server (`SERVER__*`)."""
    if tools is None or "*" in tools:
        return True
    return not {tool.name, tool.tool, f"{tool.slug}__*", f"{tool.server}__*"}.isdisjoint(tools)


@dataclass(frozen=True, slots=True)
class Names:
    """The tools of a key. `shown` have the names by which they are listed; `by_name` has every name that leads to one,
    and the tool under its full name."""

    shown: Sequence[HostedTool]
    by_name: Mapping[str, HostedTool]

    @classmethod
    def of(cls, catalogue: Sequence[HostedTool], tools: Collection[str] | None, *, bare: bool) -> Names:
        """The names of these tools; one that needs a person's approval has none, since there is nobody to ask."""
        mine = [tool for tool in catalogue if may_use(tools, tool) and not tool.ask]
        by_name = {tool.name: tool for tool in mine}
        often = Counter(tool.tool for tool in mine)
        own = {tool.tool: tool for tool in mine if often[tool.tool] == 1 and tool.tool not in by_name}
        shown = tuple(
            replace(tool, name=tool.tool) if bare and own.get(tool.tool) is tool and is_legal(tool.tool) else tool
            for tool in mine
        )
        return cls(shown, {**own, **by_name})

    def ambiguous(self, name: str) -> list[str]:
        """The full names of several tools whose own name this is."""
        found = [tool.name for tool in self.by_name.values() if tool.tool == name]
        return sorted(set(found)) if name not in self.by_name else []


def unknown(name: str, names: Names, others: Collection[str] = ()) -> str:
    """What a caller is told that named a tool which it does not have."""
    shown = name[:LONGEST].encode("ascii", "replace").decode()
    several = names.ambiguous(name)
    if several:
        return f"Several servers have a tool {shown!r}: write {' or '.join(several[:5])}."
    there = sorted({tool.name for tool in names.shown} | set(others))
    listed = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return (
        f"There is no tool {shown!r} for this key."
        + meant(shown, [*there, *names.by_name])
        + (f" There is: {listed}." if there else " It has no tools.")
    )
