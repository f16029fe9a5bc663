"""Frozen settings: what `config` reads from files and flags, and every other room is built from. No parsing here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from centuria.messages import DOLLAR, Pico


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that never shows itself: `repr`, `str` and formatting give `***`."""

    value: str = field(repr=False)

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model answers, and the dialect that it speaks.

    `context` is the window in tokens. `thinks`: reasoning spends the answer's tokens (floor 4,096 instead of 1,024).
    `limit_field` is the name of the request's cap on output tokens. `sampling` goes into the body as it is; presets
    of models with fixed sampling leave it empty. `dialect` names what it takes as a function's schema (`core.schemas`).
    """

    provider: str
    base_url: str
    model: str
    key: Secret | None = None
    context: int = 131_072
    thinks: bool = False
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    dialect: str = "plain"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. A model call's total is `total` up to 4,096 `max_tokens`, beyond that `total + max_tokens / 50`."""

    connect: float = 10.0
    first_token: float = 60.0
    silence: float = 30.0
    total: float = 60.0
    tool: float = 30.0
    queue: float = 3600.0
    server_start: float = 30.0
    approval: float = 3600.0

    def model_total(self, max_tokens: int) -> float:
        return self.total if max_tokens <= 4096 else self.total + max_tokens / 50


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of a run. `budget`, `agent_budget` in pico-dollars (None: no cap); `tokens` and `seconds` are an agent's.

    `agents` subagents exist at once; at most `concurrency` model calls are in flight at once, from the first moment
    only where it is `concurrency_written` (or the account's `tier` is): else it is found out what the upstream takes.
    `rpm`, `tpm`, `tpd` are the account's requests and tokens by the minute and the day. `warm_first`: one call goes
    ahead to fill the provider's prompt cache, where that saves money. An agent makes `steps` model calls, and sees
    `result_chars` characters of a tool's result. A run has `tasks` tasks, `depth` levels of children.
    """

    budget: Pico | None = 5 * DOLLAR
    agent_budget: Pico | None = None
    agents: int = 100
    concurrency: int = 100
    concurrency_written: bool = False
    tier: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    tpd: int | None = None
    warm_first: bool = True
    steps: int = 50
    tokens: int | None = None
    seconds: float | None = None
    result_chars: int = 20_000
    depth: int = 3
    tasks: int = 10_000


@dataclass(frozen=True, slots=True)
class Authorization:
    """How we are let in by a server over HTTP (OAuth 2.1), as far as the server itself does not tell.

    `authorization_code`: a person logs in once (`centuria login`). `client_credentials`: we are known by `client_id`
    with `client_secret` or with a key (`private_key`, a PEM file, and its `algorithm`), and nobody is asked.
    `method` is how the client shows itself to the token endpoint (None: as its metadata say). `issuer` is the one
    authorization server that gets the client's credentials (None: whichever the server names). `scopes` are asked for
    in place of all that the server offers. `client_metadata_url` is a client ID metadata document. `redirect_port` is
    the port that the browser comes back to (None: any).
    """

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str | None = None
    client_secret: Secret | None = None
    method: Literal["client_secret_basic", "client_secret_post"] | None = None
    private_key: Path | None = None
    algorithm: str = "ES256"
    issuer: str | None = None
    scopes: tuple[str, ...] = ()
    client_metadata_url: str | None = None
    redirect_port: int | None = None


@dataclass(frozen=True, slots=True)
class ToolServer:
    """One MCP server: exactly one of `builtin`, `command`, `url` is set.

    `limit` None means: built-in tools their own (web_search 20, code_exec 5, file_read 30), declared-safe servers 10,
    unknown stdio servers 1; with replicas it is that of each session. `mode`: all agents share one session, or any of
    `replicas` sessions (pool), or each has one of them to itself (leased), which it may lose to one that waits once it
    has not called it for `idle_timeout` seconds. `tool_limits` are by the tool's own name. `trusted`: tools that the
    operator trusts to be safe to run again ("*" = all). `allow` (None = all) lists the tools that agents may use.
    `agent_headers` are templates of headers that go with an agent's own calls, filled from its row. `options` are a
    built-in's own (`roots`, `folder`, `url`, `provider`, ...). `elicit` is what a server hears that asks a person for
    something: no, or what its form has as defaults if they suffice.
    """

    slug: str
    name: str
    builtin: Literal["file_read", "code_exec", "web_search"] | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Authorization | None = None
    elicit: Literal["decline", "defaults"] = "decline"
    agent_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    limit: int | None = None
    mode: Literal["shared", "pool", "leased"] = "shared"
    replicas: int = 1
    idle_timeout: float = 300.0
    tool_limits: Mapping[str, int] = field(default_factory=dict)
    required: bool = False
    allow: frozenset[str] | None = None
    ask: frozenset[str] = frozenset()
    trusted: frozenset[str] = frozenset()
    timeout: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work for one subagent. `id` is unique in the run; `spec` is the hash of all that makes its text.

    `variables` are what its prompt was filled with (a row). `schema`: the answer must be JSON of this shape.
    It sees all tools of `servers` (slugs; None: of every server of the job) and besides them `tools` (full names).
    `system` is the agent's own first message, None the job's. `delegates`: it may create subagents and assign tasks to
    them.
    """

    id: str
    prompt: str
    spec: str
    label: str = ""
    needs: tuple[str, ...] = ()
    allow_failed: bool = False
    priority: int = 5
    max_tokens: int = 16_000
    schema: Mapping[str, Any] | None = None
    servers: frozenset[str] | None = None
    tools: frozenset[str] = frozenset()
    variables: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    delegates: bool = False


#: The task id under which the merge's own model call is kept; no task of a job may have it.
MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Merge:
    """How the results become one. `text` names the property of `schema` that holds a result's long text: it is written
    to `reports/ID.md` and left out of the table. `summary` is the prompt of a written summary (`summary.md`).
    """

    kind: Literal["concatenate", "table", "written"] = "concatenate"
    schema: Mapping[str, Any] | None = None
    text: str | None = None
    summary: str | None = None
    max_tokens: int = 16_000


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of a rehearsal: the tool's own name, arguments as templates, and the name its result goes by.

    `each` names a list: the call is made for each of its members, `item` in the arguments, and its result is a list.
    """

    tool: str
    arguments: Mapping[str, Any]
    name: str
    each: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One answer of the scripted model: tool calls, or a text that ends the conversation."""

    calls: tuple[ScriptedCall, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedRole:
    """The script of one kind of subagent. `reads` is a template of the prompts that it is assigned."""

    turns: tuple[ScriptedTurn, ...]
    reads: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The scripted model. `faults` maps a kind (`429`, `500`, `reset`, `stall`, `cut`, `rubbish`) to its share of
    calls.

    `tasks` are scripts for tasks by id, `agents` for assigned ones by their kind of subagent; `turns` is the script of
    all others; `summary` that of the written merge.
    """

    latency_ms: float = 420.0
    chunk_ms: float = 0.0
    seed: int = 1
    faults: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[ScriptedTurn, ...] = ()
    tasks: Mapping[str, tuple[ScriptedTurn, ...]] = field(default_factory=dict)
    agents: Mapping[str, ScriptedRole] = field(default_factory=dict)
    summary: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row of the file that no task was made of, and why."""

    id: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that one run does. `source` is the job as written, for the run's folder (no keys in it)."""

    name: str
    tasks: tuple[Task, ...]
    system: str = ""
    left_out: tuple[LeftOut, ...] = ()
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    servers: tuple[ToolServer, ...] = ()
    merge: Merge = field(default_factory=Merge)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    source: Mapping[str, Any] = field(default_factory=dict)
