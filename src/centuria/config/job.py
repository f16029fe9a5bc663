"""A job: from a TOML file, a template and rows, or one goal, to frozen settings. All checks, no money spent."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from centuria.config.granting import check_agent_headers, grant_of, literal
from centuria.config.mcp_json import read_mcp_json
from centuria.config.overrides import Overrides, merged
from centuria.config.problems import Problems, from_validation
from centuria.config.providers import ModelChoice
from centuria.config.reading import SMALL, check_unicode, read_text, shown
from centuria.config.rehearsal import rehearsal_from
from centuria.config.rows import Choice, Row, Table, choose, read_rows, rows_from
from centuria.config.schemas import load_schema, property_of
from centuria.config.servers import servers_from
from centuria.config.shape import (
    FileShape,
    LimitsShape,
    MergeShape,
    RowsShape,
    TaskShape,
    pico,
)
from centuria.config.source import without_secrets
from centuria.config.tasks import Recipe, check_graph, check_id, tasks_from_rows, with_specs
from centuria.core.grants import EVERYTHING, Grant
from centuria.core.quoting import did_you_mean, quoted
from centuria.core.templates import placeholders
from centuria.errors import JobError
from centuria.settings import (
    Job,
    LeftOut,
    Limits,
    Merge,
    Task,
    Timeouts,
    ToolServer,
)

_T = TypeVar("_T")

#: The id of the only task of a job that is one goal.
GOAL = "goal"
#: What the prompt of a written summary may name.
SUMMARY_NAMES = ("job", "count", "total", "table", "top", "rows", "left_out", "left_out_count", "failed")


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job, the model that it chose, and `prices` by model in dollars per million tokens (`pricelist.load`).

    `compare` are the models that it names for a comparison.
    """

    job: Job
    model: ModelChoice
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    path: Path | None = None
    compare: Mapping[str, ModelChoice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What every part of a job is read with. `file` is how messages call the job ("" = it is no file)."""

    file: str
    folder: Path
    env: Mapping[str, str]

    def place(self, text: str) -> str:
        return f"{self.file}: {text}" if self.file else text


@dataclass(frozen=True, slots=True)
class _Given:
    """Rows that are not named by a file of the job, and what a flag says about their number."""

    table: Table | None
    choice: Choice | None
    limit: int | None


def load_job(path: Path, overrides: Overrides | None = None, *, env: Mapping[str, str] | None = None) -> LoadedJob:
    """Read and check a job file and all that it names. `env` (default: the process's) fills `${VAR}` of tool servers.

    Raises `JobError` with all that is wrong, the first thing first, and `GraphError` for its tasks as a whole.
    """
    raw = read_toml(path)
    stem = path.absolute().parent.name if path.stem == "job" else path.stem
    scope = _Scope(shown(path), path.absolute().parent, os.environ if env is None else env)
    return _load(raw, scope, overrides or Overrides(), default_name=stem or "job", path=path)


def job_from_prompt(
    template: str,
    rows: Path | Iterable[Row],
    *,
    id: str | None = None,
    label: str | None = None,
    system: str | None = None,
    name: str = "map",
    choice: Choice | None = None,
    overrides: Overrides | None = None,
    env: Mapping[str, str] | None = None,
) -> LoadedJob:
    """One task for each row of a file or list, as a job file with this `prompt` would have. Raises `JobError`."""
    written = {"prompt": template, "id": id, "label": label, "system": system}
    raw = {"job": {key: value for key, value in written.items() if value is not None}}
    table = read_rows(rows) if isinstance(rows, Path) else rows_from(rows)
    scope = _Scope("", Path.cwd(), os.environ if env is None else env)
    return _load(raw, scope, overrides or Overrides(), default_name=name, table=table, choice=choice)


def job_from_goal(
    prompt: str,
    *,
    system: str | None = None,
    name: str = GOAL,
    overrides: Overrides | None = None,
    env: Mapping[str, str] | None = None,
) -> LoadedJob:
    """One task, its prompt taken as it is. Raises `JobError`."""
    raw: dict[str, Any] = {"job": {} if system is None else {"system": system}}
    raw["task"] = [{"id": GOAL, "prompt": prompt, "swarm": True}]
    scope = _Scope("", Path.cwd(), os.environ if env is None else env)
    return _load(raw, scope, overrides or Overrides(), default_name=name)


def job_from_tasks(
    tasks: Sequence[Mapping[str, Any]], *, system: str | None = None, name: str = "tasks", overrides: Overrides
) -> LoadedJob:
    """The tasks of a job file's `[[task]]`s, with their fields; no environment is looked at. Raises `JobError`."""
    raw: dict[str, Any] = {"job": {} if system is None else {"system": system}, "task": list(tasks)}
    return _load(raw, _Scope("", Path.cwd(), {}), overrides, default_name=name)


def overridden(job: Job, choice: ModelChoice, overrides: Overrides) -> tuple[Job, ModelChoice]:
    """A job that was read before, with the model and the limits that flags or the API say now.

    What its tasks are made of (rows, schema, merge) stays as it is. Raises `JobError`.
    """
    shape = _said(overrides)
    limits = replace(job.limits, **_written_limits(shape.limits))
    choice = ModelChoice() if overrides.elsewhere else choice
    return replace(job, limits=limits), replace(choice, **shape.model.model_dump(exclude_unset=True))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. Raises `JobError`."""
    name = shown(path)
    text = read_text(path, limit=SMALL, what="The job file")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(
            f"{name} is not TOML: {str(error)[:200]}.",
            remedy='Mend it there; text needs quotes: name = "...".',
        ) from None
    except (ValueError, OverflowError):
        raise JobError(f"{name} is not TOML: a number or a date in it is out of range.", remedy="Mend it.") from None
    except RecursionError:
        raise JobError(f"{name} is nested too deeply.", remedy="Make it flatter.") from None


# -- from the file's shape to settings -------------------------------------------------------------------------------


def _load(
    raw: Mapping[str, Any],
    scope: _Scope,
    overrides: Overrides,
    *,
    default_name: str,
    path: Path | None = None,
    table: Table | None = None,
    choice: Choice | None = None,
) -> LoadedJob:
    _shaped(raw, scope.file)
    _said(overrides)
    whole = merged({**raw, "model": {}} if overrides.elsewhere else raw, overrides.as_tables())
    shape = _shaped(whole, scope.file)
    source = without_secrets(whole, file=scope.file)
    check_unicode(
        [shape.job.prompt, shape.job.system, [task.prompt for task in shape.task]], scope.file or "The prompt"
    )
    if overrides.limit is not None and overrides.limit < 1:
        raise JobError(f"{overrides.name_of(['limit'])} must be at least 1.", remedy="Leave it out for all rows.")
    problems = Problems(scope.file)
    limits = Limits(**_written_limits(shape.limits))
    nothing: tuple[ToolServer, ...] = ()
    servers = _tried(problems, lambda: _servers(shape, scope), nothing)
    merge = _tried(problems, lambda: _merge(shape.merge, scope), Merge())
    given = _Given(table, choice, overrides.limit)
    none: tuple[tuple[Task, ...], tuple[LeftOut, ...]] = ((), ())
    tasks, left_out = _tried(problems, lambda: _tasks(shape, scope, merge, servers, given), none)
    problems.check()
    check_agent_headers(tasks, servers, scope.file)
    needs = check_graph(tasks, limits, file=scope.file)
    job = Job(
        name=" ".join((shape.job.name or default_name).split()),
        tasks=with_specs(tasks, needs, shape.job.system or ""),
        system=shape.job.system or "",
        left_out=left_out,
        limits=limits,
        timeouts=Timeouts(**shape.timeouts.model_dump(exclude_none=True)),
        servers=servers,
        merge=merge,
        rehearsal=rehearsal_from(shape.rehearsal, [task.id for task in tasks], file=scope.file),
        source=source,
    )
    prices = {name: price.model_dump(exclude_none=True) for name, price in shape.prices.items()}
    compared = {
        name: ModelChoice(**model.model_dump(exclude_none=True)) for name, model in shape.compare.models.items()
    }
    return LoadedJob(job, ModelChoice(**shape.model.model_dump(exclude_none=True)), prices, path, compared)


def _shaped(raw: Mapping[str, Any], file: str) -> FileShape:
    try:
        return FileShape.model_validate(raw)
    except ValidationError as error:
        problems = Problems(file)
        from_validation(error, FileShape, problems)
        problems.check()
        raise  # not reached: a validation error has at least one finding


def _said(overrides: Overrides) -> FileShape:
    """What flags or the API say, checked by itself: mistakes in it are told in their words."""
    try:
        return FileShape.model_validate(overrides.as_tables())
    except ValidationError as error:
        problems = Problems("")
        from_validation(error, FileShape, problems, overrides.name_of)
        try:
            problems.check()
        except JobError as told:
            raise JobError(told.message, remedy=overrides.advice(told.remedy)) from None
        raise


def _tried(problems: Problems, read: Callable[[], _T], fallback: _T) -> _T:
    """What was read; a problem is kept for later, so that the other parts are looked at too."""
    try:
        return read()
    except JobError as error:
        problems.take(error)
        return fallback


def _written_limits(shape: LimitsShape) -> dict[str, Any]:
    """The fields of `Limits` that are written down."""
    written: dict[str, Any] = shape.model_dump(exclude_none=True)
    for key in ("budget", "agent_budget"):
        if key in written:
            written[key] = None if written[key] is False else pico(written[key])
    if "concurrency" in written:
        written["concurrency_written"] = True
    return written


def _servers(shape: FileShape, scope: _Scope) -> tuple[ToolServer, ...]:
    included: Sequence[ToolServer] = ()
    if shape.job.tools_file is not None:
        included = read_mcp_json(scope.folder / shape.job.tools_file, scope.env)
    return servers_from(shape.tools, included, folder=scope.folder, env=scope.env, file=scope.file)


def _merge(shape: MergeShape, scope: _Scope) -> Merge:
    problems = Problems(scope.file)
    schema = None
    if shape.schema_ is not None:
        schema = load_schema(shape.schema_, folder=scope.folder, place=scope.place("[merge] schema"))
    if shape.kind == "table" and schema is None:
        problems.add('[merge] kind = "table" needs `schema`.', "Add the JSON Schema of one row's answer.")
    if shape.text is not None and (schema is None or not property_of(schema, shape.text)):
        names = schema.get("properties", {}) if schema else ()
        problems.add(
            f"[merge] text names {quoted(shape.text)}, which the schema does not have.",
            did_you_mean(shape.text, names),
        )
    for name in placeholders(shape.summary or ""):
        if name.partition(".")[0] not in SUMMARY_NAMES:
            problems.add(f"[merge] summary asks for {quoted(name)}.", did_you_mean(name, SUMMARY_NAMES))
    problems.check()
    written = shape.model_dump(exclude_none=True, include={"kind", "text", "summary", "max_tokens"})
    return Merge(schema=schema, **written)


def _tasks(
    shape: FileShape,
    scope: _Scope,
    merge: Merge,
    servers: Sequence[ToolServer],
    given: _Given,
) -> tuple[tuple[Task, ...], tuple[LeftOut, ...]]:
    tasks: tuple[Task, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    if given.table is not None or shape.job.rows is not None:
        tasks, left_out = _row_tasks(shape, scope, merge, servers, given)
    names = literal(shape.job.tools)
    grant = EVERYTHING if names is None else grant_of(names, servers, scope.place("[job] tools"))
    if not tasks and shape.job.prompt is not None:
        tasks = (_goal(shape, scope, merge, grant),)
    schema = None if tasks else merge.schema
    tasks += tuple(
        _written_task(number, task, shape, scope, schema, servers, grant) for number, task in enumerate(shape.task, 1)
    )
    if not tasks:
        raise JobError(scope.place("there is nothing to do."), remedy="Add `prompt` to [job], or a [[task]].")
    return tasks, left_out


def _defaults(shape: FileShape) -> dict[str, Any]:
    return shape.job.model_dump(exclude_none=True, include={"max_tokens", "priority"})


def _row_tasks(
    shape: FileShape, scope: _Scope, merge: Merge, servers: Sequence[ToolServer], given: _Given
) -> tuple[tuple[Task, ...], tuple[LeftOut, ...]]:
    if shape.job.prompt is None:
        raise JobError(scope.place("[job] has `rows` but no `prompt`."), remedy='Add prompt = "... {Column} ...".')
    table, choice = given.table, given.choice or Choice()
    if shape.job.rows is not None:
        table, choice = read_rows(scope.folder / shape.job.rows.file), _choice(shape.job.rows)
    assert table is not None
    if given.limit is not None:
        choice = replace(choice, limit=given.limit)
    recipe = Recipe(
        prompt=shape.job.prompt,
        system=shape.job.system or "",
        id=shape.job.id,
        label=shape.job.label,
        schema=merge.schema,
        delegates=bool(shape.job.swarm),
        tools=None if shape.job.tools is None else tuple(shape.job.tools),
        servers=tuple(servers),
        **_defaults(shape),
    )
    return tasks_from_rows(recipe, table, choose(table, choice))


def _choice(shape: RowsShape) -> Choice:
    where = {key: tuple(value) if isinstance(value, list) else (value,) for key, value in shape.where.items()}
    return Choice(tuple(shape.require), where, shape.order_by, shape.limit)


def _goal(shape: FileShape, scope: _Scope, merge: Merge, grant: Grant) -> Task:
    prompt = shape.job.prompt or ""
    asked = placeholders(prompt)
    if asked:
        raise JobError(
            scope.place(f"[job] prompt asks for {quoted(asked[0])}, but there are no `rows`."),
            remedy="Add `rows`, or write {{ and }} for braces that are meant literally.",
        )
    text = prompt.replace("{{", "{").replace("}}", "}")
    return Task(
        id=GOAL,
        prompt=text,
        spec="",
        schema=merge.schema,
        servers=grant.servers,
        tools=grant.tools,
        delegates=shape.job.swarm is not False,
        **_defaults(shape),
    )


def _written_task(
    number: int,
    task: TaskShape,
    shape: FileShape,
    scope: _Scope,
    schema: Mapping[str, Any] | None,
    servers: Sequence[ToolServer],
    grant: Grant,
) -> Task:
    place = scope.place(f"[[task]] number {number}")
    try:
        check_id(task.id)
    except JobError as error:
        raise JobError(f"{place}: {error.message}", remedy=error.remedy) from None
    if task.schema_ is not None:
        schema = load_schema(task.schema_, folder=scope.folder, place=f"{place}, schema")
    if task.tools is not None:
        grant = grant_of(task.tools, servers, f"{place}, tools", within=grant)
    written = _defaults(shape) | task.model_dump(exclude_none=True, include={"priority", "max_tokens"})
    return Task(
        id=task.id,
        prompt=task.prompt,
        spec="",
        label=" ".join((task.label or "").split()),
        needs=tuple(dict.fromkeys(task.needs)),
        allow_failed=task.allow_failed,
        schema=schema,
        servers=grant.servers,
        tools=grant.tools,
        delegates=bool(shape.job.swarm if task.swarm is None else task.swarm),
        **written,
    )
