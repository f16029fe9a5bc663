"""What an agent may see of the tools: said once, handed down, and only ever narrowed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grant:
    """All tools of `servers` (slugs or names; None: of every server), and besides them the `tools` of these full names.

    `trusted` are the tools whose hints count here (that a call is safe to run again); None: all that the operator
    trusts. Nothing counts that `within`, the grant that this one was made from, does not have too, whatever servers
    come later.
    """

    servers: frozenset[str] | None = None
    tools: frozenset[str] = frozenset()
    trusted: frozenset[str] | None = None
    within: Grant | None = None

    def allows(self, slug: str, server: str, name: str) -> bool:
        """Whether the tool of this full name is to be seen."""
        mine = self.servers is None or slug in self.servers or server in self.servers or name in self.tools
        return mine and (self.within is None or self.within.allows(slug, server, name))

    def reaches(self, slug: str, server: str) -> bool:
        """Whether any tool of this server may be seen."""
        mine = self.servers is None or slug in self.servers or server in self.servers
        mine = mine or any(name.startswith(f"{slug}__") for name in self.tools)
        return mine and (self.within is None or self.within.reaches(slug, server))

    def trusts(self, name: str) -> bool:
        """Whether what the operator says of this tool's calls counts here."""
        return (self.trusted is None or name in self.trusted) and (self.within is None or self.within.trusts(name))

    def part(self, *, servers: Collection[str] = (), tools: Collection[str] = ()) -> Grant:
        """What a grant of the top has of these slugs and full names, as a grant of the top that can be kept.

        Of a server that is not granted whole it is the tools that are.
        """
        if self.within is not None:
            raise ValueError("Only a grant of the top can be kept.")
        whole = {slug for slug in servers if self.servers is None or slug in self.servers}
        named = {name for name in self.tools if name.partition("__")[0] in set(servers) - whole}
        named |= {name for name in tools if self.allows(name.partition("__")[0], "", name)}
        return Grant(frozenset(whole), frozenset(named))

    def narrow(
        self,
        *,
        servers: Collection[str] | None = None,
        tools: Collection[str] | None = None,
        trusted: Collection[str] | None = None,
    ) -> Grant:
        """What this grant has of these servers and tools (neither said: all of it), trusting these alone."""
        everything = servers is None and tools is None
        return Grant(
            None if everything else frozenset(servers or ()),
            frozenset(tools or ()),
            None if trusted is None else frozenset(trusted),
            self,
        )


#: Every tool of every server.
EVERYTHING = Grant()
