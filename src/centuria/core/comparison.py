"""One job on several models, side by side: what is measured of each, from its journal alone. Pure.

Tool calls are judged as the K2 Vendor Verifier does: an answer that calls tools is right only if each of its calls
names a tool that there is, is JSON, and fits the schema. Whether the values are the right ones nobody can tell.

first attempt  An answer's calls of tools that it does not repair. Their share without a fault, of those answers whose
               finish is `tool_calls`; what `max_tokens` cut off is counted apart.
one repair     The same agent's next call of a tool that it had called wrongly; after the name of a tool that there is
               not, its next answer with calls. An attempt that was wrong counts as repaired where all of that is right.
trigger        Whether a model calls tools at all, against a reference, over answers to the very same conversation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from centuria.core.measures import Sample
from centuria.core.progress import Progress
from centuria.core.toolsearch import CALL_TOOL
from centuria.events import CallClosed, CallOpened, Event
from centuria.messages import CallKey, Completion, Fault, Pico

#: Two-sided 95 %.
_Z = 1.959963984540054
_INTERRUPTED = 130
#: The percents of which a spread keeps the seconds.
CURVE = (1, *range(5, 100, 5), 99, 100)

HttpFailure = Literal["429", "4xx", "5xx", "no answer"]
HTTP_FAILURES: tuple[HttpFailure, ...] = ("429", "4xx", "5xx", "no answer")
#: What names of tools that there are not wait under for their repair; no tool can be called so.
_UNKNOWN = "\0"


# -- numbers ---------------------------------------------------------------------------------------------------------


def wilson(good: int, total: int, z: float = _Z) -> tuple[float, float] | None:
    """The Wilson score interval of a proportion, within 0 and 1; None where there is nothing to count.

    It takes the trials to be independent; those of one conversation are not quite.
    """
    if total <= 0:
        return None
    share, square = good / total, z * z
    middle = share + square / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    scale = 1 + square / total
    # What rounding does at the ends must not leave the share outside its own interval.
    return max(0.0, min(share, (middle - spread) / scale)), min(1.0, max(share, (middle + spread) / scale))


@dataclass(frozen=True, slots=True)
class Proportion:
    """`good` of `total`."""

    good: int = 0
    total: int = 0

    @property
    def share(self) -> float | None:
        return self.good / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Between which shares the true one lies, with 95 % confidence."""
        return wilson(self.good, self.total)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Answers with (p) and without (n) tool calls: `tp` by both models, `fp` by this one alone, `fn` by the reference
    alone, `tn` by neither."""

    tp: int = 0
    fp: int = 0
    fn: int = 0
    tn: int = 0

    @property
    def pairs(self) -> int:
        """How many conversations were the same for both."""
        return self.tp + self.fp + self.fn + self.tn

    @property
    def f1(self) -> float | None:
        """1: they call tools in the same places. None where neither ever did."""
        called = 2 * self.tp + self.fp + self.fn
        return 2 * self.tp / called if called else None


#: By the call and its conversation's fingerprint: whether the answer's finish was `tool_calls`.
Triggers = Mapping[tuple[CallKey, str], bool]


def agreement(mine: Triggers, reference: Triggers) -> Agreement:
    """How far one model triggers as the reference does, over what both were asked in the same words."""
    pairs = Counter((mine[place], reference[place]) for place in mine.keys() & reference.keys())
    return Agreement(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of `count` calls. `curve`: one for each percent of `CURVE`, or empty."""

    count: int = 0
    p50: float | None = None
    p99: float | None = None
    curve: tuple[float, ...] = ()


def spread(sample: Sample) -> Spread:
    found = (sample.percentile(percent) for percent in CURVE)
    return Spread(sample.count, sample.p50, sample.p99, tuple(value for value in found if value is not None))


