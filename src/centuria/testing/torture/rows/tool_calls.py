"""Tool calls: their index, ids, arguments and ends; and what goes back to the model in the next turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from centuria.testing.replies import Calls, Text
from centuria.testing.torture.row import (
    ANSWER,
    OK,
    USAGE,
    Forbidden,
    Row,
    Step,
    answered,
    both,
    called,
    streamed,
    whole,
)
from centuria.testing.torture.writing import chunk, paper, part, said, stream, text, tools, used
from centuria.testing.upstream import Seen

A, B = ("search", {"q": "a"}), ("search", {"q": "b"})
_A, _B = '{"q": "a"}', '{"q": "b"}'
_END = (chunk(finish="tool_calls"), used())
_TWO = called(A, B, usage=USAGE)
_ONE = called(A, usage=USAGE)


def _fragments(name: str, *items: Any, want: Any = _TWO, kind: int = 33) -> Row:
    return streamed(name, kind, want, stream(*items, *_END))


def _indexes() -> list[Row]:
    return [
        both("two parallel calls", 0, _TWO, Calls((("search", _A), ("search", _B)), usage=USAGE, piece=3)),
        _fragments(
            "two calls without an index",
            tools(part("search", "", id="x1")),
            tools(part(arguments=_A)),
            tools(part("search", "", id="x2")),
            tools(part(arguments=_B)),
        ),
        _fragments(
            "two calls, both index 0, whole",
            tools(part("search", _A, id="x1", index=0)),
            tools(part("search", _B, id="x2", index=0)),
        ),
        _fragments(
            "two calls, both index 0, in fragments",
            tools(part("search", "", id="x1", index=0)),
            tools(part(arguments=_A[:4], index=0)),
            tools(part(arguments=_A[4:], index=0)),
            tools(part("search", "", id="x2", index=0)),
            tools(part(arguments=_B[:4], index=0)),
            tools(part(arguments=_B[4:], index=0)),
        ),
        _fragments(
            "two calls, both index 0, no ids", tools(part("search", _A, index=0)), tools(part("search", _B, index=0))
        ),
        _fragments(
            "two calls in one chunk without an index", tools(part("search", _A, id="x1"), part("search", _B, id="x2"))
        ),
        _fragments(
            "two calls, the index is null",
            tools(part("search", _A, id="x1", index=None)),
            tools(part("search", _B, id="x2", index=None)),
        ),
        _fragments(
            "indexes that begin at 1",
            tools(part("search", _A, id="x1", index=1)),
            tools(part("search", _B, id="x2", index=2)),
        ),
        _fragments(
            "indexes with a gap",
            tools(part("search", _A, id="x1", index=0)),
            tools(part("search", _B, id="x2", index=7)),
        ),
        _fragments(
            "fragments that alternate between two calls",
            tools(part("search", "", id="x1", index=0)),
            tools(part("search", "", id="x2", index=1)),
            tools(part(arguments=_A[:5], index=0)),
            tools(part(arguments=_B[:5], index=1)),
            tools(part(arguments=_A[5:], index=0)),
            tools(part(arguments=_B[5:], index=1)),
        ),
        _fragments(
            "indexes as strings",
            tools(part("search", "", id="x1", index="0")),
            tools(part("search", "", id="x2", index="1")),
            tools(part(arguments=_A, index="0")),
            tools(part(arguments=_B, index="1")),
        ),
        _fragments(
            "the name and the id in every fragment",
            tools(part("search", _A[:3], id="x1", index=0)),
            tools(part("search", _A[3:6], id="x1", index=0)),
            tools(part("search", _A[6:], id="x1", index=0)),
            want=_ONE,
        ),
        _fragments(
            "id and name are empty strings in later fragments",
            tools(part("search", _A[:3], id="x1", index=0)),
            tools({"index": 0, "id": "", "type": "", "function": {"name": "", "arguments": _A[3:]}}),
            want=_ONE,
        ),
        _fragments(
            "id and name are null in later fragments",
            tools(part("search", _A[:3], id="x1", index=0)),
            tools({"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": _A[3:]}}),
            want=_ONE,
        ),
        _fragments(
            "the id comes after the name",
            tools(part("search", _A[:3], index=0)),
            tools({"index": 0, "id": "x1", "function": {"arguments": _A[3:]}}),
            want=_ONE,
        ),
        _fragments(
            "tool_calls null or empty beside text",
            chunk({"content": ANSWER, "tool_calls": None}, tool_calls=None),
            chunk({"tool_calls": []}),
            want=answered(),
        ),
        streamed(
            "the call stands in the last chunk's message",
            33,
            _ONE,
            stream(
                {
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "tool_calls",
                            "message": {"role": "assistant", "tool_calls": [part("search", _A, id="x1", index=0)]},
                        }
                    ]
                },
                used(),
            ),
        ),
    ]


def _arguments() -> list[Row]:
    odd = '{"q": "😀 \\u00fc \\"x\\" \\\\"}'
    return [
        both(
            "arguments with characters beyond ASCII, three at a time",
            37,
            called(("search", json.loads(odd)), usage=USAGE),
            Calls((("search", odd),), usage=USAGE, piece=3),
        ),
        streamed("arguments as an object", 33, _ONE, stream(tools(part("search", {"q": "a"}, id="x", index=0)), *_END)),
        whole(
            "arguments as an object in a document",
            33,
            _ONE,
            paper(said({"tool_calls": [part("search", {"q": "a"}, id="x")]}, "tool_calls")),
        ),
        streamed(
            "arguments null",
            33,
            called(("search", ""), usage=USAGE),
            stream(tools({"index": 0, "id": "x", "function": {"name": "search", "arguments": None}}), *_END),
        ),
        both("no arguments", 33, called(("search", {}), usage=USAGE), Calls((("search", "{}"),), usage=USAGE)),
        both(
            "a text beside the calls",
            0,
            called(A, text="I search.", usage=USAGE),
            Calls((("search", _A),), text="I search.", usage=USAGE),
        ),
        both(
            "an unknown tool is named",
            0,
            called(("delete_all", {}), usage=USAGE),
            Calls((("delete_all", "{}"),), usage=USAGE),
        ),
        both(
            "arguments that are no JSON",
            0,
            (called(("search", "{'q': 1"), usage=USAGE), answered()),
            Calls((("search", "{'q': 1"),), usage=USAGE),
            OK,
            forbids=(_ILLEGAL_ARGUMENTS,),
        ),
    ]


def _lengths() -> list[Row]:
    cut = Calls((("search", '{"q": "a'),), usage=USAGE, finish="length")
    second = Calls((("search", _A), ("search", '{"q": "b')), usage=USAGE, finish="length")
    return [
        both("length inside a tool call", 35, answered("", usage=USAGE), cut),
        both("length inside the second of two calls", 35, _ONE, second),
        both("length inside a text", 35, answered("The ans"), Text("The ans", usage=USAGE, finish="length")),
        both("length before any text", 35, answered("", usage=USAGE), Text("", "Hm.", usage=USAGE, finish="length")),
    ]


def _finishes() -> list[Row]:
    fine: tuple[str | None, ...] = ("", "STOP", "end_turn", "eos", "stop_sequence", "something_new")
    rows = [
        both(f"finish_reason {reason!r} of a text", 35, answered(), Text(ANSWER, usage=USAGE, finish=reason))
        for reason in fine
        if reason is not None
    ]
    rows += [
        both(f"finish_reason {reason!r} of a tool call", 35, _ONE, Calls((("search", _A),), usage=USAGE, finish=reason))
        for reason in ("stop", "tool_use", "function_call", "TOOL_CALLS")
    ]
    none = stream(text(ANSWER), used())
    missing = {
        "choices": [{"index": 0, "message": {"content": ANSWER}}],
        "usage": {"prompt_tokens": 21, "completion_tokens": 7},
    }
    rows += [
        Row("finish_reason null to the end", 35, (answered(),), (none,), (paper(said({"content": ANSWER}, None)),)),
        whole("finish_reason left out", 35, answered(), paper(missing)),
        both("tool_calls as the reason, and no call", 35, answered(), Text(ANSWER, usage=USAGE, finish="tool_calls")),
    ]
    return rows


def _echoed(seen: Sequence[Seen]) -> list[list[str]]:
    """The ids of each request's tool calls and of its results, in turn."""
    found = []
    for request in seen:
        messages = request.json["messages"]
        found.append([call["id"] for message in messages for call in message.get("tool_calls") or ()])
        found.append([message["tool_call_id"] for message in messages if message["role"] == "tool"])
    return found


