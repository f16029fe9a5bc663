"""An upstream's answer, streamed or whole, from bytes in any split to a `Completion`. Pure.

A body whose first byte is `{` or `[` is one JSON document (some servers ignore `stream`); anything else is a
stream of events. Raises nothing but `ModelError`. Parsed JSON is asked for `dict`, never for `Mapping`: on the path of
every token, an abstract class costs ten times as much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from centuria.errors import ModelError, ModelRefused, ModelUnavailable
from centuria.messages import Completion, Message, ToolCall, Usage, safe_text
from centuria.model.alike import Alike
from centuria.model.failures import Complaint, as_text, blot, judge, read_complaint, without
from centuria.model.sse import EventDecoder, ServerSentEvent
from centuria.model.toolcalls import ToolCallMerger, number_of
from centuria.model.usage import most_of, usage_from

#: Bytes of a whole answer: a million tokens of stream with its envelopes stay below it.
ANSWER_CAP = 512 * 2**20
#: Bytes of an answer that is one JSON document.
DOCUMENT_CAP = 32 * 2**20
#: Characters of text and reasoning together.
TEXT_CAP = 32 * 2**20

_BOM = b"\xef\xbb\xbf"
_FINISHES = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "incomplete": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
}
#: Words of a server that gave up before the answer was whole ("abort", DeepSeek's "insufficient_system_resource", ...).
_GAVE_UP = re.compile(r"error|abort|cancel|time_?out|insufficient|interrupt|malformed|fail")
#: Where a stream gives two reasons, the graver one holds.
_GRAVITY = {"": 0, "stop": 1, "tool_calls": 1, "length": 2, "content_filter": 3, "error": 3}


class Piece(NamedTuple):
    """Text that arrived: of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False


