"""What a caller asks for: a body of `spawn`, checked and bounded, and the job that it makes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from centuria.config import Overrides, job_from_goal, job_from_tasks
from centuria.config.shape import MOST_DOLLARS, pico
from centuria.core.batch import EVERY
from centuria.core.quoting import did_you_mean, quoted
from centuria.core.resources import check_priority
from centuria.errors import ConfigurationError, GraphError
from centuria.gateway.problems import bad_request
from centuria.gateway.settings import SwarmLimits
from centuria.launch import check_no_merge
from centuria.messages import DOLLAR, Pico
from centuria.settings import Job, Limits, Timeouts

#: Bytes of one prompt, goal or system prompt, and of all that a request says.
MOST_PROMPT, MOST_TEXT = 2**18, 2**22
MOST_TOKENS, MOST_TOOLS, MOST_NEEDS = 1_000_000, 128, 1_000
#: Needs of all tasks together: checking them takes the processor, some 20 microseconds each.
MOST_EDGES = 20_000
_NAME = 200
#: Of a swarm for which nobody stated a budget.
USUAL_BUDGET: Pico = 5 * DOLLAR
_FIELDS = (
    *("goal", "tasks", "model", "mcp_tools", "max_agents", "budget_usd"),
    *("stream", "system", "max_tokens", "name"),
)
_TASK = ("id", "prompt", "needs", "priority")
_LONE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SwarmRequest:
    """A checked request. Exactly one of `goal` and `tasks` is there; what None stands for is the gateway's to say."""

    goal: str | None = None
    tasks: tuple[Mapping[str, Any], ...] = ()
    model: str | None = None
    mcp_tools: tuple[str, ...] = ()
    max_agents: int | None = None
    budget: Pico | None = None
    stream: bool = False
    system: str | None = None
    max_tokens: int | None = None
    name: str | None = None

    @property
    def title(self) -> str:
        """What it is called where nobody gave it a name."""
        return self.name or ("tasks" if self.goal is None else "goal")

    def prompts(self) -> dict[str, str]:
        """What each task was asked, by its id."""
        return {task["id"]: task["prompt"] for task in self.tasks} if self.goal is None else {"goal": self.goal}


def parse_request(value: Any, limits: SwarmLimits) -> SwarmRequest:
    """A body of `spawn`. Raises `Problem` (400) that names the field."""
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", remedy='Send {"goal": ".."} or {"tasks": [..]}.')
    _check_names(value, _FIELDS, "")
    said = {name: item for name, item in value.items() if item is not None}
    if ("goal" in said) == ("tasks" in said):
        raise bad_request("A swarm has a `goal` or `tasks`, exactly one of them.", param="goal")
    found = SwarmRequest(
        goal=_text(said, "goal", MOST_PROMPT),
        tasks=_tasks(said["tasks"], limits) if "tasks" in said else (),
        model=_text(said, "model", _NAME),
        mcp_tools=_names(said.get("mcp_tools", []), "mcp_tools", MOST_TOOLS),
        max_agents=_count(said, "max_agents", limits.agents),
        budget=_budget(said.get("budget_usd")),
        stream=_flag(said.get("stream", False)),
        system=_text(said, "system", MOST_PROMPT),
        max_tokens=_count(said, "max_tokens", MOST_TOKENS),
        name=_text(said, "name", _NAME),
    )
    if len(found.system or "") + sum(map(len, found.prompts().values())) > MOST_TEXT:
        raise bad_request(f"The prompts have more than {MOST_TEXT:,} characters in all.", param="tasks")
    return found


