"""What a client must be wrapped in to be put on the rack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from centuria.messages import ToolCall, Usage

#: Who must act. "denied": the operator (key, permission, quota). "refused": the request must change;
#: "too_long": by being shorter. "unavailable": wait and try again. "crash": an error that no caller can expect.
ErrorKind = Literal["", "denied", "refused", "too_long", "unavailable", "crash"]

#: Seconds that a client under torture should be told to wait for the next byte; its retries should be three,
#: about 10 ms apart, and wait for `Retry-After` for at most `LONGEST_WAIT`.
PATIENCE = 1.5
LONGEST_WAIT = 5.0
#: The tokens of answer that a client under torture should ask for.
MAX_TOKENS = 2000


@dataclass(frozen=True, slots=True)
class ClientResult:
    """What one call came to. `error_kind` "" is an answer; `said` is all that the client says of its error."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    error_kind: ErrorKind = ""
    reasoning: str | None = None
    said: str = ""


class Client(Protocol):
    """A client of OpenAI-compatible chat completions. One object serves one row, and may be called at once."""

    async def chat(
        self,
        base_url: str,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        stream: bool,
    ) -> ClientResult:
        """One call, its retries included; errors are values. Messages and tools are as the wire has them.

        The model is `kimi-k2.5` and `max_tokens` is `MAX_TOKENS`.
        """
        ...

    async def aclose(self) -> None: ...
