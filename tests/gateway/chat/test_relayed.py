"""Answers over real HTTP: what an upstream says reaches the caller, and is paid for."""

from __future__ import annotations

import json
from dataclasses import replace

from centuria.core.prices import cost
from centuria.testing import FakeUpstream
from centuria.testing.replies import Calls, Document, HttpError, Raw, Text
from tests.gateway.served import ASKED, MODEL, PRICE, UPSTREAM_KEY, deployment, one, serving, settings, usage


def sse(*events: str, end: str = "\n\n") -> bytes:
    return "".join(f"data: {event}{end}" for event in events).encode()


CHUNK = '{"id":"c","choices":[{"index":0,"delta":{"content":"Hi \\u00fc"},"finish_reason":null}],"usage":null}'
LAST = '{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = '{"id":"c","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":10,"cached_tokens":40}}'


async def test_a_streams_bytes_reach_the_caller_untouched_however_they_were_cut() -> None:
    body = b": warming up\n\n" + sse(CHUNK, LAST, end="\r\n\r\n") + sse("[DONE]")
    pieces = tuple(body[start : start + 37] for start in range(0, len(body), 37))
    async with FakeUpstream(lambda asked: Raw(pieces)) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        got = await served.ask(key, stream=True)
        assert (got.status, got.body) == (200, body)
        assert got.headers["content-type"].startswith("text/event-stream")


async def test_the_chunk_of_usage_is_taken_out_unless_it_was_asked_for_and_paid_for_in_either_case() -> None:
    whole = sse(CHUNK, LAST, USAGE, "[DONE]")
    async with FakeUpstream(lambda asked: Raw((whole,))) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        assert (await served.ask(key, stream=True)).body == sse(CHUNK, LAST, "[DONE]")
        assert (await served.ask(key, stream=True, stream_options={"include_usage": True})).body == whole
        assert [seen.json["stream_options"] for seen in upstream.requests] == [{"include_usage": True}] * 2
        await served.until_quiet()
        expected = cost(PRICE, usage(100, 10, cached=40))
        assert [(row.prompt, row.cached, row.output, row.cost, row.held) for row in served.rows] == [
            (100, 40, 10, expected, 0)
        ] * 2


async def test_a_whole_answer_comes_as_it_was_written_and_says_its_cost_and_model() -> None:
    document = json.dumps(
        {
            "id": "c",
            "odd": {"kept": [1, 2.50, "ü"]},
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10},
        },
        indent=1,
    ).encode()
    reply = Raw((document,), content_type="application/json")
    async with FakeUpstream(lambda asked: reply) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"))
        assert got.body == document
        assert float(got.headers["x-centuria-cost-usd"]) == 0.0002
        assert got.headers["x-centuria-model"] == MODEL
        assert got.headers["x-centuria-attempts"] == "1"
        assert float(got.headers["x-centuria-queue-ms"]) >= 0
        assert got.headers["x-request-id"] == served.rows[0].request


async def test_usage_inside_a_choice_is_read_as_moonshot_writes_it() -> None:
    async with (
        FakeUpstream(lambda asked: Text("Hello there.", usage=usage(70, 7), report="choice")) as upstream,
        serving(one(upstream)) as served,
    ):
        got = await served.ask(await served.add_key("a"), stream=True)
        assert got.text == "Hello there."
        assert [(row.prompt, row.output, row.held) for row in served.rows] == [(70, 7, 0)]


async def test_a_stream_without_done_is_given_one() -> None:
    reply = Raw((sse(CHUNK, LAST, USAGE),))
    async with FakeUpstream(lambda asked: reply) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"), stream=True)
        assert got.body == sse(CHUNK, LAST, "[DONE]")
        assert served.rows[0].end == "done"


