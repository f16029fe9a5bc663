"""One job on several models at once, within one budget: a run for each, and one table of what their journals say.

compare-ID/     comparison.json   which runs these are: enough to go on, and to make the table again
                comparison.csv, comparison.md, comparison.html
                RUN-ID/           one run's own folder, like any other
                waiting/RUN-ID/   the job of a run that has not begun
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from centuria import codec
from centuria.admission import Purse
from centuria.config import LoadedJob, Overrides, contenders, pinned, reference_of
from centuria.core.arguments import ArgumentCheck
from centuria.core.comparison import Answers, Candidate, Row, Table, Triggers, row_of, with_agreement
from centuria.core.progress import Progress
from centuria.errors import CenturiaError, ConfigurationError, JournalError, first_of
from centuria.folder import RunFolder
from centuria.journal import JournalReader
from centuria.launch import JOB, Launch, new_run_id, prepare, prepare_resume
from centuria.messages import Pico, Status
from centuria.model.http import load
from centuria.run import Run
from centuria.stream import Stream
from centuria.views.compare import as_csv, as_html, as_markdown

STATE = "comparison.json"
_SCHEMA = 1
_INTERRUPTED, _USAGE, _NOT_OK = 130, 2, 1
#: What a resumed comparison runs again, beside what has no end: what failed is a result, and stays one.
_AGAIN = frozenset({Status.CANCELLED, Status.BUDGET, Status.BLOCKED})


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison came to: the `table`, and the `folder` that holds it and the models' runs.

    `exit_code` is the worst of the models'.
    """

    folder: Path
    table: Table

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each model, in the order in which they were named."""
        return self.table.rows

    @property
    def exit_code(self) -> int:
        return self.table.exit_code

    def row(self, label: str) -> Row:
        """The row of one model. Raises `KeyError`."""
        return {row.candidate.label: row for row in self.rows}[label]


@dataclass(frozen=True, slots=True)
class Part:
    """One model's part. `launch` None: its run is over. `taken` is what it spent and holds already, in pico-dollars."""

    candidate: Candidate
    launch: Launch | None
    taken: Pico = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a comparison does, checked. `fresh`: its folder is still to be made."""

    folder: RunFolder
    name: str
    budget: Pico | None
    reference: str
    in_turn: bool
    parts: tuple[Part, ...]
    fresh: bool

    def folder_of(self, candidate: Candidate) -> RunFolder:
        """The folder of one model's run."""
        return RunFolder(self.folder.path / candidate.folder)

    @property
    def remarks(self) -> list[str]:
        """What the user should know before it starts."""
        return [part.launch.remark for part in self.parts if part.launch is not None and part.launch.remark]


# -- before anything is sent -----------------------------------------------------------------------------------------


def prepare_comparison(
    loaded: LoadedJob,
    models: Sequence[str],
    env: Mapping[str, str],
    *,
    root: Path,
    out: Path | None = None,
    reference: str | None = None,
    rehearse: bool = False,
    in_turn: bool = False,
    tools_file: Path | None = None,
) -> Plan:
    """Check every model, its key and its price. Nothing is sent, nothing is written.

    `models` are texts as `config.contenders` reads them; none: those of the job file. Raises `ConfigurationError` with
    all that is wrong.
    """
    found = contenders(models, loaded.model, loaded.compare)
    chosen = reference_of(reference, found)
    folder = RunFolder(out if out is not None else root / f"compare-{new_run_id(loaded.job.name, time.time())}")
    parts: list[Part] = []
    problems: list[tuple[str, CenturiaError]] = []
    for one in found:
        run = new_run_id(f"{one.label}-{loaded.job.name}", time.time())
        try:
            choice = pinned(one.choice, {} if rehearse else env)
            launch = prepare(
                replace(loaded, model=choice),
                env,
                run=run,
                folder=RunFolder(folder.path / run),
                rehearse=rehearse,
                tools_file=tools_file,
            )
        except CenturiaError as error:
            problems.append((one.label, error))
            continue
        parts.append(Part(_candidate(one.label, launch), launch))
    _refuse(problems)
    return Plan(folder, loaded.job.name, loaded.job.limits.budget, chosen, in_turn, tuple(parts), fresh=True)


def _candidate(label: str, launch: Launch) -> Candidate:
    endpoint = launch.endpoint
    return Candidate(
        label=label,
        run=launch.run,
        folder=launch.folder.path.name,
        provider=endpoint.provider,
        model=endpoint.model,
        base_url=endpoint.base_url,
        rehearsal=launch.rehearse,
        priced=launch.priced,
    )


def _refuse(problems: Sequence[tuple[str, CenturiaError]]) -> None:
    """One error for all that is wrong with the models, the first one first."""
    if not problems:
        return
    (label, first), *others = problems
    lines = [first.remedy, *(f"Also: {other}: {error.message} {error.remedy}" for other, error in others)]
    raise ConfigurationError(f"{label}: {first.message}", remedy="\n".join(line for line in lines if line))


