"""What an agent that may delegate is offered: its tools, as Kimi K2.5 was trained on them, and what its calls
say. Pure.

`create_subagent` and `assign_task` have the names, the descriptions and the required arguments of the K2.5 technical
report (appendix E.8). The optional arguments come after the trained ones; without them nothing differs from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from centuria.core.answer_schema import check_schema
from centuria.core.arguments import ArgumentCheck, BadArguments, parse_arguments
from centuria.core.calls import fingerprint
from centuria.core.grants import EVERYTHING, Grant
from centuria.errors import JobError
from centuria.messages import Assigned, CallKey, ToolSpec

CREATE, ASSIGN = "create_subagent", "assign_task"
WAIT_ANY, WAIT_FOR, ASK = "wait_any", "wait_for", "ask_agent"
CANCEL, RETRY, READ = "cancel_task", "retry_task", "read_result"

#: Models that were trained to be an orchestrator with these tools: they need no lesson.
_TRAINED = re.compile(r"(^|/)kimi-(k2\.[5-9]|k[3-9])", re.IGNORECASE)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_ROLES = 1_000

ORCHESTRATOR = """\
You are the orchestrator of a swarm. Reach the goal that you are given, and answer with the result alone. Where the \
work is wide, split it among subagents that work in parallel; where it is not, do it yourself. Where something is \
missing, say so; never invent a figure."""

LESSON = """\
How to use the swarm:
1. create_subagent defines a kind of subagent by its name and its system prompt. It runs nothing. Define the few kinds \
that the work needs.
2. assign_task gives one task to a subagent of that kind, waits until it is done, and returns its one answer. Call it \
many times in one turn: all tasks of a turn run in parallel, and their answers come back in the order of the calls.
3. A subagent knows only its system prompt and its task: put everything that it needs into them. It does not see this \
conversation, and you see only its answer.
4. Give the tasks of one turn an id and `needs` where one must have another's result. Do not hand on what one tool \
call of your own would tell you.
5. When the answers are there, write the result from them. Name what failed."""

_CREATE = ToolSpec(
    CREATE,
    "Create a custom subagent with specific system prompt and name for reuse.",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Unique name for this agent configuration"},
            "system_prompt": {
                "type": "string",
                "description": "System prompt defining the agent's role, capabilities, and boundaries",
            },
        },
        "required": ["name", "system_prompt"],
    },
)
_ASSIGN = ToolSpec(
    ASSIGN,
    "Launch a new agent.\nUsage notes:\n1. You can launch multiple agents concurrently whenever possible, to maximize "
    "performance;\n2. When the agent is done, it will return a single message back to you.",
    {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "description": "Specify which created agent to use."},
            "prompt": {"type": "string", "description": "The task for the agent to perform"},
            "id": {"type": "string", "description": "Optional: a name for this task, unique in the run"},
            "needs": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Optional: ids of tasks of this or earlier turns whose results this one is given",
            },
            "output": {"type": "object", "description": "Optional: a JSON Schema that the answer must fit"},
            "tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Optional: the only tools that it may use, of yours, by name; by default all of yours",
            },
            "priority": {"type": "integer", "description": "Optional: 0 (first) to 9; the default is 5"},
            "background": {
                "type": "boolean",
                "description": "Optional: return the task's id at once; collect it with wait_any",
            },
        },
        "required": ["agent", "prompt"],
    },
)
_IDS = {"type": "array", "items": {"type": "string"}}
_ONE = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
ASKED = """\
You are asked a question about your work by another agent of the run. Answer it from what you know so far, in short, \
and say what you do not know. Your work goes on afterwards."""

SPECS: tuple[ToolSpec, ...] = (
    _CREATE,
    _ASSIGN,
    ToolSpec(
        WAIT_ANY,
        "Wait until one of these background tasks (by default: any of yours) is done, and return its answer.",
        {"type": "object", "properties": {"ids": _IDS}},
    ),
    ToolSpec(WAIT_FOR, "Wait until another task of the run is done, by its id, and return its answer.", _ONE),
    ToolSpec(
        ASK,
        "Ask the agent of another task of the run, by the task's id, what it knows so far. It works on meanwhile.",
        {
            "type": "object",
            "properties": {"id": {"type": "string"}, "question": {"type": "string"}},
            "required": ["id", "question"],
        },
    ),
    ToolSpec(CANCEL, "Stop one of your background tasks and all that it has assigned.", _ONE),
    ToolSpec(RETRY, "Run one of your tasks again that did not end well, and return its answer.", _ONE),
    ToolSpec(
        READ,
        "Read on in a long result, by the name of its file.",
        {
            "type": "object",
            "properties": {"file": {"type": "string"}, "offset": {"type": "integer", "description": "In characters"}},
            "required": ["file"],
        },
    ),
)


@cache
def _check(tool: str) -> ArgumentCheck:
    return ArgumentCheck(next(spec.schema for spec in SPECS if spec.name == tool))


def knows_swarm(model: str) -> bool:
    """Whether this model was trained on these two tools."""
    return _TRAINED.search(model) is not None


def rules(model: str, own: str = "") -> str:
    """The system prompt of an agent that may delegate. `own` is what the job says in its place."""
    if own:
        return own
    return ORCHESTRATOR if knows_swarm(model) else f"{ORCHESTRATOR}\n\n{LESSON}"


def read(tool: str, text: str) -> dict[str, Any]:
    """The arguments of a call of one of these tools. Raises `BadArguments`, written for the model."""
    arguments = parse_arguments(text)
    complaint = _check(tool).complaint(arguments)
    if complaint is not None:
        raise BadArguments(f"The arguments do not fit its schema: {complaint}.", "schema")
    return arguments


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `assign_task`: the task that it asks for. `named`: the model chose the id, so no other call means it."""

    id: str
    named: bool
    spec: str
    assigned: Assigned
    needs: tuple[str, ...] = ()
    priority: int = 5
    background: bool = False


