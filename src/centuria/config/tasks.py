"""Tasks from rows and from `[[task]]`s: prompts filled, ids checked, and a `spec` that changes when their text does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from centuria.config.granting import filled, grant_of
from centuria.config.problems import Problems
from centuria.config.rows import Chosen, Row, Table
from centuria.core.batch import EVERY, NewTask
from centuria.core.calls import content_id, fingerprint
from centuria.core.grants import EVERYTHING
from centuria.core.graph import TaskGraph
from centuria.core.quoting import did_you_mean, quoted
from centuria.core.templates import fill, placeholders
from centuria.errors import GraphError, JobError
from centuria.settings import LeftOut, Limits, Task, ToolServer

LONGEST_ID = 200
_BRACES = "Write {{ and }} for braces that are meant literally."


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a row becomes a task. `id` is a column or a template, `label` a template, `tools` are names of `servers` and
    of their tools, or templates; None: not given."""

    prompt: str
    system: str = ""
    id: str | None = None
    label: str | None = None
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 16_000
    priority: int = 5
    delegates: bool = False
    tools: tuple[str, ...] | None = None
    servers: tuple[ToolServer, ...] = ()


def tasks_from_rows(recipe: Recipe, table: Table, chosen: Chosen) -> tuple[tuple[Task, ...], tuple[LeftOut, ...]]:
    """One task for each chosen row, and the rows that are left out.

    Raises `JobError`: a column that a template asks for is not there; an id is empty, not unique, or no id.
    """
    name = table.name or "The list of rows"
    _check_templates(recipe, table, name)
    tasks: list[Task] = []
    problems = Problems(table.name)
    seen: dict[str, str] = {}
    for number in chosen.rows:
        place = table.places[number]
        try:
            task = _task(recipe, table.rows[number], table.columns)
        except JobError as error:
            problems.add(f"{place}: {error.message}", error.remedy)
            continue
        if task.id in seen:
            problems.add(*_duplicate(recipe, task.id, seen[task.id], place))
        seen.setdefault(task.id, place)
        tasks.append(task)
    problems.check()
    left_out = [_left_out(recipe, table, number, reason) for number, reason in chosen.left_out]
    return tuple(tasks), tuple(left_out)


def _check_templates(recipe: Recipe, table: Table, name: str) -> None:
    problems = Problems("")
    templates = [("prompt", recipe.prompt), ("id", recipe.id or ""), ("label", recipe.label or "")]
    templates += [("tools", template) for template in recipe.tools or ()]
    for key, template in templates:
        for column in placeholders(template):
            if column not in table.columns and column.partition(".")[0] not in table.columns:
                remedy = f"{did_you_mean(column, table.columns)} {_BRACES}"
                problems.add(f"{name} has no column {quoted(column)}, which `{key}` asks for.", remedy)
    if len(table.rows) > 1 and not placeholders(recipe.prompt):
        columns = ", ".join(list(table.columns)[:8])
        problems.add(
            "`prompt` names no column, so all rows would get the same prompt.",
            f"Put a column in braces: {{{next(iter(table.columns), 'Name')}}}. There is: {columns}.",
        )
    if recipe.id and not placeholders(recipe.id) and recipe.id not in table.columns:
        problems.add(
            f"{name} has no column {quoted(recipe.id)}, which `id` names.",
            did_you_mean(recipe.id, table.columns),
        )
    problems.check()


def _task(recipe: Recipe, row: Row, columns: Sequence[str]) -> Task:
    prompt = fill(recipe.prompt, row)
    if not prompt.strip():
        raise JobError("the prompt of this row is empty.", remedy="Leave it out with `require`.")
    task_id = _id(recipe, row, columns)
    if task_id is None:
        task_id = content_id(recipe.prompt, row, ())
    else:
        check_id(task_id)
    grant = EVERYTHING
    if recipe.tools is not None:
        grant = grant_of(filled(recipe.tools, row), recipe.servers, "tools")
    return Task(
        id=task_id,
        prompt=prompt,
        spec=fingerprint(prompt, recipe.system, [], recipe.schema),
        label=_line(fill(recipe.label, row)) if recipe.label else "",
        priority=recipe.priority,
        max_tokens=recipe.max_tokens,
        schema=recipe.schema,
        servers=grant.servers,
        tools=grant.tools,
        variables=dict(row),
        delegates=recipe.delegates,
    )


