"""What a fake upstream can answer with: values, and how a provider would write them on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from centuria.messages import Usage

# -- replies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """An answer in text. `usage` None leaves the usage out; `report` says where it goes.

    `piece` is the number of characters a chunk, `gap` the seconds between chunks.
    """

    text: str
    reasoning: str | None = None
    finish: str = "stop"
    usage: Usage | None = field(default_factory=Usage)
    report: Literal["top", "choice", "none"] = "top"
    piece: int = 24
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls, each a name and the JSON text of its arguments. `ids` None makes Kimi's `functions.NAME:N`."""

    calls: tuple[tuple[str, str], ...]
    ids: tuple[str, ...] | None = None
    text: str = ""
    reasoning: str | None = ""
    finish: str = "tool_calls"
    usage: Usage | None = field(default_factory=Usage)
    report: Literal["top", "choice", "none"] = "top"
    piece: int = 24
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Document:
    """The answer as one JSON document, although a stream was asked for."""

    answer: Text | Calls


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error in the words of a provider. `body` None writes `{"error": {"type", "message"}}`."""

    status: int
    type: str = "server_error"
    message: str = "The server had an error."
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    billed: Usage | None = None


Framing = Literal["chunked", "length", "close"]
After = Literal["keep", "close", "reset"]


@dataclass(frozen=True, slots=True)
class Raw:
    """Exactly these pieces of body; `end` False leaves the body unfinished and the connection open.

    `framing`: how the body's end is known ("close": by the connection's). `length` is the content length that
    is claimed, None the true one. `after` is what becomes of the connection: with `end` False and "close" or
    "reset" the body breaks off. `encoding` compresses the pieces one after another into one body; "gzip-cut"
    leaves its last quarter out. `billed` is what the provider charges for it.
    """

    pieces: tuple[bytes, ...]
    status: int = 200
    content_type: str | None = "text/event-stream"
    gap: float = 0.0
    end: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    trailers: tuple[tuple[str, str], ...] = ()
    framing: Framing = "chunked"
    length: int | None = None
    after: After = "keep"
    encoding: Literal["", "gzip", "deflate", "gzip-cut"] = ""
    protocol: str = "HTTP/1.1"
    billed: Usage | None = None


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Exactly these bytes on the connection, status line and headers included."""

    pieces: tuple[bytes, ...]
    gap: float = 0.0
    after: After = "close"
    billed: Usage | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as a provider would send it, stream or `document`, with its bytes put through `rewrite`: the
    pieces that it gives are what is written. `raw` says all the rest; its own pieces are not used."""

    answer: Text | Calls
    rewrite: Callable[[bytes], Sequence[bytes]]
    document: bool = False
    raw: Raw = Raw(())


@dataclass(frozen=True, slots=True)
class Late:
    """A reply that is so many seconds late."""

    reply: Reply
    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is reset after this share of the answer's pieces."""

    answer: Text | Calls
    after: float = 0.5


@dataclass(frozen=True, slots=True)
class Stall:
    """After this share of the answer's pieces nothing comes any more, and the connection stays."""

    answer: Text | Calls
    after: float = 0.5


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset before any answer."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Not even headers come."""


Answer = Text | Calls
Reply = Answer | Document | HttpError | Raw | Verbatim | Written | Late | Cut | Stall | Reset | Silence
Script = Callable[[dict[str, Any]], Reply]


def say_hello(body: Mapping[str, Any]) -> Text:
    """The script of whoever gives none."""
    return Text("Hello.")


def counted(answer: Answer, prompt: int) -> Usage:
    """The usage that an answer states, or, where it states nothing, one that is counted from its bytes."""
    stated = answer.usage
    if stated is not None and (stated.prompt or stated.output):
        return stated
    written = answer.text + (answer.reasoning or "")
    if isinstance(answer, Calls):
        written += "".join(name + arguments for name, arguments in answer.calls)
    return Usage(prompt=prompt, output=max(1, len(written.encode("utf-8", "surrogatepass")) // 4))


# -- the dialect -----------------------------------------------------------------------------------------------------


def chunks(answer: Answer, body: Mapping[str, Any], usage: Usage, id_: str) -> list[bytes]:
    model = str(body.get("model", ""))

    def chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, **more}]
        return as_json({"id": id_, "object": "chat.completion.chunk", "model": model, "choices": choices})

    parts = [chunk({"role": "assistant", "content": ""})]
    if answer.reasoning is not None:
        parts += [chunk({"reasoning_content": part}) for part in _split(answer.reasoning, answer.piece) or [""]]
    parts += [chunk({"content": part}) for part in _split(answer.text, answer.piece)]
    if isinstance(answer, Calls):
        for index, call in enumerate(_calls(answer)):
            arguments = call["function"].pop("arguments")
            opening = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            parts.append(chunk({"tool_calls": [opening]}))
            parts += [
                chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
                for part in _split(arguments, answer.piece)
            ]
    told = answer.usage is not None
    in_choice = {"usage": _usage(usage)} if told and answer.report == "choice" else {}
    parts.append(chunk({}, answer.finish, **in_choice))
    if told and answer.report == "top":
        parts.append(as_json({"id": id_, "model": model, "choices": [], "usage": _usage(usage)}))
    return parts


def document(answer: Answer, body: Mapping[str, Any], usage: Usage, id_: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if isinstance(answer, Calls):
        message["tool_calls"] = _calls(answer)
    whole = {
        "id": id_,
        "object": "chat.completion",
        "model": body.get("model", ""),
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
    }
    return whole if answer.usage is None else {**whole, "usage": _usage(usage)}


def _calls(answer: Calls) -> list[dict[str, Any]]:
    ids = answer.ids or tuple(f"functions.{name}:{place}" for place, (name, _) in enumerate(answer.calls))
    return [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, (name, arguments) in zip(ids, answer.calls, strict=True)
    ]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "cached_tokens": usage.cached,
    }


def error(type_: str, message: str) -> bytes:
    return as_json({"error": {"type": type_, "message": message}})


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _split(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
