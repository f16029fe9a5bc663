"""What is replayed is what was recorded, byte for byte; what was not recorded is refused by name."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ModelRefused
from centuria.model.difference import first_difference
from centuria.model.exchange import Exchange, exchange_line
from centuria.model.http import HttpTransport
from centuria.model.recording import RecordingTransport
from centuria.model.replay import NOT_RECORDED, RetryAtOnce
from centuria.ports import Caller, HttpRequest, Transport
from centuria.settings import ScriptedTurn
from centuria.testing.clock import virtual_clock
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Raw, Reply, Reset, Text
from tests.model.conftest import Replay
from tests.model.kit import QUICK, Desk, caller
from tests.model.taping import FAULTS, URL, Ended, Pieces, books, exchanges, read, recorded, rehearse, request, work


def chat_body(*texts: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_of_faults_ends_every_call_as_it_ended_with_the_same_attempts_and_money(
    tmp_path: Path, replay: Replay, seed: int
) -> None:
    path = tmp_path / "run.jsonl"
    ended: list[dict[str, Ended]] = []
    booked: list[list[tuple[Any, ...]]] = []

    async def record() -> None:
        inner = rehearse(seed=seed, faults=FAULTS, chunk_ms=10, turns=(ScriptedTurn(text="I am {Name}. " * 20),))
        transport = RecordingTransport(inner, path)
        await note(Desk(transport), transport)

    async def again(limit: int) -> None:
        transport = replay(path)
        await note(Desk(transport, limit=limit, retry=RetryAtOnce(QUICK.delays)), transport)

    async def note(desk: Desk, transport: Transport) -> None:
        ended.append(await work(desk, 40))
        booked.append(books(desk))
        await transport.aclose()

    virtual_clock(record)()
    for limit in (100, 1):
        virtual_clock(again)(limit)
    assert len({row[2] for row in booked[0]}) == 3 and {how for how, _, _ in ended[0].values()} > {"ok"}
    assert ended[1] == ended[0] and ended[2] == ended[0]
    assert booked[1] == booked[0] and booked[2] == booked[0]


@virtual_clock
async def test_a_replay_that_is_recorded_is_the_recording_again(tmp_path: Path, replay: Replay) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first = RecordingTransport(rehearse(faults=FAULTS, turns=(ScriptedTurn(text="{Name}"),)), one)
    await work(Desk(first), 20)
    await first.aclose()
    second = RecordingTransport(replay(one, paced=True), two)
    await work(Desk(second), 20)
    await second.aclose()

    def told(path: Path) -> list[Exchange]:
        return sorted(exchanges(path), key=lambda each: (str(each.caller), each.attempt))

    for left, right in zip(told(one), told(two), strict=True):
        assert exchange_line(left).split(b'"request":')[1] == exchange_line(right).split(b'"request":')[1]


@virtual_clock
async def test_chunks_come_back_with_their_boundaries_whatever_bytes_they_are(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "run.jsonl"
    pieces = (b"\xe2\x82", b"\xac\n", b"", b"data: {}\r\n", bytes(range(256)), "\u2028\0".encode())
    headers = {"content-type": "text/event-stream", "x-ratelimit-remaining-tokens": "12"}
    recorder = RecordingTransport(Pieces(*pieces, status=207, headers=headers), path)
    asked = request(b"\xff\x00 no text")
    there = await read(recorder, asked)
    await recorder.aclose()
    assert there == (207, headers, list(pieces))
    assert await read(replay(path), asked) == there


@virtual_clock
async def test_a_paced_replay_takes_the_recorded_time_and_one_at_once_none(tmp_path: Path, replay: Replay) -> None:
    now = asyncio.get_running_loop().time
    path = tmp_path / "run.jsonl"
    recorder = RecordingTransport(Pieces(b"a", b"b", b"c", gap=0.25), path)
    await read(recorder, request())
    await recorder.aclose()
    assert now() == pytest.approx(1.0)
    await read(replay(path), request())
    assert now() == pytest.approx(1.0)
    await read(replay(path, paced=True), request())
    assert now() == pytest.approx(2.0)


class Script:
    """Each reply of a list once; then the last again."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def __call__(self, body: dict[str, Any]) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def test_faults_of_a_real_connection_are_the_same_faults_when_they_are_replayed(
    tmp_path: Path, replay: Replay
) -> None:
    path, text = tmp_path / "run.jsonl", Text("Half of this is lost. " * 40)
    refusal = HttpError(429, "rate_limit_reached_error", "Slower.", {"Retry-After": "0.001"})
    script = Script(Reset(), Cut(text), refusal, Raw((b"data: rubbish\n\n",)), Text("Here."))
    async with FakeUpstream(script) as upstream:
        transport, url = RecordingTransport(HttpTransport(), path), upstream.base_url
        live = Desk(transport, url, limit=1)
        told = await work(live, 2)
        await transport.aclose()
    assert [each.ending.how for each in exchanges(path)][:3] == ["reset", "cut", "end"]
    # Where the upstream is does not matter any more: it has gone.
    desk = Desk(replay(path), url, limit=1)
    assert await work(desk, 2) == told
    assert books(desk) == books(live) and len(books(live)) == 6 and told["t1"][0] == "ok"


