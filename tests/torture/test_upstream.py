"""The fake upstream keeps its limits, its books and its bytes."""

import asyncio
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.prices import Price
from centuria.errors import ModelUnavailable
from centuria.messages import Usage
from centuria.model.http import HttpTransport
from centuria.ports import HttpRequest
from centuria.testing.limits import Meter, RateLimits
from centuria.testing.replies import Cut, Late, Raw, Reply, Text, Verbatim, Written
from centuria.testing.torture.writing import by_byte
from centuria.testing.upstream import FakeUpstream

BODY = b'{"model":"kimi-k2.5","messages":[],"max_tokens":100}'
STREAMED = BODY.replace(b"{", b'{"stream":true,', 1)
USAGE = Usage(prompt=10, output=40)


async def post(upstream: FakeUpstream, body: bytes = BODY) -> tuple[int, dict[str, str], bytes]:
    transport = HttpTransport()
    try:
        async with transport.send(HttpRequest("POST", upstream.base_url + "/chat/completions", {}, body)) as response:
            whole = b"".join([piece async for piece in response.chunks()])
            return response.status, dict(response.headers), whole
    finally:
        await transport.aclose()


# -- limits --------------------------------------------------------------------------------------------------


def test_a_fixed_window_admits_its_number_and_says_when_the_next_begins() -> None:
    meter = Meter(RateLimits(requests=2, window=10))
    assert meter.enter(12, 0) is None and meter.enter(13, 0) is None
    over = meter.enter(14, 0)
    assert over is not None and (over.scope, over.limit, over.wait) == ("RPM", 2, 6)
    assert meter.enter(20, 0) is None and meter.refused == 1


def test_a_bucket_refills_all_the_time_and_holds_one_window() -> None:
    meter = Meter(RateLimits(requests=2, window=10, kind="bucket"))
    assert meter.enter(0, 0) is None and meter.enter(0, 0) is None
    over = meter.enter(1, 0)
    assert over is not None and over.wait == pytest.approx(4)
    assert meter.enter(5, 0) is None
    for _ in range(2):
        assert meter.enter(1000, 0) is None
    assert meter.enter(1000, 0) is not None


def test_tokens_are_charged_when_admitted_and_not_when_refused() -> None:
    meter = Meter(RateLimits(tokens=100, window=10))
    assert meter.enter(0, 60) is None
    for _ in range(3):
        over = meter.enter(1, 60)
        assert over is not None and over.scope == "TPM"
    assert meter.enter(2, 40) is None
    never = meter.enter(3, 101)
    assert never is not None and never.wait > 3600, "more than a window holds never fits"


def test_concurrency_is_given_back_and_the_day_is_not() -> None:
    meter = Meter(RateLimits(concurrency=1, day=100))
    assert meter.enter(0, 60) is None
    over = meter.enter(0, 10)
    assert over is not None and over.scope == "concurrency"
    meter.leave()
    day = meter.enter(0, 60)
    assert day is not None and day.scope == "TPD"
    assert meter.enter(0, 40) is None


@given(
    st.sampled_from(["fixed", "bucket"]),
    st.integers(1, 9),
    st.floats(0.1, 60),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5)), max_size=40),
)
def test_no_limit_admits_more_than_two_windows_worth_in_one_window(
    kind: Any, limit: int, window: float, arrivals: list[tuple[float, int]]
) -> None:
    meter, now, admitted = Meter(RateLimits(tokens=limit, window=window, kind=kind)), 0.0, []
    for gap, tokens in arrivals:
        now += gap
        over = meter.enter(now, tokens)
        if over is None:
            admitted.append((now, tokens))
        else:
            assert over.wait > 0
    for start, _ in admitted:
        inside = sum(tokens for at, tokens in admitted if start <= at < start + window)
        assert inside <= 2 * limit + 1e-6


@pytest.mark.parametrize(("told", "header"), [("ms", "retry-after-ms"), ("seconds", "retry-after"), ("none", "")])
async def test_a_limit_refuses_as_the_provider_does(told: Any, header: str) -> None:
    limits = RateLimits(tokens=150, window=3600, told=told)
    async with FakeUpstream(lambda _: Text("Hi"), limits=limits) as upstream:
        assert (await post(upstream))[0] == 200
        status, headers, body = await post(upstream)
        assert status == 429 and b"rate_limit_reached_error" in body and b"TPM: 150" in body
        assert {name for name in headers if name.startswith("retry-after")} == ({header} if header else set())
        assert upstream.billed == [upstream.billed[0]], "a refusal is not charged"


