import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from centuria.core.retry import RetryPolicy
from centuria.errors import ModelRefused, ModelUnavailable
from centuria.events import CallClosed, Record
from centuria.messages import Completion, Message, ToolSpec
from centuria.model.rehearsal import RehearsalTransport
from centuria.ports import Caller, ChatRequest, HttpRequest
from centuria.settings import Endpoint, Rehearsal, ScriptedCall, ScriptedTurn
from centuria.testing.clock import virtual_clock
from tests.model.kit import QUICK, Desk, ask, body_of, caller

ROWS: dict[str, dict[str, Any]] = {"AAPL": {"Name": "Apple Inc.", "Price": 231.5}, "merge": {"count": 2}}
FIND = ToolSpec("db__find", "Find a row.", {"type": "object"})
ADD = ToolSpec("code__add", "Add.", {"type": "object"})
SCRIPT = (
    ScriptedTurn(
        (
            ScriptedCall("find", {"name": "{Name}", "price": "{Price}"}, "row"),
            ScriptedCall("code__add", {"a": [1, "{Price}"]}, "sum"),
        )
    ),
    ScriptedTurn((ScriptedCall("find", {"name": "{row.peer}"}, "peer"),)),
    ScriptedTurn(text="{Name}: {row.peer}, {sum}, {peer}."),
)


def variables(task: str) -> Mapping[str, Any]:
    return ROWS.get(task, {})


def rehearse(**more: Any) -> RehearsalTransport:
    return RehearsalTransport(Rehearsal(**more), variables)


def desk(**more: Any) -> Desk:
    return Desk(rehearse(**more))


async def talk(d: Desk, results: list[str], *, task: str = "AAPL") -> list[Completion]:
    """A whole conversation; each tool call is answered with the next result."""
    messages: tuple[Message, ...] = (Message("user", "Go"),)
    answers: list[Completion] = []
    left = iter(results)
    for turn in range(10):
        got = await d.client.chat(ChatRequest(messages, (FIND, ADD)), caller(task, turn))
        answers.append(got)
        if not got.message.tool_calls:
            return answers
        told = (Message("tool", next(left), tool_call_id=call.id) for call in got.message.tool_calls)
        messages = (*messages, got.message, *told)
    raise AssertionError("the rehearsal never ended")


@virtual_clock
async def test_a_script_calls_tools_by_their_own_names_and_uses_the_row_and_earlier_results() -> None:
    d = desk(turns=SCRIPT)
    first, second, last = await talk(d, ['{"peer": "MSFT"}', "3", "no JSON"])
    assert [(call.name, json.loads(call.arguments)) for call in first.message.tool_calls] == [
        ("db__find", {"name": "Apple Inc.", "price": 231.5}),
        ("code__add", {"a": [1, 231.5]}),
    ]
    assert json.loads(second.message.tool_calls[0].arguments) == {"name": "MSFT"}
    assert last.message.content == "Apple Inc.: MSFT, 3, no JSON." and last.finish == "stop"
    d.assert_nothing_is_left_open()


@virtual_clock
async def test_each_answer_takes_its_latency_and_its_chunks_theirs() -> None:
    d = desk(latency_ms=420, chunk_ms=10, turns=(ScriptedTurn(text="x" * 240),))
    await d.client.chat(ask(), caller())
    assert asyncio.get_running_loop().time() == pytest.approx(0.42 + 0.13, abs=0.011)
    assert len(await d.deltas()) == 10


@virtual_clock
async def test_a_thousand_agents_at_a_hundred_slots_take_ten_times_the_latency() -> None:
    d = desk(latency_ms=420)
    await asyncio.gather(*(d.client.chat(ask(), caller(f"t{n}", index=n)) for n in range(1000)))
    assert asyncio.get_running_loop().time() == pytest.approx(4.2)
    d.assert_nothing_is_left_open()


@virtual_clock
async def test_usage_counts_four_bytes_a_token_and_what_a_task_shared_with_its_last_turn_as_cached() -> None:
    d = desk(turns=SCRIPT)
    answers = await talk(d, ['{"peer": "MSFT"}', "3", "x"])
    usages = [answer.usage for answer in answers if answer.usage is not None]
    assert [usage.cached > 0 for usage in usages] == [False, True, True]
    assert all(usage.cached < usage.prompt and usage.output > 0 for usage in usages)
    assert usages[2].cached > usages[1].cached
    assert all(row.cost <= opened.reserved for opened, row in zip(d.opened, d.closed, strict=True))


@virtual_clock
async def test_the_merge_is_written_from_its_own_template() -> None:
    d = desk(turns=SCRIPT, summary="All {count} of them.")
    assert (await d.client.chat(ask(), caller("merge"))).message.content == "All 2 of them."


@virtual_clock
async def test_a_task_with_a_script_of_its_own_follows_it() -> None:
    d = desk(turns=SCRIPT, tasks={"AAPL": (ScriptedTurn(text="Mine."),)})
    assert (await d.client.chat(ask(), caller("AAPL"))).message.content == "Mine."


