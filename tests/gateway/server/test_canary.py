"""Two keys that must never be seen again: the caller's and the provider's."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from centuria.gateway.keys import digest_of
from centuria.gateway.ports import Key
from centuria.gateway.settings import Caps
from centuria.gateway.store.sqlite import SqliteStore
from centuria.testing import FakeUpstream
from centuria.testing.replies import Document, HttpError, Raw, Text, Verbatim
from tests.gateway.served import ASKED, deployment, raw, serving, settings

#: Neither looks like a key, so that only knowing them can blot them out.
PROVIDER = "canaryprovider7c1e55aa90"
CALLER = "ck-canarycaller81f2e6b0d4"
SAID = f"Incorrect key {PROVIDER}, Bearer {PROVIDER}"
BEGUN = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
ERROR = f'{{"error": {{"type": "{PROVIDER}", "code": "{PROVIDER}", "message": "{SAID}"}}}}'.encode()
REPLIES: list[Any] = [
    *[HttpError(status, f"bad_{PROVIDER}", SAID, {"x-key": PROVIDER}) for status in (400, 403, 404, 429, 500, 503)],
    HttpError(500, body=f"<html>{SAID}</html>".encode()),
    HttpError(502, body=SAID.encode()),
    HttpError(302, headers={"location": f"http://127.0.0.1:1/?key={PROVIDER}"}),
    Raw((b"data: " + ERROR + b"\n\n",)),
    Raw((BEGUN, b"data: " + ERROR + b"\n\n"), gap=0.02),
    Raw((BEGUN, b"event: error\r\ndata: " + ERROR + b"\r\n\r\n")),
    Raw((ERROR,), content_type="application/json"),
    Raw((SAID.encode(),), content_type="application/json"),
    Verbatim((f"HTTP/1.1 999 {PROVIDER}\r\n{PROVIDER}\r\n\r\n".encode(),)),
    Verbatim((SAID.encode(),)),
    Text("All is well."),
    Document(Text("All is well.")),
]


async def test_no_key_is_ever_seen_in_a_log_an_error_a_row_a_metric_a_page_or_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    current: list[Any] = [None]
    async with FakeUpstream(lambda body: current[0], key=PROVIDER) as upstream:
        wrong = deployment(upstream, name="wrong/m", key=f"x{PROVIDER}")
        unreachable = deployment("http://127.0.0.1:1/v1", name="gone/m", key=PROVIDER)
        # What one fault closes is not there for the next one.
        asked = [(reply, stream, f"m-{n}-{stream}") for n, reply in enumerate(REPLIES) for stream in (True, False)]
        models = {name: [deployment(upstream, name=f"{name}/m", key=PROVIDER)] for _, _, name in asked}
        models |= {"wrong": [wrong], "gone": [unreachable]}
        caps = Caps(attempts=1, queue=1.0, request=5.0, header=8_192)
        store = SqliteStore(tmp_path / "gateway.db")
        await store.add_key(Key("key-c", "c", admin=True), digest_of(CALLER))
        async with serving(settings(models, caps=caps), store) as served:
            key = {"Authorization": f"Bearer {CALLER}"}
            for reply, stream, model in asked:
                current[0] = reply
                got = await served.ask(key, stream=stream, model=model)
                seen += [got.body.decode(), str(got.headers)]
            assert len(upstream.requests) == 2 * len(REPLIES)
            assert {seen.headers["authorization"] for seen in upstream.requests} == {f"Bearer {PROVIDER}"}
            for model in ("wrong", "gone"):
                got = await served.ask(key, model=model)
                assert got.status == 502
                seen += [got.body.decode(), str(got.headers)]
            for bad in ("Bearer x" + CALLER, "Basic " + CALLER, CALLER, f"Bearer {CALLER} {CALLER}"):
                got = await served.ask({"Authorization": bad})
                assert got.status == 401
                seen += [got.body.decode(), str(got.headers)]
            for data in (
                f"POST /v1/models?key={CALLER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: {CALLER}\r\n\r\n",
                f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {CALLER}\0\r\n\r\n",
                f"GET /{CALLER} HTTP/1.1\r\nHost: localhost\r\nx: {CALLER * 500}\r\n\r\n",
            ):
                seen.append((await raw(served.port, data.encode())).decode("latin-1"))
            for route in served.gateway.router.routes:
                if route.method == "GET" and "{" not in route.pattern:
                    got = await served.get(route.pattern, key)
                    seen += [got.body.decode(), str(got.headers)]
            await served.until_quiet()
            seen += [repr(row) for row in served.rows]
            assert len(served.rows) == 2 * len(REPLIES) + 2
            seen += [repr(line) for line in await store.usage()] + [repr(served.gateway.settings)]
    seen += [record.getMessage() + str(record.exc_info) for record in caplog.records] + [caplog.text]
    seen += list(capfd.readouterr())
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    seen += [(await asyncio.to_thread(file.read_bytes)).decode("latin-1") for file in files]
    assert ASKED["messages"][0]["content"]
    for text in seen:
        assert PROVIDER not in text
        assert CALLER not in text
