"""Three models with characters of their own, as upstreams, and a job that calls one tool for each row."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from centuria.messages import Usage
from centuria.testing.upstream import Calls, FakeUpstream, Reply, Text
from tests.promises.kit import Body, prompt, raw_server, tool_texts, turn, write_job

#: What every answer uses: at a dollar a million each way, a thousandth of a dollar.
USED = Usage(400, output=600)
PRICE = {"input": 1.0, "output": 1.0}
ECHO = "echo__echo"


def right(body: Body) -> Reply:
    """One call of the tool, as it should be, and an answer."""
    if turn(body) == 0:
        return echo("hello")
    return Text(f"The tool said {tool_texts(body)[-1]}.", usage=USED)


def careless(body: Body) -> Reply:
    """Every second row is called against the schema; told so, it calls rightly, but for row n3, which never is."""
    number = int(prompt(body).rpartition(" n")[2].rstrip("."))
    told = tool_texts(body)
    if turn(body) == 0:
        return calls((ECHO, json.dumps({"text": 7}))) if number % 2 else echo("hello")
    if "was not called" in told[-1] and turn(body) == 1:
        return calls((ECHO, json.dumps({"text": 8}))) if number == 3 else echo("hello")
    return Text("Done.", usage=USED)


def dreaming(body: Body) -> Reply:
    """Names a tool that there is not for n0, writes no JSON for n1, is cut off at n2, and calls nothing else."""
    number = int(prompt(body).rpartition(" n")[2].rstrip("."))
    if turn(body) == 0 and number == 0:
        return calls(("echo__ehco", "{}"))
    if turn(body) == 0 and number == 1:
        return calls((ECHO, '{"text": '))
    if turn(body) == 1 and number in (0, 1):
        return echo("hello")
    if number == 2:
        return Text("I had begun to", finish="length", usage=USED)
    return Text("I need no tool.", usage=USED)


def refusing(script: Callable[[Body], Reply], *failures: Reply) -> Callable[[Body], Reply]:
    """The script, after these failures."""
    left = list(failures)
    return lambda body: left.pop(0) if left else script(body)


def echo(text: str) -> Calls:
    return calls((ECHO, json.dumps({"text": text})))


def calls(*wanted: tuple[str, str]) -> Calls:
    return Calls(wanted, usage=USED)


@asynccontextmanager
async def upstreams(*scripts: Callable[[Body], Reply], **more: Any) -> AsyncIterator[list[FakeUpstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeUpstream(script, **more)) for script in scripts]


def compare_job(
    folder: Path, servers: list[FakeUpstream], *, rows: int = 6, echoes: bool = True, **tables: Any
) -> Path:
    """A job whose `[compare.models]` are `a`, `b`, ... at these upstreams."""
    models = {
        letter: {"name": f"model-{letter}", "base_url": server.base_url}
        for letter, server in zip("abcdefgh", servers, strict=False)
    }
    tables = {"tools": {"echo": raw_server()}, **tables} if echoes else tables
    path = write_job(folder, servers[0], rows=rows, price=PRICE, compare={"models": models}, **tables)
    prices = "".join(f'[prices."{one["name"]}"]\ninput = 1.0\noutput = 1.0\n' for one in models.values())
    path.write_text(path.read_text() + prices)
    return path