# -- tool calls ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How right a model's tool calls were. `first` and `repaired` (after one repair) are of the same attempts.

    `calls` were judged, and `faults` counts them by what was wrong. `unjudged` answers asked for calls that were never
    looked at: the run was cut, or it was the agent's last turn. `truncated` answers ended by `max_tokens`, of all.
    """

    first: Proportion = Proportion()
    repaired: Proportion = Proportion()
    calls: int = 0
    faults: Mapping[Fault, int] = field(default_factory=dict)
    truncated: Proportion = Proportion()
    unjudged: int = 0


@dataclass(slots=True)
class _Attempt:
    """A first attempt that was wrong, and the tools whose next call must be right for it to be repaired."""

    left: set[str]


@dataclass(slots=True)
class _Turn:
    """An answer with calls, while these are looked at one by one."""

    number: int
    calls: int
    cut: bool
    judged: dict[int, tuple[str, Fault]] = field(default_factory=dict)


@dataclass(slots=True)
class _Talk:
    """One conversation. `pending`: the tools that were called wrongly last, each with the attempt that it repairs."""

    pending: dict[str, _Attempt | None] = field(default_factory=dict)
    turn: _Turn | None = None


class Answers:
    """The fold of a run's events to what its model answered. `attempts` counts requests: `answered`, and
    `HTTP_FAILURES`; those that we gave up ourselves are not among them.
    """

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.triggers: dict[tuple[CallKey, str], bool] = {}
        self._asked: dict[CallKey, str] = {}
        self._names: dict[CallKey, str] = {}
        self._talks: dict[tuple[str, int], _Talk] = {}
        self._answers = self._cut = self._calls = self._unjudged = 0
        self._first = self._right = self._repaired = 0
        self._faults: Counter[Fault] = Counter()

    def apply(self, event: Event) -> None:
        """Fold one event; ignores what it does not know."""
        if isinstance(event, CallOpened):
            if event.key.position:
                self._names[event.key] = event.name
            else:
                self._asked[event.key] = event.fingerprint
                self._leave(event.key)
        elif isinstance(event, CallClosed):
            if event.key.position:
                self._tool_call(event)
            else:
                self._model_call(event)

    def accuracy(self) -> Accuracy:
        """What the answers so far come to."""
        waiting = sum(talk.turn is not None for talk in self._talks.values())
        return Accuracy(
            first=Proportion(self._right, self._first),
            repaired=Proportion(self._right + self._repaired, self._first),
            calls=self._calls,
            faults=dict(self._faults),
            truncated=Proportion(self._cut, self._answers),
            unjudged=self._unjudged + waiting,
        )

    def _talk(self, key: CallKey) -> _Talk:
        return self._talks.setdefault((key.task, key.epoch), _Talk())

    # -- model calls

    def _model_call(self, event: CallClosed) -> None:
        asked = self._asked.pop(event.key, None)
        if event.completion is None:
            if event.status is not None:
                self.attempts[_http_failure(event.status)] += 1
            return
        self.attempts["answered"] += 1
        self._answers += 1
        self._answered(event.key, event.completion, asked)

    def _answered(self, key: CallKey, completion: Completion, asked: str | None) -> None:
        cut = completion.finish == "length"
        self._cut += cut
        if asked is not None:
            self.triggers[key, asked] = completion.finish == "tool_calls"
        calls = len(completion.message.tool_calls)
        if calls:
            self._leave(key)
            self._talk(key).turn = _Turn(key.turn, calls, cut)

    def _leave(self, key: CallKey) -> None:
        """The conversation goes on: calls of an earlier answer that nobody looked at will not be looked at."""
        talk = self._talks.get((key.task, key.epoch))
        if talk is None or talk.turn is None or talk.turn.number >= key.turn:
            return
        turn, talk.turn = talk.turn, None
        if turn.judged:
            self._judge(talk, turn)
        else:
            self._unjudged += 1

    # -- tool calls

    def _tool_call(self, event: CallClosed) -> None:
        key = event.key
        name = self._names.pop(key, "")
        talk = self._talks.get((key.task, key.epoch))
        if talk is None or talk.turn is None or talk.turn.number != key.turn:
            return
        # What was sent, whatever came of it, had passed every check.
        turn, fault = talk.turn, event.result.fault if event.result is not None else ""
        turn.judged[key.position] = (name, fault)
        if len(turn.judged) == turn.calls:
            talk.turn = None
            self._judge(talk, turn)

    def _judge(self, talk: _Talk, turn: _Turn) -> None:
        calls = list(turn.judged.values())
        self._calls += len(calls)
        self._faults.update(fault for _, fault in calls if fault)
        wrong = {_place(name, fault) for name, fault in calls if fault}
        repairing = self._repair(talk, calls)
        fresh = [] if turn.cut else [(name, fault) for name, fault in calls if name not in repairing]
        attempt: _Attempt | None = None
        if fresh:
            self._first += 1
            amiss = {_place(name, fault) for name, fault in fresh if fault}
            self._right += not amiss
            attempt = _Attempt(amiss)
        for place in wrong:
            talk.pending[place] = attempt if attempt is not None and place in attempt.left else None

    def _repair(self, talk: _Talk, calls: Sequence[tuple[str, Fault]]) -> set[str]:
        """Settle what these calls repair. Returns the tools whose calls are no first attempts."""
        called = {name for name, _ in calls}
        wrong = {name for name, fault in calls if fault}
        whole = _UNKNOWN in talk.pending
        repairing = called if whole else called & talk.pending.keys()
        for place in (repairing & talk.pending.keys()) | ({_UNKNOWN} if whole else set()):
            attempt = talk.pending.pop(place)
            good = not wrong if place == _UNKNOWN else place not in wrong
            if attempt is not None and good:
                attempt.left.discard(place)
                self._repaired += not attempt.left
        return repairing


def _place(name: str, fault: Fault) -> str:
    """A `call_tool` that names no tool is repaired by the call of one, which goes by that tool's name."""
    return _UNKNOWN if fault == "unknown_tool" or name == CALL_TOOL else name


