"""What is wrong with a file, as sentences: each names the file, the table and the key, and says what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from centuria.core.quoting import did_you_mean, meant, quoted
from centuria.errors import JobError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

#: So many problems are listed; the rest are counted.
SHOWN = 8

_WANTED = {
    "string_type": "must be text in quotes",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list: [...]",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "finite_number": "must be a finite number",
    "invalid-json-value": "must be text, a number, true, false, a list or a table",
}


class Problems:
    """Collects the problems of one file, so that all are shown at once, the first one first."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[tuple[str, str]] = []

    def add(self, text: str, remedy: str = "") -> None:
        """`text` is a sentence without the file's name; `remedy` is a sentence, or nothing."""
        self._found.append((f"{self.file}: {text}" if self.file else text, remedy))

    def take(self, error: JobError) -> None:
        """Keep an error that already names its file."""
        self._found.append((error.message, error.remedy))

    def check(self) -> None:
        """Raise one `JobError` for all that was found; return if nothing was."""
        if not self._found:
            return
        (message, remedy), *others = self._found
        lines = [f"Also: {text} {advice}".strip() for text, advice in others[: SHOWN - 1]]
        if len(others) >= SHOWN:
            lines.append(f"... and {len(others) - SHOWN + 1} more.")
        raise JobError(message, remedy="\n".join(line for line in (remedy, *lines) if line))


def where(location: Sequence[int | str]) -> str:
    """A place in a file as its reader sees it: `[limits] agents`, `[[task]] number 2, needs, item 1`."""
    parts = [part for part in location if part != "[key]"]
    if not parts:
        return "the file"
    table, rest = f"[{parts[0]}]", parts[1:]
    listed = parts[0] == "task" or (parts[0] == "model" and len(parts) > 1 and isinstance(parts[1], int))
    if listed:
        number, rest = (parts[1], parts[2:]) if len(parts) > 1 else (0, [])
        table = f"[[{parts[0]}]] number {int(number) + 1}" if isinstance(number, int) else f"[[{parts[0]}]]"
    elif parts[0] in ("tools", "prices") and len(parts) > 1:
        name = str(parts[1])
        bare = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        table, rest = f"[{parts[0]}.{name}]" if bare else f'[{parts[0]}."{name}"]', parts[2:]
    keys = [f"item {part + 1}" if isinstance(part, int) else str(part) for part in rest]
    joint = ", " if listed and keys else " "
    return f"{table}{joint}{', '.join(keys)}".strip()


def from_validation(
    error: ValidationError,
    model: type[BaseModel],
    problems: Problems,
    place: Callable[[Sequence[int | str]], str] = where,
) -> None:
    """Every finding of pydantic as a sentence of ours; values are not repeated, they may be secrets. `place` tells
    where each is."""
    # An unknown key is most often the cause of a missing one, so it is told first.
    found = error.errors(include_url=False)
    for detail in sorted(found, key=lambda item: item["type"] != "extra_forbidden"):
        text, remedy = _sentence(detail, model, place)
        problems.add(text, remedy)


def _sentence(
    detail: ErrorDetails, model: type[BaseModel], where: Callable[[Sequence[int | str]], str]
) -> tuple[str, str]:
    location, kind = detail["loc"], detail["type"]
    if kind == "finite_number":
        # pydantic also names the branches of JSON's union, which are no keys of the file.
        location = tuple(part for part in location if part not in ("float", "list", "dict"))
    context: dict[str, Any] = detail.get("ctx", {})
    *outer, last = location or ("",)
    if kind == "extra_forbidden":
        table = where(outer) if outer else "the file"
        return f"{table} has no key {quoted(last)}.", did_you_mean(str(last), _keys_at(model, outer))
    if kind == "missing":
        table = where(outer) if outer else "the file"
        return f"{table} lacks {quoted(last)}.", f"Add a line: {last} = ..."
    if kind == "value_error":
        text, _, remedy = str(context.get("error", detail["msg"])).partition("\n")
        return f"{where(location)} {text}", remedy
    return (
        f"{where(location)} {_wanted(kind, context, detail['msg'], detail.get('input'))}.",
        _nearest_choice(kind, detail),
    )


def _wanted(kind: str, context: dict[str, Any], fallback: str, given: object) -> str:
    if kind in _WANTED:
        return _WANTED[kind]
    match kind:
        case "greater_than":
            return f"must be more than {context['gt']:g}{_not(given)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}{_not(given)}"
        case "less_than_equal":
            return f"must be at most {context['le']:,}{_not(given)}"
        case "less_than":
            return f"must be less than {context['lt']:,}{_not(given)}"
        case "literal_error":
            return f"must be one of {context['expected']}"
        case "too_long":
            return f"holds more than {context['max_length']} items"
        case "too_short":
            return "must not be empty"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case _:
            return f"is not valid ({fallback[:1].lower()}{fallback[1:]})"


def _not(given: object) -> str:
    return f", not {given}" if isinstance(given, int | float) and abs(given) < 10**15 else ""


def _nearest_choice(kind: str, detail: ErrorDetails) -> str:
    given = detail.get("input")
    if kind != "literal_error" or not isinstance(given, str):
        return ""
    choices = [
        part.strip(" '") for part in str(detail.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(",")
    ]
    return meant(given, choices, quoted).strip()


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _keys_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The keys that are right at a place of the file, read from the published schema."""
    schema = _schema_of(model)
    definitions = schema.get("$defs", {})

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        options = [node, *node.get("anyOf", []), *node.get("allOf", [])]
        for option in options:
            if "$ref" in option:
                return resolved(definitions[option["$ref"].rpartition("/")[2]])
        return next((item for item in options if item.get("type") in ("object", "array")), node)

    node = resolved(schema)
    for part in location:
        inner = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        node = resolved(inner or node.get("additionalProperties") or {})
    return list(node.get("properties", {}))
