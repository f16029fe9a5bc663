"""Files and the environment: bounded reads with one clear error each, and `${VAR}` in the settings of tool servers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from centuria.core.quoting import quoted
from centuria.core.strict_json import strict_json
from centuria.errors import JobError

#: The largest job, schema and mcpServers file.
SMALL = 4 * 1024 * 1024
#: The largest file of rows.
LARGE = 256 * 1024 * 1024

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")
_NO_BREAK = re.compile(r"[^\n]")
_REFERENCE = re.compile(
    r"\$\{(?:(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<kind>input|file|command|config):(?P<id>[^}]*))\}"
)


def shown(path: Path) -> str:
    """A file's name as messages show it: its last part, which is what the user wrote and nothing of the machine."""
    return path.name or str(path)


def read_text(path: Path, *, limit: int, what: str) -> str:
    """A file as text. Raises `JobError`: missing, unreadable, a folder, too large, or not UTF-8."""
    name = shown(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise JobError(f"{what} {name} does not exist.", remedy=f"Looked for it at {path.absolute()}.") from None
    except IsADirectoryError:
        raise JobError(f"{what} {name} is a folder.", remedy="Name a file in it.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "its name is not legal"
        raise JobError(
            f"{what} {name} cannot be read: {reason}.", remedy="Check its path and its permissions."
        ) from None
    if len(data) > limit:
        raise JobError(f"{what} {name} is larger than {limit // 2**20} MB.", remedy="Split it.")
    return _decoded(data, name, what)


def _decoded(data: bytes, name: str, what: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise JobError(f"{what} {name} is UTF-16, not UTF-8.", remedy='Save it again as "UTF-8".')
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise JobError(
            f"{what} {name} is not UTF-8: line {line} holds the byte 0x{data[error.start]:02x}.",
            remedy='Save it again as "UTF-8" (a spreadsheet offers "CSV UTF-8").',
        ) from None


def parse_json(text: str, place: str) -> Any:
    """Strict JSON. Raises `JobError` beginning with `place`: syntax, NaN, too deep, lone surrogates."""
    try:
        value = strict_json(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise JobError(f"{place} is not JSON: {error.msg} ({at}).", remedy="Mend it there.") from None
    except RecursionError:
        raise JobError(f"{place} is nested too deeply.", remedy="Make it flatter.") from None
    except ValueError as error:
        raise JobError(f"{place} is not JSON: {error}.", remedy="Mend it there.") from None
    if "\\u" in text:
        check_unicode(value, place)
    return value


def without_comments(text: str) -> str:
    """JSON without the comments and the trailing commas that editors allow in it; all else stays in its place."""
    for pattern in (_COMMENT, _COMMA):
        text = pattern.sub(lambda found: found[0] if found[0].startswith('"') else _NO_BREAK.sub(" ", found[0]), text)
    return text


def check_unicode(value: Any, place: str) -> None:
    """Refuse text that cannot be sent or stored: half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise JobError(f"{place} is nested too deeply.", remedy="Make it flatter.") from None
    except UnicodeEncodeError:
        raise JobError(
            f"{place} holds text that is not valid Unicode (half of a surrogate pair).",
            remedy="Remove that character.",
        ) from None


def input_variable(name: str) -> str:
    """The variable that answers what an editor would ask for: the input `brave-key` is BRAVE_KEY."""
    return re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")


def expand(
    text: str, env: Mapping[str, str], *, folder: Path, place: str, inputs: Mapping[str, str] | None = None
) -> str:
    """`${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${workspaceFolder}` and `${userHome}` replaced, as MCP hosts do.

    `${input:ID}`, for which an editor asks its user, is the variable `input_variable(ID)`, else its default in
    `inputs` (which holds those that the file declares; None: it can declare none). Raises `JobError` naming the
    variable that is not set, and what only an editor could fill in. Sources:
    code.claude.com/docs/en/mcp (`.mcp.json`), code.visualstudio.com/docs/copilot/reference/mcp-configuration.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return _asked(match, env, inputs, place)
        if name == "workspaceFolder":
            return str(folder)
        if name == "userHome":
            return env.get("HOME", "~")
        found = env.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise JobError(
                f"{place} asks for the variable {name}, which is not set.",
                remedy=f"Set it, or write ${{{name}:-default}}.",
            )
        return found

    filled = _REFERENCE.sub(value, text)
    if "\0" in filled:
        raise JobError(f"{place} holds a NUL character.", remedy="Remove it.")
    return filled


def _asked(found: re.Match[str], env: Mapping[str, str], inputs: Mapping[str, str] | None, place: str) -> str:
    """What an editor would fill in. Raises `JobError` where only it can."""
    name = input_variable(found["id"])
    if found["kind"] != "input" or inputs is None or not name:
        raise JobError(
            f"{place} asks for {quoted(found[0])}, which only an editor can fill in.",
            remedy="Write ${NAME} and set that variable in the environment.",
        )
    value = env.get(name) or inputs.get(found["id"])
    if not value:
        raise JobError(
            f"{place} asks for {quoted(found[0])}, for which an editor would ask you.",
            remedy=f"Set the variable {name}.",
        )
    return value
