"""Which limits and priorities of a run may be changed while it works, and to what. Pure."""

from __future__ import annotations

from centuria.core.progress import Progress
from centuria.core.quoting import did_you_mean
from centuria.core.tallies import AGENTS
from centuria.errors import ConfigurationError

MOST = 10_000
_KINDS = ("server:", "tool:", "lease:")


def check_limit(resource: str, limit: int, progress: Progress, *, agents: int | None = None) -> None:
    """Raises `ConfigurationError` if this limit cannot be set in this run; `agents` is how many it began with."""
    if resource.startswith("model:"):
        raise ConfigurationError(
            "How many model calls there are at once is found out from what the provider takes.",
            remedy="Change `agents`, or stop the run and go on with another --concurrency.",
        )
    known = [name for name in progress.resources if name == AGENTS or name.startswith(_KINDS)]
    if resource not in known:
        raise ConfigurationError(
            f"The run has nothing called {resource!r}.", remedy=did_you_mean(resource, sorted(known))
        )
    if not 0 <= limit <= MOST:
        raise ConfigurationError(
            f"The limit of {resource} cannot be {limit:,}.", remedy=f"Give 0 (a pause) to {MOST:,}."
        )
    began = agents if agents is not None else progress.resources[AGENTS].reasons[0][0] if resource == AGENTS else 0
    if resource == AGENTS and limit > began:
        raise ConfigurationError(
            f"The run began with {began:,} agents and cannot have more.",
            remedy="Stop it, and go on with more: centuria resume RUN --agents N.",
        )


def check_priority(priority: int) -> None:
    """Raises `ConfigurationError` for a number that is no priority."""
    if not 0 <= priority <= 9:
        raise ConfigurationError(f"A priority cannot be {priority}.", remedy="Give 0 (first) to 9; 5 is the default.")
