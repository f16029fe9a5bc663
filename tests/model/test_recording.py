"""What is recorded is what was exchanged, without a key; what is replayed is what was recorded, byte for byte."""

import asyncio
import json
import os
import resource
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ConfigurationError, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.messages import CallKey, Completion
from centuria.model.blotting import Blotter, cover
from centuria.model.difference import first_difference
from centuria.model.exchange import (
    Damaged,
    Ending,
    Exchange,
    about_line,
    exchange_line,
    path_of,
    read_line,
    redacted,
)
from centuria.model.http import HttpTransport
from centuria.model.recording import RecordingTransport
from centuria.model.rehearsal import RehearsalTransport
from centuria.model.replay import NOT_RECORDED, Recording, ReplayTransport, RetryAtOnce
from centuria.ports import Caller, HttpRequest, HttpResponse, Transport
from centuria.settings import Rehearsal, ScriptedTurn
from centuria.testing.clock import virtual_clock
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Raw, Reply, Reset, Text
from tests.model.kit import KEY, QUICK, Desk, ask, caller

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


_OPEN: list[ReplayTransport] = []


def replay(path: Path, **more: Any) -> ReplayTransport:
    """A replay that the end of the test closes."""
    _OPEN.append(ReplayTransport(Recording(path), **more))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


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


# -- what comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_of_faults_ends_every_call_as_it_ended_with_the_same_attempts_and_money(
    tmp_path: Path, seed: int
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
async def test_a_replay_that_is_recorded_is_the_recording_again(tmp_path: Path) -> None:
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
async def test_chunks_come_back_with_their_boundaries_whatever_bytes_they_are(tmp_path: Path) -> None:
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
async def test_a_paced_replay_takes_the_recorded_time_and_one_at_once_none(tmp_path: Path) -> None:
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


async def test_faults_of_a_real_connection_are_the_same_faults_when_they_are_replayed(tmp_path: Path) -> None:
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


async def test_a_refused_connection_is_refused_again_and_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    transport = RecordingTransport(HttpTransport(), path)
    told = await work(Desk(transport, "http://127.0.0.1:9/v1"), 1)
    await transport.aclose()
    desk = Desk(replay(path))
    assert await work(desk, 1) == told
    assert told["t0"][0] == "ModelUnavailable" and desk.ledger.held("run") == desk.ledger.spent("run") == 0
    assert [each.ending.error.kind for each in exchanges(path) if each.ending.error] == ["connect"] * 4


@virtual_clock
async def test_what_was_cancelled_is_recorded_so_and_stays_silent_when_it_is_replayed(tmp_path: Path) -> None:
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


# -- who gets what -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (0, 2, 1, 3), (0, 1, 2, 3)])
async def test_a_callers_attempts_are_told_apart_and_come_in_any_order_of_callers(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    path, same = tmp_path / "run.jsonl", b'{"messages":[]}'
    asked = [request(same, who=caller(task)) for task in ("a", "b", "a", "c")]
    await recorded(path, *asked)
    transport = replay(path)
    got = [(await read(transport, asked[place]))[2] for place in order]
    assert got == [[str(place + 1).encode()] for place in order]


async def test_a_task_with_another_name_gets_the_exchange_of_its_body(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    await recorded(path, request(b"one", who=caller("a")), request(b"two", who=caller("b")))
    transport = replay(path)
    assert (await read(transport, request(b"two", who=caller("x"))))[2] == [b"2"]
    assert (await read(transport, request(b"one", who=caller("b"))))[2] == [b"1"]


def chat_body(*texts: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


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
    tmp_path: Path, asked: bytes, who: Caller | None, said: str
) -> None:
    path = tmp_path / "run.jsonl"
    first, second = chat_body("Report on Apple."), chat_body("Report on Apple.", "Go!")
    await recorded(path, request(first, who=caller("a")), request(second, who=caller("a", 1)))
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[1].replace(b'"task":"a"', b'"task":"b"'))
    with pytest.raises(ModelRefused, match=said) as caught:
        await read(replay(path), HttpRequest("POST", URL, {}, asked, caller=who))
    assert caught.value.kind == NOT_RECORDED and not caught.value.served and "--record" in caught.value.remedy


async def test_a_request_made_more_often_than_it_was_recorded_is_refused(tmp_path: Path) -> None:
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


# -- what is never kept ------------------------------------------------------------------------------------------

OTHER = "tv-0123456789/+abc"
SECRETS = (KEY, OTHER)
HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "x-api-key": KEY,
    "Cookie": "sid=chocolate-chip",
    "X-Own": "portal-password",
    "Accept": f"text/{KEY}",
    "Idempotency-Key": "centuria-1234",
}


