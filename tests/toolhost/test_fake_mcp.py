"""The fake MCP server: right where it is not told otherwise, and wrong in exactly the way that it is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from centuria import testing
from centuria.testing import FakeMcp, fake_mcp_command
from centuria.testing.mcp import ERAS, FAULTS, TOOLS, Books, Plan, as_markdown, parse_fault
from centuria.testing.mcp.__main__ import main

DOC = Path(__file__).parents[2] / "docs" / "fake-mcp.md"


# -- a right server --------------------------------------------------------------------------------------------------


async def drive(server: Any, era: str) -> None:
    """All that a right server must do, asked by the SDK's own client."""
    async with Client(server) as client:
        assert client.protocol_version == era
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"sum": 3}
        assert (await client.call_tool("fail", {"why": "no"})).is_error
        assert (await client.call_tool("echo", {})).is_error
        nonces = [str(number) for number in range(50)]
        results = await asyncio.gather(*(client.call_tool("nonce", {"nonce": nonce}) for nonce in nonces))
        assert [result.structured_content["nonce"] for result in results] == nonces
        assert sorted(result.structured_content["number"] for result in results) == list(range(1, 51))
        assert (await client.call_tool("counter", {"name": "a"})).structured_content == {"name": "a", "count": 1}
        assert (await client.call_tool("counter", {"name": "a"})).structured_content == {"name": "a", "count": 2}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call_tool("slow", {"seconds": 60})
        big = (await client.call_tool("big", {"bytes": 1000})).content[0].text
        assert (len(big), big[:20]) == (1000, "0123456789abcdef0123")
        if era == ERAS[-1]:
            async with client.listen(tools_list_changed=True) as changes:
                await client.call_tool("set_tools", {"names": ["echo", "new"]})
                async with asyncio.timeout(10):
                    await anext(changes)
        else:
            await client.call_tool("set_tools", {"names": ["echo", "new"]})
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "new"]


@pytest.mark.parametrize("era", ERAS)
async def test_the_sdks_own_client_is_served_over_stdio(era: str, tmp_path: Path) -> None:
    command, *args = fake_mcp_command(era=era, books=tmp_path / "books")
    await drive(StdioServerParameters(command=command, args=args), era)
    books = Books.read(tmp_path / "books")
    assert (books.calls["nonce"], books.seen["cancelled"] >= 1, books.seen["list"]) == (50, True, 2)
    assert books.seen["initialize" if era == ERAS[0] else "discover"] == 1


@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("era", ERAS)
async def test_the_sdks_own_client_is_served_over_http(era: str, answers: Any) -> None:
    async with FakeMcp(eras=[era], answers=answers) as server:
        await drive(server.url, era)
        await server.until(lambda: not server.books.open)
        books = server.books
    assert (books.calls["nonce"], books.seen["cancelled"] >= 1, books.seen["list"]) == (50, True, 2)
    once = 1 if era == ERAS[0] else 0
    assert (books.seen["session"], books.seen["stream"], books.seen["deleted"]) == (once, once, once)


async def test_a_server_of_both_eras_speaks_the_newer_one() -> None:
    async with FakeMcp() as server:
        await drive(server.url, ERAS[-1])


async def test_no_more_calls_than_so_many_run_at_once() -> None:
    async with FakeMcp(at_once=3) as server, aiohttp.ClientSession() as client:
        call = {"name": "slow", "arguments": {"seconds": 0.05}}
        seen = await asyncio.gather(*(post(client, server, "tools/call", call, number=n) for n in range(10)))
        assert sorted(status for status, _, _ in seen) == [200] * 3 + [429] * 7
        assert all(float(headers["retry-after"]) > 0 for status, headers, _ in seen if status == 429)
        assert (server.books.peak, server.books.calls["slow"], server.books.seen["refused"]) == (3, 3, 7)


async def test_a_header_that_says_something_else_than_the_body_is_refused() -> None:
    async with FakeMcp() as server, aiohttp.ClientSession() as client:
        status, _, body = await post(client, server, "tools/list", {}, headers={"mcp-method": "tools/call"})
        assert (status, json.loads(body)["error"]["code"]) == (400, -32020)
        status, _, body = await post(client, server, "no/such", {})
        assert (status, json.loads(body)["error"]["code"]) == (404, -32601)


async def test_the_books_of_a_server_that_is_started_again_go_on(tmp_path: Path) -> None:
    path = tmp_path / "books"
    call = request(3, "tools/call", {"name": "counter", "arguments": {}})
    told = [await talk(["crash=9:counter@2"], [call], books=path) for _ in range(3)]
    assert [one.code for one in told] == [0, 9, 0]
    assert told[2].by_id(3)["result"]["structuredContent"]["count"] == 3
    books = Books.read(path)
    assert (books.seen["start"], books.calls["counter"], books.seen["fault:crash"]) == (3, 3, 1)


