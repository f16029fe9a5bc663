"""Nothing that a caller writes starts a process, opens a file, or reaches an address that it may not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from centuria.errors import ConfigurationError
from centuria.gateway.problems import Problem
from centuria.gateway.tools.manifest import check_url
from centuria.settings import Timeouts, ToolServer
from centuria.testing.gateway import MemoryStore
from centuria.testing.mcp import FakeMcp
from centuria.toolhost import McpToolHost, any_host, public_only
from tests.gateway.tools.kit import gateway_of, host_of, web

NEVER = [
    *("command", "args", "argv", "env", "cwd", "stdio", "shell", "exec", "executable", "headers", "authorization"),
    *("token", "proxy", "transport", "server", "mcpServers", "builtin", "roots", "base_url", "Command"),
]


@pytest.mark.parametrize("field", NEVER)
async def test_a_field_that_could_start_or_reach_something_is_refused_by_its_name(field: str, tmp_path: Path) -> None:
    store, proof = MemoryStore(), tmp_path / "proof"
    value: Any = [f"touch {proof}"] if field in ("args", "argv") else f"touch {proof}"
    async with gateway_of(host_of(web_search=web()), store=store) as call:
        for entry in ({"name": "web_search", field: value}, {"name": "mine", "tool": "web_search", field: value}):
            for body in (entry, [entry], {"tools": [entry]}):
                answer = await call("POST", "/v1/mcp/tools", body)
                assert (answer.status, answer.error["code"]) == (400, "field_not_allowed")
                assert f"`{field}`" in answer.error["message"]
        outer = await call("POST", "/v1/mcp/tools", {"tools": [{"name": "web_search"}], field: value})
        assert (outer.status, store.documents, proof.exists()) == (400, {}, False)


async def test_a_field_that_is_merely_unknown_is_refused_too() -> None:
    async with gateway_of(host_of(web_search=web())) as call:
        answer = await call("POST", "/v1/mcp/tools", {"name": "web_search", "limits": 3})
        assert (answer.status, answer.error["message"]) == (
            400,
            "A manifest has no field `limits`. Did you mean `limit`?",
        )


async def test_metadata_of_a_tool_are_words_and_nothing_else() -> None:
    """A description, a scope or a name that looks like options stays text."""
    host = host_of(web_search=web())
    async with gateway_of(host) as call:
        evil = "--root / ; $(touch x) `x`"
        entry = {"name": "mine", "tool": "web_search", "description": evil, "scope": "../../etc"}
        assert (await call("POST", "/v1/mcp/tools", entry)).status == 201
        shown = (await call("GET", "/v1/mcp/tools", X_Agent_Id="../../etc")).body["data"]
        assert [tool["description"] for tool in shown if tool["name"] == "mine"] == [evil]
        answer = await call("POST", "/v1/mcp/tools/mine/invoke", {"query": "x"}, X_Agent_Id="../../etc")
        assert answer.status == 200


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/mcp",
        "file:///etc/passwd",
        "https://evil.example.com/mcp",
        "https://mcp.example.com.evil.com/mcp",
        "https://mcp.example.com@evil.com/mcp",
        "https://user:word@mcp.example.com/mcp",
        "https://mcp.example.com:22/mcp",
        "https://mcp.example.com:x/mcp",
        "https://evil.com\\@mcp.example.com/",
        "https://evil.com#@mcp.example.com/",
        "https://mcp.example.com/a\nb",
        "https://127.0.0.1/mcp",
        "https://[::1]/mcp",
        "https:///mcp",
        "stdio:cat",
        "",
    ],
)
async def test_an_address_that_the_operator_did_not_allow_is_refused(url: str) -> None:
    async with gateway_of(host_of(web_search=web()), remote_hosts=frozenset({"mcp.example.com"})) as call:
        answer = await call("POST", "/v1/mcp/tools", {"name": "docs", "url": url})
        assert answer.status == 400
        assert answer.error["param"] in ("tools[0].url", "tools[0].name")


async def test_without_allowed_hosts_no_address_is_reached() -> None:
    async with gateway_of(host_of(web_search=web())) as call:
        answer = await call("POST", "/v1/mcp/tools", {"name": "docs", "url": "https://example.com/mcp"})
        assert (answer.status, answer.error["code"]) == (400, "host_not_allowed")


@pytest.mark.parametrize("field", ["headers", "command", "tool", "parameters", "env"])
async def test_a_server_at_an_address_has_no_other_settings(field: str) -> None:
    async with gateway_of(host_of(web_search=web()), remote_hosts=frozenset({"example.com"})) as call:
        entry = {"name": "docs", "url": "https://example.com/mcp", field: "x"}
        answer = await call("POST", "/v1/mcp/tools", entry)
        assert (answer.status, answer.error["code"]) == (400, "field_not_allowed")


def test_a_port_of_its_own_is_allowed_only_where_the_operator_says_so() -> None:
    check_url("https://example.com:8443/mcp", {"example.com:8443"}, "t")
    check_url("https://EXAMPLE.com:443/mcp", {"Example.com"}, "t")
    with pytest.raises(Problem):
        check_url("https://example.com/mcp", {"example.com:8443"}, "t")


# -- addresses are looked at when the connection is made --------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:0001::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "nonsense", "",
    ],
)  # fmt: skip
def test_no_form_of_a_private_address_is_public(address: str) -> None:
    assert public_only(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"]
)
def test_public_addresses_pass(address: str) -> None:
    assert not public_only(address)
    assert not any_host(address)


def test_private_addresses_pass_where_the_operator_allows_them() -> None:
    assert not any_host("127.0.0.1")
    assert not any_host("10.1.2.3")
    assert any_host("224.0.0.1")
    assert any_host("0.0.0.0")
    assert ip_address("10.1.2.3").is_private


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[int, list[int]]]:
    """A listener on this machine: its port, and the connections that it got."""
    got: list[int] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(1)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], got


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_an_allowed_name_that_leads_to_this_machine_is_refused_when_it_connects(host: str) -> None:
    """DNS rebinding: the name is on the list, and what it resolves to now is not the internet."""
    async with counting() as (port, got):
        hosts = frozenset({f"{host}:{port}"})
        store = MemoryStore()
        async with gateway_of(host_of(web_search=web()), remote_hosts=hosts, store=store) as call:
            answer = await call("POST", "/v1/mcp/tools", {"name": "docs", "url": f"https://{host}:{port}/mcp"})
            assert (answer.status, answer.error["code"]) == (503, "tool_unavailable")
            assert "not a public address" in answer.error["message"]
            assert (got, store.documents) == ([], {})


async def test_proxies_of_the_environment_are_not_asked_for_servers_of_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with counting() as (port, got):
        for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        servers = [ToolServer("docs", "docs", url="https://10.1.2.3/mcp")]
        timeouts = Timeouts(connect=0.3, server_start=1.0)
        for guard in (public_only, any_host):  # where every address may be had the proxy's may, too
            async with McpToolHost(servers, timeouts=timeouts, dice=lambda: 0.9, guard=guard) as host:
                assert not host.servers()[0].up
        assert got == []
        async with McpToolHost(servers, timeouts=timeouts, dice=lambda: 0.9):
            assert got  # the operator's own servers are reached through it


async def test_a_redirect_of_such_a_server_is_not_followed() -> None:
    seen: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 307 T\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        timeouts = Timeouts(server_start=5)
        described = [ToolServer("docs", "docs", url=url)]
        async with McpToolHost(described, timeouts=timeouts, dice=lambda: 0.9, guard=any_host) as host:
            assert not host.servers()[0].up
            assert "redirects" in host.servers()[0].reason
    assert seen
    assert all(" /mcp " in line for line in seen)


async def test_a_guarded_host_starts_no_process() -> None:
    with pytest.raises(ConfigurationError):
        McpToolHost([ToolServer("x", "x", command="true")], timeouts=Timeouts(), dice=lambda: 0.0, guard=public_only)


async def test_a_server_of_a_callers_own_is_called_where_the_operator_allows_private_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = _certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    from centuria.toolhost import wire_http

    wire_http._tls.cache_clear()
    async with FakeMcp(tools=["echo", "add"]) as fake, _tls_in_front(fake, certificate, key) as port:
        store, hosts = MemoryStore(), frozenset({f"localhost:{port}"})
        async with gateway_of(host_of(web_search=web()), remote_hosts=hosts, remote_private=True, store=store) as call:
            entry = {"name": "docs", "url": f"https://localhost:{port}/mcp", "limit": 3}
            answer = await call("POST", "/v1/mcp/tools", entry)
            assert (answer.status, answer.body["tools"]) == (201, ["docs__add", "docs__echo"])
            said = await call("POST", "/v1/mcp/tools/docs__echo/invoke", {"text": "hello"})
            assert said.body["content"] == [{"type": "text", "text": "hello"}]
            listed = (await call("GET", "/v1/mcp/tools")).body["data"]
            assert [tool["name"] for tool in listed] == ["web_search", "docs__add", "docs__echo", "docs"]
            assert (await call("POST", "/v1/mcp/tools/docs__echo/invoke", {"text": "x"}, token="bob")).status == 404
            assert (await call("POST", "/v1/mcp/tools/docs__ecko/invoke", {"text": "x"})).status == 404
            assert all("authorization" not in seen.headers for seen in fake.requests)
            assert (await call("DELETE", "/v1/mcp/tools/docs")).status == 204
            assert (await call("POST", "/v1/mcp/tools/docs__echo/invoke", {"text": "x"})).status == 404
    wire_http._tls.cache_clear()


@asynccontextmanager
async def _tls_in_front(fake: FakeMcp, certificate: Path, key: Path) -> AsyncIterator[int]:
    """A port that speaks TLS and passes everything on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    there = int(fake.url.rpartition(":")[2].partition("/")[0])

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", there)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(reader, inner_writer))
            group.create_task(pump(inner_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _certificate(folder: Path) -> tuple[Path, Path]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, secret