async def test_no_key_no_cookie_and_no_secret_is_written_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    escaped = OTHER.replace("/", "\\/")
    body = json.dumps({"key": KEY, "text": f"a {OTHER} b"}).encode() + escaped.encode()
    answer = f"data: {KEY} {OTHER}\n\n".encode()
    headers = {"set-cookie": "sid=oatmeal-raisin", "x-trace": f"for {KEY}", "x-auth-token": "walnut-brownie"}
    url = f"{URL}/{KEY}?key=peanut-butter&q=tv-0123456789%2F%2Babc&page=2"
    pieces = [answer[:10], answer[10:20], answer[20:]]
    transport = RecordingTransport(Pieces(*pieces, headers=headers), path, secrets=[OTHER], about={"url": OTHER})
    await read(transport, request(body, url=url, headers=HEADERS))
    await transport.aclose()
    written = path.read_text()
    crumbs = ("chocolate", "portal", "oatmeal", "walnut", "peanut", "verysecret", "0123456789")
    assert not [crumb for crumb in crumbs if crumb in written]
    (kept,) = exchanges(path)
    assert kept.path == f"/v1/chat/completions/{'*' * len(KEY)}?key=***&q={'*' * 22}&page=2"
    assert kept.request_headers["Authorization"] == kept.request_headers["X-Own"] == "***"
    assert kept.request_headers["Idempotency-Key"] == "centuria-1234"
    assert [len(chunk) for _, chunk in kept.chunks] == [10, 10, len(answer) - 20]
    assert b"".join(chunk for _, chunk in kept.chunks) == b"data: " + b"*" * len(KEY) + b" " + b"*" * 18 + b"\n\n"
    # A request is known again although its key is blotted out, and although there is no key now.
    assert (await read(replay(path), request(body, url=url)))[0] == 200


async def test_an_error_that_shows_a_key_is_kept_without_it(tmp_path: Path) -> None:
    path, upstream = tmp_path / "run.jsonl", Pieces(b"x")
    upstream.then = ModelDenied(f"The key {KEY} is wrong.", kind="tls", served=False, remedy="Look.")
    transport = RecordingTransport(upstream, path)
    with pytest.raises(ModelDenied):
        await read(transport, request(headers=HEADERS))
    await transport.aclose()
    assert KEY not in path.read_text()
    with pytest.raises(ModelDenied, match=r"The key \*+ is wrong\. Look\."):
        await read(replay(path), request())


@given(st.binary(max_size=60), st.lists(st.integers(0, 80), max_size=6), st.integers(0, 60), st.sampled_from(SECRETS))
def test_a_secret_is_blotted_out_across_any_split_and_every_piece_keeps_its_length(
    text: bytes, cuts: list[int], place: int, secret: str
) -> None:
    whole = text[:place] + secret.encode() + text[place:]
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut <= len(whole))})
    pieces = [(0.0, whole[one:two]) for one, two in pairwise(edges)]
    blotted = Blotter([secret]).pieces(pieces)
    assert [len(piece) for _, piece in blotted] == [len(piece) for _, piece in pieces]
    joined = b"".join(piece for _, piece in blotted)
    assert secret.encode() not in joined and len(joined) == len(whole)
    assert cover(whole, Blotter([secret]).spans(whole)) == joined


def test_a_value_too_short_to_be_a_key_is_left_where_texts_hold_it() -> None:
    kept = redacted(
        Exchange(0, None, 1, "POST", "/", {"Authorization": "Bearer ollama"}, b"Ask ollama.", Ending("left"), 200), ()
    )
    assert kept.body == b"Ask ollama." and kept.request_headers == {"Authorization": "***"}


