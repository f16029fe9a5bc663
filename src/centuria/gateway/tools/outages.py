"""Which of the operator's servers are not up: what the operator reads, and what is told to whoever misses a tool."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from centuria.ports import ServerState
from centuria.views.digest import server_remedy
from centuria.views.words import clean

_log = logging.getLogger("centuria.gateway")
_REASON = 300


def told(state: ServerState) -> str:
    """One line for the operator on a server that is not up."""
    reason = clean(state.reason, _REASON)
    remedy = server_remedy(reason)
    return f"the tool server {clean(state.server, 40)} is not up: {reason} {remedy}".rstrip()


class Outages:
    """Logs each server that goes down and each that comes up again, once; `states` are known already."""

    def __init__(self, states: Sequence[ServerState]) -> None:
        self._up = {state.slug: state.up for state in states}

    def see(self, state: ServerState) -> None:
        if self._up.get(state.slug) == state.up:
            return
        self._up[state.slug] = state.up
        if state.up:
            _log.info("the tool server %s is up, with %d tools", clean(state.server, 40), state.tools)
        else:
            _log.warning("%s", told(state))


def down(states: Sequence[ServerState], tools: Collection[str] | None) -> list[ServerState]:
    """The servers that are not up, as far as a key with these `tools` may have tools of theirs."""
    return [state for state in states if not state.up and _concerns(state, tools)]


def _concerns(state: ServerState, tools: Collection[str] | None) -> bool:
    # Whose tool a name without its server is cannot be known while that server is down.
    mine = (f"{state.slug}__", f"{state.server}__")
    return tools is None or any("__" not in name or name.startswith(mine) for name in tools)


def missed(name: str, states: Sequence[ServerState]) -> str:
    """What to add where a tool `name` is not there: a sentence on those of these servers that may have it, or ""."""
    meant = [state for state in states if name.partition("__")[0] in (state.slug, state.server)]
    found = meant or states
    if not found:
        return ""
    names = ", ".join([clean(state.server, 40) for state in found[:5]])
    return f" Not up now, so that its tools are missing: the server {names}."
