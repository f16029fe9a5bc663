"""Chat completions and models, described."""

from __future__ import annotations

from typing import Any

from centuria.gateway.openapi.parts import (
    AGENT,
    PRIORITY,
    answer,
    body,
    listing,
    nullable,
    operation,
    path,
    record,
    ref,
)

TAGS = {"chat": "What every client of OpenAI's API asks for."}

_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_PASSED_ON = "Passed on as it is; the model's provider says what it takes."
_TOLD = {
    "x-centuria-model": "The model that answered.",
    "x-centuria-deployment": "Where it answered.",
    "x-centuria-attempts": "Requests to upstreams that it took.",
    "x-centuria-queue-ms": "Milliseconds that it waited for a place.",
    "x-centuria-cost-usd": "What it cost, in dollars; not of a stream, and not of a model without a price.",
    "x-centuria-rehearsal": "`true` where a scripted model answered, at no cost.",
    "x-centuria-turns": "Turns of the model, where the gateway ran tools.",
}

_REQUEST: dict[str, Any] = {
    "type": "object",
    "description": "OpenAI's body. What is not named here is passed on as it is.",
    "required": ["messages"],
    "anyOf": [
        {"required": ["model"], "properties": {"model": {"type": "string"}}},
        {"required": ["models"], "properties": {"models": {"type": "array"}}},
    ],
    "properties": {
        "model": {**nullable(_NAME), "description": "A model of `GET /v1/models`.", "examples": ["kimi-k2.5"]},
        "models": {
            "type": ["array", "null"],
            "minItems": 1,
            "maxItems": 16,
            "items": _NAME,
            "description": "Models to fall back on, in the order of preference. `model` is the first choice, if it is "
            "there too.",
            "examples": [["kimi-k2.5"]],
        },
        "messages": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100_000,
            "items": ref("Message"),
            "examples": [[{"role": "user", "content": "Hello"}]],
        },
        "stream": {"type": ["boolean", "null"], "description": "Answer as server-sent events."},
        "stream_options": {
            "type": ["object", "null"],
            "description": "`include_usage`: a last chunk with the usage.",
            "examples": [{"include_usage": True}],
        },
        "max_tokens": {
            **nullable({"type": "integer", "minimum": 1, "maximum": 10_000_000}),
            "description": "The longest answer. Money is set aside for it, so say what you need.",
            "examples": [4096],
        },
        "max_completion_tokens": {
            **nullable({"type": "integer", "minimum": 1, "maximum": 10_000_000}),
            "description": "The same under its newer name.",
            "examples": [4096],
        },
        "n": {
            **nullable({"type": "integer", "minimum": 1, "maximum": 128}),
            "description": "Answers.",
            "examples": [1],
        },
        "tools": {
            "type": ["array", "null"],
            "description": "Functions of your own. A provider's own tools are refused: what they cost is not known.",
            "items": {
                "type": "object",
                "properties": {"type": {"enum": ["function", "custom"]}, "function": {"description": _PASSED_ON}},
            },
        },
        "mcp_tools": {
            "type": ["array", "null"],
            "maxItems": 128,
            "items": {"type": "string", "minLength": 1},
            "description": "Tools of `GET /v1/mcp/tools` that the gateway offers to the model and runs itself; the "
            "answer is what the model says at the end. `n` is 1 then.",
            "examples": [[]],
        },
        "modalities": {"enum": [["text"], None], "description": "Text alone: what others cost is not known."},
        "service_tier": {"enum": ["auto", "default", "standard_only", None]},
        "background": {"enum": [False, None]},
        "audio": {"type": "null", "description": "Not passed on: what it costs is not known."},
        "web_search_options": {"type": "null", "description": "Not passed on: what it costs is not known."},
        "temperature": {"description": _PASSED_ON},
        "response_format": {"description": _PASSED_ON},
        "tool_choice": {"description": _PASSED_ON},
    },
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string", "examples": ["system", "user", "assistant", "tool"]},
        "content": {
            "type": ["string", "array", "null"],
            "description": "Text, or a list of parts as OpenAI writes them.",
            "examples": ["Hello"],
        },
        "tool_calls": {"description": "Of an assistant: what it called."},
        "tool_call_id": {"description": "Of a tool: which call it answers."},
    },
}
_COMPLETION: dict[str, Any] = record(
    {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "model": {"type": "string", "description": "The model that answered, as its provider calls it."},
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": ["object", "null"], "description": "Tokens."},
    },
    ["choices"],
    description="The upstream's answer, byte for byte.",
)
_MODEL: dict[str, Any] = record(
    {
        "id": {"type": "string", "examples": ["kimi-k2.5"]},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string", "description": "The provider of its first deployment."},
        "context_length": {"type": "integer", "description": "Tokens of prompt and answer together."},
        "max_output": {"type": "integer", "description": "Tokens of an answer where a request does not say."},
        "pricing": {
            "type": ["object", "null"],
            "description": "Dollars per million tokens; null where no price is known.",
            "required": ["input", "output"],
            "properties": {
                "input": {"type": "number"},
                "output": {"type": "number"},
                "cached": {"type": "number", "description": "Of input that the provider had already read."},
            },
        },
        "deployments": {"type": "integer", "description": "Places where it is served."},
    }
)

SCHEMAS: dict[str, Any] = {
    "ChatRequest": _REQUEST,
    "Message": _MESSAGE,
    "ChatCompletion": _COMPLETION,
    "Model": _MODEL,
    "Models": listing("Model"),
}

_EXAMPLES: dict[str, Any] = {
    "a question": {
        "model": "kimi-k2.5",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 1024,
    },
    "a stream, with another model to fall back on": {
        "models": ["kimi-k2.5", "gpt-4.1"],
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "the gateway runs the tools": {
        "model": "kimi-k2.5",
        "messages": [{"role": "user", "content": "What is new in MCP? Look it up."}],
        "mcp_tools": ["web_search"],
        "max_tokens": 4096,
    },
}
_STREAMED = {
    "text/event-stream": {
        "schema": {
            "description": "Where `stream` is true: chunks as the upstream sends them, then `data: [DONE]`. A stream "
            'that breaks off ends with `data: {"error": ...}` and without `[DONE]`.',
        }
    }
}


def _answered() -> dict[str, Any]:
    told = answer("The answer.", ref("ChatCompletion"), headers=_TOLD)
    told["content"] |= _STREAMED
    return told


PATHS: dict[str, Any] = {
    "/v1/chat/completions": {
        "post": operation(
            "createChatCompletion",
            "chat",
            "One answer of a model",
            {200: _answered()},
            (404, 429, 502, 504),
            text="The request waits its turn, in a fair queue, and is tried elsewhere where that can help; nothing is "
            "tried again once the first byte was sent. Leaving cancels it, upstream too.",
            parameters=[AGENT, PRIORITY],
            request=body(ref("ChatRequest"), _EXAMPLES),
        )
    },
    "/v1/models": {
        "get": operation(
            "listModels", "chat", "The models that this key may use", {200: answer("The models.", ref("Models"))}
        )
    },
    "/v1/models/{model}": {
        "get": operation(
            "getModel",
            "chat",
            "One of them",
            {200: answer("The model.", ref("Model"))},
            (404,),
            parameters=[path("model", "Its name.", {"type": "string", "minLength": 1}, "kimi-k2.5")],
        )
    },
}
