"""`@modelcontextprotocol/server-everything`, over stdio and over streamable HTTP: all kinds of content."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from centuria.messages import ToolEnd
from tests.servers.kit import EVERYTHING, Bench, everything, host_of, kept, server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASK_ONLY = "simulate-research-query"


@pytest_asyncio.fixture(params=["stdio", "http"], scope="module", loop_scope="module")
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "stdio":
        async with kept(host_of(server("every", everything()))) as host:
            yield Bench(host)
    else:
        async with (
            serving(EVERYTHING, "streamableHttp") as url,
            kept(host_of(server("every", {"url": f"{url}/mcp"}))) as host,
        ):
            yield Bench(host)


async def test_it_is_up_with_every_tool_that_an_agent_can_call(bench: Bench) -> None:
    (state,) = bench.host.servers()
    tools = [tool.tool for tool in bench.host.catalogue()]
    assert state.up and state.tools == len(tools) == 14
    assert {"echo", "get-sum", "get-tiny-image", "trigger-long-running-operation"} < set(tools)
    assert state.detail["protocol"] == "2025-11-25"


async def test_a_tool_that_runs_only_as_a_task_is_left_out_and_the_census_says_why(bench: Bench) -> None:
    (state,) = bench.host.servers()
    assert list(state.detail["left_out"]) == [TASK_ONLY]
    assert "only as a task" in state.detail["left_out"][TASK_ONLY]
    result = await bench.call(f"every__{TASK_ONLY}", {"topic": "tides"})
    assert result.end is ToolEnd.REFUSED


async def test_what_asks_the_client_for_more_than_it_offers_is_not_offered_to_agents(bench: Bench) -> None:
    names = {tool.tool for tool in bench.host.catalogue()}
    assert not {name for name in names if "sampling" in name or "roots" in name}


async def test_a_server_that_asks_a_person_hears_a_no_at_once(bench: Bench) -> None:
    result = await bench.call("every__trigger-elicitation-request")
    assert "decline" in result.text.lower()


async def test_text_and_numbers_come_back_as_they_are(bench: Bench) -> None:
    assert await bench.text("every__echo", {"message": "caf\u00e9 \u2713"}) == "Echo: caf\u00e9 \u2713"
    assert await bench.text("every__get-sum", {"a": 2, "b": 40}) == "The sum of 2 and 40 is 42."


async def test_arguments_that_do_not_fit_are_refused_before_they_are_sent(bench: Bench) -> None:
    result = await bench.call("every__get-sum", {"a": "two", "b": 40})
    assert result.end is ToolEnd.REFUSED
    assert "'two' is not of type 'number'" in result.text


async def test_a_long_operation_is_waited_for_and_others_go_on_meanwhile(bench: Bench) -> None:
    bench.slots.set_limit("server:every", 2, "for this test")
    async with asyncio.TaskGroup() as group:
        long = group.create_task(bench.text("every__trigger-long-running-operation", {"duration": 1, "steps": 4}))
        assert await bench.text("every__echo", {"message": "hi"}) == "Echo: hi"
        assert not long.done()
    assert long.result() == "Long running operation completed. Duration: 1 seconds, Steps: 4."


async def test_structured_content_comes_as_data_too(bench: Bench) -> None:
    result = await bench.call("every__get-structured-content", {"location": "Chicago"})
    assert result.structured == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    assert json.loads(result.text) == result.structured


async def test_annotated_text_is_text_and_an_image_is_a_short_mark(bench: Bench) -> None:
    text = await bench.text("every__get-annotated-message", {"messageType": "error", "includeImage": True})
    assert text == "Error: Operation failed\n[image image/png, 4 kB]"
    assert "[image image/png, 4 kB]" in await bench.text("every__get-tiny-image")


async def test_resources_are_their_text_or_a_mark(bench: Bench) -> None:
    text = await bench.text("every__get-resource-reference", {"resourceType": "Text", "resourceId": 7})
    assert "Resource 7: This is a plaintext resource" in text
    blob = await bench.text("every__get-resource-reference", {"resourceType": "Blob", "resourceId": 7})
    assert "[resource demo://resource/dynamic/blob/7 text/plain, " in blob
    links = await bench.text("every__get-resource-links", {"count": 3})
    assert "[resource demo://resource/dynamic/text/2]" in links
    assert links.count("[resource ") == 3
    zipped = {"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resource"}
    assert "[resource demo://resource/session/a.gz application/gzip, " in await bench.text(
        "every__gzip-file-as-resource", zipped
    )


async def test_the_tools_own_error_is_a_value_that_the_model_sees(bench: Bench) -> None:
    result = await bench.call("every__get-resource-reference", {"resourceType": "Blob", "resourceId": -2})
    assert result.end is ToolEnd.ERROR
    assert result.text == "Invalid resourceId: -2. Must be a finite positive integer."


async def test_notifications_that_nobody_asked_for_disturb_nothing(bench: Bench) -> None:
    for tool in ("every__toggle-simulated-logging", "every__toggle-subscriber-updates"):
        assert "Started" in await bench.text(tool)
    assert await bench.text("every__echo", {"message": "calm"}) == "Echo: calm"
    for tool in ("every__toggle-simulated-logging", "every__toggle-subscriber-updates"):
        assert "Stopped" in await bench.text(tool)


async def test_fifty_calls_at_once_each_get_their_own_answer(bench: Bench) -> None:
    said = [bench.text("every__echo", {"message": f"number {number}"}) for number in range(50)]
    assert await asyncio.gather(*said) == [f"Echo: number {number}" for number in range(50)]


async def test_a_url_of_the_older_sse_transport_says_what_to_write_in_its_place() -> None:
    async with serving(EVERYTHING, "sse") as url, host_of(server("old", {"url": f"{url}/sse"})) as host:
        (state,) = host.servers()
    assert not state.up
    assert "SSE transport" in state.reason and "/mcp" in state.reason