# -- the faults ------------------------------------------------------------------------------------------------------


def request(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


ECHO = request(3, "tools/call", {"name": "echo", "arguments": {"text": "hello"}})
OPEN = request(1, "initialize", {"protocolVersion": ERAS[0], "capabilities": {}})
LIST = request(2, "tools/list", {})
MORE = request(4, "tools/list", {"cursor": "page 2"})
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}
PING = request(9, "ping", {})


@dataclass
class Told:
    """What a server over stdio has written, and how it ended (None: it had to be killed)."""

    out: bytes
    err: bytes
    code: int | None

    @property
    def messages(self) -> list[dict[str, Any]]:
        found = []
        for line in self.out.split(b"\n"):
            with suppress(ValueError):
                value = json.loads(line)
                found += [value] if isinstance(value, dict) and "jsonrpc" in value else []
        return found

    def all_of(self, number: int) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("id") == number]

    def by_id(self, number: int) -> dict[str, Any]:
        return self.all_of(number)[0]

    @property
    def text(self) -> str:
        return self.by_id(3)["result"]["content"][0]["text"]

    @property
    def alive(self) -> bool:
        """It answered what came last."""
        return bool(self.all_of(9))


async def talk(faults: list[str], messages: list[dict[str, Any]], *, books: Path | None = None) -> Told:
    process = await asyncio.create_subprocess_exec(
        *fake_mcp_command(*faults, books=books),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    err = asyncio.ensure_future(process.stderr.read())
    out = b""
    with suppress(BrokenPipeError, ConnectionResetError):
        for message in (*messages, PING):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(20 if not set(faults) & HANGS else 1.5):
            ends = [b'"id":9', b'"id":3'] if any(fault.startswith("flood") for fault in faults) else [b'"id":9']
            while not all(end in out for end in ends) and (chunk := await process.stdout.read(1 << 20)):
                out += chunk
    process.stdin.close()
    code: int | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(10 if not set(faults) & HANGS else 0.5):
            out += await process.stdout.read()
            code = await process.wait()
    if code is None:
        process.kill()
        await process.wait()
    return Told(out, await err, code)


#: Faults after which a server does not answer what comes last, or does not end by itself.
HANGS = {"silent", "garbage", "stubborn", "deaf"}
ALL = [OPEN, READY, LIST, MORE, ECHO, CANCEL]
WELL = [OPEN, READY, LIST, MORE, ECHO]

WRONG_LISTS = ({"echo": {}}, [{"title": "no name"}], "none")


def no_rpc(message: dict[str, Any]) -> bool:
    return message.get("jsonrpc") != "2.0" or len(message.keys() & {"result", "error"}) != 1


STDIO: dict[str, Callable[[Told], bool]] = {
    "no-start": lambda told: told.code == 3 and b"nonsense" in told.err and not told.out,
    "slow-start=0.2": lambda told: told.text == "hello",
    "busy-start=0.2": lambda told: told.text == "hello",
    "silent": lambda told: not told.out,
    "garbage": lambda told: bool(told.out) and not told.messages,
    "stubborn": lambda told: told.text == "hello" and told.code is None,
    "mute-list": lambda told: not told.all_of(2) and told.text == "hello",
    "loop": lambda told: [told.by_id(n)["result"]["nextCursor"] for n in (2, 4)] == ["again", "again"],
    "endless": lambda told: [told.by_id(n)["result"]["nextCursor"] for n in (2, 4)] == ["page 2", "page 3"],
    "wrong-list": lambda told: told.by_id(2)["result"]["tools"] in WRONG_LISTS,
    "slow=0.2": lambda told: told.alive and not told.all_of(3),  # cancelled, as it had time to be
    "mute": lambda told: told.alive and not told.all_of(3),
    "late": lambda told: told.text == "hello",
    "twice": lambda told: len(told.all_of(3)) == 2,
    "wrong-type": lambda told: not isinstance(told.by_id(3)["result"], dict),
    "missing-fields": lambda told: "content" not in told.by_id(3)["result"],
    "bad-rpc": lambda told: no_rpc(told.by_id(3)),
    "wrong-id": lambda told: not told.all_of(3) and "nobody-3" in [message["id"] for message in told.messages],
    "bad-json": lambda told: told.alive and not told.all_of(3) and b'"id":3' in told.out,
    "bad-bytes": lambda told: b"caf\xe9 \\ud800 hello" in told.out,
    "storm=7": lambda told: [m.get("method") for m in told.messages].count("notifications/tools/list_changed") == 7,
    "crash=5": lambda told: told.code == 5 and not told.alive and b'"id":3' in told.out and not told.all_of(3),
    "junk=3": lambda told: told.text == "hello" and told.out.count(b"Server is ready.\n") == 2,
    "flood=300000": lambda told: told.text == "hello" and len(told.err) >= 300_000,
    "huge-line=300000": lambda told: told.text == "hello" and b"x" * 300_000 in told.out,
    "deaf": lambda told: told.text == "hello" and not told.alive and told.code is None,
}  # fmt: skip


@pytest.mark.parametrize("fault", STDIO)
async def test_a_fault_over_stdio_does_what_its_row_says(fault: str) -> None:
    told = await talk([fault], ALL if parse_fault(fault).kind.name in ("late", "slow") else WELL)
    assert STDIO[fault](told), (told.out[-2000:], told.err[-500:], told.code)


async def post(
    client: aiohttp.ClientSession,
    server: FakeMcp,
    method: str,
    params: dict[str, Any],
    *,
    number: int = 3,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, bytes]:
    """One request of 2026-07-28: its status, headers and body."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": ERAS[-1],
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    said = {"mcp-protocol-version": ERAS[-1], "mcp-method": method, **(headers or {})}
    said |= {"mcp-name": params["name"]} if method == "tools/call" else {}
    body = request(number, method, {**params, "_meta": meta})
    async with client.post(server.url, json=body, headers=said) as response:
        return response.status, response.headers, await response.read()


@dataclass
class Heard:
    """What came of one call over HTTP, and of a fetch of the list."""

    server: FakeMcp
    status: int = 0
    headers: Any = None
    body: bytes = b""
    error: str = ""
    listing: bytes = b""

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode(errors="replace").splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]

    @property
    def ran(self) -> int:
        return self.server.books.calls["echo"]


HTTP: dict[str, Callable[[Heard], bool]] = {
    "slow-start=0.2": lambda heard: heard.status == 200,
    "silent": lambda heard: heard.error == "TimeoutError" and not heard.ran,
    "garbage": lambda heard: heard.status == 200 and b"{broken" in heard.body,
    "mute-list": lambda heard: not heard.listing and heard.status == 200,
    "loop": lambda heard: json.loads(heard.listing)["result"]["nextCursor"] == "again",
    "endless": lambda heard: json.loads(heard.listing)["result"]["nextCursor"] == "page 2",
    "wrong-list": lambda heard: json.loads(heard.listing)["result"]["tools"] in WRONG_LISTS,
    "slow=0.1": lambda heard: heard.status == 200,
    "mute": lambda heard: heard.error == "TimeoutError" and heard.ran == 1,
    "late": lambda heard: heard.error == "TimeoutError" and heard.ran == 1,
    "twice": lambda heard: [event["id"] for event in heard.events] == [3, 3],
    "wrong-type": lambda heard: not isinstance(heard.message["result"], dict),
    "missing-fields": lambda heard: "content" not in heard.message["result"],
    "bad-rpc": lambda heard: no_rpc(heard.message),
    "wrong-id": lambda heard: heard.message["id"] == "nobody-3",
    "bad-json": lambda heard: heard.status == 200 and heard.body.startswith(b"{") and not heard.body.endswith(b"}"),
    "bad-bytes": lambda heard: b"caf\xe9 \\ud800 hello" in heard.body,
    "storm=7": lambda heard: heard.status == 200 and heard.server.books.seen["fault:storm"] == 1,
    "429=2": lambda heard: (heard.status, heard.headers["retry-after"], heard.ran) == (429, "2", 0),
    "status=503": lambda heard: (heard.status, heard.ran) == (503, 1),
    "forget": lambda heard: heard.status == 200,  # there is no session to be forgotten
    "reset": lambda heard: heard.error != "" and heard.ran == 1,
    "half": lambda heard: heard.error == "ClientPayloadError" and heard.ran == 1,
    "cut-sse": lambda heard: heard.error == "ClientPayloadError" and heard.ran == 1,
    "html": lambda heard: heard.headers["content-type"] == "text/html" and heard.ran == 1,
}  # fmt: skip


@pytest.mark.parametrize("fault", HTTP)
async def test_a_fault_over_http_does_what_its_row_says(fault: str) -> None:
    async with FakeMcp(fault) as server, aiohttp.ClientSession() as client:
        heard = Heard(server)
        try:
            async with asyncio.timeout(0.5):
                call = {"name": "echo", "arguments": {"text": "hello"}}
                heard.status, heard.headers, heard.body = await post(client, server, "tools/call", call)
        except (aiohttp.ClientError, TimeoutError) as error:
            heard.error = type(error).__name__
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                heard.listing = (await post(client, server, "tools/list", {}))[2]
        assert HTTP[fault](heard), heard


def test_every_fault_has_a_test_over_each_of_its_carriers() -> None:
    for over, tested in (("stdio", STDIO), ("http", HTTP)):
        assert {parse_fault(text).kind.name for text in tested} == {k.name for k in FAULTS.values() if over in k.over}


async def test_a_forgotten_session_is_404_and_a_new_one_is_served() -> None:
    async with FakeMcp("forget@2", eras=[ERAS[0]]) as server, aiohttp.ClientSession() as client:

        async def ask(message: dict[str, Any], session: str = "") -> tuple[int, str]:
            headers = {"mcp-session-id": session} if session else {}
            async with client.post(server.url, json=message, headers=headers) as response:
                return response.status, response.headers.get("mcp-session-id", "")

        status, session = await ask(OPEN)
        assert (status, bool(session)) == (200, True)
        statuses = [(await ask(ECHO, session))[0] for _ in range(3)]
        assert statuses == [200, 404, 404]
        assert (await ask(ECHO))[0] == 400
        _, session = await ask(OPEN)
        assert (await ask(ECHO, session))[0] == 200
        assert server.books.calls["echo"] == 2


async def test_a_storm_reaches_whoever_listens() -> None:
    async with FakeMcp("storm=7@1", eras=[ERAS[0]]) as server, aiohttp.ClientSession() as client:
        async with client.post(server.url, json=OPEN) as opened:
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        async with client.get(server.url, headers=session) as stream:
            async with client.post(server.url, json=ECHO, headers=session) as answer:
                assert answer.status == 200
            async with client.delete(server.url, headers=session) as gone:
                assert gone.status == 200
            text = await stream.text()  # the stream ends with its session
        assert text.count("notifications/tools/list_changed") == 7


# -- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("mute", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("mute@3", [3]),
        ("mute@3-5", [3, 4, 5]),
        ("mute@6-", [6, 7, 8]),
        ("mute@/3", [3, 6]),
        ("mute@0%", []),
        ("mute@100%", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("mute:add", []),
        ("mute:echo@2", [2]),
    ],
)
def test_a_fault_is_met_when_it_is_written(text: str, met: list[int]) -> None:
    plan = Plan.of([text], 0, "stdio")
    assert [number for number in range(1, 9) if plan.hits("call", number, "echo")] == met


@given(seed=st.integers(0, 1000), share=st.integers(10, 90), low=st.integers(0, 5), more=st.integers(0, 5))
def test_the_same_seed_and_number_meet_the_same_faults(seed: int, share: int, low: int, more: int) -> None:
    plan, again = (Plan.of([f"slow={low}-{low + more}@{share}%"], seed, "http") for _ in range(2))
    hits = [plan.hits("call", number) for number in range(1, 201)]
    assert hits == [again.hits("call", number) for number in range(1, 201)]
    assert abs(sum(map(bool, hits)) / 2 - share) < 25
    assert all(low <= hit["slow"] <= low + more for hit in hits if hit)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "is no fault"),
        ("mute=3", "takes no value"),
        ("slow=3-1", "ends before it begins"),
        ("mute@x", "is no time"),
        ("loop:echo", "is met at a list"),
        ("crash", "does not happen over http"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Plan.of([text], 0, "http")


# -- what is said of it ----------------------------------------------------------------------------------------------


def test_the_page_has_the_table_of_faults_and_the_help_names_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Write the table anew: CENTURIA_WRITE_DOCS=1 pytest tests/toolhost/test_fake_mcp.py"""
    written = DOC.read_text()
    head, _, rest = written.partition("<!-- faults -->\n")
    current = f"{head}<!-- faults -->\n{as_markdown()}\n<!-- end -->\n{rest.partition('<!-- end -->' + chr(10))[2]}"
    if os.environ.get("CENTURIA_WRITE_DOCS"):
        DOC.write_text(current)
    assert DOC.read_text() == current
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in FAULTS)


def test_the_commands_of_the_help_and_of_the_page_are_understood() -> None:
    from centuria.testing.mcp.__main__ import _EPILOG, _parser

    lines = [*_EPILOG.splitlines(), *DOC.read_text().splitlines()]
    begin = "python -m centuria.testing.mcp "
    said = [line.strip().partition(begin)[2] for line in lines if line.strip().startswith(begin)]
    commands = [text.split("   ")[0].split() for text in said if not text.startswith(" ")]
    assert len(commands) > 5
    for command in commands:
        options = _parser().parse_args([word for word in command if word != "--help"])
        Plan.of(options.faults, options.seed, "stdio" if options.http is None else "http")


def test_a_process_over_http_says_its_url() -> None:
    command = [sys.executable, "-m", "centuria.testing.mcp", "--http", "0", "--faults", "429@1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        server.terminate()


def test_the_public_names_of_the_kit_are_found_and_documented() -> None:
    assert testing.__all__ == sorted(testing._PUBLIC) == dir(testing)
    for name in testing.__all__:
        assert getattr(testing, name).__module__ is not None