async def test_concurrency_is_freed_when_the_client_leaves() -> None:
    limits = RateLimits(concurrency=1)
    async with FakeUpstream(lambda _: Late(Text("Hi"), 30), limits=limits) as upstream:
        task = asyncio.create_task(post(upstream))
        await upstream.until(lambda: upstream.meter.in_flight == 1)
        assert (await post(upstream))[0] == 429
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await upstream.until(lambda: upstream.meter.in_flight == 0)
        assert upstream.aborted == 1


# -- books ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "output"), [("begun", 40), ("sent", 20)])
async def test_an_answer_that_breaks_off_is_charged_by_the_rule(rule: Any, output: int) -> None:
    text = Text("word " * 38, usage=USAGE, piece=5)
    async with FakeUpstream(lambda _: Cut(text, 0.5), bill=rule) as upstream:
        with pytest.raises(ModelUnavailable):
            await post(upstream)
        (usage,) = upstream.billed
        assert usage.prompt == 10 and usage.output == pytest.approx(output, abs=1)
        assert upstream.charged(Price(input=1, output=100)) == 10 + 100 * usage.output


async def test_what_is_written_by_hand_is_charged_what_it_says() -> None:
    replies: list[Reply] = [
        Raw((b"x",), billed=USAGE),
        Raw((b"x",)),
        Verbatim((b"HTTP/1.1 204 No\r\n\r\n",), billed=USAGE),
    ]
    async with FakeUpstream(lambda _: replies.pop(0)) as upstream:
        for _ in range(3):
            await post(upstream)
        assert upstream.billed == [USAGE, USAGE]


async def test_a_body_that_is_no_json_is_refused_and_the_connection_lives() -> None:
    async with FakeUpstream() as upstream:
        for body in (b'{"model":', b"[1]", b"\xff"):
            status, _, said = await post(upstream, body)
            assert status == 400 and b"invalid_request_error" in said
        assert (await post(upstream))[0] == 200


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        Raw((b"ab", b"c")),
        Raw((b"ab", b"c"), framing="length"),
        Raw((b"ab", b"c"), framing="close"),
        Raw((b"ab", b"c"), framing="close", protocol="HTTP/1.0"),
        Raw((b"ab", b"c"), encoding="gzip"),
        Raw((b"ab", b"c"), encoding="deflate"),
        Raw((b"ab", b"c"), trailers=(("x", "y"),)),
        Raw((b"ab", b"c"), after="close"),
    ],
)
async def test_a_body_arrives_whole_in_every_framing(raw: Raw) -> None:
    async with FakeUpstream(lambda _: raw) as upstream:
        assert (await post(upstream))[2] == b"abc"
        assert (await post(upstream))[2] == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        Raw((b"abc",), end=False, after="close"),
        Raw((b"abc",), end=False, after="reset"),
        Raw((b"abc",), framing="length", length=9, end=False, after="close"),
        Verbatim((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",)),
        Verbatim((b"HTTP/1.1 200 OK\r\ncontent-",)),
    ],
)
async def test_a_body_that_breaks_off_is_seen_to(raw: Reply) -> None:
    async with FakeUpstream(lambda _: raw) as upstream:
        with pytest.raises(ModelUnavailable):
            await post(upstream)


async def test_an_answer_is_rewritten_byte_by_byte_and_is_still_the_same() -> None:
    text = Text("Grüße 😀", usage=USAGE)
    async with FakeUpstream(lambda _: text) as upstream:
        _, _, plain = await post(upstream, STREAMED)
    async with FakeUpstream(lambda _: Written(text, by_byte)) as upstream:
        assert (await post(upstream))[2] == plain and upstream.billed == [USAGE]
    async with FakeUpstream(lambda _: Written(text, by_byte, document=True, raw=Raw((), encoding="gzip"))) as upstream:
        assert "Grüße 😀".encode() in (await post(upstream))[2]


def test_zlib_reads_what_is_sent_as_gzip_piece_by_piece() -> None:
    from centuria.testing.upstream import _encoded

    unpack = zlib.decompressobj(wbits=31)
    got = [unpack.decompress(piece) for piece in _encoded([b"one", b"two"], "gzip")]
    assert got[:2] == [b"one", b"two"]
