"""The closed union of events, and the record that wraps each.

A fact is journaled and never dropped; a delta may be dropped for a slow reader. Events are frozen data: they carry
all that `apply` needs, so that the journal, folded, equals the live state. `at` inside an event is the scheduler's
monotonic clock; `Record.at` is wall-clock time (seconds since 1970).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from centuria.messages import Assigned, CallKey, Completion, Outcome, Pico, ToolResult, Usage

# -- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: str
    name: str
    model: str
    rehearsal: bool
    budget: Pico | None
    agents: int
    concurrency: int
    version: str
    replay: bool = False
    priced: bool = True
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True)
class RunResumed:
    """`reused` tasks keep their outcome, `rerun` run (again), `in_doubt` calls had been sent and never ended."""

    reused: int
    rerun: int
    in_doubt: int
    budget: Pico | None
    kind: Literal["run_resumed"] = "run_resumed"


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    phase: Literal["prepare", "work", "merge"]
    kind: Literal["phase_started"] = "phase_started"


@dataclass(frozen=True, slots=True)
class RunEnded:
    status: Literal["ok", "partial", "failed", "budget", "cancelled"]
    exit_code: int
    cause: str = ""
    kind: Literal["run_ended"] = "run_ended"


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence that the user should see, and what to do about it."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    kind: Literal["notice"] = "notice"


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A result is on disk; `path` is relative to the run's folder."""

    path: str
    task: str | None = None
    kind: Literal["file_written"] = "file_written"


@dataclass(frozen=True, slots=True)
class PartMerged:
    """One knot of the tree of a merge that was too long for one request: `inputs` became the text in `path`."""

    name: str
    level: int
    inputs: tuple[str, ...]
    path: str
    kind: Literal["part_merged"] = "part_merged"


# -- the task graph --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskAdded:
    """`spec` is the hash of all that makes the task's text; `index` is its place (and its agent's home slot).

    `needs` are ids; `every` says that they were given as "*". `assigned` is there where a subagent made the task.
    """

    task: str
    index: int
    spec: str
    label: str = ""
    needs: tuple[str, ...] = ()
    parent: str | None = None
    depth: int = 0
    priority: int = 5
    allow_failed: bool = False
    every: bool = False
    assigned: Assigned | None = None
    kind: Literal["task_added"] = "task_added"


@dataclass(frozen=True, slots=True)
class TaskReady:
    task: str
    kind: Literal["task_ready"] = "task_ready"


@dataclass(frozen=True, slots=True)
class TaskStarted:
    task: str
    epoch: int
    kind: Literal["task_started"] = "task_started"


@dataclass(frozen=True, slots=True)
class TaskEnded:
    task: str
    outcome: Outcome
    kind: Literal["task_ended"] = "task_ended"


@dataclass(frozen=True, slots=True)
class TaskReset:
    """A resume runs this task again; `epoch` is the one that it will run under (higher = begun afresh),
    `spec` its new text's hash where the job was edited."""

    task: str
    epoch: int
    spec: str | None = None
    kind: Literal["task_reset"] = "task_reset"


@dataclass(frozen=True, slots=True)
class RecoveryAsked:
    """At 85 % of a limit the agent is asked, once, to say what it knows; `limit` names it. Kept so that a resumed
    conversation is the same conversation.
    """

    task: str
    epoch: int
    turn: int
    limit: str
    kind: Literal["recovery_asked"] = "recovery_asked"


@dataclass(frozen=True, slots=True)
class LimitsTold:
    """An agent is told, before this turn, how much of its limits it has used. Kept for the same reason."""

    task: str
    epoch: int
    turn: int
    text: str
    kind: Literal["limits_told"] = "limits_told"


# -- steering --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskPaused:
    """A branch makes no further request until it goes on (`paused` False); `task` None is the whole run."""

    task: str | None
    paused: bool
    kind: Literal["task_paused"] = "task_paused"


@dataclass(frozen=True, slots=True)
class PrioritySet:
    task: str
    priority: int
    kind: Literal["priority_set"] = "priority_set"


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """A tool call waits for a yes. `name` is the tool as the model sees it, `arguments` their JSON text."""

    key: CallKey
    name: str
    arguments: str
    kind: Literal["approval_asked"] = "approval_asked"


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    """`why` says who decided, or that nobody did."""

    key: CallKey
    yes: bool
    why: str
    kind: Literal["approval_given"] = "approval_given"


# -- slots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitSet:
    """A resource has this many slots from now on: `agents`, `model:NAME`, `server:SLUG`, `tool:SLUG__TOOL`
    or `lease:SLUG`."""

    resource: str
    limit: int
    reason: str
    kind: Literal["limit_set"] = "limit_set"


