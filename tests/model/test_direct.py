"""Our own transport on real sockets: what the tests of every transport (`test_http.py`) do not say."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from centuria.errors import ModelError, ModelUnavailable
from centuria.model.connection import Answer, Connection
from centuria.model.direct import DirectTransport
from centuria.model.http import KEEP_ALIVE
from centuria.ports import HttpRequest
from centuria.testing.replies import Cut, Document, Late, Raw, Reply, Reset, Silence, Stall, Text
from centuria.testing.upstream import FakeUpstream
from tests.model.test_http import fetch, post

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def served(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=2**20) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/v1"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


def idle(transport: DirectTransport) -> int:
    return sum(len(pool.idle) for pool in transport._pools.values())


def busy(transport: DirectTransport) -> set[Connection]:
    """The connections that are there and not idle."""
    return transport._connections - {found for pool in transport._pools.values() for found in pool.idle}


@pytest.mark.parametrize(("method", "asked", "kind"), [("POST", 1, "cut"), ("GET", 2, "")])
async def test_a_kept_connection_that_closes_is_asked_again_only_where_nothing_can_happen_twice(
    method: str, asked: int, kind: str
) -> None:
    """Whether a request was served that met a closing connection is not known."""
    heads: list[bytes] = []
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        heads.append(b"second")
        writer.close()

    transport = DirectTransport()
    async with served(once) as url:
        request = HttpRequest(method, url, {})
        assert (await fetch(transport, request))[2] == b"ok"
        try:
            assert (await fetch(transport, request))[2] == b"ok"
            told = ""
        except ModelUnavailable as error:
            told = error.kind
            assert error.served
        assert (told, connections, heads) == (kind, asked, [b"second"])
        await transport.aclose()


async def test_a_get_on_two_closing_connections_is_not_asked_a_third_time() -> None:
    connections = 0

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections == 1:
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    transport = DirectTransport()
    async with served(never) as url:
        await fetch(transport, HttpRequest("GET", url, {}))
        with pytest.raises(ModelUnavailable) as caught:
            await fetch(transport, HttpRequest("GET", url, {}))
        assert caught.value.kind == "cut" and connections == 2
        await transport.aclose()


async def test_an_early_answer_is_heard_although_the_request_is_not_taken() -> None:
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: writer.is_closing() or connections == 2)
        writer.close()

    transport = DirectTransport()
    async with served(refuse) as url:
        request = HttpRequest("POST", url, {}, bytes(30_000_000))
        assert [(await fetch(transport, request))[::2] for _ in range(2)] == [(413, b"no")] * 2
        assert connections == 2 and idle(transport) == 0
        await transport.aclose()


async def test_closing_cuts_what_is_in_flight_even_a_body_that_ends_with_its_connection() -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await reader.read()
        writer.close()

    transport = DirectTransport()
    async with served(begin) as url, transport.send(HttpRequest("GET", url, {})) as response:
        chunks = response.chunks()
        assert await anext(chunks) == b"hello"
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        await transport.aclose()
        with pytest.raises(ModelUnavailable) as caught:
            await waiting
        assert caught.value.kind == "cut" and not transport._connections


async def test_what_has_arrived_before_the_cut_is_given() -> None:
    transport = DirectTransport()
    async with FakeUpstream(lambda _: Raw((b"one",), end=False, after="close")) as upstream:
        got = b""
        with pytest.raises(ModelUnavailable):
            async with transport.send(post(upstream.base_url)) as response:
                async for chunk in response.chunks():
                    got += chunk
        assert got == b"one"
        await transport.aclose()


async def test_idle_connections_go_before_a_server_closes_them_and_the_last_used_is_the_first() -> None:
    transport = DirectTransport()
    async with FakeUpstream(lambda _: Late(Text("Hi"), 0.05)) as upstream:
        await asyncio.gather(*(fetch(transport, post(upstream.base_url)) for _ in range(3)))
        (pool,) = transport._pools.values()
        first, _, last = list(pool.idle)
        assert pool.take(last.since + 0.1) is last and pool.idle[0] is first
        pool.sweep(first.since + KEEP_ALIVE - 0.01)
        assert len(pool.idle) == 2
        assert pool.take(last.since + KEEP_ALIVE) is None and pool.idle == []
        last.drop()
        await upstream.until(lambda: upstream.connections == 0)
        await transport.aclose()


REPLIES: list[Reply] = [
    Text("Hi " * 20, piece=3),
    Document(Text("Hi")),
    Late(Text("Hi"), 0.01),
    Stall(Text("Hi " * 9)),
    Cut(Text("Hi " * 9)),
    Reset(),
    Silence(),
    Raw((b"ab", b"c"), framing="close"),
    Raw((b"ab" * 9999, b"c"), encoding="gzip"),
    Raw((b"ab", b"c"), after="close"),
]


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_is_cancelled_anywhere_leaves_no_connection_and_no_task(seed: int) -> None:
    dice = random.Random(seed)
    transport = DirectTransport()
    async with FakeUpstream(lambda _: dice.choice(REPLIES)) as upstream:
        before = asyncio.all_tasks()

        async def one() -> None:
            for _ in range(4):
                try:
                    if dice.random() < 0.3:  # leaves early
                        async with transport.send(post(upstream.base_url)) as response:
                            await anext(response.chunks())
                    else:
                        await fetch(transport, post(upstream.base_url))
                except ModelError as error:
                    assert error.kind == "cut"

        tasks = [asyncio.create_task(one()) for _ in range(40)]
        for task in dice.sample(tasks, len(tasks)):
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(found is None or isinstance(found, asyncio.CancelledError) for found in results), results
        await until(lambda: busy(transport) == set())
        await upstream.until(lambda: upstream.in_flight == 0)
        assert all(connection._answer is None for connection in transport._connections)
        await transport.aclose()
        await upstream.until(lambda: upstream.connections == 0)
        await until(lambda: asyncio.all_tasks() <= before)


async def test_an_address_that_is_not_to_be_sent_as_it_is_written_is_still_asked() -> None:
    transport = DirectTransport()
    async with FakeUpstream() as upstream:
        root = upstream.base_url.removesuffix("/v1")
        for url, path in [
            (f"{root}/a/../v1/chat/completions", "/v1/chat/completions"),
            (f"{root}/v1/ö", "/v1/%C3%B6"),
            (f"{root.replace('//', '//user:word@')}/v1/chat/completions", "/v1/chat/completions"),
        ]:
            await fetch(transport, HttpRequest("POST", url, {}, b"{}"))
            assert upstream.requests[-1].path == path
        assert upstream.requests[-1].headers["authorization"].startswith("Basic ")
        assert not transport._connections, "the other transport did it"
        await transport.aclose()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context whose certificate the environment says to trust."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
    day, now = timedelta(days=1), datetime.now(UTC)
    builder = x509.CertificateBuilder(
        name, name, secret.public_key(), x509.random_serial_number(), now - day, now + day
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(secret, hashes.SHA256())
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(
        secret.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_speaks_tls_and_keeps_its_connections_on_both_event_loops(
    factory: Callable[[], asyncio.AbstractEventLoop], trusted: ssl.SSLContext
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(over_tls(trusted))


async def over_tls(context: ssl.SSLContext) -> None:
    connections = 0
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                sent.append(len(await reader.readexactly(length)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000))
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    transport = DirectTransport()
    async with served(serve, context) as url:
        for _ in range(3):
            _, _, body = await fetch(transport, HttpRequest("POST", url, {}, bytes(2_000_000)))
            assert len(body) == 3_000_000
        async with transport.send(HttpRequest("POST", url, {}, b"x")) as response:
            assert isinstance(response, Answer) and await anext(response.chunks())
        await until(lambda: not transport._connections)
        assert (connections, sent) == (1, [2_000_000] * 3 + [1])
        await transport.aclose()