def job_of(request: SwarmRequest, limits: SwarmLimits, *, budget: Pico | None, timeouts: Timeouts) -> Job:
    """The job of a checked request; the same for the same one. Raises `Problem` (400), in the library's own words."""
    agents = request.max_agents or limits.agents
    overrides = Overrides(max_tokens=request.max_tokens, agents=agents, concurrency=agents, budget=False)
    name = request.title
    try:
        if request.goal is not None:
            job = job_from_goal(request.goal, system=request.system, name=name, overrides=overrides, env={}).job
        else:
            job = job_from_tasks(request.tasks, system=request.system, name=name, overrides=overrides).job
        check_no_merge(job)
    except (ConfigurationError, GraphError) as error:
        raise bad_request(
            error.message, param="tasks" if request.goal is None else "goal", remedy=error.remedy
        ) from None
    capped: Limits = replace(job.limits, budget=budget, tasks=limits.tasks)
    return replace(job, limits=capped, timeouts=timeouts)


# -- fields -----------------------------------------------------------------------------------------------------------


def _check_names(value: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in value:
        if name not in known:
            said = f"{place}{quoted(name)} is no field of a swarm."
            raise bad_request(said, param=name[:_NAME], remedy=did_you_mean(name, known))


def _tasks(value: Any, limits: SwarmLimits) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise bad_request("`tasks` must be a list with one task at least.", param="tasks")
    if len(value) > limits.tasks:
        raise bad_request(f"A swarm has {limits.tasks:,} tasks at most; these are {len(value):,}.", param="tasks")
    tasks = tuple(_task(task, f"tasks[{number}]") for number, task in enumerate(value))
    every = sum(EVERY in task["needs"] for task in tasks)
    if sum(len(task["needs"]) for task in tasks) + every * (len(tasks) - every) > MOST_EDGES:
        said = f"The tasks have more than {MOST_EDGES:,} needs in all."
        raise bad_request(said, param="tasks", remedy="Let a task between gather what many need of many.")
    return tasks


def _task(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object with `id` and `prompt`.", param=place)
    _check_names(value, _TASK, f"{place}: ")
    said = {name: item for name, item in value.items() if item is not None}
    for name in ("id", "prompt"):
        if name not in said:
            raise bad_request(f"{place} has no `{name}`.", param=f"{place}.{name}")
    task: dict[str, Any] = {
        "id": _text(said, "id", _NAME, place),
        "prompt": _text(said, "prompt", MOST_PROMPT, place),
        "needs": list(_names(said.get("needs", []), f"{place}.needs", MOST_NEEDS)),
    }
    if "priority" in said:
        task["priority"] = priority(said["priority"], f"{place}.priority")
    return task


def priority(value: Any, param: str = "priority") -> int:
    """A priority, 0 to 9. Raises `Problem` (400)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"`{param}` must be a whole number from 0 (first) to 9.", param=param)
    try:
        check_priority(value)
    except ConfigurationError as error:
        raise bad_request(error.message, param=param, remedy=error.remedy) from None
    return value


def _text(said: Mapping[str, Any], name: str, most: int, place: str = "") -> str | None:
    value, param = said.get(name), f"{place}.{name}" if place else name
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise bad_request(f"`{param}` must be text that is not empty.", param=param)
    if _LONE.search(value):
        raise bad_request(f"`{param}` is not valid Unicode: it holds half of a surrogate pair.", param=param)
    if len(value.encode()) > most:
        raise bad_request(f"`{param}` is longer than {most:,} bytes.", param=param)
    return value


def _names(value: Any, param: str, most: int) -> tuple[str, ...]:
    fits = isinstance(value, list) and len(value) <= most
    if not fits or not all(isinstance(name, str) and 0 < len(name) <= _NAME for name in value):
        raise bad_request(f"`{param}` must be a list of at most {most:,} names.", param=param)
    return tuple(dict.fromkeys(value))


def _count(said: Mapping[str, Any], name: str, most: int) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise bad_request(f"`{name}` must be a whole number from 1 to {most:,}.", param=name)
    return value


def _budget(value: Any) -> Pico | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_DOLLARS:
        raise bad_request(
            f"`budget_usd` must be dollars, more than 0 and at most {MOST_DOLLARS:,}.", param="budget_usd"
        )
    return pico(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_request("`stream` must be true or false.", param="stream")
    return value
