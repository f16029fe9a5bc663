"""Streams and documents written by hand, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from centuria.messages import Usage
from centuria.testing.replies import Raw, as_json
from centuria.testing.torture.row import USAGE

COUNTED = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}


def chunk(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk of a stream; more fields go beside `choices`."""
    choices = [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}]
    return {"id": "c-1", "object": "chat.completion.chunk", "model": "kimi-k2.5", "choices": choices, **more}


def text(content: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    return chunk({"content": content}, finish, **more)


def tools(*fragments: Mapping[str, Any], finish: Any = None, **more: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(fragments)}, finish, **more)


def part(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A fragment of a tool call; what is not given is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**more, **({"type": "function"} if name is not None else {}), "function": function}


def used(usage: Any = None, choices: Any = ()) -> dict[str, Any]:
    """The chunk that holds nothing but the usage."""
    counts = COUNTED if usage is None else usage
    return {
        "id": "c-1",
        "model": "kimi-k2.5",
        "choices": list(choices) if choices is not None else None,
        "usage": counts,
    }


def events(*items: Any, done: bool = True) -> bytes:
    """Chunks as events; bytes are taken as they are."""
    parts = [item if isinstance(item, bytes) else b"data: " + as_json(item) + b"\n\n" for item in items]
    return b"".join([*parts, b"data: [DONE]\n\n"] if done else parts)


def stream(*items: Any, done: bool = True, billed: Usage | None = USAGE, **more: Any) -> Raw:
    return replace(Raw((events(*items, done=done),), billed=billed), **more)


def said(message: Mapping[str, Any], finish: Any = "stop", usage: Any = None, **more: Any) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    counts = COUNTED if usage is None else usage
    head = {"id": "c-1", "object": "chat.completion", "model": "kimi-k2.5", "choices": [choice]}
    return {**head, "usage": counts, **more}


def paper(value: Any, *, billed: Usage | None = USAGE, **more: Any) -> Raw:
    """A document: a value, or the bytes of one."""
    body = value if isinstance(value, bytes) else as_json(value)
    return replace(Raw((body,), content_type="application/json", framing="length", billed=billed), **more)


def by_byte(body: bytes) -> Sequence[bytes]:
    return [body[place : place + 1] for place in range(len(body))]