def prepare_again(
    path: Path,
    env: Mapping[str, str],
    *,
    budget: float | Literal[False] | None = None,
    reference: str | None = None,
) -> Plan:
    """Go on with a comparison: what had not ended, and what was cancelled, blocked or ended for lack of money.

    What failed is a result of its model and is kept. `budget`: another one, in dollars, for all runs together and what
    they spent before. Raises `ConfigurationError`, `JournalError`.
    """
    folder, state, said = RunFolder(path), _load(path), Overrides(budget=budget, flags=True)
    chosen = _reference(reference, state)
    parts: list[Part] = []
    problems: list[tuple[str, CenturiaError]] = []
    for candidate in state.candidates:
        own = RunFolder(folder.path / candidate.folder)
        candidate = replace(candidate, error="", exit_code=None)
        try:
            if own.journal.exists():
                parts.append(_rest(candidate, own, folder, env, said))
            else:
                launch = prepare_resume(_waiting(folder, candidate.run), env, overrides=said)
                parts.append(Part(candidate, replace(launch, folder=own, resume=None)))
        except CenturiaError as error:
            problems.append((candidate.label, error))
    _refuse(problems)
    total = state.budget
    if budget is not None:
        total = next((part.launch.job.limits.budget for part in parts if part.launch is not None), total)
    parts = [replace(part, launch=_under(part.launch, total)) for part in parts]
    return Plan(folder, state.name, total, chosen, state.in_turn, tuple(parts), fresh=False)


def _under(launch: Launch | None, budget: Pico | None) -> Launch | None:
    """The launch with the cap of the whole: its own would be that of the last time that it ran."""
    if launch is None:
        return None
    return replace(launch, job=replace(launch.job, limits=replace(launch.job.limits, budget=budget)))


def _rest(candidate: Candidate, own: RunFolder, folder: RunFolder, env: Mapping[str, str], said: Overrides) -> Part:
    with JournalReader(own.journal) as reader:
        if reader.writer is not None:
            raise ConfigurationError("Its run is being worked on now.", remedy="Wait for its end, or cancel it.")
        progress, _ = _fold(reader)
    money = progress.money()
    taken = money.spent + money.held + money.reserved
    again = progress.unfinished_count or any(progress.census()[status] for status in _AGAIN)
    if progress.status not in ("", "running") and not again:
        return Part(candidate, None, taken)
    waiting = _waiting(folder, candidate.run)
    if not own.exists(JOB) and waiting.exists(JOB):  # killed in the moment between its journal and its job
        own.write(JOB, waiting.read(JOB))
    return Part(candidate, prepare_resume(own, env, only=_AGAIN, overrides=said), taken)


def _waiting(folder: RunFolder, run: str) -> RunFolder:
    return RunFolder(folder.path / "waiting" / run)


# -- the work --------------------------------------------------------------------------------------------------------


