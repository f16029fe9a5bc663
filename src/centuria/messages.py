"""The nouns that every floor speaks: messages, tools, usage, and how a task ended. Frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

#: Integer pico-dollars (1e-12 $). A 64-bit integer holds $9.2 million.
Pico = int
DOLLAR: Pico = 10**12

Role = Literal["system", "user", "assistant", "tool"]


def safe_text(text: str) -> str:
    """The text as valid Unicode: halves of a surrogate pair side by side are joined, lone ones become U+FFFD.

    For every door through which text of a model, a tool or a file comes in: what is kept inside can then be
    sent, hashed and journaled as it is, and reads the same after a resume. NUL is left alone: JSON can hold it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model asked for. `id` is echoed byte for byte and identifies nothing: ids repeat across turns.

    `arguments` is the JSON text as the model wrote it, not yet parsed.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `reasoning` goes back to the model beside tool calls (Kimi refuses it missing)."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it: `name` is legal for every provider (`slug__tool`), `schema` is JSON Schema."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `prompt` includes `cached` and `cache_written`; `output` includes `reasoning`."""

    prompt: int = 0
    cached: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished model call. `usage` is None if the upstream sent none; `finish` is stop, length or tool_calls.

    `served_by` is the model that the upstream says answered.
    """

    message: Message
    usage: Usage | None
    finish: str
    served_by: str = ""


class ToolEnd(StrEnum):
    """How a tool call ended, as its caller is told."""

    OK = "ok"
    ERROR = "error"  # the tool ran and said no
    REFUSED = "refused"  # never sent: unknown name, outside the view, or arguments against the schema
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"  # never sent: the server is down
    UNKNOWN = "unknown"  # sent, answer lost: may have happened


#: What a model did wrong in a tool call that was refused; "" = nothing of these: it was refused for another reason.
Fault = Literal["", "unknown_tool", "json", "schema"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call came to; errors are values. `spill` is the file that holds the whole of a shortened text.

    `fault` says of a refusal what was wrong with the call.
    """

    text: str
    end: ToolEnd = ToolEnd.OK
    structured: Any = None
    spill: str | None = None
    fault: Fault = ""

    @property
    def is_error(self) -> bool:
        return self.end is not ToolEnd.OK


class Status(StrEnum):
    """How a task ended: exactly one of these."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    BUDGET = "budget"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


#: waiting: for its needs · ready: may start · running · ended: has its one outcome
TaskState = Literal["waiting", "ready", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one task. `text` is the answer, or what there was of it; `structured` its parsed form.

    `cost` is spent and `held` is money that lost attempts may have cost, both in pico-dollars and both counting
    every call of the task, earlier runs of it included. `cut_short`: an `ok` answer given in a recovery turn.
    """

    task: str
    status: Status
    cause: str = ""
    text: str = ""
    structured: Any = None
    cut_short: bool = False
    steps: int = 0
    attempts: int = 0
    repairs: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: Pico = 0
    held: Pico = 0
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of one model or tool call: content, never the order in which agents happened to finish.

    `epoch` counts how often the task was begun afresh (its text changed, or it failed for good and is run again).
    `position` is 0 for the model call of a turn and 1.. for the tool calls that it asked for.
    """

    task: str
    epoch: int
    turn: int
    position: int

    def __str__(self) -> str:
        return f"{self.task}/{self.epoch}/{self.turn}/{self.position}"


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a subagent gave another to do: all that is needed to run it again. `call` is the call that asked for it.

    `system` is the role's prompt, `schema` the shape of the answer that was asked for; `servers` are the slugs of the
    tool servers that it may use (None: all), `tools` the full names of further tools.
    """

    call: CallKey
    agent: str
    system: str
    prompt: str
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    servers: tuple[str, ...] | None = None
    tools: tuple[str, ...] = ()
