"""What programs against OpenAI's API expect of it: the same of the gateway, by six clients that nobody here wrote."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from centuria.gateway.settings import GatewaySettings
from centuria.messages import Usage
from centuria.testing.upstream import Calls, Cut, FakeUpstream, HttpError, Reply, Stall, Text
from tests.gateway.programs import run_client
from tests.gateway.served import Hit, deployment, serving
from tests.servers.installed import CLIENTS_PYTHON, MODULES, NODE_BIN

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = {
    "openai (Python)": "openai_python.py",
    "openai (Node.js)": "openai_node.mjs",
    "LangChain": "langchain_client.py",
    "Pydantic AI": "pydantic_ai_client.py",
    "LiteLLM": "litellm_client.py",
    "curl": "curl_client.py",
}
HELLO = "Hello from the other side of the gateway."
USED = Usage(prompt=11, output=7)
#: By case: the status, OpenAI's class for it, and the code.
ERRORS = {
    "wrong_key": (401, "AuthenticationError", "invalid_api_key"),
    "unknown_model": (404, "NotFoundError", "model_not_found"),
    "refused": (400, "BadRequestError", "upstream_refused"),
    "refused_stream": (400, "BadRequestError", "upstream_refused"),
    "no_money": (429, "RateLimitError", "insufficient_quota"),
    "broken": (502, "InternalServerError", "upstream_error"),
}
#: The classes of clients that do not raise OpenAI's own.
OWN_CLASSES = {
    "Pydantic AI": {
        "wrong_key": "ModelAuthenticationError",
        "unknown_model": "ModelNotFoundError",
        "refused": "ModelRequestRejectedError",
        "no_money": "ModelQuotaExceededError",
        "broken": "ModelServerError",
        "broken_stream": "ModelServerError",
    },
    "LiteLLM": {"broken": "BadGatewayError", "broken_stream": "MidStreamFallbackError"},
}


def cases(name: str) -> list[str]:
    """What a client's program does, by the names of what it prints."""
    return re.findall(r'^ +"?(\w+)"?: (?:await )?\w+\(.*\),?$', (PROGRAMS / CLIENTS[name]).read_text(), re.MULTILINE)


def each_with(*wanted: str) -> pytest.MarkDecorator:
    """Each client that does one of these, and which of them."""
    there = [(name, case) for name in CLIENTS for case in wanted if case in cases(name)]
    return pytest.mark.parametrize(("client", "case"), there, indirect=["client"])


def answer(body: Mapping[str, Any]) -> Reply:
    """The model: it does what the last message of its user says."""
    messages = body["messages"]
    if messages[-1]["role"] == "tool":
        return Text(f"It is {messages[-1]['content']}.", usage=USED)
    words = str(messages[-1]["content"])
    if "weather" in words:
        return Calls((("get_weather", '{"city": "Oslo"}'),), usage=USED)
    if "refuse" in words:
        return HttpError(400, "invalid_request_error", "The temperature must be 1.")
    if "be broken" in words:
        return HttpError(404, "resource_not_found_error", "There is no such page.")
    if "break off" in words:
        return Cut(Text(HELLO * 20, usage=USED))
    if "never end" in words:
        return Stall(Text(HELLO, usage=USED))
    return Text(HELLO, usage=USED)


@dataclass(frozen=True, slots=True)
class Played:
    """One client's whole play: its results by case, its requests, and what the gateway's ledger says of it."""

    name: str
    results: Mapping[str, Any]
    hits: list[Hit]
    poor: str
    ends: list[tuple[str, str]]
    aborted: int


@cache
def play(name: str) -> Played:
    return asyncio.run(_play(name))


async def _play(name: str) -> Played:
    file = PROGRAMS / CLIENTS[name]
    interpreter = NODE_BIN / "node" if file.suffix == ".mjs" else CLIENTS_PYTHON
    async with FakeUpstream(answer) as upstream:
        settings = GatewaySettings({"kimi-k2.5": (deployment(upstream),)})
        async with serving(settings) as served:
            poor = await served.token("poor", budget=1)
            env = {
                "GATEWAY": f"{served.url}/v1",
                "KEY": await served.token("rich", budget=10**12),
                "POOR": poor,
                "MODULES": str(MODULES),
            }
            results = await run_client(file, env, interpreter=interpreter)
            assert sorted(results) == sorted(cases(name))
            if "leave" in results:
                await upstream.until(lambda: upstream.aborted >= 1)
            aborted = upstream.aborted
    ends = [(row.request, row.end) for row in served.rows]
    return Played(name, results, served.hits, poor, ends, aborted)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Played:
    return play(request.param)


