"""Swarms, described."""

from __future__ import annotations

from typing import Any

from centuria.gateway.openapi.parts import (
    answer,
    body,
    idempotency,
    listing,
    nullable,
    operation,
    path,
    query,
    record,
    ref,
)

TAGS = {
    "swarms": "A job of many agents: spawned from a goal or from tasks, watched, and steered as a whole or by branch."
}

ROOT = "/v1/agents/swarm"
_STATUSES = ["starting", "running", "interrupted", "ok", "partial", "failed", "budget", "cancelled"]
_DOLLARS = {"type": ["number", "null"], "description": "Dollars."}
_MOMENT = {"type": ["number", "null"], "description": "Seconds since 1970."}
_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string", "minLength": 1, "pattern": r"\S"}
_TOKENS = {"type": "object", "description": "Tokens by kind: `prompt`, `cached`, `output`, ..."}
_STATUS = {"type": "string", "description": f"Among them: {', '.join(_STATUSES)}."}
_LINKS = record({name: {"type": "string"} for name in ("self", "events", "result", "cancel")})

_TASK: dict[str, Any] = {
    "type": "object",
    "required": ["id", "prompt"],
    "additionalProperties": False,
    "properties": {
        "id": {**_TEXT, "maxLength": 200, "examples": ["search"]},
        "prompt": {
            **_TEXT,
            "description": "At most 262,144 bytes.",
            "examples": ["Find the five largest makers of solar panels."],
        },
        "needs": {
            "type": ["array", "null"],
            "maxItems": 1000,
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "Ids of tasks whose results it is given.",
            "examples": [[]],
        },
        "priority": {"type": ["integer", "null"], "minimum": 0, "maximum": 9, "description": "0 (first) to 9."},
    },
}
_SPAWN: dict[str, Any] = {
    "type": "object",
    "description": "A `goal`, which the model splits itself, or `tasks`: exactly one of them.",
    "additionalProperties": False,
    "properties": {
        "goal": {
            **nullable(_TEXT),
            "description": "What is to be achieved, in full; at most 262,144 bytes.",
            "examples": ["Compare the five largest makers of solar panels."],
        },
        "tasks": {"type": ["array", "null"], "minItems": 1, "maxItems": 1000, "items": ref("SwarmTask")},
        "model": {**nullable(_TEXT), "maxLength": 200, "description": "The gateway's first one where it is not said."},
        "mcp_tools": {
            "type": ["array", "null"],
            "maxItems": 128,
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "Tools of `GET /v1/mcp/tools` that its agents may use.",
        },
        "max_agents": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 100,
            "description": "How many agents may work at once; the operator may allow fewer or more.",
        },
        "budget_usd": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": 1_000_000,
            "description": "The most that it may cost. Not said: 5 dollars, or less where less is left; "
            "none for a model without a price.",
        },
        "stream": {"type": ["boolean", "null"], "description": "Answer with its events instead of its id."},
        "system": {**nullable(_TEXT), "description": "The agents' first message; at most 262,144 bytes."},
        "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
        "name": {**nullable(_TEXT), "maxLength": 200},
    },
    "oneOf": [
        {"required": ["goal"], "properties": {"goal": {"type": "string"}, "tasks": {"type": "null"}}},
        {"required": ["tasks"], "properties": {"tasks": {"type": "array"}, "goal": {"type": "null"}}},
    ],
}
_BRIEF: dict[str, Any] = {
    "id": {"type": "string", "examples": ["swarm-0123456789abcdef01234567"]},
    "object": {"const": "swarm"},
    "name": {"type": "string"},
    "model": {"type": "string"},
    "status": _STATUS,
    "cause": {"type": "string", "description": "Why it ended so."},
    "rehearsal": {"type": "boolean", "description": "A scripted model answers it, at no cost."},
    "created_at": {"type": "number"},
    "ended_at": _MOMENT,
    "tasks": _COUNT,
    "ok": _COUNT,
    "cost_usd": _DOLLARS,
    "held_usd": {**_DOLLARS, "description": "What requests may have cost of which nobody knows."},
    "budget_usd": _DOLLARS,
}
_ROWS = {"type": "array", "items": {"type": "object"}}
_WHOLE: dict[str, Any] = {
    **_BRIEF,
    "links": _LINKS,
    "agents": {**_ROWS, "description": "Each with its state, status, parent, needs, turns, tokens and cost."},
    "slots": {"type": "array", "description": "By index, which agent has it; null: free."},
    "queues": {**_ROWS, "description": "By resource: limit, in use, waiting."},
    "census": {"type": "object", "description": "Tasks by how they ended."},
    "unfinished": _COUNT,
    "phase": {"type": "string"},
    "paused": {"type": "boolean"},
    "resumes": _COUNT,
    "started_at": _MOMENT,
    "seconds": {"type": ["number", "null"]},
    "seq": {**_COUNT, "description": "Number of the last event."},
    "money": {"type": "object"},
    "tokens": _TOKENS,
    "servers": _ROWS,
    "notices": _ROWS,
}
_RESULT: dict[str, Any] = {
    **_BRIEF,
    "census": {"type": "object"},
    "unfinished": _COUNT,
    "tokens": _TOKENS,
    "seconds": {"type": ["number", "null"]},
    "answer": {"type": "string", "description": "The merged answer."},
    "outcomes": {**_ROWS, "description": "Each task's one outcome."},
}

