"""The MCP server `code_exec`: Python in a sandbox without files, network or processes.

    python -m centuria.tools.code_exec

The sandbox is Monty (`pydantic-monty`): an interpreter of a subset of Python 3.14 in worker processes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from centuria.tools.serving import Answer, Refusal, ServedTool, build, serve
from centuria.tools.statistics_module import NAMES, Statistics

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from pydantic_monty import AsyncMonty

MAX_CODE = 200_000
#: Times the answer's characters that may be printed before the program is stopped.
FLOOD = 50
# Seconds beyond the sandbox's own limit after which the call ends whatever the sandbox does.
_GRACE = 5.0
_MAX_HOST_CALLS = 10_000
# A worker is replaced after so many programs, as a precaution against what may pile up in it.
_RECYCLE_AFTER = 500

#: What the sandbox can import; a test imports each.
MODULES = (
    *("asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime"),
    *("decimal", "functools", "hashlib", "itertools", "json", "math", "random", "re", "statistics", "sys"),
    *("time", "tomllib", "typing", "unicodedata"),
)

_DESCRIPTION = """\
Run Python code in a sandbox and get what it prints, or the value of its last expression if it prints
nothing. Each call starts afresh: no variables are kept. Put the data into the code; there are no files, no
network, no environment and no packages. It is a subset of Python 3.14: functions, lambdas, comprehensions,
f-strings, exceptions, match, dataclasses and simple classes work; class inheritance, yield, del, @property,
@staticmethod and @classmethod do not. Modules: {modules}. `collections` has Counter, defaultdict, deque,
namedtuple; `csv` reads lists of lines (there is no io); `statistics` has {statistics}. Write f'{{x:.2f}}'
rather than round(x, 2), which differs in the last digit for some halves. Limits: {seconds:g} s,
{megabytes:,} MB, {characters:,} characters of output; sleeping takes no time."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Of one call: seconds of running, megabytes of memory, characters of output; how many run at once."""

    seconds: float = 10.0
    memory_mb: int = 256
    output_chars: int = 20_000
    at_once: int = 5


@dataclass(slots=True)
class Printed:
    """What a program prints: the first `limit` characters, and how many there were."""

    limit: int
    parts: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str) -> bool:
        """Take a piece; True where the program prints without end and should be stopped."""
        if self.count < self.limit:
            self.parts.append(text[: self.limit - self.count])
        self.count += len(text)
        return self.count > self.limit * FLOOD

    @property
    def text(self) -> str:
        shown = "".join(self.parts)
        if self.count <= self.limit:
            return shown
        return f"{shown}\n[{self.count - self.limit:,} more characters were printed and are left out]"


class Sandbox:
    """A pool of worker processes; every program gets a fresh session. Use it inside `running()`."""

    def __init__(self, limits: SandboxLimits = SandboxLimits()) -> None:
        self.limits = limits
        self._pool: AsyncMonty | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        from pydantic_monty import AsyncMonty

        async with AsyncMonty(
            min_processes=1, max_processes=self.limits.at_once, max_checkouts_per_worker=_RECYCLE_AFTER
        ) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    async def run(self, code: str) -> tuple[str, str | None]:
        """What a program printed, and the value of its last expression if it has one. Raises `Refusal`."""
        from pydantic_monty import ExternalModule, MontyCrashedError, MontyRuntimeError, MontySyntaxError

        if self._pool is None:
            raise RuntimeError("The sandbox is not running.")
        if len(code) > MAX_CODE:
            raise Refusal(f"The code has {len(code):,} characters; at most {MAX_CODE:,} are run.")
        printed = Printed(self.limits.output_chars)
        session = self._pool.checkout(
            limits={
                "max_feed_duration_secs": self.limits.seconds,
                "max_memory": self.limits.memory_mb * 1024 * 1024,
                "max_suspensions": _MAX_HOST_CALLS,
            },
            os_policy={"sleep": "zero"},
            external_modules={"statistics": ExternalModule(dict(Statistics().functions()))},
        )
        try:
            async with session:
                value = await self._feed(session, code, printed)
        except (MontyRuntimeError, MontySyntaxError) as error:
            raise Refusal(_with_output(printed, _shortened(error.display(), self.limits.output_chars))) from None
        except MontyCrashedError:
            raise Refusal(
                _with_output(printed, "The sandbox crashed. Nothing is left of it; the next call gets a new one.")
            ) from None
        return printed.text, None if value is None else shown(value, self.limits.output_chars)

    async def _feed(self, session: Any, code: str, printed: Printed) -> Any:
        loop = asyncio.get_running_loop()
        flooded = False

        def take(_stream: str, text: str) -> None:
            nonlocal flooded
            if printed.add(text) and not flooded:
                flooded = True
                loop.call_soon_threadsafe(lambda: None if scope.expired() else scope.reschedule(loop.time()))

        try:
            async with asyncio.timeout(self.limits.seconds + _GRACE) as scope:
                return await session.feed_run(code, print_callback=take)
        except TimeoutError:
            if flooded:
                most = self.limits.output_chars * FLOOD
                sentence = f"The program was stopped: it printed more than {most:,} characters."
            else:
                sentence = f"The program was stopped: it took more than {self.limits.seconds:g} seconds."
            raise Refusal(_with_output(printed, sentence)) from None


