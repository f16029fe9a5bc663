"""Templates of prompts and rehearsals: `{Name}` is replaced, `{{` and `}}` are braces. Pure.

A placeholder is one line between braces without quotes, colons or braces, so JSON in a prompt stays what it is. A name
is looked up whole first ("Market Cap", "a.b"), then as a path through mappings and lists ("calc.rank", "rows.0.Price").
`{name|json}` inserts the value as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from centuria.core.quoting import meant
from centuria.core.strict_json import strict_json
from centuria.errors import JobError

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}\n\"':]*[^{}\n\"':\s][^{}\n\"':]*)\}")


def placeholders(template: str) -> tuple[str, ...]:
    """The names that a template asks for, each once, in order, without `|json`."""
    names = (match[1].removesuffix("|json").strip() for match in _TOKEN.finditer(template) if match[1])
    return tuple(dict.fromkeys(names))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with every placeholder replaced. Raises `JobError` naming one that has no value."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        name = match[1].removesuffix("|json").strip()
        value = look_up(name, values)
        if match[1].endswith("|json"):
            return json.dumps(value, ensure_ascii=False)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _TOKEN.sub(replace, template)


def fill_all(value: Any, values: Mapping[str, Any]) -> Any:
    """Fill every string inside a structure; a string that is one placeholder alone keeps the value's type."""
    if isinstance(value, str):
        whole = _TOKEN.fullmatch(value)
        if whole and whole[1] and not whole[1].endswith("|json"):
            return look_up(whole[1].strip(), values)
        return fill(value, values)
    if isinstance(value, Mapping):
        return {key: fill_all(item, values) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [fill_all(item, values) for item in value]
    return value


def unfill(template: str, text: str) -> dict[str, str] | None:
    """What stood at the placeholders of a template for this to be its text; None where it cannot be.

    Each placeholder takes as little as it can; one that comes twice must have stood for the same text.
    """
    pattern, at, names = "", 0, []
    for match in _TOKEN.finditer(template):
        pattern += re.escape(template[at : match.start()])
        at = match.end()
        if match[1] is None:
            pattern += re.escape(match[0][0])
        else:
            names.append(match[1].removesuffix("|json").strip())
            pattern += "(.*?)"
    found = re.fullmatch(pattern + re.escape(template[at:]), text, re.DOTALL)
    if found is None:
        return None
    values: dict[str, str] = {}
    for name, value in zip(names, found.groups(), strict=True):
        if values.setdefault(name, value) != value:
            return None
    return values


def look_up(name: str, values: Mapping[str, Any]) -> Any:
    """The value behind a name or a path. Raises `JobError` with the nearest name that exists."""
    if name in values:
        return values[name]
    current: Any = values
    for part in name.split("."):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list | tuple) and part.isdigit() and int(part) < len(current):
            current = current[int(part)]
        else:
            raise JobError(f"The template asks for {{{name}}}, which does not exist.", remedy=nearest(name, values))
    return current


def fits_header(text: str) -> bool:
    """Whether a filled template can be the value of an HTTP header, sent the same by every client."""
    return bool(text) and text == text.strip() and text.isascii() and text.isprintable()


def nearest(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """A remedy sentence: the nearest right name, or the names that there are."""
    names = [str(key) for key in known]
    there = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    told = meant(name, names, "{{{}}}".format).strip() or f"There is: {there or 'nothing'}."
    return f"{told} Write {{{{ and }}}} for braces that are meant literally."


def find_json(text: str) -> Any:
    """The one JSON value in a model's answer: the whole text, or what stands in a fence or between outer braces.

    None where there is none. Takes time in proportion to the text, whatever a model writes.
    """
    stripped = text.strip()
    start, end = stripped.find("{"), stripped.rfind("}")
    for candidate in (stripped, _fenced(stripped), stripped[start : end + 1] if 0 <= start < end else ""):
        try:
            return strict_json(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def _fenced(text: str) -> str:
    """What stands in the first fence that is of JSON or of no language; a fence opens at the end of its line."""
    inside: list[str] | None = None
    language = ""
    for line in text.split("\n"):
        if inside is None:
            after = line.rpartition("```")[2].strip().lower()
            if line.count("```") % 2 and " " not in after:
                inside, language = [], after
        elif line.lstrip().startswith("```"):
            if language in ("", "json"):
                return "\n".join(inside)
            inside = None
        else:
            inside.append(line)
    return ""
