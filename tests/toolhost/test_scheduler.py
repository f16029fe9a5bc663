"""The tool scheduler: checked, journaled, held to its slots, and never run twice behind anybody's back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from centuria.admission import Slots
from centuria.core.calls import CallLedger
from centuria.core.progress import Progress
from centuria.core.retry import RetryPolicy
from centuria.core.slots import SlotTable
from centuria.errors import FingerprintMismatch, JournalError, OutcomeUnknown, ToolUnavailable
from centuria.events import CallClosed, CallOpened, Event, LimitSet, Notice, ServerDown, ServerUp, fold
from centuria.messages import CallKey, ToolCall, ToolEnd, ToolResult
from centuria.ports import Caller, HostedTool, ServerState, ToolHost
from centuria.scheduler import Approve, ToolScheduler
from centuria.settings import Timeouts
from centuria.stream import Stream
from centuria.testing.clock import virtual_clock
from centuria.testing.journal import MemoryJournal
from centuria.testing.tools import LocalTool, LocalToolHost

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
ANY = {"type": "object"}


@dataclass
class Bench:
    """A scheduler over plain functions, with a journal that tells everything."""

    tools: Mapping[str, LocalTool]
    approve: Approve | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    result_chars: int = 1000
    more: Mapping[str, Any] = field(default_factory=dict)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    spilled: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    remote: frozenset[str] = frozenset()
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(jitter=0.0))
    servers: ToolHost | None = None

    def __post_init__(self) -> None:
        self.host = LocalToolHost(self.tools, sessions=self.sessions, remote=self.remote)
        self.calls = CallLedger()
        fold(self.calls, self.events())
        seq = self.journal.last_seq
        self.stream = Stream(self.journal, clock=lambda: 0.0, progress=Progress(), seq=seq)
        self.slots = Slots(SlotTable(), self.stream)
        self.scheduler = ToolScheduler(
            host=self.servers or self.host,
            slots=self.slots,
            calls=self.calls,
            stream=self.stream,
            retry=self.retry,
            timeouts=self.timeouts,
            dice=lambda: 0.0,
            spill=self._spill,
            result_chars=self.result_chars,
            approve=self.approve,
            **self.more,
        )

    def _spill(self, key: str, text: str) -> str:
        self.spilled[key] = text
        return f"spill/{len(self.spilled)}.txt"

    async def call(
        self, name: str, arguments: Any = None, *, agent: str = "a", position: int = 1, index: int = 0
    ) -> ToolResult:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        caller = Caller(CallKey(agent, 0, 0, position), agent, index)
        return await self.scheduler.call(ToolCall("id", name, text), caller, self.scheduler.view())

    def events(self) -> list[Event]:
        return [record.event for record in self.journal.read()]

    def rows(self) -> list[str]:
        """Openings and closings, in order."""
        return [
            event.end if isinstance(event, CallClosed) else "open"
            for event in self.events()
            if isinstance(event, CallOpened | CallClosed)
        ]

    def idle(self) -> bool:
        """No slot is in use, nobody waits, and the journal, folded, is the live state."""
        ledger, table = CallLedger(), SlotTable()
        fold(ledger, self.events())
        fold(table, self.events())
        unused = all(table.in_use(name) == table.waiting(name) == 0 for name in table.resources())
        return ledger == self.calls and table == self.slots.table and unused and not ledger.in_doubt()


def echo(text: str) -> str:
    return text


def takes(seconds: float) -> Callable[..., Any]:
    async def work(**_: Any) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return work


class Failing:
    """A tool that raises these errors, one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.at: list[float] = []

    async def __call__(self, **_: Any) -> str:
        self.at.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        return "at last"


# -- what is refused before anything is sent -------------------------------------------------------------------------


@virtual_clock
async def test_a_tool_outside_the_view_is_refused_and_what_may_be_called_is_named() -> None:
    tools = {
        "read": LocalTool(echo, TEXT, {"slug": "file"}),
        "search": LocalTool(echo, TEXT, {"slug": "web"}),
    }
    bench = Bench(tools)
    view = bench.scheduler.view(frozenset({"file"}))
    assert [spec.name for spec in view.specs] == ["file__read"]
    for position, name in enumerate(("web__search", "file_read"), 1):
        caller = Caller(CallKey("a", 0, 0, position), "a")
        result = await view.call(ToolCall("1", name, '{"text": "x"}'), caller)
        assert result.end is ToolEnd.REFUSED
        assert "file__read" in result.text
    assert bench.host.calls == []
    assert view.resolve("web__search") is None


@virtual_clock
async def test_siblings_see_one_and_the_same_list() -> None:
    bench = Bench({"b": LocalTool(echo, TEXT), "a": LocalTool(echo, TEXT)})
    assert bench.scheduler.view() is bench.scheduler.view()
    assert [spec.name for spec in bench.scheduler.view().specs] == ["local__a", "local__b"]