class Comparing:
    """The runs of one comparison. `execute` it once; `cancel` works at any time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._candidates = {part.candidate.label: part.candidate for part in plan.parts}
        self._runs: dict[str, Run] = {}
        self._cancelled = ""
        #: Rehearsed money is not real: it takes nothing of the budget.
        self._purses = {rehearsal: self._purse(rehearsal) for rehearsal in (False, True)}
        self._turn = asyncio.Semaphore(1 if plan.in_turn else len(plan.parts) or 1)

    def _purse(self, rehearsal: bool) -> Purse:
        parts = [part for part in self.plan.parts if part.candidate.rehearsal is rehearsal]
        taken = sum(part.taken for part in parts)
        budget = self.plan.budget
        cap = None if budget is None else max(0, budget - taken)
        return Purse(cap, runs=sum(part.launch is not None for part in parts))

    @property
    def runs(self) -> list[Run]:
        """Those that work now."""
        return list(self._runs.values())

    def cancel(self, *, cause: str = "cancelled by the user") -> None:
        """Stop all runs; partial results are kept, and the table is made of them."""
        self._cancelled = self._cancelled or cause
        for run in self._runs.values():
            run.cancel(cause=cause)

    async def execute(self, *, begun: Callable[[Candidate, Stream], None] | None = None) -> Comparison:
        """Run what is to be run, then make the table. One model's failure is its own.

        `begun` is called with each run's stream before its first fact. Raises `ConfigurationError` where the folder
        cannot be made, `JournalError` where the table cannot be written.
        """
        plan = self.plan
        if plan.fresh:
            plan.folder.create()
            for part in plan.parts:
                if part.launch is not None:
                    replace(part.launch, folder=_waiting(plan.folder, part.candidate.run)).save()
        self._save()
        await asyncio.to_thread(_warm)
        async with asyncio.TaskGroup() as group:
            for part in plan.parts:
                if part.launch is not None:
                    group.create_task(self._work(part.candidate, part.launch, begun), name=part.candidate.label)
        self._save()
        return await asyncio.to_thread(tabulate, plan.folder.path)

    async def _work(
        self, candidate: Candidate, launch: Launch, begun: Callable[[Candidate, Stream], None] | None
    ) -> None:
        def started(stream: Stream) -> None:
            _forget_waiting(self.plan.folder, candidate.run)
            if begun is not None:
                begun(candidate, stream)

        purse = self._purses[candidate.rehearsal]
        try:
            async with self._turn:
                if self._cancelled:
                    self._failed(candidate, self._cancelled, _INTERRUPTED)
                    return
                run = self._runs[candidate.label] = Run(launch, purse=purse)
                await run.execute(begun=started)
        except Exception as caught:  # the edge: whatever one model's run died of, the others go on
            error = first_of(caught)
            code = _USAGE if isinstance(error, ConfigurationError) else _NOT_OK
            known = isinstance(error, CenturiaError)
            said = str(error) if known else f"internal error: {type(error).__name__}: {error}"
            self._failed(candidate, said, code)
        finally:
            self._runs.pop(candidate.label, None)
            purse.runs -= 1

    def _failed(self, candidate: Candidate, why: str, code: int) -> None:
        self._candidates[candidate.label] = replace(candidate, error=why[:1_000], exit_code=code)

    def _save(self) -> None:
        plan = self.plan
        _State(plan.name, plan.budget, plan.reference, plan.in_turn, tuple(self._candidates.values())).save(plan.folder)


def _warm() -> None:
    """Load what the first of the runs would load on its way: no model is slower for coming first."""
    import centuria.toolhost.session  # noqa: F401 - and the MCP client with it

    load()
    codec.warm()
    ArgumentCheck({"type": "object"}).complaint({})


def _forget_waiting(folder: RunFolder, run: str) -> None:
    """The run has begun, and keeps its job itself."""
    own = _waiting(folder, run)
    with suppress(OSError):
        (own.path / JOB).unlink()
        own.path.rmdir()
        own.path.parent.rmdir()


# -- the table -------------------------------------------------------------------------------------------------------


def tabulate(path: Path, *, reference: str | None = None) -> Comparison:
    """Make the table of a comparison (again) from its folder, and write it there as CSV, Markdown and HTML.

    Reads the journals, also of runs that others work on; runs nothing. Raises `ConfigurationError`, `JournalError`.
    """
    state = _load(path)
    folder = RunFolder(path)
    rows: list[Row] = []
    triggers: dict[str, Triggers] = {}
    for candidate in state.candidates:
        progress, answers = Progress(), Answers()
        journal = folder.path / candidate.folder / "journal.sqlite"
        if journal.exists():
            try:
                with JournalReader(journal) as reader:
                    progress, answers = _fold(reader)
            except JournalError as error:  # one that is damaged leaves the others
                candidate = replace(candidate, error=candidate.error or str(error), exit_code=_NOT_OK)
        triggers[candidate.label] = answers.triggers
        rows.append(row_of(candidate, progress, answers))
    chosen = _reference(reference, state)
    table = Table(state.name, chosen, state.budget, with_agreement(rows, triggers, chosen))
    for name, text in (
        ("comparison.csv", as_csv(table)),
        ("comparison.md", as_markdown(table)),
        ("comparison.html", as_html(table)),
    ):
        folder.write(name, text)
    return Comparison(folder.path, table)


def _fold(reader: JournalReader) -> tuple[Progress, Answers]:
    progress, answers = Progress(), Answers()
    for record in reader.records():
        progress.record(record)
        answers.apply(record.event)
    return progress, answers


# -- which runs these are --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    """`comparison.json`."""

    name: str
    budget: Pico | None
    reference: str
    in_turn: bool
    candidates: tuple[Candidate, ...]

    def save(self, folder: RunFolder) -> None:
        told = asdict(self)
        models = told.pop("candidates")
        folder.write(STATE, json.dumps({"schema": _SCHEMA, **told, "models": models}, indent=1) + "\n")


def _load(path: Path) -> _State:
    """Raises `ConfigurationError` for a folder that holds no comparison, `JournalError` for one that is damaged."""
    file = path / STATE
    if not file.is_file():
        raise ConfigurationError(
            f"{path} is no folder of a comparison.", remedy=f"Name the one that holds {STATE}: runs/compare-..."
        )
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        if told["schema"] > _SCHEMA:
            raise JournalError(
                "This comparison was made by a newer Centuria.", remedy="Upgrade: pip install -U centuria."
            )
        candidates = tuple(Candidate(**model) for model in told["models"])
        if any(Path(one.folder).name != one.folder or one.folder in ("", ".", "..") for one in candidates):
            raise ValueError("a folder elsewhere")  # noqa: TRY301 - as damaged as any other
        return _State(told["name"], told["budget"], told["reference"], told["in_turn"], candidates)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise JournalError(
            f"{file} cannot be read: {type(error).__name__}.",
            remedy="The runs beside it are whole: centuria show, centuria resume.",
        ) from error


def _reference(said: str | None, state: _State) -> str:
    labels = [candidate.label for candidate in state.candidates]
    if said is not None and said not in labels:
        raise ConfigurationError(
            f"The reference {said!r} is none of the models.", remedy=f"There is: {', '.join(labels)}."
        )
    return said or state.reference