def _http_failure(status: int) -> HttpFailure:
    if status == 429:
        return "429"
    if 300 <= status < 500:
        return "4xx"
    return "5xx" if status >= 500 else "no answer"


# -- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model of a comparison, as it was chosen. `folder` is its run's, below the comparison's.

    `error`: why there is no run, or why it stopped ("" = nothing did); `exit_code` is then that of the error.
    """

    label: str
    run: str
    folder: str
    provider: str
    model: str
    base_url: str
    rehearsal: bool = False
    priced: bool = True
    error: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the table. Money in pico-dollars, times in seconds. `census` is by status, `unfinished` beside it.

    `status` is the run's, or `not begun`, or `broken off`. `seconds` is the wall time of its run. `first_token` is of
    all calls that got one, `total` of those that were answered. `attempts` are as in `Answers`; `agreement` is with the
    reference, None for itself.
    """

    candidate: Candidate
    status: str
    cause: str
    exit_code: int
    census: Mapping[str, int]
    unfinished: int
    seconds: float
    first_token: Spread
    total: Spread
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    spent: Pico
    held: Pico
    critical_steps: int
    serial_steps: int
    accuracy: Accuracy
    attempts: Mapping[str, int]
    agreement: Agreement | None = None

    @property
    def tasks(self) -> int:
        return sum(self.census.values()) + self.unfinished

    @property
    def ok(self) -> int:
        return self.census.get("ok", 0)

    @property
    def requests(self) -> int:
        """Requests that the upstream answered or failed."""
        return sum(self.attempts.values())


@dataclass(frozen=True, slots=True)
class Table:
    """The models side by side, in the order in which they were named. `budget` is that of all of them together."""

    name: str
    reference: str
    budget: Pico | None
    rows: tuple[Row, ...]

    @property
    def spent(self) -> Pico:
        """What the runs spent or hold; a rehearsal costs nothing."""
        return sum(row.spent + row.held for row in self.rows if not row.candidate.rehearsal)

    @property
    def exit_code(self) -> int:
        """The worst of the models'."""
        return max((row.exit_code for row in self.rows), default=0)


def row_of(candidate: Candidate, progress: Progress, answers: Answers) -> Row:
    """What one run came to, by the folds of its journal (empty ones: it has not begun)."""
    status, code = progress.status, progress.exit_code
    if status in ("", "running"):
        status, code = ("broken off" if status else "not begun"), 1
    if candidate.error:
        code = candidate.exit_code or 1
        status = "cancelled" if code == _INTERRUPTED else "failed"
    money, steps = progress.money(), progress.steps()
    return Row(
        candidate=candidate,
        status=status,
        cause=candidate.error or progress.cause,
        exit_code=code or 0,
        census={status.value: number for status, number in progress.census().items() if number},
        unfinished=progress.unfinished_count,
        seconds=progress.elapsed(),
        first_token=spread(progress.first_token),
        total=spread(progress.model_total),
        prompt_tokens=progress.usage.prompt,
        cached_tokens=progress.usage.cached,
        output_tokens=progress.usage.output,
        spent=money.spent,
        held=money.held + money.reserved,  # of a run that was killed, too: it may have been billed
        critical_steps=steps.critical,
        serial_steps=steps.serial,
        accuracy=answers.accuracy(),
        attempts=dict(answers.attempts),
    )


def with_agreement(rows: Iterable[Row], triggers: Mapping[str, Triggers], reference: str) -> tuple[Row, ...]:
    """The rows, each with its agreement with the reference's. `triggers` and `reference` are by label."""
    theirs = triggers.get(reference, {})
    return tuple(
        row
        if row.candidate.label == reference
        else replace(row, agreement=agreement(triggers.get(row.candidate.label, {}), theirs))
        for row in rows
    )