@virtual_clock
async def test_arguments_against_the_schema_go_back_to_be_repaired() -> None:
    bench = Bench({"echo": LocalTool(echo, TEXT)})
    complaints = {
        '{"text": 5}': "at $.text: 5 is not of type 'string'",
        "{}": "'text' is a required property",
        '{"text": "a", "more": 1}': "'more' was unexpected",
        '{"text": ': "not valid JSON",
        '["text"]': "must be a JSON object, not a list",
        '{"text": NaN}': "NaN is not a JSON value",
        "[" * 100_000: "",
    }
    for position, (arguments, complaint) in enumerate(complaints.items(), 1):
        result = await bench.call("local__echo", arguments, position=position)
        assert result.end is ToolEnd.REFUSED
        assert complaint in result.text
        assert len(result.text) < 1000
    assert bench.host.calls == []


@virtual_clock
async def test_no_arguments_at_all_are_an_empty_object_and_half_a_character_harms_nothing() -> None:
    bench = Bench({"echo": LocalTool(lambda text="none": text, ANY)})
    assert (await bench.call("local__echo", "")).text == "none"
    result = await bench.call("local__echo", '{"text": "a\\ud800b"}', position=2)
    assert result.text == "a\N{REPLACEMENT CHARACTER}b"


@virtual_clock
async def test_a_schema_of_another_dialect_or_of_none_is_no_obstacle() -> None:
    old = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]}},
    }
    broken = {"type": "no such type"}
    remote = {"type": "object", "properties": {"text": {"$ref": "https://example.com/schema.json"}}}
    tools = {
        name: LocalTool(lambda **_: "ran", schema) for name, schema in [("old", old), ("x", broken), ("y", remote)]
    }
    bench = Bench(tools)
    assert (await bench.call("local__old", {"pair": ["a", "b"]})).end is ToolEnd.REFUSED
    assert (await bench.call("local__old", {"pair": ["a", 1]}, position=2)).text == "ran"
    assert (await bench.call("local__x", {"text": "a"}, position=3)).text == "ran"
    assert (await bench.call("local__y", {"text": "a"}, position=4)).text == "ran"


@virtual_clock
async def test_the_host_is_told_for_whom_each_call_is() -> None:
    bench = Bench({"echo": LocalTool(echo, TEXT)})
    await bench.call("local__echo", {"text": "hi"}, agent="b", position=3, index=7)
    assert bench.host.callers == [Caller(CallKey("b", 0, 0, 3), "b", 7)]


@virtual_clock
async def test_a_tool_that_asks_first_runs_only_when_approved() -> None:
    tools = {"drop": LocalTool(lambda **_: "dropped", ANY, {"ask": True})}
    asked = []

    async def approve(tool: HostedTool, key: CallKey, arguments: Mapping[str, Any]) -> bool:
        asked.append((tool.name, dict(arguments)))
        return bool(arguments.get("sure"))

    alone = await Bench(tools).call("local__drop")
    assert alone.end is ToolEnd.REFUSED
    assert "needs approval" in alone.text
    bench = Bench(tools, approve=approve)
    assert (await bench.call("local__drop", {"sure": False})).end is ToolEnd.REFUSED
    assert (await bench.call("local__drop", {"sure": True}, position=2)).text == "dropped"
    assert asked == [("local__drop", {"sure": False}), ("local__drop", {"sure": True})]


# -- the journal -----------------------------------------------------------------------------------------------------


@virtual_clock
async def test_nothing_is_sent_before_the_row_that_says_so_is_durable() -> None:
    bench = Bench({"echo": LocalTool(echo, TEXT)})
    bench.journal.hold()
    call = asyncio.create_task(bench.call("local__echo", {"text": "hi"}))
    await asyncio.sleep(1)
    assert bench.host.calls == []
    bench.journal.flush(keep_holding=True)
    await asyncio.sleep(1)
    assert len(bench.host.calls) == 1
    assert not call.done(), "its answer must be durable before anything depends on it"
    bench.journal.flush()
    assert (await call).text == "hi"
    assert bench.rows() == ["open", "done"]
    assert bench.idle()


@virtual_clock
async def test_what_was_answered_is_answered_from_the_journal_though_the_server_is_gone() -> None:
    bench = Bench({"echo": LocalTool(echo, TEXT)})
    first = await bench.call("local__echo", {"text": "hi"})
    refused = await bench.call("local__echo", {"text": 1}, position=2)
    later = Bench({}, journal=MemoryJournal(bench.journal.read()))
    assert await later.call("local__echo", {"text": "hi"}) == first
    assert await later.call("local__echo", {"text": 1}, position=2) == refused
    assert later.host.calls == []
    with pytest.raises(FingerprintMismatch):
        await later.call("local__echo", {"text": "another"})


