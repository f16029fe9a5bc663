import asyncio
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from centuria.errors import ModelDenied, ModelRefused, ModelUnavailable
from centuria.model.direct import DirectTransport
from centuria.model.http import HttpTransport
from centuria.ports import HttpRequest, Transport
from centuria.testing.upstream import Cut, FakeUpstream, HttpError, Raw, Reset, Silence, Stall, Text

BODY = b'{"model":"kimi-k2.5","messages":[],"stream":true}'


def post(base_url: str, **headers: str) -> HttpRequest:
    return HttpRequest("POST", f"{base_url}/chat/completions", {"Content-Type": "application/json", **headers}, BODY)


@pytest.fixture(params=[HttpTransport, DirectTransport])
def transport(request: pytest.FixtureRequest) -> Transport:
    """Both keep what the port promises."""
    made: Transport = request.param()
    return made


async def fetch(transport: Transport, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
    async with transport.send(request) as response:
        body = b"".join([chunk async for chunk in response.chunks()])
        return response.status, dict(response.headers), body


async def refused_port() -> int:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_a_body_streams_and_its_connection_is_used_again(transport: Transport) -> None:
    async with FakeUpstream(lambda body: Text("Grüße 😀")) as upstream:
        for _ in range(3):
            status, headers, body = await fetch(transport, post(upstream.base_url, **{"X-Mine": "1"}))
            assert status == 200 and headers["content-type"] == "text/event-stream"
            assert "Grüße 😀".encode() in body and body.endswith(b"data: [DONE]\n\n")
        assert upstream.opened == 1 and upstream.requests[0].headers["x-mine"] == "1"
        await transport.aclose()
        await upstream.until(lambda: upstream.connections == 0)


async def test_leaving_early_aborts_the_connection_so_that_the_upstream_sees_it(transport: Transport) -> None:
    async with FakeUpstream(lambda body: Stall(Text("Hello"))) as upstream:
        async with transport.send(post(upstream.base_url)) as response:
            async for _ in response.chunks():
                break
        await upstream.until(lambda: upstream.aborted == 1 and upstream.connections == 0)
        await transport.aclose()


async def test_a_cancelled_request_leaves_no_connection(transport: Transport) -> None:
    async with FakeUpstream(lambda body: Silence()) as upstream:
        task = asyncio.create_task(fetch(transport, post(upstream.base_url)))
        await upstream.until(lambda: upstream.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.until(lambda: upstream.connections == 0)
        await transport.aclose()


async def test_a_hundred_requests_are_in_flight_at_once(transport: Transport) -> None:
    async with FakeUpstream(lambda body: Text("Hi"), latency=0.3) as upstream:
        await asyncio.gather(*(fetch(transport, post(upstream.base_url)) for _ in range(100)))
        assert upstream.peak == 100
        await transport.aclose()


@pytest.mark.parametrize("reply", [Cut(Text("Hello " * 20)), Reset()])
async def test_a_connection_that_breaks_off_is_cut_and_may_have_been_served(
    transport: Transport, reply: Cut | Reset
) -> None:
    async with FakeUpstream(lambda body: reply) as upstream:
        with pytest.raises(ModelUnavailable) as caught:
            await fetch(transport, post(upstream.base_url))
        assert caught.value.kind == "cut" and caught.value.served
        await transport.aclose()


async def test_a_redirect_is_not_followed_so_the_key_does_not_travel(transport: Transport) -> None:
    async with FakeUpstream() as other:
        away = HttpError(307, headers={"location": f"{other.base_url}/chat/completions"})
        async with FakeUpstream(lambda body: away) as upstream:
            status, _, _ = await fetch(transport, post(upstream.base_url, Authorization="Bearer k"))
            assert status == 307 and other.requests == [] and len(upstream.requests) == 1
            await transport.aclose()


async def test_a_refused_connection_surely_sent_nothing(transport: Transport) -> None:
    with pytest.raises(ModelUnavailable, match="cannot be reached") as caught:
        await fetch(transport, post(f"http://127.0.0.1:{await refused_port()}/v1"))
    assert caught.value.kind == "connect" and not caught.value.served
    await transport.aclose()


async def test_a_name_that_does_not_resolve_is_named(transport: Transport) -> None:
    with pytest.raises(ModelUnavailable, match=r"nowhere\.invalid cannot be resolved") as caught:
        await fetch(transport, post("http://nowhere.invalid/v1"))
    assert not caught.value.served
    await transport.aclose()


async def test_a_connection_that_is_not_made_in_time_surely_sent_nothing(transport: Transport) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"https://127.0.0.1:{port}/v1"  # it accepts and never speaks TLS
    request = HttpRequest("POST", url, {}, BODY, connect_timeout=0.1)
    with pytest.raises(ModelUnavailable, match=r"within 0\.1 s") as caught:
        await fetch(transport, request)
    assert caught.value.kind == "connect" and not caught.value.served
    await transport.aclose()
    server.close()


@pytest.mark.parametrize(
    "url",
    ["", "api.example.com/v1", "ftp://x/v1", "http:///v1", "http://x:99999/v1", "http://[/v1", "https://"],
)
async def test_an_address_that_is_none_is_refused_with_a_remedy(transport: Transport, url: str) -> None:
    with pytest.raises(ModelRefused) as caught:
        await fetch(transport, HttpRequest("POST", url, {}, BODY))
    assert "base_url" in caught.value.remedy and not caught.value.served
    await transport.aclose()


async def test_a_header_that_is_not_legal_is_refused_without_showing_it(transport: Transport) -> None:
    async with FakeUpstream() as upstream:
        with pytest.raises(ModelRefused) as caught:
            await fetch(transport, post(upstream.base_url, Authorization="Bearer sk-secret\r\nX: y"))
        assert "secret" not in f"{caught.value}{caught.value.__context__!r}{caught.value.__cause__!r}"
        assert upstream.requests == []
        await transport.aclose()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_what_speaks_another_protocol_is_an_error_of_ours(transport: Transport, scheme: str) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelUnavailable) as caught:
            await fetch(transport, post(f"{scheme}://127.0.0.1:{port}/v1"))
    assert caught.value.served is (scheme == "http"), "without TLS no request can have left"
    await transport.aclose()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that nobody trusts, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day, now = timedelta(days=1), datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number(), now - day, now + day)
    ).sign(secret, hashes.SHA256())
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert, key


