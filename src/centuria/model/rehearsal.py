"""The scripted upstream of a rehearsal: a `Transport` that answers like a provider, without a network or a
key.

It reads the same request bytes and writes the same stream as a real one, so a rehearsal runs all of the
program but the socket. What it answers depends on the script, the row and the conversation; how it fails on
the seed and the call.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from centuria.core.examples import example_of
from centuria.core.templates import fill, fill_all, look_up, unfill
from centuria.core.toolsearch import CALL_TOOL
from centuria.errors import JobError, ModelUnavailable
from centuria.model.difference import shared
from centuria.ports import HttpRequest, HttpResponse
from centuria.settings import MERGE, Rehearsal, ScriptedCall, ScriptedTurn

Variables = Callable[[str], Mapping[str, Any]]
Schemas = Callable[[str], Mapping[str, Any] | None]
Body = Mapping[str, Any]

#: Characters of a chunk: many small ones where they are paced, few where they are not.
_PACED, _UNPACED = 24, 2_000


class _Unscriptable(Exception):
    """The script does not fit the request; told to the caller as an upstream would: HTTP 400."""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


class RehearsalTransport:
    """Answers from `rehearsal`. `variables(task)` is the row that fills a task's templates.

    The turn of a script is the number of answers that the conversation holds already; past its end, its last
    text is said again. Results of earlier calls are known to templates by the name that the script gives
    them. Without a script it says that it is a rehearsal; where `schema(task)` asks for JSON, it gives an example.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        variables: Variables,
        schema: Schemas = lambda task: None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rehearsal = rehearsal
        self._wall = wall
        self._variables = variables
        self._schema = schema
        self._sent: Counter[str] = Counter()
        self._last_body: dict[str, bytes] = {}

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Raises `ModelUnavailable` (kind "cut") for the fault `reset`."""
        return self._send(request)

    async def aclose(self) -> None:
        self._last_body.clear()

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        if request.method == "GET":
            yield _Response(200, {}, [_json({"object": "list", "data": []})])
            return
        fault = self._fault(request)
        if self._rehearsal.latency_ms:
            await asyncio.sleep(self._rehearsal.latency_ms / 1000)
        if fault == "reset":
            raise ModelUnavailable("The rehearsed connection was reset.", kind="cut")
        if fault == "429":
            yield _error(429, "rate_limit_reached_error", "Rehearsed: too many requests.", {"retry-after": "1"})
        elif fault == "500":
            yield _error(500, "server_error", "Rehearsed: the server had an error.")
        elif fault == "rubbish":
            yield _Response(200, {"content-type": "text/html"}, [b"<html>Rehearsed: a web page.</html>"])
        else:
            try:
                kind, pieces = self._pieces(request)
            except (_Unscriptable, JobError) as error:
                yield _error(400, "invalid_request_error", f"The rehearsal cannot go on: {error}")
                return
            yield _Response(
                200,
                {"content-type": kind},
                pieces if fault is None else pieces[: max(1, len(pieces) // 2)],
                gap=self._rehearsal.chunk_ms / 1000,
                then=fault,
            )

    def _fault(self, request: HttpRequest) -> str | None:
        """The same for the same seed, call and attempt."""
        who = str(request.caller.key) if request.caller else ""
        self._sent[who] += 1
        if not self._rehearsal.faults:
            return None
        draw = random.Random(f"{self._rehearsal.seed}/{who}/{self._sent[who]}").random()
        for kind, share in self._rehearsal.faults.items():
            draw -= share
            if draw < 0:
                return kind
        return None

    def _pieces(self, request: HttpRequest) -> tuple[str, list[bytes]]:
        """The media type of the answer, and its events; or the whole of it where no stream was asked for."""
        body: Body = json.loads(request.body)
        task = request.caller.key.task if request.caller else ""
        answer = self._answer(body, task)
        written = answer.text + "".join(name + arguments for name, arguments in answer.calls)
        output, finish = max(1, len(written.encode()) // 4), "tool_calls" if answer.calls else "stop"
        allowed = body.get("max_completion_tokens") or body.get("max_tokens") or output
        text = answer.text
        if output > allowed and not answer.calls:
            text, output, finish = text.encode()[: allowed * 4].decode(errors="ignore"), allowed, "length"
        usage = {"completion_tokens": output, **self._prompt_usage(request.body, task)}
        usage["total_tokens"] = usage["prompt_tokens"] + output
        who = str(request.caller.key) if request.caller else ""
        number = sha256(f"{who}/{self._sent[who]}/".encode() + request.body).hexdigest()[:24]
        head = {"id": f"chatcmpl-{number}", "created": int(self._wall()), "model": body.get("model", "")}
        if not body.get("stream"):
            return "application/json", [_json(_whole(head, text, answer.calls, finish, usage))]
        size = _PACED if self._rehearsal.chunk_ms else _UNPACED
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": text[start : start + size]} for start in range(0, len(text), size)]
        for index, (name, arguments) in enumerate(answer.calls):
            function = {"name": name, "arguments": arguments}
            deltas.append(
                {"tool_calls": [{"index": index, "id": _id(name, index), "type": "function", "function": function}]}
            )
        chunks = [_chunk(head, delta) for delta in deltas]
        chunks.append(_chunk(head, {}, finish))
        chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        events = [b"data: " + _json(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]
        return "text/event-stream", events

    def _prompt_usage(self, body: bytes, task: str) -> dict[str, int]:
        """Four bytes a token; what the task's last request began with the same is cached."""
        last = self._last_body.get(task, b"")
        self._last_body[task] = body
        return {"prompt_tokens": max(1, len(body) // 4), "cached_tokens": shared(last, body) // 4}

    # -- the script ----------------------------------------------------------------------------------------

    def _answer(self, body: Body, task: str) -> _Answer:
        messages = [message for message in body.get("messages", ()) if isinstance(message, Mapping)]
        values = dict(self._variables(task))
        if task == MERGE and self._rehearsal.summary:
            return _Answer(fill(self._rehearsal.summary, values))
        script = self._script(task, values)
        if not script or task == MERGE:
            schema = self._schema(task)
            return _Answer(_echo(messages) if schema is None else json.dumps(example_of(schema), ensure_ascii=False))
        turn = sum(message.get("role") == "assistant" for message in messages)
        _recall(script, messages, values)
        if turn >= len(script) or not script[turn].calls:
            return _Answer(fill(_text_of(script, turn), values))
        tools = _names(body)
        calls = tuple(
            _called(call.tool, arguments, tools)
            for call in script[turn].calls
            for arguments in _arguments(call, values)
        )
        return _Answer(fill(script[turn].text, values), calls)

    def _script(self, task: str, values: dict[str, Any]) -> Sequence[ScriptedTurn]:
        """The script of a task. That of an assigned one is its role's, which may read more out of its prompt."""
        role = values.get("agent")
        if task in self._rehearsal.tasks:
            return self._rehearsal.tasks[task]
        if not isinstance(role, str) or "prompt" not in values:
            return self._rehearsal.turns
        script = self._rehearsal.agents.get(role)
        if script is None:
            return ()
        found = unfill(script.reads, str(values["prompt"])) if script.reads else {}
        if found is None:
            raise _Unscriptable(f"the prompt of this {role} is not written as [rehearsal.agent.{role}] reads it.")
        values |= found
        return script.turns


class _Response:
    """Pieces of a body with a pause between them, and what comes `then`: nothing, a stall, or a cut."""

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        pieces: Sequence[bytes],
        *,
        gap: float = 0.0,
        then: str | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self._pieces = iter(pieces)
        self._gap = gap
        self._pause = 0.0
        self._then = then

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._pause:
            await asyncio.sleep(self._pause)
        self._pause = self._gap
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        if self._then == "stall":
            await asyncio.get_running_loop().create_future()
        if self._then is not None:
            raise ModelUnavailable("The rehearsed connection broke off.", kind="cut")
        raise StopAsyncIteration


def _text_of(script: Sequence[ScriptedTurn], turn: int) -> str:
    """The text of a turn, or of the last turn that has one."""
    if turn < len(script):
        return script[turn].text
    return next((past.text for past in reversed(script) if past.text), "The rehearsal has nothing more to say.")


def _recall(script: Sequence[ScriptedTurn], messages: Sequence[Body], values: dict[str, Any]) -> None:
    """Add what the tools answered so far, by the script's names; JSON is parsed."""
    answers = iter([message.get("content", "") for message in messages if message.get("role") == "tool"])
    asked = sum(bool(message.get("tool_calls")) for message in messages if message.get("role") == "assistant")
    for turn in script[:asked]:
        found: dict[str, Any] = {}
        for call in turn.calls:
            answered = [_parsed(answer) for _, answer in zip(_arguments(call, values), answers, strict=False)]
            if call.each:
                found[call.name] = answered
            elif answered:
                found[call.name] = answered[0]
        values |= found


def _arguments(call: ScriptedCall, values: Mapping[str, Any]) -> list[Any]:
    """The arguments of each call that one line of the script stands for."""
    if not call.each:
        return [fill_all(call.arguments, values)]
    items = look_up(call.each, values)
    if not isinstance(items, list):
        raise _Unscriptable(f"the script calls {call.tool!r} for each of {call.each!r}, which is no list.")
    return [fill_all(call.arguments, {**values, "item": item}) for item in items]


def _parsed(content: Any) -> Any:
    try:
        return json.loads(content)
    except (TypeError, ValueError, RecursionError):
        return content


def _names(body: Body) -> list[str]:
    return [str(tool["function"]["name"]) for tool in body.get("tools", ())]


def _called(tool: str, arguments: Any, offered: Sequence[str]) -> tuple[str, str]:
    """The call of a tool that the script names: through `call_tool`, where the tools themselves are not offered."""
    if CALL_TOOL in offered and tool not in offered:
        return CALL_TOOL, json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return _offered(tool, offered), json.dumps(arguments, ensure_ascii=False)


def _offered(tool: str, offered: Sequence[str]) -> str:
    """The request's name for a tool that the script calls by its own name, or by its full one."""
    for name in offered:
        if tool in (name, name.partition("__")[2]):
            return name
    there = ", ".join(offered) or "none"
    raise _Unscriptable(f"the script calls the tool {tool!r}, which this task does not have. There is: {there}.")


def _echo(messages: Sequence[Body]) -> str:
    asked = next((message.get("content") for message in messages if message.get("role") == "user"), "")
    lines = str(asked or "").strip().splitlines()
    return f"This is a rehearsal: no model was asked. The task was: {lines[0][:200] if lines else '(nothing)'}"


def _chunk(head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def _whole(
    head: Mapping[str, Any], text: str, calls: Sequence[tuple[str, str]], finish: str, usage: Mapping[str, int]
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": _id(name, index), "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _id(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> _Response:
    body = _json({"error": {"type": kind, "message": message}})
    return _Response(status, {"content-type": "application/json", **(headers or {})}, [body])


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
