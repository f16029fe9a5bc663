"""What is recorded is what was exchanged, without a key, in whole lines of a file of its own."""

import asyncio
import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.blotting import Blotter, cover
from centuria.errors import ConfigurationError, ModelDenied, ModelRefused, ModelUnavailable
from centuria.messages import CallKey
from centuria.model.exchange import Damaged, Ending, Exchange, about_line, exchange_line, path_of, read_line, redacted
from centuria.model.recording import RecordingTransport
from centuria.model.replay import Recording, RetryAtOnce
from tests.model.conftest import Replay
from tests.model.kit import KEY, QUICK, Desk
from tests.model.taping import URL, Pieces, exchanges, lines, read, recorded, rehearse, request, work

# -- what is never kept -----------------------------------------------------------------------------------------------

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


async def test_no_key_no_cookie_and_no_secret_is_written_wherever_it_stands(tmp_path: Path, replay: Replay) -> None:
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


async def test_an_error_that_shows_a_key_is_kept_without_it(tmp_path: Path, replay: Replay) -> None:
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


# -- the file ---------------------------------------------------------------------------------------------------------


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


async def test_half_a_line_of_a_killed_recorder_is_not_looked_at(tmp_path: Path, replay: Replay) -> None:
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


async def test_a_recording_that_is_changed_while_it_is_replayed_is_an_error_and_no_answer(
    tmp_path: Path, replay: Replay
) -> None:
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
