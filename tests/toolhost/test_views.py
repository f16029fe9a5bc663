"""What an agent sees of tools: its own, in the words of its model's provider, all of them or two that search."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.core.grants import EVERYTHING, Grant
from centuria.core.schemas import KIMI, OPENAI, Dialect
from centuria.core.toolsearch import CALL_TOOL, SEARCH_TOOLS
from centuria.errors import ToolsNotGranted
from centuria.events import CallOpened, Notice, ServerUp
from centuria.messages import CallKey, ToolCall, ToolEnd, ToolResult
from centuria.ports import Caller
from centuria.testing.clock import virtual_clock
from centuria.testing.tools import LocalTool, LocalToolHost
from centuria.toolviews import ToolView
from tests.toolhost.test_scheduler import ANY, TEXT, Bench, Failing, echo


@dataclass
class Models(Bench):
    """A bench whose model has a dialect and a window."""

    dialect: Dialect = KIMI
    context: int = 262_144

    def __post_init__(self) -> None:
        self.more = {"dialect": self.dialect, "context": self.context}
        super().__post_init__()

    async def within(self, view: ToolView, name: str, arguments: Any, position: int = 1) -> ToolResult:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return await view.call(ToolCall("id", name, text), Caller(CallKey("a", 0, 0, position), "a"))

    def notices(self) -> list[str]:
        return [event.text for event in self.events() if isinstance(event, Notice)]


def many(count: int = 200, **options: Any) -> dict[str, LocalTool]:
    tools = {f"tool_{n}": LocalTool(echo, TEXT, {"description": f"Number {n}."}) for n in range(count)}
    return {**tools, "weather": LocalTool(echo, TEXT, {"description": "Tells the rain of a town.", **options})}


# -- schemas ---------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_schemas_are_in_the_words_of_the_provider_and_arguments_are_held_against_the_original() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "exclusiveMinimum": 3}},
        "required": ["n"],
    }
    bench = Models({"t": LocalTool(lambda n: str(n), schema)})
    [spec] = bench.scheduler.view().specs
    assert spec.schema["properties"]["n"] == {"type": "integer", "description": "[exclusiveMinimum: 3]"}
    refused = await bench.call("local__t", {"n": 3})
    assert refused.end is ToolEnd.REFUSED and "less than or equal to the minimum of 3" in refused.text
    assert (await bench.call("local__t", {"n": 4}, position=2)).text == "4"
    plain = Models({"t": LocalTool(lambda n: str(n), schema)}, dialect=OPENAI)
    assert plain.scheduler.view().specs[0].schema["properties"]["n"]["exclusiveMinimum"] == 3


@virtual_clock
async def test_a_tool_that_cannot_be_offered_is_left_out_alone_and_said_once() -> None:
    bad = LocalTool(echo, {"type": "string"})
    huge = LocalTool(echo, {"type": "object", "properties": {"a": {"description": "x" * 300_000}}})
    bench = Models({"bad": bad, "good": LocalTool(echo, TEXT), "huge": huge})
    assert [spec.name for spec in bench.scheduler.view().specs] == ["local__good"]
    for state in bench.host.servers():
        bench.scheduler.server_changed(state)
    told = [text for text in bench.notices() if "left out" in text]
    assert len(told) == 2 and "The tool bad of local is left out: its input schema takes no object" in told[0]
    assert [event.tools for event in bench.events() if isinstance(event, ServerUp)][-1] == ("good",)
    refused = await bench.call("local__bad", {"text": "x"})
    assert refused.end is ToolEnd.REFUSED and "You may call: local__good." in refused.text


@virtual_clock
async def test_what_the_host_left_out_is_said_too() -> None:
    bench = Models({"t": LocalTool(echo, TEXT)})
    [state] = bench.host.servers()
    bench.scheduler.server_changed(replace(state, detail={"left_out": {"twin": "Its name is taken."}}))
    assert "The tool twin of local is left out: Its name is taken." in bench.notices()


@virtual_clock
async def test_a_description_keeps_the_length_that_the_provider_takes() -> None:
    tool = LocalTool(echo, TEXT, {"description": "word " * 700})
    assert len(Models({"t": tool}, dialect=OPENAI).scheduler.view().specs[0].description) <= 1_024
    assert len(Models({"t": tool}).scheduler.view().specs[0].description) == 3_500


# -- the two functions -----------------------------------------------------------------------------------------------


@virtual_clock
async def test_above_128_tools_an_agent_searches_and_the_reason_is_said_once() -> None:
    bench = Models(many())
    view = bench.scheduler.view()
    assert [spec.name for spec in view.specs] == [SEARCH_TOOLS, CALL_TOOL]
    assert bench.scheduler.view(frozenset({"local"})).specs == view.specs
    [told] = [text for text in bench.notices() if text.startswith("Agents")]
    assert "201 tools" in told and "128 functions" in told
    few = Models(many(100))
    assert len(few.scheduler.view().specs) == 101
    [told] = [text for text in few.notices() if text.startswith("Agents")]
    assert "shown all their 101 tools" in told


@virtual_clock
async def test_a_list_that_would_fill_the_window_is_searched() -> None:
    bench = Models(many(20), context=8_000)
    assert [spec.name for spec in bench.scheduler.view().specs] == [SEARCH_TOOLS, CALL_TOOL]
    assert any("of the model's context" in text for text in bench.notices())
    assert len(Models(many(20)).scheduler.view().specs) == 21


@virtual_clock
async def test_a_search_finds_a_tool_with_its_schema_and_is_answered_from_the_journal_afterwards() -> None:
    bench = Models(many(), result_chars=20_000)
    view = bench.scheduler.view()
    result = await bench.within(view, SEARCH_TOOLS, {"query": "rain in a town"})
    [found] = [entry for entry in json.loads(result.text)["tools"] if entry["name"] == "local__weather"]
    assert found["parameters"]["required"] == ["text"]
    assert bench.rows() == ["open", "done"] and bench.host.calls == []
    assert await bench.within(view, SEARCH_TOOLS, {"query": "rain in a town"}) == result
    assert bench.rows() == ["open", "done"]


@virtual_clock
async def test_call_tool_is_the_call_of_the_tool_itself_in_every_respect() -> None:
    bench = Models(many())
    view = bench.scheduler.view()
    wrapped = {"name": "local__weather", "arguments": {"text": "rain"}}
    assert (await bench.within(view, CALL_TOOL, wrapped)).text == "rain"
    opened = [event for event in bench.events() if isinstance(event, CallOpened)]
    assert [(row.name, json.loads(row.arguments)) for row in opened] == [("local__weather", {"text": "rain"})]
    refused = await bench.within(view, CALL_TOOL, {"name": "local__weather", "arguments": {"text": 5}}, 2)
    assert refused.end is ToolEnd.REFUSED and "5 is not of type 'string'" in refused.text
    assert [row.slots for row in opened] == [("tool:local__weather", "server:local")]
    assert bench.idle()


@virtual_clock
async def test_call_tool_knows_hints_and_questions_as_the_tool_does() -> None:
    lost = Failing(TimeoutError())
    bench = Models({**many(), "order": LocalTool(lost, ANY), "pay": LocalTool(echo, ANY, {"ask": True})})
    view = bench.scheduler.view()
    result = await bench.within(view, CALL_TOOL, {"name": "local__order", "arguments": {}})
    assert result.end is ToolEnd.TIMEOUT and len(lost.at) == 1
    asked = await bench.within(view, CALL_TOOL, {"name": "local__pay", "arguments": {}}, 2)
    assert asked.end is ToolEnd.REFUSED and "approval" in asked.text


@pytest.mark.parametrize(
    ("arguments", "fault", "said"),
    [
        ({"name": "weather", "arguments": {"text": "x"}}, "", "x"),
        ({"name": "local__weather", "arguments": '{"text": "x"}'}, "", "x"),
        ({"name": "local__wether", "arguments": {"text": "x"}}, "unknown_tool", "Did you mean local__weather?"),
        ({"name": "local__weather", "arguments": ["x"]}, "schema", "must be a JSON object"),
        ({"name": "local__weather"}, "schema", "'text' is a required property"),
        ({"arguments": {}}, "schema", "call_tool was not called"),
        ({"name": "call_tool", "arguments": {}}, "schema", "call_tool was not called"),
        ("not JSON", "json", "call_tool was not called"),
        ({"name": 5, "arguments": {}}, "schema", "call_tool was not called"),
    ],
)
def test_call_tool_is_forgiving_where_it_can_be_and_clear_where_not(arguments: Any, fault: str, said: str) -> None:
    @virtual_clock
    async def check() -> None:
        bench = Models(many())
        result = await bench.within(bench.scheduler.view(), CALL_TOOL, arguments)
        assert result.end is (ToolEnd.REFUSED if fault else ToolEnd.OK) and said in result.text
        assert result.fault == fault
        assert len(result.text) < 2_000

    check()


@virtual_clock
async def test_a_search_and_a_call_stay_within_the_view() -> None:
    tools = {**many(), "secret": LocalTool(echo, TEXT, {"slug": "vault", "description": "The rain of a town."})}
    bench = Models(tools)
    view = bench.scheduler.view(frozenset({"local"}))
    found = await bench.within(view, SEARCH_TOOLS, {"query": "secret vault rain", "limit": 20})
    assert "vault" not in found.text
    refused = await bench.within(view, CALL_TOOL, {"name": "vault__secret", "arguments": {"text": "x"}}, 2)
    assert refused.end is ToolEnd.REFUSED and SEARCH_TOOLS in refused.text
    assert bench.host.calls == []


@virtual_clock
async def test_who_was_shown_all_tools_has_nothing_to_search() -> None:
    bench = Models({"t": LocalTool(echo, TEXT)})
    refused = await bench.call(SEARCH_TOOLS, {"query": "x"})
    assert refused.end is ToolEnd.REFUSED and "local__t" in refused.text
    assert (await bench.call(CALL_TOOL, {"name": "t", "arguments": {"text": "x"}}, position=2)).text == "x"


# -- narrowing -------------------------------------------------------------------------------------------------------

SERVERS = {
    "read": LocalTool(echo, TEXT, {"slug": "file", "rerun": True}),
    "write": LocalTool(echo, TEXT, {"slug": "file"}),
    "search": LocalTool(echo, TEXT, {"slug": "web", "rerun": True}),
    "query": LocalTool(echo, TEXT, {"slug": "db"}),
}


def seen(view: ToolView) -> list[str]:
    return [spec.name for spec in view.specs]


@virtual_clock
async def test_a_grant_names_servers_and_tools() -> None:
    bench = Models(SERVERS)
    assert seen(bench.scheduler.view(Grant(frozenset({"file"}), frozenset({"web__search"})))) == [
        *("file__read", "web__search", "file__write"),
    ]
    assert seen(bench.scheduler.view(Grant(frozenset(), frozenset({"file__read"})))) == ["file__read"]
    assert seen(bench.scheduler.view(Grant(frozenset()))) == []
    bench.scheduler.view(Grant(frozenset(), frozenset({"file__raed"})))
    assert "No server has the tool file__raed, which `tools` names. Did you mean file__read?" in bench.notices()


@virtual_clock
async def test_a_child_gets_no_more_than_its_parent_has() -> None:
    bench = Models(SERVERS)
    parent = bench.scheduler.view(Grant(frozenset({"file"}), frozenset({"web__search"})))
    assert seen(parent.narrow(tools=["file__read"])) == ["file__read"]
    assert seen(parent.narrow(servers=["web"])) == ["web__search"]
    assert seen(parent.narrow()) == seen(parent)
    child = parent.narrow(servers=["file"])
    for asked in ({"servers": ["db"]}, {"tools": ["db__query"]}, {"trusted": ["db__query"]}):
        with pytest.raises(ToolsNotGranted, match=r"db.*There is: .*file"):
            parent.narrow(**asked)
    with pytest.raises(ToolsNotGranted, match="web"):
        child.narrow(tools=["web__search"])
    with pytest.raises(ToolsNotGranted) as error:
        parent.narrow(tools=["x" * 10_000])
    assert len(str(error.value)) < 2_000
    refused = await bench.within(child, "web__search", {"text": "x"})
    assert refused.end is ToolEnd.REFUSED and "file__read, file__write" in refused.text


@virtual_clock
async def test_a_childs_hints_count_only_where_they_are_trusted() -> None:
    lost = Failing(TimeoutError(), TimeoutError())
    bench = Models({"read": LocalTool(lost, ANY, {"slug": "file", "rerun": True})})
    child = bench.scheduler.view().narrow(trusted=[])
    result = await bench.within(child, "file__read", {})
    assert result.end is ToolEnd.TIMEOUT and len(lost.at) == 1
    assert (await bench.within(bench.scheduler.view(), "file__read", {}, 2)).text == "at last"


NAMES = st.sampled_from(["file__read", "file__write", "web__search", "db__query"])
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "servers": st.none() | st.sets(st.sampled_from(["file", "web", "db"])),
        "tools": st.none() | st.sets(NAMES),
        "trusted": st.none() | st.sets(NAMES),
    },
)


@settings(max_examples=200)
@given(st.lists(PARTS, max_size=4), NAMES)
def test_however_it_is_narrowed_a_grant_never_grows(parts: list[dict[str, Any]], name: str) -> None:
    grant, slug = EVERYTHING, name.partition("__")[0]
    for part in parts:
        narrower = grant.narrow(**part)
        assert grant.allows(slug, slug, name) >= narrower.allows(slug, slug, name)
        assert grant.trusts(name) >= narrower.trusts(name)
        assert narrower.reaches(slug, slug) >= narrower.allows(slug, slug, name)
        wanted = part.get("servers") is None and part.get("tools") is None
        wanted = wanted or slug in (part.get("servers") or ()) or name in (part.get("tools") or ())
        assert narrower.allows(slug, slug, name) == (wanted and grant.allows(slug, slug, name))
        grant = narrower


@settings(max_examples=200)
@given(PARTS, st.sets(st.sampled_from(["file", "web", "db"])), st.sets(NAMES), NAMES)
def test_a_part_that_is_kept_is_what_narrowing_gives(top: dict[str, Any], servers: Any, tools: Any, name: str) -> None:
    grant = Grant(None if top.get("servers") is None else frozenset(top["servers"]), frozenset(top.get("tools") or ()))
    slug = name.partition("__")[0]
    kept = grant.part(servers=servers, tools=tools)
    assert kept.within is None
    assert kept.allows(slug, slug, name) == grant.narrow(servers=servers, tools=tools).allows(slug, slug, name)


@virtual_clock
async def test_a_view_follows_the_catalogue_and_is_one_object_meanwhile() -> None:
    bench = Models(SERVERS)
    grant = Grant(frozenset({"file"}))
    before = bench.scheduler.view(grant)
    assert bench.scheduler.view(Grant(frozenset({"file"}))) is before
    bench.host._tools = LocalToolHost({**SERVERS, "list": LocalTool(echo, TEXT, {"slug": "file"})})._tools
    assert seen(bench.scheduler.view(grant)) == ["file__list", "file__read", "file__write"]