@virtual_clock
async def test_without_a_script_the_answer_says_that_it_is_a_rehearsal_and_what_was_asked() -> None:
    got = await desk().client.chat(ask("\nFirst line.\nSecond line."), caller())
    assert "rehearsal" in got.message.content and "First line." in got.message.content
    assert "Second" not in got.message.content


@virtual_clock
async def test_a_turn_beyond_the_script_repeats_its_last_text() -> None:
    d = desk(turns=(ScriptedTurn(text="That is all."),))
    again = (Message("user", "Go"), Message("assistant", "That is all."), Message("user", "As JSON, please."))
    assert (await d.client.chat(ChatRequest(again), caller(turn=1))).message.content == "That is all."


@virtual_clock
async def test_a_tool_that_the_task_does_not_have_is_refused_naming_those_it_has() -> None:
    d = desk(turns=(ScriptedTurn((ScriptedCall("delete", {}, "x"),)),))
    with pytest.raises(ModelRefused, match=r"'delete'.*db__find, code__add"):
        await d.client.chat(ChatRequest((Message("user", "Go"),), (FIND, ADD)), caller())
    d.assert_nothing_is_left_open()


@virtual_clock
async def test_a_template_that_asks_for_what_is_not_there_is_refused_naming_it() -> None:
    d = desk(turns=(ScriptedTurn(text="{Nmae}"),))
    with pytest.raises(ModelRefused, match=r"\{Nmae\}.*\{Name\}"):
        await d.client.chat(ask(), caller("AAPL"))


@virtual_clock
async def test_an_answer_longer_than_allowed_ends_for_its_length() -> None:
    d = desk(turns=(ScriptedTurn(text="é" * 1000),))
    got = await d.client.chat(ask(max_tokens=100), caller())
    assert got.finish == "length" and got.usage is not None and got.usage.output == 100
    assert got.message.content == "é" * 200


@virtual_clock
async def test_a_stalled_answer_is_given_up_after_thirty_seconds_of_silence() -> None:
    d = Desk(rehearse(latency_ms=0, faults={"stall": 1.0}), retry=RetryPolicy(delays=()))
    with pytest.raises(ModelUnavailable) as caught:
        await d.client.chat(ask(), caller())
    assert caught.value.kind == "silence" and asyncio.get_running_loop().time() == pytest.approx(30)
    assert caught.value.partial.startswith("This is a rehearsal")
    d.assert_nothing_is_left_open()


@virtual_clock
async def test_retries_wait_one_two_and_four_seconds_holding_neither_slot_nor_money() -> None:
    d = Desk(rehearse(latency_ms=1000, faults={"500": 1.0}), retry=RetryPolicy(jitter=0.0))
    ended: list[float] = []

    async def watch() -> None:
        while len(ended) < 4:
            await d.until(lambda item: isinstance(item, Record) and isinstance(item.event, CallClosed))
            ended.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.5)
            assert d.ledger.open_holds() == () and d.table.in_use("model:kimi-k2.5") == 0

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        with pytest.raises(ModelUnavailable) as caught:
            await d.client.chat(ask(), caller())
    assert caught.value.status == 500 and ended == [1, 3, 6, 11]


@virtual_clock
async def test_every_fault_is_met_survived_and_accounted_for() -> None:
    shares = dict.fromkeys(("429", "500", "reset", "stall", "cut", "rubbish"), 0.08)
    d = Desk(rehearse(latency_ms=10, faults=shares), cap=None)
    ends = await asyncio.gather(
        *(d.client.chat(ask(), caller(f"t{n}", index=n)) for n in range(200)), return_exceptions=True
    )
    good = sum(isinstance(end, Completion) for end in ends)
    assert good >= 170 and all(isinstance(end, Completion | ModelUnavailable) for end in ends)
    errors = " ".join(row.error for row in d.closed)
    assert all(word in errors for word in ("HTTP 429", "HTTP 500", "reset", "silent", "broke off", "web page"))
    assert 0.3 < sum(row.end != "done" for row in d.closed) / len(d.closed) < 0.65
    d.assert_nothing_is_left_open()


@virtual_clock
async def test_the_same_seed_gives_the_same_answers_and_faults_and_another_does_not() -> None:
    async def ends(seed: int) -> list[str]:
        d = Desk(rehearse(latency_ms=0, seed=seed, faults={"500": 0.5}), retry=QUICK, cap=None)
        asked = (d.client.chat(ask(), caller(f"t{n}")) for n in range(40))
        await asyncio.gather(*asked, return_exceptions=True)
        return sorted(f"{row.key} {row.attempt} {row.end}" for row in d.closed)

    assert await ends(1) == await ends(1) != await ends(2)


@virtual_clock
async def test_the_bytes_of_an_answer_are_the_same_every_time() -> None:
    request = ChatRequest((Message("user", "Go"),), (FIND, ADD))
    body = body_of(Endpoint("x", "http://x", "m"), request, 100)

    async def answer() -> bytes:
        http = HttpRequest("POST", "http://x", {}, body, caller=Caller(caller("AAPL").key, "run"))
        async with rehearse(turns=SCRIPT).send(http) as response:
            return b"".join([chunk async for chunk in response.chunks()])

    assert await answer() == await answer()