async def test_a_refused_connection_is_refused_again_and_costs_nothing(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "run.jsonl"
    transport = RecordingTransport(HttpTransport(), path)
    told = await work(Desk(transport, "http://127.0.0.1:9/v1"), 1)
    await transport.aclose()
    desk = Desk(replay(path))
    assert await work(desk, 1) == told
    assert told["t0"][0] == "ModelUnavailable" and desk.ledger.held("run") == desk.ledger.spent("run") == 0
    assert [each.ending.error.kind for each in exchanges(path) if each.ending.error] == ["connect"] * 4


@virtual_clock
async def test_what_was_cancelled_is_recorded_so_and_stays_silent_when_it_is_replayed(
    tmp_path: Path, replay: Replay
) -> None:
    path = tmp_path / "run.jsonl"
    recorder = RecordingTransport(Pieces(b"a", b"b", gap=10), path)
    for attempt in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5 if attempt else 15):
                await read(recorder, request())
    async with recorder.send(request()):
        pass
    await recorder.aclose()
    assert [(each.status, each.ending.how) for each in exchanges(path)] == [
        (200, "cancelled"),
        (0, "cancelled"),
        (200, "left"),
    ]
    again = replay(path)
    async with again.send(request()) as response:
        chunks = response.chunks()
        assert await anext(chunks) == b"a"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 1000)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(again, request()), 1000)


# -- who gets what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (0, 2, 1, 3), (0, 1, 2, 3)])
async def test_a_callers_attempts_are_told_apart_and_come_in_any_order_of_callers(
    tmp_path: Path, replay: Replay, order: tuple[int, ...]
) -> None:
    path, same = tmp_path / "run.jsonl", b'{"messages":[]}'
    asked = [request(same, who=caller(task)) for task in ("a", "b", "a", "c")]
    await recorded(path, *asked)
    transport = replay(path)
    got = [(await read(transport, asked[place]))[2] for place in order]
    assert got == [[str(place + 1).encode()] for place in order]


async def test_a_task_with_another_name_gets_the_exchange_of_its_body(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "run.jsonl"
    await recorded(path, request(b"one", who=caller("a")), request(b"two", who=caller("b")))
    transport = replay(path)
    assert (await read(transport, request(b"two", who=caller("x"))))[2] == [b"2"]
    assert (await read(transport, request(b"one", who=caller("b"))))[2] == [b"1"]


@pytest.mark.parametrize(
    ("asked", "who", "said"),
    [
        (
            chat_body("Report on Apple.", "Go on, please."),
            caller("a", 1),
            r"Task a, turn 2, attempt 1: .*run\.jsonl: it differs from the recorded one in messages\[1\]\.content, "
            r'character 2: recorded "Go!", now "Go on, please\."',
        ),
        (
            chat_body("Report on Apple.", "Go!", temperature=1),
            caller("a", 1),
            r"differs from the recorded one in temperature is not",
        ),
        (
            chat_body(),
            caller("a", 7),
            r"nearest one there is of turn 2 and differs in messages had 2 items, now 0",
        ),
        (chat_body("Hi"), caller("z"), r"Task z, turn 1.*no request of this task, only of a, b\."),
        (b"", None, r"A request of no task"),
    ],
)
async def test_a_request_that_was_not_recorded_is_refused_naming_the_task_and_what_differs(
    tmp_path: Path, replay: Replay, asked: bytes, who: Caller | None, said: str
) -> None:
    path = tmp_path / "run.jsonl"
    first, second = chat_body("Report on Apple."), chat_body("Report on Apple.", "Go!")
    await recorded(path, request(first, who=caller("a")), request(second, who=caller("a", 1)))
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[1].replace(b'"task":"a"', b'"task":"b"'))
    with pytest.raises(ModelRefused, match=said) as caught:
        await read(replay(path), HttpRequest("POST", URL, {}, asked, caller=who))
    assert caught.value.kind == NOT_RECORDED and not caught.value.served and "--record" in caught.value.remedy


async def test_a_request_made_more_often_than_it_was_recorded_is_refused(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "run.jsonl"
    await recorded(path, request())
    transport = replay(path)
    await read(transport, request())
    with pytest.raises(ModelRefused, match=r"attempt 2: .*it was recorded once, and all of that is used up"):
        await read(transport, request())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES | st.binary(max_size=20), JSON_VALUES | st.binary(max_size=20))
def test_two_bodies_differ_in_words_exactly_where_they_differ_in_bytes(one: Any, two: Any) -> None:
    left, right = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in (one, two))
    assert bool(first_difference(left, right)) is (left != right)


def test_a_difference_is_one_short_line() -> None:
    told = first_difference(chat_body("x" * 100_000 + "\n" * 100), chat_body("x" * 100_000 + "\r" * 100))
    assert "messages[0].content, character 100000" in told and len(told) < 300 and told.isprintable()
    deep = b"[" * 200_000
    assert first_difference(deep, deep + b"1") and first_difference(deep, b"{}")
