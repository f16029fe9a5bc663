"""The bytes of an answer, however they come: no sockets here."""

import asyncio
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ModelUnavailable
from centuria.model.connection import HIGH, Answer, Connection
from centuria.model.inflating import PIECE, Inflater


class Line(asyncio.Transport):
    """One end of a connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        self.paused = self.ended = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def abort(self) -> None:
        self.ended = True


@dataclass
class Call:
    """One connection with one request on it."""

    loop: asyncio.AbstractEventLoop
    bodiless: bool = False
    line: Line = field(default_factory=Line)
    freed: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = Connection(self.loop, self.freed.append, lambda _: None, lambda _: None)
        self.connection.connection_made(self.line)
        self.answer = Answer(self.loop, "api.example.com", bodiless=self.bodiless)
        self.connection.ask(b"GET / HTTP/1.1\r\n\r\n", self.answer)

    def hear(self, *pieces: bytes, end: bool = False) -> None:
        for piece in pieces:
            if self.line.ended:
                break
            self.connection.data_received(piece)
        if end or self.line.ended:
            self.connection.connection_lost(None)

    def told(self) -> tuple[object, ...]:
        """All that its user can see."""
        answer, kind, body = self.answer, "", b""
        if answer.status:
            body, kind = self.loop.run_until_complete(read(answer))
        elif answer.error is not None:
            kind = answer.error.kind
        return answer.status, answer.headers, body, kind, bool(self.freed) and not self.line.ended


async def read(answer: Answer) -> tuple[bytes, str]:
    body = b""
    try:
        async with asyncio.timeout(5):
            async for chunk in answer.chunks():
                body += chunk
    except ModelUnavailable as error:
        return body, error.kind
    return body, ""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def chunked(*pieces: bytes, trailers: bytes = b"") -> bytes:
    return b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + b"\r\n"


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""])


TE = b"Transfer-Encoding: chunked"
PACKED = gzip.compress(b"packed " * 50)
ANSWERS = {
    "a length": head(b"Content-Length: 5", b"X-Empty:", b"X-Twice: 1", b"x-twice: 2") + b"hello",
    "chunks": head(TE, b"X-A:  spaces \t") + chunked(b"data: 1\n\n", b"data: 2\n\n"),
    "trailers": head(TE) + chunked(b"abc", trailers=b"X-Sum: 1\r\nStatus: 2\r\n"),
    "interim": head(status=b"100 Continue") + head(b"Link: x", status=b"103 Early Hints") + head(TE) + chunked(b"abc"),
    "until the end": head(b"Content-Type: text/plain") + b"abc",
    "closing": head(b"Content-Length: 3", b"Connection: close") + b"abc",
    "nothing": head(status=b"204 No Content"),
    "not modified": head(b"Content-Length: 9", status=b"304 Not Modified"),
    "gzip": head(b"Content-Encoding: gzip", TE) + chunked(PACKED[:7], PACKED[7:]),
    "gzip cut": head(b"Content-Encoding: gzip", TE) + chunked(PACKED[:-9]),
    "brotli": head(b"Content-Encoding: br", TE) + chunked(b"abc"),
    "old": b"HTTP/1.0 200 OK\r\n\r\nabc",
    "line feeds": b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
    "cut chunk": head(TE) + b"9\r\nabc",
    "cut length": head(b"Content-Length: 9") + b"abc",
    "two codings": head(b"Transfer-Encoding: gzip", TE) + b"9\r\nabc",
    "cut head": head(b"Content-Length: 9")[:20],
    "bad chunk": head(TE) + b"3\r\nabc\r\nzz\r\n",
    "two lengths": head(b"Content-Length: 3", b"Content-Length: 4") + b"abcd",
    "smuggled": head(b"Content-Length: 3", TE) + chunked(b"abc"),
    "two answers": head(b"Content-Length: 3") + b"abc" + head(b"Content-Length: 3") + b"def",
    "garbage after": head(b"Content-Length: 3") + b"abc{}",
    "other protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "switching": head(b"Upgrade: h2c", b"Connection: upgrade", status=b"101 Switching Protocols") + b"\x00\x01",
    "no status": b"HTTP/1.1 007 OK\r\n\r\n",
    "empty": b"",
}


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 400)), st.booleans(), st.booleans())
def test_an_answer_is_the_same_however_its_bytes_are_split(
    loop: asyncio.AbstractEventLoop, name: str, cuts: list[int], bodiless: bool, byte_by_byte: bool
) -> None:
    data = ANSWERS[name]
    whole, split = Call(loop, bodiless), Call(loop, bodiless)
    whole.hear(data, end=True)
    at = range(len(data)) if byte_by_byte else sorted(min(cut, len(data)) for cut in cuts)
    edges = [0, *at, len(data)]
    split.hear(*(data[a:b] for a, b in pairwise(edges) if a < b), end=True)
    assert split.told() == whole.told()


@given(st.sampled_from(sorted(ANSWERS)), st.integers(0, 400), st.binary(max_size=3), st.integers(1, 400))
def test_an_answer_that_was_changed_on_its_way_never_raises_anything_of_its_own(
    loop: asyncio.AbstractEventLoop, name: str, at: int, other: bytes, cut: int
) -> None:
    data = ANSWERS[name]
    data = data[:at] + other + data[at + len(other) :]
    call = Call(loop)
    call.hear(data[:cut], data[cut:], end=True)
    status, _, _, kind, _ = call.told()
    assert kind in ("", "cut", "rubbish") and (status or kind)


@pytest.mark.parametrize(
    ("name", "status", "body", "kind", "kept"),
    [
        ("a length", 200, b"hello", "", True),
        ("chunks", 200, b"data: 1\n\ndata: 2\n\n", "", True),
        ("trailers", 200, b"abc", "", True),
        ("interim", 200, b"abc", "", True),
        ("until the end", 200, b"abc", "", False),
        ("closing", 200, b"abc", "", False),
        ("nothing", 204, b"", "", True),
        ("not modified", 304, b"", "", False),
        ("gzip", 200, b"packed " * 50, "", True),
        ("gzip cut", 200, None, "cut", True),
        ("brotli", 0, b"", "rubbish", False),
        ("cut chunk", 200, b"abc", "cut", False),
        ("cut length", 200, b"abc", "cut", False),
        ("two codings", 200, b"abc", "cut", False),
        ("cut head", 0, b"", "cut", False),
        ("bad chunk", 200, b"abc", "cut", False),
        ("two lengths", 0, b"", "rubbish", False),
        ("smuggled", 0, b"", "rubbish", False),
        ("two answers", 200, b"abc", "", False),
        ("garbage after", 200, b"abc", "", False),
        ("other protocol", 0, b"", "rubbish", False),
        ("switching", 101, b"", "", False),
        ("no status", 0, b"", "rubbish", False),
    ],
)
def test_an_answer_is_what_its_bytes_say(
    loop: asyncio.AbstractEventLoop, name: str, status: int, body: bytes | None, kind: str, kept: bool
) -> None:
    call = Call(loop)
    call.hear(ANSWERS[name])
    if not call.freed and not call.line.ended:
        call.connection.connection_lost(None)
        call.line.ended = True
    told = call.told()
    assert (told[0], told[3], told[4]) == (status, kind, kept)
    assert body is None or told[2] == body


def test_the_first_value_of_a_header_wins_and_names_are_in_lower_case(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(ANSWERS["a length"])
    assert call.answer.headers == {"content-length": "5", "x-empty": "", "x-twice": "1"}


def test_a_body_that_ends_with_its_connection_is_cut_by_a_reset(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(ANSWERS["until the end"])
    call.connection.connection_lost(ConnectionResetError())
    assert call.told()[2:4] == (b"abc", "cut")


def test_an_answer_to_head_has_no_body_whatever_it_says(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop, bodiless=True)
    call.hear(head(b"Content-Length: 5"))
    assert call.told()[:1] == (200,) and call.told()[2:4] == (b"", "") and not call.freed


def test_a_connection_whose_request_was_not_sent_whole_is_not_used_again(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.line.unsent = 1
    call.hear(head(b"Content-Length: 5") + b"hello")
    assert call.told()[2:] == (b"hello", "", False) and call.line.ended


def test_what_comes_when_nobody_asked_ends_the_connection(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(ANSWERS["a length"])
    assert call.freed and call.connection.open
    call.connection.data_received(ANSWERS["a length"])
    assert not call.connection.open


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"X: " + b"a" * 10_000], 200),
        ([b"X: " + b"a" * 32_000], 200),
        ([b"X: " + b"a" * 33_000], 0),
        ([b"X" * 33_000 + b": a"], 0),
        ([b"X%d: a" % n for n in range(200)], 200),
        ([b"X%d: a" % n for n in range(300)], 0),
    ],
)
@pytest.mark.parametrize("piece", [1000, 10**6])
def test_heads_have_caps(loop: asyncio.AbstractEventLoop, lines: list[bytes], status: int, piece: int) -> None:
    call = Call(loop)
    data = head(*lines, b"Content-Length: 0")
    call.hear(*(data[at : at + piece] for at in range(0, len(data), piece)), end=True)
    assert call.answer.status == status and (status or call.told()[3] == "rubbish")


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (b"", "rubbish"),
        (b"HTTP/1.1 200 ", "rubbish"),
        (b"HTTP/1.1 200 OK\r\nX: ", "rubbish"),
        (head(TE) + b"1;", "cut"),
        (head(TE) + b"0\r\nX: ", "cut"),
    ],
)
def test_what_never_ends_is_not_read_for_ever(loop: asyncio.AbstractEventLoop, begin: bytes, kind: str) -> None:
    call = Call(loop)
    call.hear(begin, *([b"a" * 10_000] * 100))
    assert call.line.ended and call.told()[3] == kind


def test_interim_answers_do_not_go_on_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(*([head(status=b"100 Continue") * 100] * 1000))
    assert call.line.ended and call.told()[3] == "rubbish"


def test_it_stops_reading_while_too_much_lies_unread(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(head(b"Content-Length: 10000000"))
    for round in range(3):
        while not call.line.paused:
            call.hear(b"a" * 50_000)
        assert call.answer._size <= HIGH + 50_000
        chunk = loop.run_until_complete(anext(call.answer.chunks()))
        assert len(chunk) > HIGH and not call.line.paused, round


def test_a_connection_that_goes_back_reads_again(loop: asyncio.AbstractEventLoop) -> None:
    call = Call(loop)
    call.hear(head(b"Content-Length: %d" % (HIGH + 10)))
    call.hear(b"a" * (HIGH + 1))
    assert call.line.paused
    call.hear(b"a" * 9)  # was read already when it stopped
    assert call.freed and not call.line.paused
    assert len(loop.run_until_complete(anext(call.answer.chunks()))) == HIGH + 10


# -- unpacking ------------------------------------------------------------------------------------------------


def bare(data: bytes) -> bytes:
    pack = zlib.compressobj(wbits=-15)
    return pack.compress(data) + pack.flush()


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    st.sampled_from(["gzip", "zlib", "bare"]),
    st.lists(st.integers(0, 900)),
)
def test_a_packed_body_unpacks_the_same_however_it_is_split(parts: list[bytes], how: str, cuts: list[int]) -> None:
    body = b"".join(parts)
    members = b"".join(gzip.compress(part) for part in parts)
    packed = {"gzip": members, "zlib": zlib.compress(body), "bare": bare(body)}[how]
    edges = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    inflater, got = Inflater("gzip" if how == "gzip" else "deflate"), b""
    for a, b in pairwise(edges):
        got += b"".join(inflater.feed(packed[a:b]))
    assert got == body and inflater.whole()
    short = Inflater("gzip" if how == "gzip" else "deflate")
    list(short.feed(packed[:-1]))
    assert not short.whole() or len(packed) == 1


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 40 * PIECE])
def test_a_small_body_that_unpacks_to_much_comes_in_pieces(size: int) -> None:
    pieces = list(Inflater("gzip").feed(gzip.compress(bytes(size))))
    assert max(map(len, pieces)) <= PIECE and sum(map(len, pieces)) == size
