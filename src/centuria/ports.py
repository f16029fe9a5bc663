"""The four ports. Each has at least two real implementations, or it would be no port.

Model       model.client.ModelClient        testing.scripted.ScriptedModel
Transport   model.direct.DirectTransport    model.http.HttpTransport, model.rehearsal.RehearsalTransport
ToolHost    toolhost.McpToolHost            testing.tools.LocalToolHost
Journal     journal.SqliteJournal           testing.journal.MemoryJournal
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from centuria.events import Record, ServerMode
from centuria.messages import CallKey, Completion, Message, ToolResult, ToolSpec

# -- model ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call. `model` None is the run's model; `max_tokens` bounds the answer, reasoning included."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 16_000
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key of the call, the node of the tree of caps that pays, and its place in queues."""

    key: CallKey
    node: str
    index: int = 0
    priority: int = 5


class Model(Protocol):
    """Everything that can answer a conversation."""

    async def chat(self, request: ChatRequest, caller: Caller) -> Completion:
        """Answer once, paying at most what was reserved.

        A call that the journal holds as done is answered from it and nothing is sent. Deltas go to the stream.
        Raises `ModelError`, `BudgetExceeded`, `SlotRefused`, and `JournalError` (`FingerprintMismatch` where the
        journal holds another call under this key).
        """
        ...


# -- transport -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`caller` never goes over the wire: doubles and recorders use it to know whose request this is."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    connect_timeout: float = 10.0
    caller: Caller | None = None


class HttpResponse(Protocol):
    """An upstream's answer, from its headers on."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, decompressed, as it arrives. Raises `ModelUnavailable` (kind "cut") when it breaks off."""
        ...


class Transport(Protocol):
    """Bytes to an upstream and back; knows nothing of models."""

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Send, and give the response once its headers are there; leaving early aborts the connection.

        Raises `ModelError`, with `served=False` where surely nothing was sent: `ModelUnavailable` (kind "connect", else
        "cut"), `ModelDenied` (the certificate is not trusted), `ModelRefused` (the request itself is not legal).
        """
        ...

    async def aclose(self) -> None:
        """Close every connection. Requests in flight end as cut."""
        ...


# -- tools -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How an agent has a session to itself: `limit` calls of it at once; one that waits gets it after `idle` seconds in
    which it was not called.
    """

    limit: int = 1
    idle: float = 300.0


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A tool of a connected server. `name` is what models see; `tool` is the server's own name for it.

    `schema` is the original input schema: arguments are validated against it. `key` is the manifest key.
    `rerun` is True where the operator trusts the tool to be read-only or idempotent; `ask` where a call needs approval
    first. `timeout` is in seconds, None for the run's own. `lease`: it remembers, so that an agent has a session of its
    own (None: sessions are shared). `personal`: what it does depends on who asks, which its server is told. `listed` is
    all that its server says of it, as the protocol has it (title, outputSchema, annotations, ...).
    """

    name: str
    slug: str
    server: str
    tool: str
    description: str
    schema: Mapping[str, Any]
    key: str
    limit: int
    rerun: bool = False
    ask: bool = False
    timeout: float | None = None
    lease: LeaseTerms | None = None
    personal: bool = False
    listed: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(slots=True)
class Listener:
    """What somebody wants of a call beside its result. `progress` (done, of how many, what) is told at once and may not
    block; `answer` is set to what the server answered, in the protocol's words, or `error` to the code, words and data
    of its refusal; `replica` to which session it was.
    """

    progress: Callable[[float, float | None, str | None], None] | None = None
    answer: Mapping[str, Any] | None = None
    error: tuple[int, str, Any] | None = None
    replica: int = 0


@dataclass(frozen=True, slots=True)
class ServerState:
    """One line of the census of servers. `reason` says why it is not up ("" = it is); it is while one replica is.

    `limit` is what all sessions in service take at once. `replicas` says of each session why it is not in service ("" =
    it is). `remote`: it may refuse calls as too many (HTTP 429).
    """

    slug: str
    server: str
    up: bool
    tools: int = 0
    limit: int = 1
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    mode: ServerMode = "shared"
    replicas: tuple[str, ...] = ()
    remote: bool = False

    @property
    def in_service(self) -> int:
        """How many of its replicas are in service."""
        return sum(not reason for reason in self.replicas)


class ToolHost(Protocol):
    """The connected tool servers of a run."""

    def catalogue(self) -> Sequence[HostedTool]:
        """All tools, in an order that never changes between siblings."""
        ...

    def servers(self) -> Sequence[ServerState]:
        """Every server of the run, up or not."""
        ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        caller: Caller | None = None,
        listener: Listener | None = None,
    ) -> ToolResult:
        """Run one tool, `timeout` seconds from now at most. `name` is `HostedTool.name`; `caller` is for whom.

        A tool's own error is a value. Raises `ToolUnavailable` (surely not run), `OutcomeUnknown` (may have run),
        `TimeoutError` (cancelled at the server, may have run).
        """
        ...

    async def lease(self, name: str, *, caller: Caller, timeout: float) -> str:
        """Have a session of the tool's server for the caller's agent alone, until `release`; wait for it if need be.

        Returns what tells this session from all others: with another one than before, what the agent had left there is
        gone. "" where sessions are shared. Raises `ToolUnavailable`.
        """
        ...

    def release(self, agent: str, slug: str | None = None) -> None:
        """Take the agent's sessions (or the one of this server) away; the next agent finds them as new."""
        ...


# -- journal ---------------------------------------------------------------------------------------------------------


class Journal(Protocol):
    """Where facts become durable. One writer."""

    def append(self, records: Sequence[Record]) -> None:
        """Queue records, to be committed together or not at all. Never waits.

        Raises `JournalError` once the journal has failed.
        """
        ...

    async def durable(self, seq: int) -> None:
        """Return when every record up to `seq` is on disk. Raises `JournalError`; `ValueError` if none has it yet."""
        ...

    def read(self, *, after: int = 0) -> Iterable[Record]:
        """The committed records with a higher number, in order. Raises `JournalError` at the first it cannot read."""
        ...

    async def aclose(self) -> None:
        """Commit what is queued and close. Never loses what `append` accepted, short of an error that it raises."""
        ...
