"""One answer of a model in the loop, whole or streamed: what it says and calls, what of it the caller sees. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from centuria.errors import ModelError
from centuria.gateway.problems import upstream_failed
from centuria.gateway.sse import DONE, failure, frame
from centuria.messages import Completion, ToolCall
from centuria.model.answer import AnswerDecoder
from centuria.model.sse import EventDecoder, ServerSentEvent

#: What of a streamed answer is passed on as it comes.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Turn:
    """`calls` are what the model asks for, `usage` is what the upstream says it took."""

    usage: Any = None

    def __init__(self) -> None:
        self._decoder = AnswerDecoder()
        self._completion: Completion | None = None

    def _finish(self) -> None:
        try:
            self._decoder.close()
            self._completion = self._decoder.finish()
        except ModelError:
            pass  # an empty answer, say: whoever asked sees it as it is

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return () if self._completion is None else self._completion.message.tool_calls

    @property
    def text(self) -> str:
        return "" if self._completion is None else self._completion.message.content

    @property
    def reasoning(self) -> str | None:
        return None if self._completion is None else self._completion.message.reasoning


class WholeTurn(Turn):
    """Raises `Problem` (502) where the body is no chat completion."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        try:
            self._document = json.loads(body)
            self._decoder.feed(body)
        except (ValueError, RecursionError):
            self._document = None
        except ModelError as error:
            raise upstream_failed(502, error.message) from None
        if not isinstance(self._document, dict) or not isinstance(self._document.get("choices"), list):
            raise upstream_failed(502, "The upstream answered with something else than a chat completion.")
        self.usage = self._document.get("usage")
        self._finish()

    def document(self, usage: Mapping[str, Any] | None, *, cut: bool = False) -> bytes:
        """The answer with the usage of all turns. `cut`: its calls are not run, and it ends as one that is too long."""
        document = {**self._document, **({} if usage is None else {"usage": usage})}
        if cut:
            for choice in document["choices"]:
                if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
                    choice["message"].pop("tool_calls", None)
                    choice["finish_reason"] = "length"
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


class StreamedTurn(Turn):
    """Feed what arrives. `error` is the event that ends everything; `opened` whether the caller has the role by now.
    `id` and `created` are those of the whole stream, however many turns it takes."""

    def __init__(self, *, opened: bool, id: str, created: int) -> None:
        super().__init__()
        self.opened = opened
        self.error: bytes | None = None
        self._events = EventDecoder()
        self._frame: dict[str, Any] = {"id": id, "object": "chat.completion.chunk", "created": created, "model": ""}
        self._spoke = False
        self._finish_reason: str | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the caller is to be sent of it."""
        try:
            events = self._events.feed(data)
        except ModelError as error:
            self.error = _failed(error)
            return
        yield from self._all(events)
        if self.error is None:
            try:
                self._decoder.feed(data)
            except ModelError as error:
                self.error = _failed(error)

    def close(self) -> Iterator[bytes]:
        """The answer has ended."""
        try:
            yield from self._all(self._events.close())
        except ModelError as error:
            self.error = _failed(error)
        self._finish()

    def _all(self, events: Sequence[ServerSentEvent]) -> Iterator[bytes]:
        for event in events:
            yield from self._take(event.data)
            if self.error is not None:
                return

    def _take(self, data: str) -> Iterator[bytes]:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            self.error = _event({"error": chunk["error"]})
            return
        if isinstance(chunk.get("usage"), Mapping):
            self.usage = chunk["usage"]
        if chunk.get("model"):
            self._frame["model"] = chunk["model"]
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None:
            return
        if not self.opened:
            self.opened = True
            yield self._chunk({"role": "assistant", "content": ""})
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        delta = choice.get("delta")
        said = {name: delta[name] for name in _TEXTS if delta.get(name)} if isinstance(delta, dict) else {}
        if said:
            self._spoke = self._spoke or "content" in said
            yield self._chunk(said)

    def between(self) -> bytes | None:
        """What parts this turn's words from those of the next."""
        return self._chunk({"content": "\n\n"}) if self._spoke else None

    def ending(self, usage: Mapping[str, Any] | None, *, cut: bool) -> Iterator[bytes]:
        """The last events: calls of the caller's own functions, why it ended, and the usage where it was asked for."""
        if self.calls and not cut:
            yield self._chunk({"tool_calls": [_call(place, call) for place, call in enumerate(self.calls)]})
        finish = "length" if cut else "tool_calls" if self.calls else self._finish_reason or "stop"
        yield self._chunk({}, finish)
        if usage is not None:
            yield _event({**self._frame, "choices": [], "usage": usage})
        yield DONE

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        return _event({**self._frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def shortened(text: str, most: int) -> str:
    """The head and the tail of a text that is too long, and a remark between them."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = len(text) - (most - head)
    return f"{text[:head]}\n\n[{tail - head:,} of {len(text):,} characters are left out here]\n\n{text[tail:]}"


def _call(place: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": place, "id": call.id, "type": "function", "function": function}


def _event(value: Any) -> bytes:
    return frame(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _failed(error: ModelError) -> bytes:
    return failure(upstream_failed(502, error.message))