class _Text:
    """Text in pieces; half of a surrogate pair waits for the other half in the next piece."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.seen = False
        self._half = ""

    def add(self, text: str) -> str:
        self.seen = True
        if text.isascii() and not self._half:
            if text:
                self.parts.append(text)
            return text
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = safe_text(text)
        if text:
            self.parts.append(text)
        return text

    def whole(self) -> str:
        return "".join(self.parts) + safe_text(self._half)


class AnswerDecoder:
    """Feed the body; `finish()` gives the completion. `secret` is the key that no error may show.

    `begun`: a token of the answer has arrived. `complete`: the upstream said that the answer is whole.
    `done`: nothing more will come. `usage` counts only once the answer is complete.
    """

    def __init__(self, *, secret: str = "", text_cap: int = TEXT_CAP) -> None:
        self.begun = False
        self.complete = False
        self.done = False
        self.served_by = ""
        self._secret = secret
        self._text_cap = text_cap
        self._size = 0
        self._length = 0
        self._head = b""
        self._document: list[bytes] | None = None
        self._events = EventDecoder()
        self._decided = False
        self._text, self._reasoning = _Text(), _Text()
        self._calls = ToolCallMerger()
        self._alike = Alike()
        self._finish = ""
        self._usage: Usage | None = None
        self._counted: Usage | None = None  # the last one, of whatever part
        self._sampled = 0
        self._fragments = 0  # of tool calls
        #: Signs of life so far; comments that keep a connection open are none.
        self.signs = 0

    @property
    def usage(self) -> Usage | None:
        """None while it is not known, or where it cannot be that of the whole answer."""
        usage = self._usage if self.complete else None
        return usage if usage is not None and (usage.output or not self._length + self._fragments) else None

    @property
    def partial(self) -> str:
        """The answer's text so far."""
        return self._text.whole()

    def feed(self, data: bytes) -> list[Piece]:
        """The text that these bytes complete. Raises `ModelError` for an error inside the answer, or past
        the caps."""
        self._size += len(data)
        if self._size > (ANSWER_CAP if self._document is None else DOCUMENT_CAP):
            raise self._too_large()
        if self.done:
            return []
        if not self._decided:
            data = self._decide(data)
        if self._document is not None:
            self._document.append(data)
            self.signs += 1
            self.begun = True
            return []
        return self._take(self._events.feed(data))

    def close(self) -> list[Piece]:
        """The body has ended: the text that was still on its way. Raises like `feed`."""
        if self._document is not None:
            pieces: list[Piece] = []
            document = b"".join(self._document)
            self._document = []
            if document and not self.done:
                self._one(document.decode("utf-8", "replace"), pieces, whole=True)
                self.complete = self.done = True
            return pieces
        if not self._decided:
            self._events.feed(self._head)
        return self._take(self._events.close())

    def finish(self) -> Completion:
        """The whole answer, after `close`. Raises `ModelUnavailable` (kind "cut" or "empty") or
        `ModelRefused`."""
        if not self.complete:
            if not self._sampled and self._size:
                raise self._rubbish("no line of it is a chat completion")
            raise ModelUnavailable("The answer broke off.", kind="cut", partial=self.partial)
        calls = self._calls.calls(truncated=self._finish in ("", "length"))
        finish = self._ending(calls)
        text, reasoning = self._text.whole(), self._reasoning.whole() if self._reasoning.seen else None
        if finish == "content_filter":
            raise ModelRefused(
                "The upstream's content filter stopped the answer.",
                kind=finish,
                partial=text,
                remedy="Change what the prompt asks for, or ask another model.",
            )
        if finish == "error":
            raise ModelUnavailable("The upstream ended its answer with an error.", kind=finish, partial=text)
        if not self._finish and len(calls) < len(self._calls):
            raise ModelUnavailable("The answer ended inside a tool call.", kind="cut", partial=text)
        if not text.strip() and not calls and finish != "length":
            raise ModelUnavailable("The answer is empty.", kind="empty")
        return Completion(Message("assistant", text, reasoning, calls), self.usage, finish, self.served_by)

    def _ending(self, calls: tuple[ToolCall, ...]) -> str:
        if self._finish in ("", "stop", "tool_calls"):
            return "tool_calls" if calls else "stop"
        return self._finish

    def _decide(self, data: bytes) -> bytes:
        """Wait for the first byte that is no white space; it tells a document from a stream."""
        data = self._head + data
        self._head = b""
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._head = data
            return b""
        data = data.removeprefix(_BOM).lstrip()
        if not data:
            return b""
        self._decided = True
        if data[:1] in (b"{", b"["):
            self._document = []
        elif data[:1] == b"<":
            raise self._rubbish("it is a web page")
        return data

    def _take(self, events: list[ServerSentEvent]) -> list[Piece]:
        pieces: list[Piece] = []
        self.signs += len(events)
        for event in events:
            if self.done:
                break
            self._one(event.data, pieces, failed=event.name == "error")
        return pieces

    def _one(self, data: str, pieces: list[Piece], *, failed: bool = False, whole: bool = False) -> None:
        text = None if failed else self._alike.text(data)
        if text is not None:
            self._append(text, pieces, reasoning=False)
            self._usage = None  # the answer goes on after it
            return
        stripped = data.strip()
        if not stripped:
            return
        if stripped == "[DONE]":
            self.complete = self.done = True
            return
        try:
            chunk = json.loads(stripped)
        except (ValueError, RecursionError):
            lines = stripped.split("\n")
            if len(lines) > 1 and not whole:  # an upstream that leaves the blank lines out
                for line in lines:
                    self._one(line, pieces, failed=failed)
                return
            if failed:
                raise judge(200, Complaint("", stripped), secret=self._secret, partial=self.partial) from None
            raise self._rubbish("it holds a line that is no JSON") from None
        self._chunk(chunk, pieces, failed=failed, whole=whole)
        self._alike.learn(data, chunk)

    def _chunk(self, chunk: Any, pieces: list[Piece], *, failed: bool, whole: bool) -> None:
        complaint = read_complaint(chunk)
        if complaint is None and failed:
            complaint = Complaint("", as_text(chunk)[:500])
        if complaint is not None:
            raise judge(200, complaint, secret=self._secret, partial=self.partial)
        if not isinstance(chunk, dict):
            raise self._rubbish("it holds a chunk that is no object")
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if whole and choice is None:
            raise self._rubbish("it holds no choices")
        self._sampled += isinstance(choices, list) or "usage" in chunk
        served_by = chunk.get("model")
        if isinstance(served_by, str) and served_by and served_by != self.served_by:
            self.served_by = safe_text(without(served_by, self._secret))[:200]
        usage, written = usage_from(chunk.get("usage")), self._length + self._fragments
        if choice is not None:
            usage = usage or usage_from(choice.get("usage"))
            self._choice(choice, pieces)
        if usage is not None:
            self._usage = most_of(self._counted, usage)
            self._counted = self._usage
        elif written != self._length + self._fragments:
            self._usage = None  # a count that some of the answer came after is not the whole answer's

    def _choice(self, choice: Mapping[str, Any], pieces: list[Piece]) -> None:
        if number_of(choice.get("index")) not in (0, None):
            return
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            reasoning = delta.get("reasoning_content")
            self._add(delta.get("reasoning") if reasoning is None else reasoning, pieces, reasoning=True)
            self._add(delta.get("content"), pieces, reasoning=False)
            refusal = delta.get("refusal")
            if isinstance(refusal, str) and refusal:
                self._add(refusal, pieces, reasoning=False)
            if self._calls.feed(delta.get("tool_calls")):
                self.begun = True
                self._fragments += 1
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            meaning = _FINISHES.get(finish.lower()) or ("error" if _GAVE_UP.search(finish.lower()) else "stop")
            self._finish = max(self._finish, meaning, key=_GRAVITY.__getitem__)
            self.complete = self.begun = True

    def _add(self, value: Any, pieces: list[Piece], *, reasoning: bool) -> None:
        text = _plain(value)
        if text is not None:
            self._append(text, pieces, reasoning=reasoning)

    def _append(self, text: str, pieces: list[Piece], *, reasoning: bool) -> None:
        self._length += len(text)
        if self._length > self._text_cap:
            raise self._too_large()
        added = (self._reasoning if reasoning else self._text).add(text)
        if added:
            self.begun = True
            pieces.append(Piece(added, reasoning))

    def _too_large(self) -> ModelError:
        return ModelRefused(
            "The answer is larger than any answer may be.",
            kind="too_large",
            partial=self.partial,
            remedy="Lower max_tokens; if it stays so, the upstream does not end its answers.",
        )

    def _rubbish(self, why: str) -> ModelError:
        return ModelUnavailable(
            f"The upstream answered with something else than a chat completion: {blot(why, self._secret)}.",
            kind="rubbish",
            partial=self.partial,
            remedy="If it stays so, check base_url: most end in /v1.",
        )


def _plain(value: Any) -> str | None:
    """Text, or the text parts of a list of parts; None where there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return None