@each_with("chat")
def test_an_answer_has_its_text_its_model_and_what_it_used(client: Played, case: str) -> None:
    told = client.results[case]
    assert told["text"] == HELLO
    assert told["model"] == "kimi-k2.5"
    assert told["usage"] == [USED.prompt, USED.output]


@each_with("stream")
def test_a_stream_says_the_same_and_tells_no_usage_unasked(client: Played, case: str) -> None:
    told = client.results[case]
    assert told["text"] == HELLO
    if client.name != "LiteLLM":  # which counts by itself where it is told nothing
        assert told["usage"] is None


@each_with("stream_with_usage")
def test_a_stream_tells_its_usage_where_it_was_asked_for(client: Played, case: str) -> None:
    assert client.results[case] == {"text": HELLO, "usage": [USED.prompt, USED.output]}


@each_with("tools")
def test_a_function_is_called_and_what_it_said_reaches_the_model(client: Played, case: str) -> None:
    assert client.results[case] == {"called": ["get_weather", {"city": "Oslo"}], "text": "It is 7 degrees."}


@each_with("tools_streamed")
def test_the_pieces_of_a_call_arrive_in_a_stream(client: Played, case: str) -> None:
    assert client.results[case] == {"called": ["get_weather", {"city": "Oslo"}]}


@each_with("models")
def test_models_are_listed_and_looked_up(client: Played, case: str) -> None:
    assert client.results[case] == {"listed": ["kimi-k2.5"], "one": "kimi-k2.5"}


@each_with(*ERRORS)
def test_an_error_is_raised_as_what_it_is(client: Played, case: str) -> None:
    told, (status, kind, code) = client.results[case], ERRORS[case]
    kind = OWN_CLASSES.get(client.name, {}).get(case, kind)
    assert told["status"] == status
    assert told.get("class", kind) == kind
    assert told.get("code", code) == code


@each_with("no_money")
def test_a_spent_budget_is_not_asked_for_again(client: Played, case: str) -> None:
    tries = [hit for hit in client.hits if hit.headers.get("authorization") == f"Bearer {client.poor}"]
    assert [hit.status for hit in tries] == [429]


@each_with("broken")
def test_a_failure_of_an_upstream_is_tried_again_as_often_as_its_client_was_told(client: Played, case: str) -> None:
    retries = 0 if client.name == "curl" else 1
    assert sum(hit.status == 502 for hit in client.hits) == 1 + retries


@each_with("refused", "refused_stream", "wrong_key", "unknown_model")
def test_nothing_that_is_the_callers_own_fault_is_tried_again(client: Played, case: str) -> None:
    status = ERRORS[case][0]
    asked = [other for other in client.results if other in ERRORS and ERRORS[other][0] == status]
    assert sum(hit.status == status for hit in client.hits) == len(asked)


@each_with("leave")
def test_whoever_leaves_a_stream_ends_it_upstream_and_the_row_says_so(client: Played, case: str) -> None:
    assert HELLO.startswith(client.results[case]["text"])
    assert client.aborted >= 1
    assert [end for _, end in client.ends].count("client_closed") == 1


@each_with("broken_stream")
def test_a_stream_that_breaks_off_raises_an_error_and_is_no_short_answer(client: Played, case: str) -> None:
    kind = OWN_CLASSES.get(client.name, {}).get(case, "APIError")
    assert client.results[case] == {"class": kind, "begun": True}


@pytest.mark.parametrize("client", ["openai (Python)", "openai (Node.js)", "curl"], indirect=True)
def test_the_request_id_that_a_client_shows_is_the_gateways(client: Played) -> None:
    shown = [told["request_id"] for told in client.results.values() if "request_id" in told]
    assert len(shown) >= 6
    assert set(shown) <= {hit.request_id for hit in client.hits}
    assert client.results["chat"]["request_id"] in {request for request, _ in client.ends}


@each_with("headers")
def test_what_an_answer_cost_and_who_gave_it_is_in_its_headers(client: Played, case: str) -> None:
    told = {name.lower(): value for name, value in client.results[case].items()}
    assert told["x-centuria-model"] == "kimi-k2.5"
    assert float(told["x-centuria-cost-usd"]) == pytest.approx(11 * 1e-6 + 7 * 10e-6)
    assert told["x-centuria-attempts"] == "1"
