"""The cores and shells of one run, as `run` composed them, for all who work in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from centuria.admission import Money, Slots
from centuria.core.calls import CallLedger
from centuria.core.graph import TaskGraph
from centuria.core.landing import SoftLanding
from centuria.folder import RunFolder
from centuria.ports import Model
from centuria.scheduler import ToolScheduler
from centuria.stream import Stream

#: The root of the tree of caps.
RUN_NODE = "run"


def task_node(task: str) -> str:
    """The node of the tree of caps that pays for what one agent does itself."""
    return f"task:{task}"


def branch_node(task: str) -> str:
    """The node that pays for a task that may assign others, and for all below it."""
    return f"branch:{task}"


@dataclass(frozen=True, slots=True)
class Kit:
    """One of each. `clock` gives seconds since 1970."""

    stream: Stream
    graph: TaskGraph
    calls: CallLedger
    landing: SoftLanding
    slots: Slots
    money: Money
    model: Model
    tools: ToolScheduler
    folder: RunFolder
    clock: Callable[[], float]
