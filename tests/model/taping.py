"""Doubles and questions for tests of recordings: upstreams that answer alike, and what a file of exchanges tells."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from centuria.errors import ModelError
from centuria.messages import Completion
from centuria.model.exchange import Exchange, read_line
from centuria.model.recording import RecordingTransport
from centuria.model.rehearsal import RehearsalTransport
from centuria.ports import Caller, HttpRequest, HttpResponse, Transport
from centuria.settings import Rehearsal
from tests.model.kit import Desk, ask, caller

URL = "http://upstream.test/v1/chat/completions"
FAULTS = {"429": 0.1, "500": 0.1, "reset": 0.1, "stall": 0.1, "cut": 0.1, "rubbish": 0.1}


class Pieces:
    """An upstream that answers every request alike: a status, headers, pieces of a body, and an end."""

    def __init__(self, *pieces: bytes, status: int = 200, headers: Mapping[str, str] | None = None, gap: float = 0.0):
        self.pieces, self.status, self.headers, self.gap = pieces, status, headers or {}, gap
        self.then: ModelError | None = None
        self.seen: list[HttpRequest] = []

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        self.seen.append(request)
        await asyncio.sleep(self.gap)
        yield self

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
            await asyncio.sleep(self.gap)
        if self.then is not None:
            raise self.then

    async def aclose(self) -> None:
        pass


def rehearse(**more: Any) -> RehearsalTransport:
    return RehearsalTransport(Rehearsal(**more), lambda task: {"Name": task})


def request(
    body: bytes = b"{}", *, who: Caller | None = None, url: str = URL, headers: Mapping[str, str] | None = None
) -> HttpRequest:
    return HttpRequest("POST", url, headers or {}, body, caller=who or caller("t"))


async def read(transport: Transport, asked: HttpRequest) -> tuple[int, Mapping[str, str], list[bytes]]:
    async with transport.send(asked) as response:
        return response.status, response.headers, [chunk async for chunk in response.chunks()]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def exchanges(path: Path) -> list[Exchange]:
    found = [read_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    return [exchange for exchange in found if isinstance(exchange, Exchange)]


Ended = tuple[str, Completion | None, str]


async def work(desk: Desk, agents: int) -> dict[str, Ended]:
    """Every agent asks once; how it ended, with its answer or its error."""

    async def one(name: str) -> Ended:
        try:
            return "ok", await desk.client.chat(ask(f"I am {name}."), caller(name)), ""
        except ModelError as error:
            return type(error).__name__, None, f"{error} {error.partial}"

    names = [f"t{number}" for number in range(agents)]
    ended = await asyncio.gather(*map(one, names))
    desk.assert_nothing_is_left_open()
    return dict(zip(names, ended, strict=True))


def books(desk: Desk) -> list[tuple[Any, ...]]:
    """Every attempt and its money, in an order that does not depend on who came first."""
    rows = [(str(row.key), row.attempt, row.end, row.cost, row.usage, row.error, row.partial) for row in desk.closed]
    return sorted(rows, key=lambda row: row[:2])


async def recorded(path: Path, *asked: HttpRequest) -> None:
    recorder = RecordingTransport(Echo(), path)
    for each in asked:
        await read(recorder, each)
    await recorder.aclose()


class Echo(Pieces):
    """Answers with a number that rises from request to request."""

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        self.seen.append(request)
        yield Pieces(str(len(self.seen)).encode())