def _id(recipe: Recipe, row: Row, columns: Sequence[str]) -> str | None:
    if not recipe.id:
        return None
    if recipe.id in columns:
        return fill("{value}", {"value": row[recipe.id]}).strip()
    return fill(recipe.id, row).strip()


def check_id(task: str) -> None:
    """Refuse an id that nobody could write down or no file could be called. Raises `JobError`."""
    if not task:
        raise JobError("the id is empty.", remedy="Fill it in, or leave the row out with `require`.")
    if task == EVERY:
        raise JobError('the id is "*", which means all tasks in `needs`.', remedy="Choose another.")
    if not task.isprintable():
        raise JobError(f"the id {quoted(task)} holds a line break or another control character.", remedy="Remove it.")
    if len(task) > LONGEST_ID:
        raise JobError(f"the id {quoted(task)} is longer than {LONGEST_ID} characters.", remedy="Choose a shorter one.")


def _duplicate(recipe: Recipe, task: str, first: str, second: str) -> tuple[str, str]:
    if recipe.id:
        return (
            f"{first} and {second} have the same id {quoted(task)}.",
            'Name a column that differs in every row, or several: id = "{A}-{B}".',
        )
    return f"{first} and {second} are the same row.", "Remove one, or tell them apart with `id`."


def _left_out(recipe: Recipe, table: Table, number: int, reason: str) -> LeftOut:
    row, place = table.rows[number], table.places[number]
    try:
        task_id = _line(_id(recipe, row, table.columns) or "") or place
        label = _line(fill(recipe.label, row)) if recipe.label else ""
    except JobError:
        # A row that is not run may lack what its id is made of.
        task_id, label = place, ""
    return LeftOut(task_id, label, reason)


def _line(text: str) -> str:
    """A text that people see beside an id: one line, not too long."""
    return " ".join(text.split())[:LONGEST_ID]


# -- tasks as a whole ------------------------------------------------------------------------------------------------


def check_graph(tasks: Sequence[Task], limits: Limits, *, file: str) -> tuple[tuple[str, ...], ...]:
    """Refuse duplicates, unknown needs and cycles before anything runs; returns each task's needs, `"*"` resolved.

    Raises `GraphError`.
    """
    graph = TaskGraph(max_depth=limits.depth, max_tasks=limits.tasks)
    new = [
        NewTask(task.id, task.spec, task.label, task.needs, None, task.priority, task.allow_failed) for task in tasks
    ]
    try:
        graph.add(new)
    except GraphError as error:
        raise GraphError(f"{file}: {error.message}" if file else error.message, remedy=error.remedy) from None
    return tuple(graph.needs(task.id) for task in tasks)


def with_specs(tasks: Sequence[Task], needs: Sequence[Sequence[str]], system: str) -> tuple[Task, ...]:
    """The tasks with specs that also change when a task that they need changes, or when `"*"` stands for others.

    So a resume with an edited job runs again what is affected, and only that. The needs must hold no cycle.
    """
    wanted = {task.id: tuple(ids) for task, ids in zip(tasks, needs, strict=True)}
    by_id = {task.id: task for task in tasks}
    specs: dict[str, str] = {}
    stack = [task.id for task in reversed(tasks)]
    while stack:
        task = by_id[stack[-1]]
        open_needs = [need for need in wanted[task.id] if need not in specs]
        if open_needs and task.id not in specs:
            stack.extend(open_needs)
            continue
        stack.pop()
        if task.id not in specs:
            chain = [[need, specs[need]] for need in wanted[task.id]]
            specs[task.id] = fingerprint(task.prompt, system, chain, task.schema)
    return tuple(replace(task, spec=specs[task.id]) for task in tasks)
