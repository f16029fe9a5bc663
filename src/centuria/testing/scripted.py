"""A model that answers from a script: the second implementation of the `Model` port, for tests of what calls models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from centuria.messages import Completion, Message, ToolCall, Usage
from centuria.ports import Caller, ChatRequest

#: What a script may answer with: text, tool calls, a whole completion, or an error that the call raises.
Answer = str | Completion | BaseException | Sequence[ToolCall]
Script = Callable[[ChatRequest, Caller], Answer]


@dataclass(slots=True)
class ScriptedModel:
    """Answers each call with `script(request, caller)` after `latency` seconds of the loop's clock.

    Keeps every request it was sent, and the highest number of calls that were open at once.
    """

    script: Script
    latency: float = 0.0
    requests: list[tuple[ChatRequest, Caller]] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0

    async def chat(self, request: ChatRequest, caller: Caller) -> Completion:
        self.requests.append((request, caller))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.latency)
            answer = self.script(request, caller)
        finally:
            self.in_flight -= 1
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, Completion) else completion(answer)


def completion(answer: str | Sequence[ToolCall], *, finish: str = "") -> Completion:
    """A finished answer with plausible usage, from a text or from tool calls."""
    if isinstance(answer, str):
        return Completion(Message("assistant", answer), Usage(10, output=max(1, len(answer) // 4)), finish or "stop")
    message = Message("assistant", reasoning="", tool_calls=tuple(answer))
    return Completion(message, Usage(10, output=20), finish or "tool_calls")


_numbers = count(1)


def call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """A tool call as a model writes it; ids differ from call to call."""
    return ToolCall(f"functions.{name}:{next(_numbers)}", name, json.dumps(arguments))