async def test_an_upstream_that_ignores_stream_is_streamed_all_the_same() -> None:
    def script(asked: dict[str, object]) -> Document:
        return Document(Calls((("find", '{"q": 1}'),), text="Well.", usage=usage()))

    async with FakeUpstream(script) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"), stream=True, stream_options={"include_usage": True})
        first, told = (json.loads(event) for event in got.events[:-1])
        assert first["object"] == "chat.completion.chunk"
        assert first["choices"][0]["delta"]["content"] == "Well."
        assert first["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        assert told["usage"]["prompt_tokens"] == 100
        assert got.events[-1] == "[DONE]"
        assert served.rows[0].cost == cost(PRICE, usage())


async def test_an_answer_whose_usage_nobody_said_is_held_at_its_reservation() -> None:
    async with FakeUpstream(lambda asked: Text("Hm.", usage=None)) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        for stream in (True, False):
            assert (await served.ask(key, stream=stream)).status == 200
        for row in served.rows:
            assert row.end == "done"
            assert row.cost == 0
            assert row.held >= 50 * PRICE.output  # max_tokens


async def test_the_body_goes_on_as_it_came_but_for_what_is_ours() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        await served.ask(key, temperature=0.25, tools=[], unheard_of={"a": [None]}, models=None)
        sent = upstream.requests[0].json
        assert sent == {**ASKED, "model": "kimi-k2.5", "temperature": 0.25, "tools": [], "unheard_of": {"a": [None]}}
        await served.ask(key, max_tokens=None)
        assert upstream.requests[1].json["max_tokens"] == 1_000  # or nobody could say what it costs at most


async def test_nothing_of_the_callers_headers_reaches_the_upstream() -> None:
    async with FakeUpstream(key=UPSTREAM_KEY) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a")
        more = {
            "x-api-key": "ck-other",
            "cookie": "a=b",
            "openai-organization": "org",
            "x-forwarded-for": "1.2.3.4",
            "keep-alive": "timeout=5",
            "te": "trailers",
            "proxy-authorization": "Basic aaaa",
            "x-agent-id": "scout",
            "x-priority": "1",
            "idempotency-key": "same",
            "user-agent": "tester/1",
        }
        assert (await served.ask({**key, **more})).status == 200
        seen = upstream.requests[0].headers
        assert seen["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert set(seen) <= {
            "host",
            "authorization",
            "content-type",
            "content-length",
            "accept",
            "accept-encoding",
            "user-agent",
        }
        assert "tester" not in seen["user-agent"]
        assert served.rows[0].agent == "scout"


async def test_an_upstreams_headers_stay_behind() -> None:
    theirs = {"set-cookie": "a=b", "x-upstream": "secret", "keep-alive": "timeout=9"}
    async with FakeUpstream(lambda asked: HttpError(400, headers=theirs)) as upstream, serving(one(upstream)) as served:
        got = await served.ask(await served.add_key("a"))
        assert got.status == 400
        assert not {*theirs, "connection", "transfer-encoding"} & {name.lower() for name in got.headers}


async def test_models_are_listed_with_price_and_context_and_only_those_of_the_key() -> None:
    async with FakeUpstream() as upstream:
        models = {MODEL: [deployment(upstream)], "org/other": [replace(deployment(upstream, name="o/x"), price=None)]}
        async with serving(settings(models)) as served:
            key = await served.add_key("a")
            few = await served.add_key("b", models=frozenset({MODEL}))
            listed = (await served.get("/v1/models", key)).json
            assert [model["id"] for model in listed["data"]] == [MODEL, "org/other"]
            assert listed["data"][0]["pricing"] == {"input": 1.0, "output": 10.0}
            assert listed["data"][0]["context_length"] == 131_072
            assert listed["data"][1]["pricing"] is None
            assert [model["id"] for model in (await served.get("/v1/models", few)).json["data"]] == [MODEL]
            assert (await served.get("/v1/models/org%2Fother", key)).json["id"] == "org/other"
            for path in ("/v1/models/org%2Fother", "/v1/models/no%0d%0asuch"):
                missing = await served.get(path, few)
                assert (missing.status, missing.code) == (404, "model_not_found")
            refused = await served.ask(few, model="org/other")
            assert (refused.status, refused.code, refused.error["param"]) == (404, "model_not_found", "model")
            unpriced = await served.ask(await served.add_key("c", budget=10**12), model="org/other")
            assert (unpriced.status, unpriced.error["param"]) == (400, "model")