SCHEMAS: dict[str, Any] = {
    "SwarmTask": _TASK,
    "SwarmRequest": _SPAWN,
    "SwarmAccepted": record(
        {**{name: _BRIEF[name] for name in ("id", "object", "status", "model", "budget_usd")}, "links": _LINKS}
    ),
    "SwarmLine": record({**_BRIEF, "links": _LINKS, "key": {"type": "string"}}, [*_BRIEF, "links"]),
    "SwarmList": listing("SwarmLine"),
    "Swarm": record(_WHOLE, [*_BRIEF, "links", "agents", "slots", "queues", "census", "unfinished"]),
    "SwarmResult": record(_RESULT, ["id", "status", "cause", "tasks", "ok", "answer", "outcomes"]),
    "AgentStory": record(
        {
            "agent": {"type": "string"},
            "parent": {"type": ["string", "null"]},
            "needs": {"type": "array", "items": {"type": "string"}},
            "prompt": {"type": "string"},
            "role": {"type": ["string", "null"]},
            "system": {"type": ["string", "null"]},
            "turns": _ROWS,
            "outcome": {"type": ["object", "null"]},
            "capped": {"type": "boolean", "description": "It is longer than what is told."},
        },
        ["agent", "parent", "needs", "prompt", "turns", "outcome", "capped"],
    ),
    "Steered": {
        "type": "object",
        "required": ["id", "status"],
        "properties": {"id": {"type": "string"}, "status": _STATUS, "agent": {"type": "string"}},
    },
}

_ID = path("id", "The swarm's id.", {"type": "string", "minLength": 1}, "swarm-0123456789abcdef01234567")
_AGENT = path("agent", "The agent's id; it stands for its whole branch.", {"type": "string", "minLength": 1}, "search")
_EVENTS = {
    "text/event-stream": {
        "schema": {"description": "Events in order, each durable and with its number as `id`; the last is `end`."}
    }
}
_BEGUN = {
    "Location": {"description": "Its address.", "schema": {"type": "string"}},
    "x-centuria-swarm": {"description": "Its id.", "schema": {"type": "string"}},
}
_NOTHING = {
    "required": False,
    "content": {
        "application/json": {"schema": {"type": "object", "additionalProperties": False, "maxProperties": 0}},
    },
}


def _steering(id: str, summary: str, *, agent: bool, request: dict[str, Any] = _NOTHING) -> dict[str, Any]:
    parameters = [_ID, _AGENT] if agent else [_ID]
    done = {202: answer("It is done.", ref("Steered"))}
    return {"post": operation(id, "swarms", summary, done, (404, 409), parameters=parameters, request=request)}


def _fields(example: dict[str, Any], **properties: Any) -> dict[str, Any]:
    schema = record(properties, additionalProperties=False)
    return body(schema, {"one": example})


_ONE, _ONE_AGENT = f"{ROOT}/{{id}}", f"{ROOT}/{{id}}/agents/{{agent}}"

