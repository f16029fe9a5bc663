"""The checks of a server: one of good manners passes all, and one with a single defect fails that row."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from centuria.messages import Usage
from centuria.model.http import HttpTransport
from centuria.settings import Endpoint, Secret
from centuria.testing.replies import Answer, Calls, Document, HttpError, Late, Raw, Reply, Silence, Text, Written
from centuria.testing.torture.server import Finding, Obliging, checks, estimate, examine, findings_as_json
from centuria.testing.torture.writing import by_byte
from centuria.testing.upstream import FakeUpstream, RateLimits

KEY = "sk-right-0123456789abcdef"
CONTEXT = 2000
Change = Callable[[dict[str, Any], Reply, FakeUpstream], Reply]


async def look(upstream: FakeUpstream, *only: str, key: str | None = KEY, patience: float = 5.0) -> list[Finding]:
    endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5", Secret(key) if key else None, context=CONTEXT)
    transport = HttpTransport()
    rows = [check for check in checks(endpoint) if not only or check.name in only]
    assert rows
    try:
        return await examine(endpoint, transport, rows, patience=patience)
    finally:
        await transport.aclose()


def good(**more: Any) -> FakeUpstream:
    return FakeUpstream(Obliging(context=CONTEXT, gap=0.001), **{"key": KEY, **more})


async def test_a_server_of_good_manners_passes_every_row_within_what_was_said() -> None:
    async with good() as upstream:
        findings = await look(upstream)
        assert [(found.check.name, found.seen) for found in findings if found.state == "fail"] == []
        assert [found.check.name for found in findings if found.state == "n/a"] == ["Retry-After"]
        endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5", Secret(KEY), context=CONTEXT)
        most = estimate(endpoint, checks(endpoint))
        assert len(upstream.requests) == most.requests == sum(found.requests for found in findings)
        assert sum(usage.output for usage in upstream.billed) <= most.output
        assert all(found.requests <= found.check.requests for found in findings)


async def test_without_a_key_the_row_of_the_bad_key_is_not_applicable() -> None:
    async with good(key=None) as upstream:
        (found,) = await look(upstream, "a key that is wrong", key=None)
        assert found.state == "n/a"


@dataclass
class Defect:
    """One thing wrong: a change of replies, or an upstream that is set up wrongly."""

    check: str
    change: Change = lambda body, reply, upstream: reply
    setup: dict[str, Any] = field(default_factory=dict)
    context: int = CONTEXT


def answer_of(reply: Reply) -> Answer | None:
    found = reply.answer if isinstance(reply, Document) else reply
    return found if isinstance(found, Text | Calls) else None


def changed(**more: Any) -> Change:
    """Every answer with other fields."""

    def change(body: dict[str, Any], reply: Reply, upstream: FakeUpstream) -> Reply:
        answer = answer_of(reply)
        if answer is None or not set(more) <= set(type(answer).__dataclass_fields__):
            return reply
        other = replace(answer, **more)
        return Document(other) if isinstance(reply, Document) else other

    return change


def rewritten(edit: Callable[[bytes], bytes], *, calls: bool = False) -> Change:
    """Every stream (of calls) with other bytes."""

    def change(body: dict[str, Any], reply: Reply, upstream: FakeUpstream) -> Reply:
        if isinstance(reply, Text | Calls) and (not calls or isinstance(reply, Calls)):
            return Written(reply, lambda whole: [edit(whole)])
        return reply

    return change


def on(holds: Callable[[dict[str, Any]], bool], other: Reply | Callable[[Reply], Reply]) -> Change:
    def change(body: dict[str, Any], reply: Reply, upstream: FakeUpstream) -> Reply:
        if not holds(body):
            return reply
        return other(reply) if callable(other) else other

    return change


def crowded(most: int, other: Reply) -> Change:
    return lambda body, reply, upstream: Late(other if upstream.in_flight > most else reply, 0.02)


def mixed_ids(whole: bytes) -> bytes:
    parts = whole.split(b"chatcmpl-")
    return b"".join(part if not n else b"chatcmpl-%d-" % n + part for n, part in enumerate(parts))


def says(body: dict[str, Any], part: str) -> bool:
    return part in json.dumps(body.get("messages"))


BROKEN = HttpError(500, message="boom")
REFUSED = HttpError(400, "invalid_request_error", "No.")
HELLO = Text("hello", usage=None)
NO_STOP = "1 2 3 4 5 6 7 8"

DEFECTS = [
    Defect("models listed", setup={"models": ("another",)}),
    Defect("a plain answer", on(lambda b: not b.get("stream"), Written(Text("hello"), lambda body: [body]))),
    Defect("a plain answer", changed(text="")),
    Defect("a plain answer", changed(finish="")),
    Defect("usage of a plain answer", changed(usage=None)),
    Defect("a streamed answer", lambda b, r, u: Document(r) if isinstance(r, Text) else r),
    Defect("a streamed answer", changed(text="", reasoning="hello")),
    Defect("usage of a streamed answer", changed(report="none")),
    Defect("stream framing", rewritten(mixed_ids)),
    Defect("stream framing", rewritten(lambda b: b.replace(b"\n\n", b"\n\ndata: oops\n\n", 1))),
    Defect("stream framing", rewritten(lambda b: b.replace(b'"content":"hell', b'"content":"\xffhell'))),
    Defect("stream framing", rewritten(lambda b: b.replace(b'"finish_reason":null', b'"finish_reason":"stop"'))),
    Defect("[DONE]", rewritten(lambda b: b.replace(b"data: [DONE]\n\n", b""))),
    Defect("max_tokens", on(lambda b: b["max_tokens"] == 8, Document(Text("1 2 3 4 5", usage=Usage(9, output=9))))),
    Defect("max_tokens", changed(finish="stop")),
    Defect("stop", on(lambda b: "stop" in b, Document(Text(NO_STOP)))),
    Defect("stop", on(lambda b: "stop" in b, Document(Text("1 2 3", finish="length")))),
    Defect("keep-alive", lambda b, r, u: Raw((b"{}",), headers=(("connection", "close"),), framing="close")),
    Defect("keep-alive", lambda b, r, u: Written(r, by_byte, raw=Raw((), after="close")) if b.get("stream") else r),
    Defect("a tool call", changed(ids=("",))),
    Defect("a tool call", changed(calls=(("get_weather", "{'city'"),), ids=("a",))),
    Defect("a tool call", changed(calls=(("weather", "{}"),), ids=("a",))),
    Defect("a tool call", changed(finish="stop")),
    Defect("a streamed tool call", rewritten(lambda b: b.replace(b'"index":0,"function"', b'"function"'), calls=True)),
    Defect("a streamed tool call", rewritten(lambda b: b.replace(b"Paris", b'Pa\\"ris'), calls=True)),
    Defect("parallel tool calls", rewritten(lambda b: b.replace(b'"index":1', b'"index":0'), calls=True)),
    Defect("parallel tool calls", changed(ids=("a", "a"))),
    Defect("a tool's result", on(lambda b: b["messages"][-1]["role"] == "tool", REFUSED)),
    Defect("a tool's result", on(lambda b: b["messages"][-1]["role"] == "tool", Document(Text("")))),
    Defect("text in many scripts, emoji", on(lambda b: says(b, "\\ud83d\\ude00"), BROKEN)),
    Defect("a lone surrogate in the prompt", on(lambda b: says(b, "\\ud83d."), BROKEN)),
    Defect("NUL in the prompt", on(lambda b: says(b, "\\u0000"), Silence())),
    Defect("a body that is no UTF-8", setup={"no_json": BROKEN}),
    Defect("a body that is no JSON", setup={"no_json": BROKEN}),
    Defect("a body that is no JSON", setup={"no_json": HttpError(400, body=b"Bad Request")}),
    Defect("no messages", on(lambda b: "messages" not in b, BROKEN)),
    Defect("an unknown model", on(lambda b: b.get("model") != "kimi-k2.5", Document(HELLO))),
    Defect("a key that is wrong", setup={"key": None}),
    Defect("max_tokens of a billion", on(lambda b: b.get("max_tokens") == 10**9, BROKEN)),
    Defect("a prompt that is too long", on(lambda b: says(b, "word word"), BROKEN)),
    Defect("a prompt that is too long", on(lambda b: says(b, "word word"), REFUSED)),
    Defect("a prompt that is too long", on(lambda b: says(b, "word word"), Document(HELLO)), context=9999),
    Defect("8 at once", crowded(4, BROKEN)),
    Defect("32 at once", crowded(16, BROKEN)),
    Defect("hanging up frees the slot", lambda b, r, u: HttpError(429) if u.aborted else r),
    Defect("hanging up frees the slot", lambda b, r, u: Silence() if u.aborted else r),
]  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.check)
async def test_a_server_with_one_defect_fails_that_row(defect: Defect) -> None:
    honest = Obliging(context=defect.context, gap=0.001)
    async with good(**defect.setup) as upstream:
        upstream.script = lambda body: defect.change(body, honest(body), upstream)
        (found,) = await look(upstream, defect.check, patience=0.5)
        assert found.state == "fail", found.seen
        assert KEY not in found.seen


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (HttpError(429), "fail"),
        (HttpError(429, headers={"retry-after": "soon"}), "fail"),
        (HttpError(429, headers={"retry-after": "1"}), "pass"),
    ],
)
async def test_a_429_on_the_way_needs_a_retry_after_and_fails_no_other_row(reply: HttpError, state: str) -> None:
    honest = Obliging()
    async with good() as upstream:
        upstream.script = lambda body: reply if "stop" in body else honest(body)
        stop, told = await look(upstream, "stop", "Retry-After")
        assert (stop.state, told.state) == ("n/a", state)


async def test_a_crowd_that_is_told_to_wait_is_no_fault() -> None:
    async with good(limits=RateLimits(concurrency=4, told="seconds")) as upstream:
        honest = Obliging()
        upstream.script = lambda body: Late(honest(body), 0.05)
        crowd, told = await look(upstream, "8 at once", "Retry-After")
        assert (crowd.state, told.state) == ("pass", "pass") and "told to wait" in crowd.seen


async def test_an_answer_of_no_foreseen_shape_is_a_failure_and_no_crash() -> None:
    odd: list[Any] = [
        {"choices": {"0": 1}},
        {"choices": [[]]},
        [],
        3,
        {"usage": 1},
        {"choices": [{"message": {"content": 5}}]},
    ]
    for value in odd:
        async with good() as upstream:
            upstream.script = lambda body, value=value: Raw(
                (json.dumps(value).encode(),), content_type="application/json"
            )
            findings = await look(upstream, patience=0.5)
            assert len(findings) == len(checks(Endpoint("x", "y", "z")))
            assert next(found for found in findings if found.check.name == "a plain answer").state == "fail"


async def test_a_server_that_has_gone_fails_and_ends() -> None:
    async with good() as upstream:
        pass
    endpoint = Endpoint("fake", "http://127.0.0.1:9/v1", "kimi-k2.5")
    transport = HttpTransport()
    findings = await examine(endpoint, transport, checks(endpoint, skip=("at once",)), patience=0.5)
    await transport.aclose()
    assert {found.state for found in findings} <= {"fail", "n/a"} and upstream.requests == []


async def test_time_that_runs_out_leaves_the_rest_untried() -> None:
    async with FakeUpstream(lambda _: Silence(), key=KEY) as upstream:
        endpoint = Endpoint("fake", upstream.base_url, "kimi-k2.5", Secret(KEY))
        transport = HttpTransport()
        findings = await examine(endpoint, transport, checks(endpoint), patience=5, within=0.2)
        await transport.aclose()
        states = [found.state for found in findings]
        assert states[:3] == ["pass", "fail", "n/a"] and set(states[2:]) == {"n/a"}
        assert "no time left" in findings[-1].seen


async def test_a_server_that_repeats_the_key_does_not_get_it_printed() -> None:
    async with good() as upstream:
        upstream.script = lambda body: HttpError(500, message=f"Bearer {KEY} is wrong")
        findings = await look(upstream, "a plain answer", "8 at once")
        assert all(found.state == "fail" for found in findings) and KEY not in json.dumps(findings_as_json(findings))


def test_rows_are_left_out_by_a_word_of_their_names() -> None:
    endpoint = Endpoint("x", "y", "z")
    left = {check.name for check in checks(endpoint, skip=("Tool", "too long"))}
    assert "a prompt that is too long" not in left and "a tool call" not in left and "stop" in left


def test_the_estimate_says_that_thinking_costs_more() -> None:
    endpoint = Endpoint("x", "y", "z")
    thinks = replace(endpoint, thinks=True)
    assert estimate(thinks, checks(thinks)).output > 10 * estimate(endpoint, checks(endpoint)).output
    assert estimate(endpoint, checks(endpoint)).requests < 100