@virtual_clock
async def test_a_call_in_doubt_is_run_again_only_where_that_is_safe() -> None:
    tools = {"safe": LocalTool(takes(1), ANY, {"rerun": True}), "order": LocalTool(takes(1), ANY)}
    bench = Bench(tools)
    for position, name in enumerate(("local__safe", "local__order"), 1):
        call = asyncio.create_task(bench.call(name, position=position))
        await asyncio.sleep(0.5)
        crashed = MemoryJournal(bench.journal.read())
        await call
        later = Bench(tools, journal=crashed)
        later.stream.publish(*later.calls.resolve_in_doubt())
        result = await later.call(name, position=position)
        if name == "local__safe":
            assert result.text == "done"
        else:
            assert result.end is ToolEnd.UNKNOWN
            assert "may or may not" in result.text
            assert later.host.calls == []


@virtual_clock
async def test_a_broken_journal_stops_the_call_before_it_is_sent() -> None:
    bench = Bench({"echo": LocalTool(echo, TEXT)})
    bench.journal.fail()
    with pytest.raises(JournalError):
        await bench.call("local__echo", {"text": "hi"})
    assert bench.host.calls == []


# -- slots -----------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_limits_of_servers_and_tools_hold_and_are_published_with_their_reason() -> None:
    tools = {
        "a": LocalTool(takes(1), ANY, {"slug": "s", "limit": 3}),
        "b": LocalTool(takes(1), ANY, {"slug": "s", "limit": 2}),
    }
    bench = Bench(tools)
    await asyncio.gather(
        *(bench.call("s__a", agent=f"a{n}", index=n) for n in range(9)),
        *(bench.call("s__b", agent=f"b{n}", index=n) for n in range(9)),
    )
    assert bench.host.most == {"s": 3}
    assert 6 <= asyncio.get_running_loop().time() <= 7
    limits = {event.resource: event.limit for event in bench.events() if isinstance(event, LimitSet)}
    assert limits == {"server:s": 3, "tool:s__a": 3, "tool:s__b": 2}
    assert bench.idle()


@virtual_clock
async def test_the_clock_of_a_call_starts_at_dispatch() -> None:
    bench = Bench({"slow": LocalTool(takes(20), ANY, {"limit": 1})}, timeouts=Timeouts(tool=30))
    results = await asyncio.gather(*(bench.call("local__slow", agent=str(n)) for n in range(5)))
    assert {result.end for result in results} == {ToolEnd.OK}


@virtual_clock
async def test_a_call_that_waited_too_long_never_runs_and_its_agent_is_told() -> None:
    bench = Bench({"slow": LocalTool(takes(20), ANY, {"limit": 1})}, timeouts=Timeouts(queue=10))
    first, second = await asyncio.gather(*(bench.call("local__slow", agent=str(n)) for n in range(2)))
    assert first.end is ToolEnd.OK
    assert second.end is ToolEnd.UNAVAILABLE
    assert "within 10 s" in second.text
    assert len(bench.host.calls) == 1
    assert bench.idle()


@virtual_clock
async def test_a_long_queue_at_a_server_with_one_slot_is_noticed_once() -> None:
    bench = Bench({"slow": LocalTool(takes(1), ANY, {"slug": "db", "limit": 1})})
    await asyncio.gather(*(bench.call("db__slow", agent=str(n)) for n in range(6)))
    assert not [event for event in bench.events() if isinstance(event, Notice)]
    await asyncio.gather(*(bench.call("db__slow", agent=str(n), position=2) for n in range(20)))
    (notice,) = [event for event in bench.events() if isinstance(event, Notice)]
    assert "[tools.db]" in notice.text
    assert "`limit`" in notice.text


@virtual_clock
async def test_a_cancelled_call_leaves_its_slot_and_the_journal_says_what_may_have_happened() -> None:
    tools = {
        "safe": LocalTool(takes(9), ANY, {"rerun": True, "limit": 1}),
        "order": LocalTool(takes(9), ANY, {"limit": 1}),
    }
    bench = Bench(tools)
    for position, (name, end) in enumerate((("local__safe", "lost"), ("local__order", "unknown")), 1):
        running = asyncio.create_task(bench.call(name, position=position))
        waiting = asyncio.create_task(bench.call(name, {"other": 1}, agent="b", position=position))
        await asyncio.sleep(1)
        waiting.cancel()
        running.cancel()
        await asyncio.wait([running, waiting])
        assert running.cancelled()
        assert waiting.cancelled()
        assert bench.rows()[-2:] == ["open", end]
        assert bench.idle()
    assert len(bench.host.calls) == 2