PATHS: dict[str, Any] = {
    f"{ROOT}/spawn": {
        "post": operation(
            "spawnSwarm",
            "swarms",
            "Begin a swarm",
            {
                202: {**answer("It was accepted, and is kept.", ref("SwarmAccepted")), "headers": _BEGUN},
                200: {"description": "Where `stream` is true: its events.", "headers": _BEGUN, "content": _EVENTS},
            },
            (404, 409, 422, 429),
            text="It goes on whoever goes away, and after a restart of the gateway.",
            parameters=[idempotency()],
            request=body(
                ref("SwarmRequest"),
                {
                    "a goal": {"goal": "Compare the five largest makers of solar panels.", "budget_usd": 2},
                    "tasks": {
                        "model": "kimi-k2.5",
                        "tasks": [
                            {"id": "search", "prompt": "Find the five largest makers of solar panels."},
                            {"id": "report", "prompt": "Compare them on one page.", "needs": ["search"]},
                        ],
                    },
                },
            ),
        )
    },
    ROOT: {
        "get": operation(
            "listSwarms",
            "swarms",
            "The newest swarms of this key",
            {200: answer("The swarms.", ref("SwarmList"))},
            parameters=[
                query("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}, 20),
                query("all", "`true`, from an admin: those of all keys.", {"type": "string"}, "false"),
            ],
        )
    },
    _ONE: {
        "get": operation(
            "getSwarm",
            "swarms",
            "All that there is to see of a swarm now",
            {200: answer("The swarm.", ref("Swarm"))},
            (404,),
            parameters=[_ID],
        )
    },
    f"{_ONE}/events": {
        "get": operation(
            "swarmEvents",
            "swarms",
            "Its events, from any number on",
            {200: {"description": "Its events, until it ends.", "content": _EVENTS}},
            (404,),
            parameters=[
                _ID,
                {
                    "name": "Last-Event-ID",
                    "in": "header",
                    "description": "The number of the last event that was seen.",
                    "schema": {"type": "integer", "minimum": 0, "maximum": 2**53},
                },
                query("after", "The same.", {"type": "integer", "minimum": 0, "maximum": 2**53}, 0),
                query(
                    "brief", "`true`: facts without their long texts, and no pieces of text.", {"type": "string"}, ""
                ),
                query("agent", "With `brief`: whose pieces of text are sent all the same.", {"type": "string"}, ""),
            ],
        )
    },
    f"{_ONE}/result": {
        "get": operation(
            "swarmResult",
            "swarms",
            "Its answer and outcomes, once it has ended",
            {200: answer("The result.", ref("SwarmResult"))},
            (404, 409),
            parameters=[_ID],
        )
    },
    _ONE_AGENT: {
        "get": operation(
            "swarmAgent",
            "swarms",
            "One agent's conversation",
            {200: answer("The conversation.", ref("AgentStory"))},
            (404,),
            parameters=[_ID, _AGENT],
        )
    },
    f"{_ONE}/cancel": _steering("cancelSwarm", "Cancel it", agent=False),
    f"{_ONE}/pause": _steering("pauseSwarm", "Let it make no further request", agent=False),
    f"{_ONE}/resume": _steering("resumeSwarm", "End a pause", agent=False),
    f"{_ONE}/limits": _steering(
        "setSwarmLimit",
        "Set how many may use a resource at once; 0 is a pause",
        agent=False,
        request=_fields(
            {"resource": "agents", "limit": 10},
            resource={"type": "string", "maxLength": 300},
            limit={"type": "integer"},
        ),
    ),
    f"{_ONE_AGENT}/cancel": _steering("cancelAgent", "Cancel one branch", agent=True),
    f"{_ONE_AGENT}/pause": _steering("pauseAgent", "Let one branch make no further request", agent=True),
    f"{_ONE_AGENT}/resume": _steering("resumeAgent", "End a branch's pause", agent=True),
    f"{_ONE_AGENT}/retry": _steering("retryAgent", "Run a task again that did not end well", agent=True),
    f"{_ONE_AGENT}/priority": _steering(
        "setAgentPriority",
        "Serve one branch sooner or later",
        agent=True,
        request=_fields({"priority": 0}, priority={"type": "integer", "minimum": 0, "maximum": 9}),
    ),
}
