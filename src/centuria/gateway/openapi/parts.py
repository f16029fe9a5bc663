"""What the rooms' descriptions are made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

ERROR: Json = {
    "type": "object",
    "description": "What went wrong. Programs look at `type` and `code`, people at `message`.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "One sentence, and often a remedy."},
                "type": {
                    "type": "string",
                    "examples": ["invalid_request_error", "rate_limit_reached_error", "exceeded_current_quota_error"],
                },
                "param": {"type": ["string", "null"], "description": "The field or header that it is about."},
                "code": {"type": "string", "examples": ["invalid_api_key", "model_not_found", "insufficient_quota"]},
            },
        }
    },
    "examples": [
        {
            "error": {
                "message": "There is no model 'kimi-k3' for this key. See GET /v1/models.",
                "type": "resource_not_found_error",
                "param": "model",
                "code": "model_not_found",
            }
        }
    ],
}
_REQUEST_ID: Json = {
    "x-request-id": {"description": "This request's id, as the ledger has it.", "schema": {"type": "string"}}
}
_RETRY_AFTER: Json = {
    "Retry-After": {"description": "Whole seconds until it may be tried again.", "schema": {"type": "integer"}}
}
_SAID = {
    400: "The request is not valid; `param` says where.",
    401: "There is no such key. The same for one that is missing, wrong or revoked.",
    403: "Not for this key, this host name or this origin.",
    404: "There is nothing of this name for this key.",
    405: "This method is not for this address; `Allow` has those that are.",
    408: "The body came too slowly.",
    409: "It cannot be done as things are now; `code` says why.",
    413: "The body is larger than the gateway takes.",
    422: "Something else was asked under this `Idempotency-Key` before.",
    429: "Too much at once (`rate_limit_reached_error`, with `Retry-After`), or the key's budget is spent "
    "(`exceeded_current_quota_error`, with `x-should-retry: false`).",
    502: "The upstream or the tool's server failed; it may have run.",
    503: "Not now: overloaded, shutting down, or the store cannot be reached. Nothing ran.",
    504: "The upstream or the tool's server did not answer in time; it may have run.",
}
_WAITS = frozenset({429, 503})
RESPONSES: Json = {
    f"E{status}": {
        "description": text,
        "headers": {**_REQUEST_ID, **(_RETRY_AFTER if status in _WAITS else {})},
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, text in _SAID.items()
}

AGENT: Json = {
    "name": "X-Agent-Id",
    "in": "header",
    "description": "Which of the key's agents asks. Agents of a key take turns, and each has its own registered tools.",
    "schema": {"type": "string", "maxLength": 200, "pattern": r"^[ -~]*$"},
    "example": "agent-007",
}
PRIORITY: Json = {
    "name": "X-Priority",
    "in": "header",
    "description": "0 (first) to 9 (last); 5 where it is not said.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 9},
    "example": 5,
}


def idempotency() -> Json:
    """The header `Idempotency-Key`."""
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Any text of your own: the same request under it runs once, and is answered with the same "
        "answer again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[!-~]*$"},
        "example": "report-17-search-1",
    }


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Mapping[str, Any]) -> Json:
    """The same, or null, which means the same as leaving it out."""
    return {**schema, "type": [schema["type"], "null"]}


def record(properties: Mapping[str, Any], required: Sequence[str] | None = None, **more: Any) -> Json:
    """An object of an answer; all its fields are there unless `required` says otherwise."""
    return {
        "type": "object",
        "required": list(properties if required is None else required),
        "properties": dict(properties),
        **more,
    }


def listing(name: str) -> Json:
    """A list as OpenAI writes it."""
    return record({"object": {"const": "list"}, "data": {"type": "array", "items": ref(name)}})


def path(name: str, text: str, schema: Mapping[str, Any], example: str) -> Json:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema, "example": example}


def query(name: str, text: str, schema: Mapping[str, Any], example: Any) -> Json:
    return {"name": name, "in": "query", "description": text, "schema": schema, "example": example}


def body(schema: Mapping[str, Any], examples: Mapping[str, Any], *, required: bool = True) -> Json:
    """A JSON body. `examples` by what they show."""
    told = {name: {"value": value} for name, value in examples.items()}
    return {"required": required, "content": {"application/json": {"schema": schema, "examples": told}}}


def answer(text: str, schema: Mapping[str, Any] | None, *, headers: Mapping[str, str] | None = None) -> Json:
    """An answer in JSON, or without a body. `headers` are texts by name."""
    told = {name: {"description": said, "schema": {"type": "string"}} for name, said in (headers or {}).items()}
    made: Json = {"description": text, "headers": {**_REQUEST_ID, **told}}
    if schema is not None:
        made["content"] = {"application/json": {"schema": schema}}
    return made


def operation(
    id: str,
    tag: str,
    summary: str,
    answers: Mapping[int, Any],
    errors: Sequence[int] = (),
    *,
    text: str = "",
    public: bool = False,
    parameters: Sequence[Any] = (),
    request: Mapping[str, Any] | None = None,
) -> Json:
    """One method of one path. Errors that any route may have need not be said."""
    usual = {403, 503, *errors}
    if not public:
        usual.add(401)
    if request is not None:
        usual |= {400, 408, 413}
    if parameters:
        usual.add(400)
    made: Json = {"operationId": id, "tags": [tag], "summary": summary}
    if text:
        made["description"] = text
    if public:
        made["security"] = []
    if parameters:
        made["parameters"] = list(parameters)
    if request is not None:
        made["requestBody"] = dict(request)
    responses = {str(status): told for status, told in answers.items()}
    responses |= {str(status): {"$ref": f"#/components/responses/E{status}"} for status in sorted(usual)}
    made["responses"] = responses
    return made