@dataclass(slots=True)
class Roster:
    """The kinds of subagent that one agent has defined. Its children define their own."""

    roles: dict[str, str] = field(default_factory=dict)

    def create(self, arguments: Mapping[str, Any]) -> str:
        """Define one; what the model is told. The same again changes nothing. Raises `BadArguments`."""
        name, system = str(arguments["name"]).strip(), str(arguments["system_prompt"])
        if not name:
            raise BadArguments("The name is empty.")
        if self.roles.get(name, system) != system:
            raise BadArguments(f"There is already a subagent {name!r} with another system prompt: choose another name.")
        if len(self.roles) >= _MAX_ROLES and name not in self.roles:
            raise BadArguments(f"There are {_MAX_ROLES} subagents already: use those.")
        self.roles[name] = system
        return f"Subagent {name!r} is created. Give it work with {ASSIGN}."

    def assignment(
        self, arguments: Mapping[str, Any], call: CallKey, *, max_tokens: int, grant: Grant = EVERYTHING
    ) -> Assignment:
        """What one call of `assign_task` asks for, its agent seeing the tools of `grant`. Raises `BadArguments`."""
        agent, prompt = str(arguments["agent"]).strip(), str(arguments["prompt"])
        system = self.roles.get(agent)
        if system is None:
            there = ", ".join(map(repr, self.roles)) or "none yet"
            raise BadArguments(f"There is no subagent {agent!r}. Create it first with {CREATE}. There is: {there}.")
        chosen = arguments.get("id")
        if chosen is not None and not _ID.fullmatch(chosen):
            raise BadArguments("An id has 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or digit.")
        assigned = Assigned(
            call=call,
            agent=agent,
            system=system,
            prompt=prompt,
            max_tokens=max_tokens,
            schema=_output(arguments),
            servers=None if grant.servers is None else tuple(sorted(grant.servers)),
            tools=tuple(sorted(grant.tools)),
        )
        needs = tuple(dict.fromkeys(str(need) for need in arguments.get("needs", ())))
        spec = spec_of(assigned, needs)
        return Assignment(
            id=chosen if chosen is not None else f"{_slug(agent)}-{spec[:10]}",
            named=chosen is not None,
            spec=spec,
            assigned=assigned,
            needs=needs,
            priority=min(9, max(0, int(arguments.get("priority", 5)))),
            background=bool(arguments.get("background", False)),
        )


def spec_of(assigned: Assigned, needs: Sequence[str]) -> str:
    """The hash of all that makes the task's text: who asks does not matter, so identical tasks are one."""
    anywhere = replace(assigned, call=CallKey("", 0, 0, 0))
    return fingerprint("assigned", anywhere, sorted(set(needs)))


def _output(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema = arguments.get("output")
    if not schema:
        return None
    try:
        return check_schema({"type": "object", **schema}, "`output`")
    except JobError as error:
        raise BadArguments(str(error)) from None


def _slug(agent: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", agent.lower()).strip("-")[:24] or "agent"