async def test_an_untrusted_certificate_needs_the_operator(
    transport: Transport, certificate: tuple[Path, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
    with pytest.raises(ModelDenied, match="not trusted") as caught:
        await fetch(transport, post(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
    assert caught.value.kind == "tls" and not caught.value.served
    await transport.aclose()
    server.close()


async def test_a_line_break_or_a_nul_in_a_header_goes_nowhere(transport: Transport) -> None:
    async with FakeUpstream() as upstream:
        for name, value in [("X", "a\nb"), ("X", "a\rb"), ("X", "a\0b"), ("X\r\nY", "a"), ("X: y\nZ", "a"), ("", "a")]:
            if isinstance(transport, HttpTransport) and ("\0" in value or not name):
                continue  # it lets these pass, and servers refuse them
            with pytest.raises(ModelRefused) as caught:
                await fetch(transport, post(upstream.base_url, **{name: value}))
            assert caught.value.kind == "headers" and not caught.value.served
        assert upstream.requests == []
        await transport.aclose()


async def test_a_long_header_and_text_beyond_ascii_pass_both_ways(transport: Transport) -> None:
    long = Raw((b"abc",), headers=(("x-long", "a" * 10_000), ("x-text", "Grüße".encode().decode("latin-1"))))
    async with FakeUpstream(lambda body: long) as upstream:
        _, headers, body = await fetch(
            transport, post(upstream.base_url, **{"X-Long": "b" * 10_000, "X-Text": "Grüße"})
        )
        assert (headers["x-long"], headers["x-text"], body) == ("a" * 10_000, "Grüße", b"abc")
        assert len(upstream.requests[0].headers["x-long"]) == 10_000
        await transport.aclose()


async def test_the_same_request_is_asked_for(transport: Transport) -> None:
    """What a server is told beside what was stated."""
    async with FakeUpstream(lambda body: Text("Hi")) as upstream:
        host = upstream.base_url.removeprefix("http://").removesuffix("/v1")
        url = f"{upstream.base_url}/chat/completions?a=b%20c&d"
        for method, body in [("POST", BODY), ("POST", b""), ("GET", b"")]:
            await fetch(transport, HttpRequest(method, url, {"X-Mine": "1"}, body))
        told = [(seen.path, {**seen.headers}) for seen in upstream.requests]
        await transport.aclose()
    common = {"host": host, "accept": "*/*", "user-agent": "centuria", "x-mine": "1"}
    for (path, headers), more in zip(
        told,
        [
            {"content-length": str(len(BODY)), "content-type": "application/octet-stream"},
            {"content-length": "0"},
            {},
        ],
        strict=True,
    ):
        headers.pop("accept-encoding", None)
        if "content-type" not in more:
            headers.pop("content-type", None)
        assert path == "/v1/chat/completions?a=b%20c&d" and headers == common | more


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
    ],
)
async def test_a_body_arrives_whole_in_every_framing(transport: Transport, raw: Raw) -> None:
    async with FakeUpstream(lambda body: raw) as upstream:
        for _ in range(2):
            assert (await fetch(transport, post(upstream.base_url)))[2] == b"abc"
        await transport.aclose()


async def test_a_name_with_two_addresses_is_reached_at_the_one_that_listens(transport: Transport) -> None:
    async with FakeUpstream() as upstream:
        status, _, _ = await fetch(transport, post(upstream.base_url.replace("127.0.0.1", "localhost")))
        assert status == 200
        await transport.aclose()


async def test_nothing_is_sent_once_it_is_closed(transport: Transport) -> None:
    await transport.aclose()
    with pytest.raises(ModelRefused):
        await fetch(transport, post("http://127.0.0.1:1/v1"))


async def test_a_proxy_of_the_environment_is_used_but_not_for_the_own_machine(
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeUpstream() as proxy, FakeUpstream() as upstream:
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        await fetch(transport, post(upstream.base_url))
        assert (len(upstream.requests), len(proxy.requests)) == (1, 0)
        await fetch(transport, post("http://api.example.com/v1"))
        assert (len(upstream.requests), len(proxy.requests)) == (1, 1)
        assert proxy.requests[0].path == "http://api.example.com/v1/chat/completions"
        await transport.aclose()


def test_importing_the_room_does_not_import_the_http_client() -> None:
    rooms = "centuria.model.http, centuria.model.direct, centuria.model.client"
    code = f"import sys, {rooms}; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
