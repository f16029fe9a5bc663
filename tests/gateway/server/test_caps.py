"""What a client may send and how slowly it may read: raw sockets against a gateway that listens."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from dataclasses import replace

import pytest

from centuria.gateway.server import listen
from centuria.gateway.settings import Caps
from centuria.testing import FakeUpstream
from centuria.testing.replies import Raw, Text
from tests.gateway.served import ASKED, Served, one, raw, serving, usage

CAPS = Caps(header=8_192, body=100_000, stall=0.4, send=0.4, read=0.5, request=1.5, queue=1.0, grace=0.5)
ANSWER = Text("Hello there.", usage=usage())


def request(
    key: dict[str, str], body: bytes = b"", *, path: str = "/v1/chat/completions", host: str = "localhost", **more: str
) -> bytes:
    """A POST as bytes. `more` are headers, with `_` for `-`."""
    headers = {"Host": host, **key, "Content-Length": str(len(body))}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def asked(**fields: object) -> bytes:
    return json.dumps({**ASKED, **fields}).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def error(answer: bytes) -> dict[str, object]:
    value: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return value


async def test_a_body_above_the_cap_is_a_413_whether_its_length_is_said_or_not() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        said = await raw(served.port, request(key, Content_Length="100001", Connection="close"))
        assert (status(said), error(said)["code"]) == (413, "request_too_large")
        chunked = request(key, Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
        piece = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        assert status(await raw(served.port, chunked + piece * 8)) == 413
        fits = asked(user="u" * 50_000)
        assert status(await raw(served.port, request(key, fits, Connection="close"))) == 200
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("many", [True, False], ids=["many headers", "one header"])
async def test_headers_above_the_cap_are_a_431(many: bool) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        more = "".join(f"x-{n}: {'y' * 50}\r\n" for n in range(200)) if many else f"x: {'y' * 9_000}\r\n"
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()
        answer = await raw(served.port, head)
        assert (status(answer), error(answer)["code"]) == (431, "headers_too_large")


async def test_forty_megabytes_of_headers_cost_no_memory() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ")
        piece = b"y" * 1_000_000
        sent = 0
        try:
            for _ in range(40):
                writer.write(piece)
                await writer.drain()
                sent += 1
        except ConnectionError:
            pass
        assert sent < 40
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 30_000  # KiB
        answer = b""
        try:
            answer = await asyncio.wait_for(reader.read(), 5)
        except ConnectionError:
            pass
        assert answer == b"" or status(answer) == 431
        writer.close()


async def test_a_large_body_right_behind_the_headers_is_no_large_header_wherever_it_is_cut() -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        whole = request(key, asked(user="u" * 60_000), Connection="close")
        end = whole.index(b"\r\n\r\n")
        for cut in (end - 5, end, end + 1, end + 2, end + 3, end + 4, end + 5):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(whole[:cut])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(whole[cut:])
            async with asyncio.timeout(5):
                assert status(await reader.read()) == 200
            writer.close()


async def test_requests_one_behind_the_other_in_one_read_are_all_answered() -> None:
    async with FakeUpstream(lambda body: ANSWER, latency=0.05) as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        first, second = asked(user="1" * 20_000), asked(user="2" * 20_000)
        answer = await raw(served.port, request(key, first) + request(key, second, Connection="close"))
        assert answer.count(b"HTTP/1.1 200") == 2
        assert [seen.json["user"][0] for seen in upstream.requests] == ["1", "2"]


async def test_a_slow_sender_of_a_body_is_a_408() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        answer = await raw(served.port, request(key, Content_Length="50") + b'{"model"')
        assert (status(answer), error(answer)["code"]) == (408, "request_timeout")


async def drip(served: Served, head: bytes, piece: bytes, *, seconds: float) -> tuple[bytes, float]:
    """Send a little again and again until the other side has had enough; what it said, and after how long."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    began = loop.time()
    writer.write(head)
    read = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(seconds):
            while not read.done():
                await asyncio.wait({read}, timeout=0.1)
                if not read.done():
                    writer.write(piece)
        return await read, loop.time() - began
    except ConnectionError:
        return b"", loop.time() - began
    finally:
        read.cancel()
        writer.close()


async def test_who_drips_a_byte_at_a_time_is_let_go_wherever_it_drips() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx: "
        cases = {
            "headers": (start, b"y"),
            "blank lines": (b"", b"\r\n"),
            "body": (request(key, Content_Length="5000"), b" "),
            "a body that was refused": (request({}, Content_Length="5000"), b" "),
            "after an answer": (request({}, path="/healthz").replace(b"POST", b"GET"), b"\r\n"),
        }
        found = await asyncio.gather(*(drip(served, *case, seconds=6) for case in cases.values()))
        for name, (answer, _) in zip(cases, found, strict=True):
            if name in ("headers", "body"):
                assert status(answer) == 408, name
            if name == "a body that was refused":
                assert status(answer) == 401


async def test_a_slow_reader_is_cut_off_and_its_upstream_with_it() -> None:
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 60_000 + b'"}}]}\n\n'
    endless = Raw((piece,) * 2_000)
    async with FakeUpstream(lambda body: endless) as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=2**12)
        writer.transport.pause_reading()
        writer.write(request(key, asked(stream=True)))
        await upstream.until(lambda: upstream.in_flight == 1)
        await upstream.until(lambda: upstream.connections == 0, within=8.0)
        await served.until_quiet()
        assert [row.end for row in served.rows] == ["client_closed"]
        writer.close()
        del reader