@dataclass(frozen=True, slots=True)
class SlotQueued:
    """A ticket waits, until `deadline` at most (None: without a bound). `index`, its agent's, gives its home slots."""

    ticket: int
    resource: str
    agent: str
    index: int
    priority: int
    at: float
    deadline: float | None = None
    kind: Literal["slot_queued"] = "slot_queued"


@dataclass(frozen=True, slots=True)
class SlotGranted:
    """`waited` is in seconds."""

    ticket: int
    resource: str
    slot: int
    agent: str
    at: float
    waited: float = 0.0
    kind: Literal["slot_granted"] = "slot_granted"


@dataclass(frozen=True, slots=True)
class SlotRejected:
    """A ticket will never be granted: its deadline passed, or the queue was full."""

    ticket: int
    resource: str
    agent: str
    reason: str
    at: float
    kind: Literal["slot_rejected"] = "slot_rejected"


@dataclass(frozen=True, slots=True)
class SlotLeft:
    """A ticket is gone: its slot is free, or its place in the queue."""

    ticket: int
    resource: str
    at: float
    kind: Literal["slot_left"] = "slot_left"


# -- money -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CapSet:
    """A node of the tree of caps; `parent` is None for the root, `cap` None for no cap of its own."""

    node: str
    parent: str | None
    cap: Pico | None
    kind: Literal["cap_set"] = "cap_set"


@dataclass(frozen=True, slots=True)
class MoneyQueued:
    """The amount would fit once what is only reserved is released: it waits, in order."""

    hold: int
    node: str
    amount: Pico
    kind: Literal["money_queued"] = "money_queued"


@dataclass(frozen=True, slots=True)
class MoneyReserved:
    hold: int
    node: str
    amount: Pico
    kind: Literal["money_reserved"] = "money_reserved"


@dataclass(frozen=True, slots=True)
class MoneyRefused:
    """It would not fit with nothing else reserved; `affordable` is what would. `limited_by` names the cap."""

    hold: int
    node: str
    amount: Pico
    affordable: Pico
    limited_by: str
    kind: Literal["money_refused"] = "money_refused"


@dataclass(frozen=True, slots=True)
class MoneySettled:
    """The reservation is over: `cost` was spent."""

    hold: int
    cost: Pico
    kind: Literal["money_settled"] = "money_settled"


@dataclass(frozen=True, slots=True)
class MoneyHeld:
    """The attempt was lost and its cost cannot be known: the whole reservation stays counted, apart."""

    hold: int
    kind: Literal["money_held"] = "money_held"


@dataclass(frozen=True, slots=True)
class MoneyReleased:
    """Nothing was spent, or the wait for money was given up."""

    hold: int
    kind: Literal["money_released"] = "money_released"


# -- calls: the effect ledger ----------------------------------------------------------------------------------------

CallKind = Literal["model", "tool"]
#: done: there is a result · failed: surely over, no result · lost: may have been served, money is held ·
#: unknown: a tool call that may have happened
CallEnd = Literal["done", "failed", "lost", "unknown"]


@dataclass(frozen=True, slots=True)
class CallOpened:
    """The row before the call: journaled before anything is sent. `attempt` counts from 1 for this key.

    `hold` is the reservation that pays for it (None: it costs nothing); `rerun` says that sending it again is safe.
    `name` is the model or the tool as the model sees it; `arguments` is a tool call's JSON text. `slots` are the
    resources of which it had a slot without a wait, and has it until it is closed: these are no facts of their own.
    """

    key: CallKey
    attempt: int
    call: CallKind
    name: str
    fingerprint: str
    rerun: bool
    hold: int | None = None
    reserved: Pico = 0
    arguments: str = ""
    slots: tuple[str, ...] = ()
    kind: Literal["call_opened"] = "call_opened"


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The row after it. Exactly one of `completion`, `result`, `error` says what came of it.

    `partial` is text that had streamed before an attempt was lost. `status` is the HTTP status by which the upstream
    failed a model call, 0 where none arrived (connection, time-out, broken stream); None: it did not fail.
    """

    key: CallKey
    attempt: int
    end: CallEnd
    cost: Pico = 0
    usage: Usage | None = None
    completion: Completion | None = None
    result: ToolResult | None = None
    error: str = ""
    partial: str = ""
    first_token_s: float | None = None
    total_s: float = 0.0
    status: int | None = None
    kind: Literal["call_closed"] = "call_closed"


# -- tool servers ----------------------------------------------------------------------------------------------------

#: shared: one session for all · pool: any of several · leased: an agent has one of several to itself
ServerMode = Literal["shared", "pool", "leased"]


@dataclass(frozen=True, slots=True)
class ServerUp:
    """`replicas` says of each session why it is not in service ("" = it is)."""

    slug: str
    server: str
    tools: tuple[str, ...]
    limit: int
    mode: ServerMode = "shared"
    replicas: tuple[str, ...] = ()
    kind: Literal["server_up"] = "server_up"


@dataclass(frozen=True, slots=True)
class ServerDown:
    slug: str
    server: str
    reason: str
    mode: ServerMode = "shared"
    replicas: tuple[str, ...] = ()
    kind: Literal["server_down"] = "server_down"


# -- the governor: one for each (key, model) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The upstream refused a request because they are too many. limited: by a rate limit · overloaded: no capacity."""

    model: str
    why: Literal["limited", "overloaded"]
    at: float
    kind: Literal["request_refused"] = "request_refused"