def test_parameters_of_a_url_that_hold_secrets_are_left_out() -> None:
    assert path_of("https://user:pw@host/v1/x?api_key=abc&alt=sse&&access_token=d#f") == (
        "/v1/x?api_key=***&alt=sse&access_token=***"
    )


# -- the file ----------------------------------------------------------------------------------------------------


async def test_a_recording_is_for_its_owner_alone_and_never_writes_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    before = os.umask(0)
    try:
        recorder = RecordingTransport(Pieces(), path)
    finally:
        os.umask(before)
    await read(recorder, request())
    await recorder.aclose()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    for there in (path, tmp_path, tmp_path / "dangling"):
        (tmp_path / "dangling").is_symlink() or (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        with pytest.raises(ConfigurationError, match="never writes over"):
            RecordingTransport(Pieces(), there)
    assert path.read_bytes() == whole and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["no/such/folder.jsonl", "nul\0", "x" * 300])
def test_a_recording_that_cannot_be_made_is_refused_before_anything_is_sent(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made"):
        RecordingTransport(Pieces(), tmp_path / name)


async def test_a_recording_of_nothing_leaves_no_file(tmp_path: Path) -> None:
    recorder = RecordingTransport(Pieces(), tmp_path / "run.jsonl")
    await recorder.finish()
    await recorder.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_lines_are_on_disk_as_exchanges_end_and_the_file_is_finished_before_the_transport_is_closed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    recorder = RecordingTransport(Pieces(b"x"), path, about={"model": "kimi-k2.5"})
    await read(recorder, request())
    async with asyncio.timeout(10):
        while not path.read_bytes():  # another thread writes it
            await asyncio.to_thread(lambda: None)
    await read(recorder, request())
    await recorder.finish()
    assert recorder.written == 2 and len(lines(path)) == 3
    assert lines(path)[0] == {"v": 1, "kind": "recording", "about": {"model": "kimi-k2.5"}}
    await read(recorder, request())
    await recorder.aclose()
    assert len(lines(path)) == 3


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """The kernel itself refuses to let any file of this process grow beyond `size`, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 5000])
async def test_a_full_disk_ends_the_recording_with_a_warning_and_not_the_run(tmp_path: Path, size: int) -> None:
    path = tmp_path / "run.jsonl"
    told: list[str] = []
    recorder = RecordingTransport(rehearse(latency_ms=0), path, warn=told.append)
    desk = Desk(recorder)
    with files_at_most(size):
        ended = await work(desk, 20)
        await recorder.finish()
    await recorder.aclose()
    assert all(how == "ok" for how, _, _ in ended.values())
    assert len(told) == 1 and "ends here: it cannot be written" in told[0] and "The run goes on" in told[0]
    if size < 5000:
        assert not path.exists() and "nothing is kept" in told[0]
    else:
        assert path.read_bytes().endswith(b"\n") and f"{len(lines(path)) - 1} exchanges are kept" in told[0]
        recording = Recording(path)
        assert 1 <= len(recording) == recorder.written < 20
        recording.close()


async def test_a_disk_that_does_not_keep_up_ends_the_recording_before_memory_fills(tmp_path: Path) -> None:
    path, told = tmp_path / "run.jsonl", list[str]()
    recorder = RecordingTransport(Pieces(b"x" * 600, b"x" * 600), path, warn=told.append, queue_bytes=1000)
    assert (await read(recorder, request()))[2] == [b"x" * 600] * 2
    await recorder.aclose()
    assert len(told) == 1 and "more waits to be written than may wait" in told[0]
    assert not path.exists()


async def test_half_a_line_of_a_killed_recorder_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    await recorded(path, request(b"one"), request(b"two"))
    path.write_bytes(path.read_bytes()[:-20])
    transport = replay(path)
    assert (await read(transport, request(b"one")))[2] == [b"1"]
    with pytest.raises(ModelRefused, match="not in the recording"):
        await read(transport, request(b"two"))


GOOD = exchange_line(Exchange(0, CallKey("a", 0, 0, 0), 1, "POST", "/", {}, b"{}", Ending("end"), 200, {}, 0, ()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (about_line({}), "is empty"),
        (GOOD[:-1], "is empty"),
        (GOOD + b"no json\n", r"line 2, is no line of a recording: it is no JSON"),
        (GOOD.replace(b'"v":1', b'"v":2'), "newer Centuria"),
        (GOOD.replace(b'"kind":"exchange"', b'"kind":"letter"'), "kind is neither"),
        (GOOD.replace(b'"how":"end"', b'"how":"badly"'), r"end\.how"),
        (GOOD.replace(b'"status":200', b'"status":20'), "status"),
        (GOOD.replace(b'"status":200', b'"status":true'), "status"),
        (GOOD.replace(b'"body":"{}"', b'"body":{"base64":"%"}'), "neither text nor base64"),
        (GOOD.replace(b'"chunks":[]', b'"chunks":[[NaN,""]]'), "number of seconds"),
        (b"[" * 100_000 + b"\n", "it is no JSON"),
    ],
)
def test_a_damaged_recording_is_refused_naming_the_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        Recording(path)


def test_a_recording_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path, Path("nul\0")):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Recording(path)


async def test_a_recording_that_is_changed_while_it_is_replayed_is_an_error_and_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    await recorded(path, request())
    transport = replay(path)
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(ModelRefused, match="changed under its reader"):
        await read(transport, request())
    await transport.aclose()


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
TIMES = st.floats(0, 1e6).map(lambda number: round(number, 6))
HEADER_MAPS = st.dictionaries(TEXTS, TEXTS, max_size=3)
ENDINGS = st.one_of(
    st.builds(Ending, st.sampled_from(["end", "left", "cancelled"]), TIMES),
    st.builds(
        Ending,
        st.sampled_from(["cut", "error"]),
        TIMES,
        st.builds(ModelUnavailable, TEXTS, kind=TEXTS, served=st.booleans(), retry_after=st.none() | TIMES),
    ),
)
EXCHANGES = st.builds(
    Exchange,
    at=TIMES,
    caller=st.none() | st.builds(CallKey, TEXTS, *[st.integers(0, 10**9)] * 3),
    attempt=st.integers(1, 9),
    method=TEXTS,
    path=TEXTS,
    request_headers=HEADER_MAPS,
    body=st.binary(max_size=40),
    ending=ENDINGS,
    status=st.integers(100, 599),
    headers=HEADER_MAPS,
    head_after=TIMES,
    chunks=st.lists(st.tuples(TIMES, st.binary(max_size=20)), max_size=4).map(tuple),
    masked=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
)


@given(EXCHANGES)
def test_an_exchange_is_one_line_and_reads_back_as_it_was(exchange: Exchange) -> None:
    line = exchange_line(exchange)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    back = read_line(line)
    assert isinstance(back, Exchange) and exchange_line(back) == line
    assert (back.body, back.chunks, back.caller) == (exchange.body, exchange.chunks, exchange.caller)


@given(st.recursive(st.just(0), lambda inner: st.lists(inner, max_size=2), max_leaves=3), st.data())
def test_a_line_with_any_field_replaced_is_read_or_damaged_and_never_anything_else(junk: Any, data: Any) -> None:
    value = json.loads(GOOD)
    junk = data.draw(st.sampled_from([junk, None, True, -1, 1.5, 10**400, "\ud800", {}, {"base64": 3}]))
    table = data.draw(st.sampled_from([value, value["request"], value["response"], value["end"]]))
    table[data.draw(st.sampled_from([*table, "masked", "error"]))] = junk
    try:
        back = read_line(json.dumps(value).encode())
    except (Damaged, ConfigurationError):
        return
    assert read_line(exchange_line(back)) if isinstance(back, Exchange) else isinstance(back, dict)


def test_a_retry_in_a_replay_is_made_at_once_and_as_often_as_ever() -> None:
    policy, plain = RetryAtOnce(), QUICK
    late = ModelUnavailable("x", retry_after=200.0)
    assert [policy.delay(failures, late, 0.5) for failures in (1, 2, 3, 4)] == [0.0, 0.0, 0.0, None]
    assert policy.delay(1, ModelUnavailable("x", retry_after=1000.0), 0.5) is None
    assert policy.delay(1, ModelRefused("x"), 0.5) is None and plain.delay(4, late, 0.5) is None