def _with_output(printed: Printed, message: str) -> str:
    return f"{message}\n\nPrinted before that:\n{printed.text}" if printed.count else message


def _shortened(text: str, limit: int) -> str:
    """The first and the last part of a text that is too long."""
    return text if len(text) <= limit else f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"


def shown(value: Any, limit: int) -> str:
    """A value as Python would show it, at most about `limit` characters, whatever its size."""
    parts: list[str] = []
    left = [limit]

    def put(text: str) -> None:
        parts.append(text)
        left[0] -= len(text)

    _show(value, put, left, 0)
    text = "".join(parts)
    return text if left[0] >= 0 else text[:limit] + " [...]"


def _show(value: Any, put: Any, left: list[int], depth: int) -> None:
    if left[0] < 0:
        return
    if isinstance(value, str | bytes):
        put(repr(value[: left[0] + 1]))
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 10_000:
        put(f"<an integer of {value.bit_length():,} bits>")
    elif isinstance(value, dict) and depth < 20:
        _show_all(value.items(), "{", "}", put, left, depth, pairs=True)
    elif type(value) in _BRACKETS and depth < 20:
        opening, closing = _BRACKETS[type(value)]
        _show_all(value, opening, ",)" if closing == ")" and len(value) == 1 else closing, put, left, depth)
    elif isinstance(value, dict | list | tuple | set | frozenset):
        put("...")
    elif hasattr(value, "attributes") and hasattr(value, "name"):
        put(f"{value.name}(")
        _show(dict(value.attributes), put, left, depth + 1)
        put(")")
    else:
        put(repr(value)[: left[0] + 1])


_BRACKETS: Mapping[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def _show_all(
    items: Any, opening: str, closing: str, put: Any, left: list[int], depth: int, *, pairs: bool = False
) -> None:
    put(opening)
    for number, item in enumerate(items):
        if left[0] < 0:
            return
        if number:
            put(", ")
        if pairs:
            _show(item[0], put, left, depth + 1)
            put(": ")
            _show(item[1], put, left, depth + 1)
        else:
            _show(item, put, left, depth + 1)
    put(closing)


def tools(sandbox: Sandbox) -> list[ServedTool]:
    limits = sandbox.limits

    async def code_exec(arguments: Mapping[str, Any]) -> Answer:
        output, result = await sandbox.run(arguments["code"])
        structured = {"output": output, "result": result}
        return Answer(output or (result if result is not None else "(no output)"), structured)

    description = _DESCRIPTION.replace("\n", " ").format(
        modules=", ".join(MODULES),
        statistics=", ".join(NAMES),
        seconds=limits.seconds,
        megabytes=limits.memory_mb,
        characters=limits.output_chars,
    )
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python program."}},
        "required": ["code"],
        "additionalProperties": False,
    }
    return [ServedTool("code_exec", "Run Python", description, schema, code_exec)]


def server(limits: SandboxLimits) -> Server[Any]:
    sandbox = Sandbox(limits)
    return build("code_exec", tools(sandbox), lifespan=sandbox.running)


def main(argv: Sequence[str] | None = None) -> None:
    default = SandboxLimits()
    parser = argparse.ArgumentParser(
        prog="python -m centuria.tools.code_exec",
        description="An MCP server over stdio: Python in a sandbox without files, network or processes.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=default.seconds, help="limit of time a call (default: %(default)s)")
    add(
        "--memory-mb",
        type=int,
        default=default.memory_mb,
        help="limit of memory a call (default: %(default)s)",
    )
    add(
        "--output-chars",
        type=int,
        default=default.output_chars,
        help="limit of output (default: %(default)s)",
    )
    add("--at-once", type=int, default=default.at_once, help="calls that run at once (default: %(default)s)")
    given = parser.parse_args(argv)
    for name in ("seconds", "memory_mb", "output_chars", "at_once"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    serve(lambda: server(SandboxLimits(given.seconds, given.memory_mb, given.output_chars, given.at_once)))


if __name__ == "__main__":
    main()
