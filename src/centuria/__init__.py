"""Centuria: one job as a hundred agents, within a budget, with an honest census. See `Swarm`.

Public names are found when they are first used, so that importing this package is quick and does nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Public name -> the module that defines it.
_PUBLIC = {
    "Swarm": "swarm",
    "Report": "ending",
    "Comparison": "compare",
    "Outcome": "messages",
    "Status": "messages",
    "Usage": "messages",
    "Gap": "stream",
    "Record": "events",
    "TextDelta": "events",
    "CenturiaError": "errors",
    "ConfigurationError": "errors",
    "BudgetExceeded": "errors",
    "GraphError": "errors",
    "JournalError": "errors",
    "run_sync": "swarm",
}

__all__ = [
    "BudgetExceeded",
    "CenturiaError",
    "Comparison",
    "ConfigurationError",
    "Gap",
    "GraphError",
    "JournalError",
    "Outcome",
    "Record",
    "Report",
    "Status",
    "Swarm",
    "TextDelta",
    "Usage",
    "__version__",
    "run_sync",
]

if TYPE_CHECKING:  # what type checkers see; a test proves that both lists are one
    from centuria.compare import Comparison
    from centuria.ending import Report
    from centuria.errors import BudgetExceeded, CenturiaError, ConfigurationError, GraphError, JournalError
    from centuria.events import Record, TextDelta
    from centuria.messages import Outcome, Status, Usage
    from centuria.stream import Gap
    from centuria.swarm import Swarm, run_sync


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'centuria' has no attribute {name!r}")
    value = getattr(import_module(f"centuria.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