@dataclass(frozen=True, slots=True)
class RateLimitsSeen:
    """What an upstream said of its limits: by the minute (`daily_tokens`: by the day), None where it said nothing.

    `*_left` is what remains of it; `window_left` requests may be sent until `window_ends`, whatever the window is.
    """

    model: str
    at: float
    concurrency: int | None = None
    requests: int | None = None
    requests_left: int | None = None
    tokens: int | None = None
    tokens_left: int | None = None
    daily_tokens: int | None = None
    daily_left: int | None = None
    window_left: int | None = None
    window_ends: float | None = None
    kind: Literal["rate_limits_seen"] = "rate_limits_seen"


@dataclass(frozen=True, slots=True)
class GateClosed:
    """Nothing is sent to this model (or `server:SLUG`, a tool server) until `until`. `congestion`: the first refusal of
    its burst, which lowers the limit; `paced`: no limit that is known explains it, so that the rate is measured when
    the gate opens.
    """

    model: str
    at: float
    until: float
    reason: str
    congestion: bool
    paced: bool = False
    kind: Literal["gate_closed"] = "gate_closed"


@dataclass(frozen=True, slots=True)
class GateOpened:
    """The wait is over. `pace` is the new bound in requests a second, None: as it was."""

    model: str
    at: float
    pace: float | None = None
    kind: Literal["gate_opened"] = "gate_opened"


@dataclass(frozen=True, slots=True)
class BreakerOpened:
    """Key, permission or quota: nothing more is sent; one probe may go at `probe_at` (None: never)."""

    model: str
    at: float
    cause: str
    probe_at: float | None = None
    kind: Literal["breaker_opened"] = "breaker_opened"


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """The probe was answered."""

    model: str
    at: float
    kind: Literal["breaker_closed"] = "breaker_closed"


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """A shared prefix in the provider's prompt cache: `warming` by the call `by`, then `warm`, each until `until`."""

    model: str
    prefix: str
    state: Literal["cold", "warming", "warm"]
    by: str
    at: float
    until: float
    kind: Literal["prefix_set"] = "prefix_set"


# -- deltas (never journaled) ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text as it streams. A delta of a newer `attempt` supersedes those of older ones."""

    task: str
    turn: int
    attempt: int
    text: str
    reasoning: bool = False
    kind: Literal["text_delta"] = "text_delta"


Fact = (
    RunStarted
    | RunResumed
    | PhaseStarted
    | RunEnded
    | Notice
    | FileWritten
    | PartMerged
    | TaskAdded
    | TaskReady
    | TaskStarted
    | TaskEnded
    | TaskReset
    | RecoveryAsked
    | LimitsTold
    | TaskPaused
    | PrioritySet
    | ApprovalAsked
    | ApprovalGiven
    | LimitSet
    | SlotQueued
    | SlotGranted
    | SlotRejected
    | SlotLeft
    | CapSet
    | MoneyQueued
    | MoneyReserved
    | MoneyRefused
    | MoneySettled
    | MoneyHeld
    | MoneyReleased
    | CallOpened
    | CallClosed
    | ServerUp
    | ServerDown
    | RequestRefused
    | RateLimitsSeen
    | GateClosed
    | GateOpened
    | BreakerOpened
    | BreakerClosed
    | PrefixSet
)
Delta = TextDelta
Event = Fact | Delta


@dataclass(frozen=True, slots=True)
class Record:
    """A fact in its place: `seq` counts from 1 without gaps, `at` is seconds since 1970."""

    seq: int
    at: float
    event: Fact


def fold(machine: Any, events: Iterable[Event]) -> None:
    """Apply events, in order, to any machine with an `apply(event)` that ignores what is not its own."""
    for event in events:
        machine.apply(event)
