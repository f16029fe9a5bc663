"""Errors inside a 200, odd chunks, usage in every place, and text that breaks the next request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from centuria.messages import Usage
from centuria.testing.replies import Text
from centuria.testing.torture.clients import ErrorKind
from centuria.testing.torture.row import ANSWER, OK, USAGE, Forbidden, Row, answered, both, failed, streamed, whole
from centuria.testing.torture.rows.statuses import KEY
from centuria.testing.torture.writing import COUNTED, chunk, events, paper, said, stream, text, used
from centuria.testing.upstream import Seen

_AGAIN = answered(requests=2)
_STOP = chunk(finish="stop")


def _errors() -> list[Row]:
    def inside(name: str, error: Any, want: Any = _AGAIN) -> Row:
        start = stream(text("Old words. "), error, done=False)
        return streamed(f"{name} in mid-stream", 36, want, start, OK)

    def final(name: str, kind: ErrorKind, error: dict[str, Any]) -> Row:
        return Row(f"{name} inside a 200", 32, (failed(kind),), (stream(error, done=False),), (paper(error),))

    overloaded = {"error": {"type": "engine_overloaded_error", "message": "overloaded"}}
    return [
        Row(
            "an error object is all of a 200",
            36,
            (_AGAIN,),
            (stream(overloaded, done=False), OK),
            (paper(overloaded), OK),
        ),
        inside("an error object", {"error": {"message": "boom", "type": "server_error", "code": 500}}),
        inside(
            "an error object and choices",
            {
                "error": {"code": 502, "message": "Provider returned error"},
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            },
        ),
        inside("an error that is a string", {"error": "CUDA out of memory"}),
        inside(
            "vLLM's error object", {"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}
        ),
        inside("an error event", b'event: error\ndata: {"message":"Overloaded"}\n\n'),
        inside("an error event that is no JSON", b"event: error\ndata: upstream died\n\n"),
        inside("a line that is no JSON", b"data: {oops\n\n"),
        inside("a list of 100,000 open brackets", b"data: " + b"[" * 100_000 + b"\n\n"),
        inside("finish_reason error", chunk(finish="error")),
        inside("an error that shows the key", {"error": {"message": f"bad {KEY}", "type": "server_error"}}),
        final(
            "a spent quota",
            "denied",
            {"error": {"type": "exceeded_current_quota_error", "message": "quota", "code": 429}},
        ),
        final("a bad key", "denied", {"error": {"type": "invalid_authentication_error", "message": "no"}}),
        final("an invalid request", "refused", {"error": {"type": "invalid_request_error", "message": "no"}}),
        final(
            "a context too long",
            "too_long",
            {"error": {"type": "invalid_request_error", "code": 400, "message": "maximum context length is 10 tokens"}},
        ),
        both(
            "the content filter stops the answer",
            32,
            failed("refused"),
            Text("Well, ", usage=USAGE, finish="content_filter"),
        ),
        both("an empty answer", 36, _AGAIN, Text("", usage=USAGE), OK),
        both("white space for an answer", 36, _AGAIN, Text(" \n ", usage=USAGE), OK),
        both("an answer that is only reasoning", 36, _AGAIN, Text("", "Hm.", usage=USAGE), OK),
    ]


def _chunks() -> list[Row]:
    def odd(name: str, *items: Any, kind: int = 36, **more: Any) -> Row:
        return streamed(name, kind, answered(), stream(*items, text(ANSWER), _STOP, used(), **more))

    azure = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "id": "", "model": "", "object": ""}
    twice = json.dumps(text("Old. "))[:-1] + ', "choices": [{"delta": {"content": ""}}]}'
    return [
        odd("empty choices first", azure),
        odd("choices null", {"id": "c", "choices": None}),
        odd("no choices", {"id": "c", "object": "chat.completion.chunk"}),
        odd("a chunk that is an empty object", {}),
        odd("role-only deltas, again and again", *[chunk({"role": "assistant"})] * 5),
        odd("deltas null", {"choices": [{"index": 0, "delta": None}]}, chunk({"content": None})),
        odd("error null in every chunk", chunk({}, error=None)),
        odd(
            "another choice between",
            {"choices": [{"index": 1, "delta": {"content": "Not me. "}, "finish_reason": "stop"}]},
        ),
        odd("numbers as strings", {"choices": [{"index": 0, "delta": {"content": ""}}], "created": "17", "n": "1"}),
        odd("a key twice in one object", f"data: {twice}\n\n".encode()),
        odd("fields that nobody knows", chunk({"audio": {"x": 1}, "annotations": []}, x=[[[]]], service_tier=None)),
        odd("pings as events", b"event: ping\ndata: {}\n\n"),
        streamed(
            "text after the finish reason is no second answer",
            36,
            answered(usage=None),
            stream(text(ANSWER), _STOP, chunk(finish="stop"), used()),
        ),
        streamed(
            "content as a list of parts",
            37,
            answered(),
            stream(
                text([{"type": "text", "text": ANSWER[:9]}]),
                text([{"type": "text", "text": ANSWER[9:]}], "stop"),
                used(),
            ),
        ),
        whole(
            "content as a list of parts in a document",
            37,
            answered(),
            paper(said({"content": [{"type": "text", "text": ANSWER[:9]}, {"type": "text", "text": ANSWER[9:]}]})),
        ),
        streamed(
            "reasoning, as OpenRouter calls it",
            38,
            answered(),
            stream(
                chunk({"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}),
                text(ANSWER, "stop"),
                used(),
            ),
        ),
        both("reasoning_content before the answer", 38, answered(), Text(ANSWER, "Hm, hm.", usage=USAGE, piece=3)),
        streamed("a line of 2 MB", 36, answered("x" * 2_000_000), stream(text("x" * 2_000_000), _STOP, used())),
        streamed(
            "an event of 20 MB without an end",
            36,
            failed("refused", "unavailable", requests=(1, 6)),
            stream(b"data: " + b"x" * 20_000_000, done=False),
        ),
    ]


def _usage(name: str, kind: int, usage: Any, *items: Any, document: Any = None) -> Row:
    """A stream that ends with these chunks; the document has the usage on top unless it is given."""
    billed = usage if isinstance(usage, Usage) else USAGE
    whole_one = (paper(document, billed=billed),) if document is not None else ()
    return Row(name, kind, (answered(usage=usage),), (stream(text(ANSWER), *items, billed=billed),), whole_one)


def _usages() -> list[Row]:
    cached = {**COUNTED, "cached_tokens": 16}
    details = {**COUNTED, "prompt_tokens_details": {"cached_tokens": 16}}
    twice = {**COUNTED, "cached_tokens": 16, "prompt_tokens_details": {"cached_tokens": 16}}
    hits = {**COUNTED, "prompt_cache_hit_tokens": 16, "prompt_cache_miss_tokens": 5}
    apart = {"input_tokens": 5, "cache_read_input_tokens": 16, "output_tokens": 7}
    thinking = {"prompt_tokens": 21, "completion_tokens": 4, "total_tokens": 28}
    reasoned = {**COUNTED, "completion_tokens_details": {"reasoning_tokens": 5}}
    strings = {"prompt_tokens": "21", "completion_tokens": "7", "total_tokens": "28"}
    with_cache = Usage(prompt=21, cached=16, output=7)
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    running = [text("", usage={"prompt_tokens": 21, "completion_tokens": n, "total_tokens": 21 + n}) for n in (1, 3, 7)]
    in_choice = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": COUNTED}]}

    def ends(name: str, kind: int, counts: Any, usage: Any) -> Row:
        document = {**said({"content": ANSWER}), "usage": counts}
        return _usage(name, kind, usage, _STOP, used(counts), document=document)

    return [
        ends("usage in a chunk of its own", 41, COUNTED, USAGE),
        _usage("usage beside the finish reason", 41, USAGE, chunk(finish="stop", usage=COUNTED)),
        _usage(
            "usage in choices[0]",
            43,
            USAGE,
            in_choice,
            document={
                "choices": [{"index": 0, "message": {"content": ANSWER}, "finish_reason": "stop", "usage": COUNTED}]
            },
        ),
        _usage("usage in choices[0] and on top", 43, USAGE, in_choice, used()),
        _usage("usage before the finish reason", 41, USAGE, used(), _STOP),
        _usage("usage in every chunk, growing", 41, USAGE, *running, _STOP),
        _usage("usage twice", 42, USAGE, _STOP, used(), used()),
        _usage("usage, then zeros", 41, USAGE, _STOP, used(), used(zeros)),
        _usage("usage, then null", 41, USAGE, _STOP, used(), chunk(usage=None)),
        _usage("usage with choices null", 41, USAGE, _STOP, used(choices=None)),
        _usage("no usage at all", 43, "none", _STOP, document={**said({"content": ANSWER}), "usage": None}),
        ends("usage of nothing but zeros", 43, zeros, "none"),
        ends("usage that is no object", 43, "lots", "none"),
        ends("usage with negative counts", 43, {"prompt_tokens": -1, "completion_tokens": 7}, "none"),
        ends("usage without the answer's tokens", 43, {"prompt_tokens": 21}, "none"),
        ends("usage that counts no token of the answer", 43, {"prompt_tokens": 21, "completion_tokens": 0}, "none"),
        ends("usage without the prompt's total", 43, {"prompt_tokens": 21, "total_tokens": 28}, USAGE),
        streamed(
            "usage before the last words",
            43,
            answered(usage="none"),
            stream(text(ANSWER[:9], usage=COUNTED), text(ANSWER[9:]), _STOP),
        ),
        ends("counts as strings", 43, strings, USAGE),
        ends("counts as fractions", 43, {"prompt_tokens": 21.0, "completion_tokens": 7.0}, USAGE),
        ends("cached tokens on top (Moonshot)", 42, cached, with_cache),
        ends("cached tokens in the details (OpenAI)", 42, details, with_cache),
        ends("cached tokens in both places", 42, twice, with_cache),
        ends("cache hits and misses (DeepSeek)", 42, hits, with_cache),
        ends("cached tokens beside the prompt's (Anthropic)", 42, apart, with_cache),
        ends("thinking only in the total (Gemini)", 43, thinking, USAGE),
        ends("reasoning inside the answer's tokens", 42, reasoned, Usage(prompt=21, output=7, reasoning=5)),
    ]


def _surrogates(seen: Sequence[Seen]) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in json.dumps(seen[-1].json, ensure_ascii=False))


def _nul(seen: Sequence[Seen]) -> bool:
    return "\0" in json.dumps(seen[-1].json, ensure_ascii=False).replace("\\u0000", "\0")


_BROKEN_TEXT = Forbidden("half a surrogate pair, or NUL, goes back", lambda seen: _surrogates(seen) or _nul(seen))


def _texts() -> list[Row]:
    def turns(name: str, first: Any, document: Any, answer: str) -> Row:
        wants = (answered(answer), answered())
        return Row(name, 37, wants, (first, OK), (document, OK), forbids=(_BROKEN_TEXT,))

    def raw(value: Any) -> bytes:
        return json.dumps(value).encode()  # escapes all that is not ASCII

    def line(value: Any) -> bytes:
        return b"data: " + raw(value) + b"\n\n"

    half, other = "\ud83d", "\ude00"
    bad = b"Gr\xfc\xdfe \xf0\x9f\x98."
    bad_text = bad.decode("utf-8", "replace")
    template = events(text("@", "stop"), used()).replace(b"@", bad)
    page = json.dumps(said({"content": "@"})).encode().replace(b"@", bad)
    marks = "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{}"
    done = 'It sends "data: [DONE]"\n\ndata: [DONE]\n\n and goes on.'
    return [
        turns(
            "a lone surrogate",
            stream(line(text(f"a{half}b")), _STOP, used()),
            paper(raw(said({"content": f"a{half}b"}))),
            "a\ufffdb",
        ),
        turns(
            "a pair of surrogates in two chunks",
            stream(line(text(f"a{half}")), line(text(f"{other}b")), _STOP, used()),
            paper(raw(said({"content": f"a{half}{other}b"}))),
            "a😀b",
        ),
        turns(
            "half a pair at the very end",
            stream(line(text(f"a{half}")), _STOP, used()),
            paper(raw(said({"content": f"a{half}"}))),
            "a\ufffd",
        ),
        turns(
            "NUL in the text", stream(line(text("a\0b")), _STOP, used()), paper(raw(said({"content": "a\0b"}))), "a\0b"
        ),
        turns("bytes that are no UTF-8", stream(template, done=False), paper(page), bad_text),
        both(
            "line separators of every kind",
            37,
            answered("a\u2028b\u2029c\x85d\x0be\rf\ng"),
            Text("a\u2028b\u2029c\x85d\x0be\rf\ng", usage=USAGE, piece=1),
        ),
        both("[DONE] inside the text", 37, answered(done), Text(done, usage=USAGE, piece=7)),
        both("[DONE] is the text", 37, answered("[DONE]"), Text("[DONE]", usage=USAGE)),
        both("Kimi's markers of tool calls in the text are text", 37, answered(marks), Text(marks, usage=USAGE)),
        both(
            "characters of several code points",
            37,
            answered("👩‍👩‍👧 é ﷽ 🏳️‍🌈"),
            Text("👩‍👩‍👧 é ﷽ 🏳️‍🌈", usage=USAGE, piece=1),
        ),
        both(
            "an answer of 200,000 characters",
            37,
            answered("größer " * 28_000),
            Text("größer " * 28_000, usage=USAGE, piece=700),
        ),
    ]


def answers() -> Sequence[Row]:
    return [*_errors(), *_chunks(), *_usages(), *_texts()]