def _sends_back(*ids: str) -> Forbidden:
    def changed(seen: Sequence[Seen]) -> bool:
        calls, results = _echoed(seen[-1:])
        return calls != list(ids) or results != list(ids)

    return Forbidden("an id is sent back changed", changed)


def _unlinked(seen: Sequence[Seen]) -> bool:
    calls, results = _echoed(seen[-1:])
    return not all(calls) or calls != results


_NO_IDS = Forbidden("a call goes back without an id, or its result with another", _unlinked)


def _illegal(seen: Sequence[Seen]) -> bool:
    for message in seen[-1].json["messages"]:
        for call in message.get("tool_calls") or ():
            try:
                json.loads(call["function"]["arguments"])
            except ValueError:
                return True
    return False


_ILLEGAL_ARGUMENTS = Forbidden("arguments go back that are no JSON", _illegal)
_NO_REASONING = Forbidden(
    "reasoning_content is left out beside tool calls",
    lambda seen: any(
        "reasoning_content" not in message
        for message in seen[-1].json["messages"]
        if message["role"] == "assistant" and message.get("tool_calls")
    ),
)
_EMPTY_CONTENT = Forbidden(
    "an empty content goes back beside tool calls",
    lambda seen: any(
        message.get("content") == "" for message in seen[-1].json["messages"] if message.get("tool_calls")
    ),
)