async def test_500_that_never_finish_their_headers_do_not_keep_100_good_agents_out() -> None:
    caps = replace(CAPS, stall=3.0, send=5.0, request=10.0, queue=5.0)
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream, caps=caps)) as served:
        key = await served.add_key("a")
        loris = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(500)]
        for number, (_, writer) in enumerate(loris):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x" if number % 2 else b"")
        good = await asyncio.gather(*(served.ask(key, stream=bool(n % 2)) for n in range(100)))
        assert {reply.status for reply in good} == {200}
        async with asyncio.timeout(10):
            for reader, writer in loris:
                answer = await reader.read()
                assert status(answer) == 408
                writer.close()


async def test_connections_above_the_cap_are_told_to_come_again() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=replace(CAPS, connections=3))) as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)]
        await asyncio.sleep(0.05)
        answer = await raw(served.port, b"")
        assert status(answer) == 503
        assert b"retry-after: 1" in answer
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize(
    ("host", "origin", "told"),
    [
        ("localhost", None, 200),
        ("127.0.0.1:8080", None, 200),
        ("[::1]:80", None, 200),
        ("LOCALHOST", None, 200),
        ("gateway.example:443", None, 200),
        ("evil.example", None, 403),
        ("localhost.evil.example", None, 403),
        ("localhost, evil.example", None, 403),
        ("[::1]evil.example", None, 403),
        ("[::1]:8080", None, 200),
        ("", None, 403),
        ("[::1", None, 403),
        ("localhost", "http://localhost", 200),
        ("localhost", "https://app.example", 200),
        ("localhost", "https://evil.example", 403),
        ("localhost", "http://localhost:9999", 403),
        ("localhost", "null", 403),
        ("localhost", "http://[bad", 403),
    ],
)
async def test_only_its_own_host_names_and_origins_are_served(host: str, origin: str | None, told: int) -> None:
    more = {"hosts": frozenset({"gateway.example"}), "origins": frozenset({"https://app.example"})}
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream, caps=CAPS, **more)) as served:
        key = await served.add_key("a")
        headers = {**key, **({} if origin is None else {"Origin": origin})}
        answer = await raw(served.port, request(headers, asked(), host=host, Connection="close"))
        assert status(answer) == told
        if told == 403:
            assert error(answer)["type"] == "permission_denied_error"
        assert len(upstream.requests) == (told == 200)


@pytest.mark.parametrize(
    "line", [b"x-agent-id: a\0b", b"x-agent-id: a\rb", b"x-agent-id: a\r\n b", b"x\0: y", b"x-agent-id: a\x7fb"]
)
async def test_line_breaks_and_nul_in_a_header_are_a_400(line: bytes) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        whole = request(key, asked(), Connection="close").replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n", 1)
        assert status(await raw(served.port, whole)) == 400
        assert not upstream.requests


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_a_400(head: bytes) -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        await served.add_key("a")
        assert status(await raw(served.port, head)) == 400
        assert not upstream.requests


async def test_a_client_that_waits_to_be_asked_for_its_body_is_not_asked_without_a_key() -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        answer = await raw(served.port, request({}, Content_Length="50", Expect="100-continue"))
        assert b"100 Continue" not in answer
        assert status(answer) == 401
        assert answer.count(b"HTTP/1.1") == 1  # closed at once: whatever comes next may be no body
        body = asked()
        head = request(key, Content_Length=str(len(body)), Expect="100-continue", Connection="close")
        assert (await raw(served.port, head + body)).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


async def test_heads_wrong_methods_and_wrong_addresses_have_the_shape_of_errors() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        head = await served.get("/v1/models", key, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 10
        wrong = await served.get("/v1/chat/completions", key)
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        assert wrong.error["type"] == "invalid_request_error"
        assert (await served.get("/v1/models", key, "DELETE")).headers["allow"] == "GET, HEAD"
        paths = ("/v1/nothing", "/v1/chat/completions/", "/v1/%63hat/completions", "//v1/models", "/v1/../v1/chat")
        for path in paths:
            missing = await raw(served.port, request(key, asked(), path=path, Connection="close"))
            assert (status(missing), error(missing)["type"]) == (404, "resource_not_found_error"), path
        for reply in (head, wrong):
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["cache-control"] == "no-store"
            assert reply.headers["x-request-id"].startswith("req-")
            assert "server" not in reply.headers


async def test_a_client_that_goes_in_the_middle_of_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeUpstream(lambda body: ANSWER) as upstream, serving(one(upstream, caps=CAPS)) as served:
        key = await served.add_key("a")
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(request(key, Content_Length="50") + b'{"model"')
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.close()
        assert (await served.ask(key)).status == 200
        assert not caplog.records


def test_answers_are_not_held_back_to_be_put_together() -> None:
    listener = listen("127.0.0.1", 0)  # asyncio sets TCP_NODELAY only where it knows that it is TCP
    assert listener.proto == socket.IPPROTO_TCP
    listener.close()