@virtual_clock
async def test_one_agent_that_hangs_changes_nothing_for_the_others() -> None:
    tools = {"hang": LocalTool(takes(1e6), ANY), "echo": LocalTool(echo, TEXT)}
    bench = Bench(tools)
    hanging = asyncio.create_task(bench.call("local__hang", agent="stuck"))
    texts = await asyncio.gather(*(bench.call("local__echo", {"text": str(n)}, agent=str(n)) for n in range(1000)))
    assert [result.text for result in texts] == [str(n) for n in range(1000)]
    assert asyncio.get_running_loop().time() < 1
    assert (await hanging).end is ToolEnd.TIMEOUT
    assert bench.idle()


# -- retries ---------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_what_surely_did_not_run_is_tried_again_after_one_two_and_four_seconds_without_a_slot() -> None:
    tool = Failing(*(ToolUnavailable("down") for _ in range(3)))
    bench = Bench({"t": LocalTool(tool, ANY, {"limit": 1}), "other": LocalTool(takes(0.1), ANY, {"limit": 1})})
    call = asyncio.create_task(bench.call("local__t"))
    await asyncio.sleep(0.5)
    assert bench.slots.table.in_use("server:local") == 0
    assert (await call).text == "at last"
    assert tool.at == [0, 1, 3, 7]
    assert bench.rows() == ["open", "failed", "open", "failed", "open", "failed", "open", "done"]
    assert bench.idle()


@virtual_clock
async def test_a_server_that_stays_away_ends_as_unavailable_and_a_resume_reads_the_same() -> None:
    bench = Bench({"t": LocalTool(Failing(*(ToolUnavailable("down") for _ in range(9))), ANY)})
    result = await bench.call("local__t")
    assert result.end is ToolEnd.UNAVAILABLE
    assert "4 attempts" in result.text
    assert bench.rows()[-2:] == ["open", "done"]
    assert await bench.call("local__t") == result


@virtual_clock
async def test_retry_after_is_the_least_wait() -> None:
    tool = Failing(ToolUnavailable("busy", retry_after=20))
    bench = Bench({"t": LocalTool(tool, ANY)})
    await bench.call("local__t")
    assert tool.at == [0, 20]


@pytest.mark.parametrize(("error", "end"), [(OutcomeUnknown("cut"), "unknown"), (TimeoutError(), "timeout")])
def test_what_may_have_happened_is_run_again_only_if_trusted(error: Exception, end: str) -> None:
    @virtual_clock
    async def check() -> None:
        order, safe = Failing(error), Failing(error)
        bench = Bench({"order": LocalTool(order, ANY), "safe": LocalTool(safe, ANY, {"rerun": True})})
        result = await bench.call("local__order")
        assert result.end == end
        assert "may or may not have happened" in result.text
        assert bench.rows() == ["open", "unknown"]
        assert (await bench.call("local__safe", position=2)).text == "at last"
        assert bench.rows()[2:] == ["open", "lost", "open", "done"]
        assert len(order.at) == 1
        assert len(safe.at) == 2

    check()


# -- results and servers ---------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_long_result_keeps_head_and_tail_and_the_whole_in_a_file() -> None:
    whole = "begin " + "x" * 50_000 + " end"
    bench = Bench({"t": LocalTool(lambda **_: whole, ANY)})
    result = await bench.call("local__t")
    assert result.text.startswith("begin ")
    assert result.text.endswith(" end")
    assert len(result.text) < 1200
    assert result.spill == "spill/1.txt"
    assert "spill/1.txt" in result.text
    assert bench.spilled == {"a/0/0/1": whole}


@virtual_clock
async def test_results_are_valid_text_and_data_has_a_bound() -> None:
    bad = ToolResult("half \ud800 a pair", structured={"k": "\ud800"})
    tools = {"bad": LocalTool(lambda **_: bad, ANY), "big": LocalTool(lambda **_: ["x" * 300_000], ANY)}
    bench = Bench(tools)
    result = await bench.call("local__bad")
    assert result.text == "half \N{REPLACEMENT CHARACTER} a pair"
    assert result.structured == {"k": "\N{REPLACEMENT CHARACTER}"}
    assert (await bench.call("local__big", position=2)).structured is None


@virtual_clock
async def test_servers_are_announced_at_the_start_and_at_every_change() -> None:
    bench = Bench({"t": LocalTool(echo, TEXT, {"limit": 3})})
    bench.slots.set_limit("server:local", 2, "by hand")
    bench.scheduler.server_changed(ServerState("local", "local", up=False, limit=3, reason="it died"))
    bench.scheduler.server_changed(ServerState("local", "local", up=True, limit=3))
    seen = [event for event in bench.events() if isinstance(event, ServerUp | ServerDown)]
    assert seen == [
        ServerUp("local", "local", ("t",), 3),
        ServerDown("local", "local", "it died"),
        ServerUp("local", "local", ("t",), 3),
    ]
    assert bench.slots.table.limit("server:local") == 2