def _turns() -> list[Row]:
    def turns(name: str, kind: int, first: Step, *forbids: Forbidden, want: Any = _TWO) -> Row:
        return both(name, kind, (want, answered()), first, OK, forbids=forbids)

    pair = (("search", _A), ("search", _B))
    again = Calls(pair[:1], ("functions.search:0",), usage=USAGE)
    no_ids = Calls(pair, ("", ""), usage=USAGE)
    thought = Calls(pair, reasoning="I need both.", usage=USAGE)
    return [
        turns(
            "Kimi's ids go back as they came",
            34,
            Calls(pair, usage=USAGE),
            _sends_back("functions.search:0", "functions.search:1"),
        ),
        turns(
            "ids of other providers go back as they came",
            34,
            Calls(pair, ("call_ü 1", "x" * 200), usage=USAGE),
            _sends_back("call_ü 1", "x" * 200),
        ),
        turns("ids that are empty", 34, no_ids, _NO_IDS),
        turns(
            "two calls with the same id",
            34,
            Calls(pair, ("call_0", "call_0"), usage=USAGE),
            _sends_back("call_0", "call_0"),
        ),
        both(
            "ids that repeat in every turn",
            34,
            (_ONE, _ONE, answered()),
            again,
            again,
            OK,
            forbids=(_sends_back("functions.search:0", "functions.search:0"),),
        ),
        turns("reasoning goes back beside tool calls", 38, thought, _NO_REASONING, _EMPTY_CONTENT),
        turns("reasoning that is empty goes back too", 38, Calls(pair, usage=USAGE), _NO_REASONING, _EMPTY_CONTENT),
    ]


def tool_calls() -> Sequence[Row]:
    return [*_indexes(), *_arguments(), *_lengths(), *_finishes(), *_turns()]
