"""The one tree of errors, split by who must act.

    CenturiaError                      every error that Centuria raises on purpose
    ├── ConfigurationError             the user must change a file, a flag or a key (exit 2)
    │   ├── JobError                   the job file, its rows or its schema
    │   ├── ProviderError              a key or base URL that is missing, a placeholder, or another provider's
    │   └── PriceMissing               a dollar cap, and no price for the model
    ├── GraphError                     the author of the tasks must act: cycle, unknown id, duplicate, too deep
    ├── ToolsNotGranted            the author of the tasks must act: an agent cannot hand down what it does not have
    ├── BudgetExceeded                 nobody can act inside this cap: the money or the tokens are spent
    ├── SlotRefused                    waiting took longer than its deadline, or the queue is full
    ├── ModelError                     one model call ended without an answer
    │   ├── ModelUnavailable           wait and try again: 408 409 425 429 499 5xx, connection, time-out, cut stream
    │   ├── ModelRefused               the request must change: 400 404 413 422, content filter
    │   │   └── ContextTooLong         ... by being shorter
    │   └── ModelDenied                the operator must act: 401 403, spent quota
    ├── ToolError                      one tool call has no result
    │   ├── ToolUnavailable            surely not run: safe to try again later or elsewhere
    │   └── OutcomeUnknown             may have run: run again only where the tool says that this is safe
    └── JournalError                   the disk must be mended: full, read-only, locked, damaged
        └── FingerprintMismatch        the journal holds another call under this key

What a model can mend is no exception: a tool's error is a value (`messages.ToolResult`).
"""

from __future__ import annotations


class CenturiaError(Exception):
    """An error with a remedy: `str(error)` is one clear sentence, `error.remedy` says what to do ("" = nothing)."""

    #: Whether the same request may succeed when it is sent again.
    retryable: bool = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigurationError(CenturiaError):
    """Something that the user wrote or set cannot work; raised before any money is spent."""


class JobError(ConfigurationError):
    """The job file, its rows, its schema or its tasks are wrong."""


class ProviderError(ConfigurationError):
    """A provider's key or base URL is missing, a placeholder, or belongs to another provider."""


class PriceMissing(ConfigurationError):
    """There is a dollar cap but no price for this model, so the cap could not hold."""


class GraphError(CenturiaError):
    """A task was refused: it names a cycle, an unknown or duplicate id, or goes too deep or too wide."""


class ToolsNotGranted(CenturiaError):
    """An agent was to give another one a tool or a server that it does not have itself."""


class BudgetExceeded(CenturiaError):
    """The call does not fit under a cap even with nothing else reserved.

    `affordable` is what would still fit, in pico-dollars; `node` names the cap.
    """

    def __init__(self, message: str, *, affordable: int = 0, node: str = "run", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.affordable = affordable
        self.node = node


class SlotRefused(CenturiaError):
    """A ticket was not granted before its deadline, or the queue for its resource was full."""


class ModelError(CenturiaError):
    """One model call ended without a usable answer.

    `status` is the HTTP status (0 = none arrived); `kind` is the provider's own error type or a word of ours
    ("connect", "first_token", "silence", "total", "cut", "empty"); `retry_after` is in seconds, None if not said;
    `served` is False only if the upstream surely did no billable work (429, refused connection);
    `partial` is the text that had arrived.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        kind: str = "",
        retry_after: float | None = None,
        served: bool = True,
        partial: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after
        self.served = served
        self.partial = partial


class ModelUnavailable(ModelError):
    """Passing trouble: the same request may succeed later."""

    retryable = True


class ModelRefused(ModelError):
    """The upstream will never accept this request."""


class ContextTooLong(ModelRefused):
    """The prompt does not fit into the model's context window."""


class ModelDenied(ModelError):
    """Key, permission or quota: nothing succeeds until the operator acts."""


class ToolError(CenturiaError):
    """One tool call has no result."""


class ToolUnavailable(ToolError):
    """The call surely did not run: the server is down, starting, or not reachable.

    `throttled`: it takes no more calls just now (HTTP 429), for `retry_after` seconds if it said so.
    """

    retryable = True

    def __init__(
        self, message: str, *, retry_after: float | None = None, throttled: bool = False, remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after
        self.throttled = throttled


class OutcomeUnknown(ToolError):
    """The call was sent and its answer was lost: it may or may not have happened."""


class JournalError(CenturiaError):
    """The run's journal cannot be written or read: full disk, read-only folder, lock, damage."""


class FingerprintMismatch(JournalError):
    """The journal holds a different call under this key; replaying it would be a lie."""


def first_of(error: BaseException) -> BaseException:
    """The error itself; of a group, the first in it: what the others were cancelled for."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
