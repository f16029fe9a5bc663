"""Whatever an upstream, a file or a model writes: no error but the declared ones, and time in proportion to its size.

Time is counted, not measured: the lines of our own code that run, and the length of every text that one of our
functions is given. What is read twice as often as it is long shows, whatever the machine is doing meanwhile.
"""

import json
import sys
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import centuria
from centuria.core.blotting import Blotter
from centuria.core.retry import parse_retry_after
from centuria.core.templates import find_json
from centuria.errors import ConfigurationError, ModelError, ModelRefused
from centuria.messages import Usage
from centuria.model.answer import AnswerDecoder
from centuria.model.difference import first_difference
from centuria.model.exchange import Damaged, Exchange, exchange_line, read_line
from centuria.model.failures import blot, error_from
from centuria.model.replay import Recording
from centuria.model.sse import EventDecoder, ServerSentEvent
from centuria.model.toolcalls import CALLS_CAP, ToolCallMerger
from centuria.model.usage import usage_from
from centuria.model.wire import parse_object

SECRET = "kimi/verysecret-0123456789"
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\0", "error", "stop", '{"a":1}', "{", SECRET, "[DONE]"])
)
#: Names that mean something to one of the decoders, so that values get where they are looked at.
NAMES = st.sampled_from(
    [
        *("choices", "delta", "message", "content", "reasoning_content", "reasoning", "tool_calls", "function", "name"),
        *("arguments", "index", "id", "finish_reason", "usage", "error", "code", "type", "detail", "object", "model"),
        *("refusal", "text", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "input_tokens"),
        *("prompt_tokens_details", "completion_tokens_details", "reasoning_tokens", "output_tokens"),
        *("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens_details", "cache_write_tokens"),
    ]
)
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=5),
    max_leaves=14,
)
DEPTHS = (1, 50, 300, 600, 900, *range(930, 1010, 3), 5000)


def as_line(value: Any) -> bytes:
    return json.dumps(value).encode()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[one:two] for one, two in pairwise(edges)] or [b""]


# -- no error but the declared ones ------------------------------------------------------------------------------

WIRE = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"data: ", b"data:", b"event: error\n", b"\n\n", b"\r\n", b"\r", b": ping\n", b"[DONE]"]),
        st.sampled_from([b"\xef\xbb\xbf", b"id: 7\n", b"retry: 1\n", b"{", b"<html>", b" ", b"\xff\xfe"]),
        JSONS.map(lambda value: b"data: " + as_line(value) + b"\n\n"),
        JSONS.map(as_line),
    ),
    max_size=12,
).map(b"".join)
CUTS = st.lists(st.integers(0, 500), max_size=8)


def events(data: list[bytes], cap: int = 200) -> list[ServerSentEvent] | str:
    decoder = EventDecoder(event_cap=cap)
    try:
        return [event for piece in data for event in decoder.feed(piece)] + decoder.close()
    except ModelRefused as error:
        return error.kind


@given(WIRE, CUTS)
def test_any_bytes_are_the_same_events_however_they_are_split_or_one_that_is_too_large(
    data: bytes, cuts: list[int]
) -> None:
    whole = events([data], cap=10**6)
    assert isinstance(whole, list)
    assert events(pieces(data, cuts), cap=10**6) == whole
    assert all("\r" not in event.data and isinstance(event.data.encode(), bytes) for event in whole)
    capped = events(pieces(data, cuts))
    assert capped in (whole, "too_large")


@given(WIRE, CUTS)
@settings(max_examples=300)
def test_any_answer_is_a_completion_or_a_model_error_and_neither_depends_on_the_split(
    data: bytes, cuts: list[int]
) -> None:
    def told(parts: list[bytes]) -> tuple[str, Any, str]:
        decoder = AnswerDecoder(secret=SECRET)
        try:
            for part in parts:
                decoder.feed(part)
            decoder.close()
            completion = decoder.finish()
        except ModelError as error:
            assert SECRET not in str(error) and is_one_line(str(error))
            return type(error).__name__, error.kind, decoder.partial
        completion.message.content.encode()
        return "answer", completion, decoder.partial

    assert told(pieces(data, cuts)) == told([data])


def is_one_line(text: str) -> bool:
    """No control character, no other line break."""
    return not {unicodedata.category(character) for character in text} & {"Cc", "Cs", "Zl", "Zp"}


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "chunk",
    [
        "%s",
        '{"error": %s}',
        '{"error": {"message": %s, "code": %s}}',
        '{"choices": %s}',
        '{"choices": [{"delta": {"content": %s, "reasoning_content": %s}, "finish_reason": %s}], "usage": %s}',
        '{"choices": [{"delta": {"tool_calls": [{"id": %s, "function": {"name": %s, "arguments": %s}}]}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": %s}}}]}}]}',
        '{"choices": [], "usage": {"prompt_tokens": %s, "prompt_tokens_details": %s}, "model": %s}',
    ],
)
def test_json_nested_to_any_depth_is_an_answer_or_a_model_error(chunk: str) -> None:
    for depth in DEPTHS:
        data = chunk.replace("%s", deep(depth)).encode()
        for body in (b"data: " + data + b"\n\n", b"event: error\ndata: " + data + b"\n\n", data):
            decoder = AnswerDecoder()
            try:
                decoder.feed(body)
                decoder.close()
                decoder.finish()
            except ModelError:
                pass
        assert isinstance(error_from(500, {}, data, 0.0), ModelError)
        find_json(data.decode())
        first_difference(data, data + b" ")
        try:
            read_line(data)
        except Damaged:
            pass


@given(
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from(["Retry-After", "retry-after-ms", "x"]), st.text(max_size=40), max_size=3),
    st.binary(max_size=60) | JSONS.map(as_line),
    st.floats(),
)
def test_any_refusal_is_a_model_error_of_one_line_without_the_key(
    status: int, headers: dict[str, str], body: bytes, now: float
) -> None:
    error = error_from(status, headers, body + SECRET.encode(), now, secret=SECRET)
    assert SECRET not in str(error) + error.kind and len(str(error)) < 1200
    assert is_one_line(str(error)) and (error.retry_after is None or error.retry_after >= 0)


CLOCKS = st.from_regex(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d (GMT|UTC)", fullmatch=True)


@given(st.text(max_size=30) | CLOCKS | st.from_regex(r"-?\d{0,40}\.?\d{0,40}", fullmatch=True), st.floats())
def test_any_retry_after_is_a_wait_of_seconds_or_none(value: str, now: float) -> None:
    for name in ("retry-after", "Retry-After-Ms"):
        wait = parse_retry_after({name: value}, now)
        assert wait is None or 0 <= wait <= 1e9


@given(JSONS)
def test_any_usage_is_none_or_counts_that_can_be(raw: Any) -> None:
    usage = usage_from(raw)
    assert usage is None or isinstance(usage, Usage)
    if usage is not None:
        assert 0 <= usage.cached + usage.cache_written <= usage.prompt and 0 <= usage.reasoning <= usage.output
        assert usage.prompt or usage.output


FRAGMENTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.integers(0, 2) | SCALARS,
            "id": st.sampled_from(["a", "b", "", None]) | SCALARS,
            "function": st.fixed_dictionaries(
                {},
                optional={
                    "name": st.sampled_from(["f", "g", ""]) | SCALARS,
                    "arguments": st.sampled_from(["{", "}", '{"a":', '"}"', "1", '\\"', "\\", " ", "{}"]) | JSONS,
                },
            )
            | SCALARS,
        },
    )
    | JSONS,
    max_size=10,
)


@given(st.lists(FRAGMENTS | JSONS, max_size=6), st.booleans())
def test_any_fragments_are_tool_calls_with_valid_text(feeds: list[Any], truncated: bool) -> None:
    merger = ToolCallMerger()
    for fragments in feeds:
        merger.feed(fragments)
    calls = merger.calls(truncated=truncated)
    assert len(calls) <= CALLS_CAP
    for call in calls:
        (call.id + call.name + call.arguments).encode()
        assert call.id and (not truncated or parse_object(call.arguments) is not None)


PARTS = st.lists(
    st.sampled_from(["{", "}", '"', "\\", '\\"', "a", ":", ",", "1", " ", "\n", '"a"', '{"a":', "[", "]", "\x0b"]),
    max_size=12,
)


@given(PARTS, st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=400)
def test_a_second_call_is_told_from_a_continued_one_by_whether_the_first_is_whole(
    parts: list[str], cuts: list[int]
) -> None:
    written = "".join(parts)
    edges = sorted({0, len(written), *(cut % (len(written) + 1) for cut in cuts)})
    merger = ToolCallMerger()
    merger.feed([{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}])
    for one, two in pairwise(edges):
        merger.feed([{"index": 0, "function": {"arguments": written[one:two]}}])
        # A fragment with the name again and another object: it is a call of its own only after a whole one.
        probe = ToolCallMerger()
        probe.feed([{"index": 0, "id": "x", "function": {"name": "f", "arguments": written[:two]}}])
        probe.feed([{"index": 0, "function": {"name": "f", "arguments": "{"}}])
        assert len(probe.calls()) == 1 + (parse_object(written[:two]) is not None)
    merger.feed([{"index": 0, "function": {"name": "f", "arguments": "{"}}])
    assert len(merger.calls()) == 1 + (parse_object(written) is not None)


MARKDOWN = st.lists(
    st.sampled_from(["```", "```json", "\n", "  ", "{", "}", '{"a": 1}', "[1]", "text", "```python", "`", "\r\n"]),
    max_size=14,
).map("".join)


@given(MARKDOWN | st.text(max_size=40))
@settings(max_examples=300)
def test_json_is_found_in_any_text_or_there_is_none(text: str) -> None:
    found = find_json(text)
    assert found is None or json.dumps(found)


@pytest.mark.parametrize(
    "text",
    [
        'Here:\n```json\n{"a": 1}\n```\nand {more}.',
        '```\n{"a": 1}\n```\n{',
        'First ```json\n\n{"a": 1}\n\n  ```',
        'Use `x` or ```y```.\n```JSON\n{"a": 1}\n```\n}',
        '```python\nprint({})\n```\nso:\n```json\n{"a": 1}\n```',
    ],
)
def test_json_in_a_fence_is_found_beside_other_braces_and_fences(text: str) -> None:
    assert find_json(text) == {"a": 1}


@given(st.binary(max_size=80) | JSONS.map(as_line))
def test_any_line_of_a_recording_is_read_or_damaged(line: bytes) -> None:
    try:
        read_line(line)
    except (Damaged, ConfigurationError):
        pass


@given(st.lists(st.binary(max_size=40) | JSONS.map(as_line), max_size=4).map(b"\n".join))
def test_any_file_is_a_recording_or_a_configuration_error(tmp_path_factory: Any, content: bytes) -> None:
    path: Path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        Recording(path)


# -- time in proportion to size ----------------------------------------------------------------------------------

HOME = str(Path(centuria.__file__).parent)


def steps(work: Callable[[], Any]) -> int:
    """Lines of our code that ran, and the characters that its functions (and `json`'s) were given."""
    count = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def called(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        code = frame.f_code
        ours = code.co_filename.startswith(HOME)
        if not ours and "/json/" not in code.co_filename:
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names]
        count += 1 + sum(len(value) for value in given if isinstance(value, str | bytes))
        return local if ours else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        work()
    except (ModelError, Damaged):
        pass
    finally:
        sys.settrace(before)
    return count


def feed(decoder: Any, parts: list[bytes]) -> None:
    for part in parts:
        decoder.feed(part)
    decoder.close()


def merge(fragments: list[dict[str, Any]]) -> None:
    merger = ToolCallMerger()
    for fragment in fragments:
        merger.feed([fragment])
    merger.calls()


def one_byte(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


def fragment(arguments: str, name: str | None = "f") -> dict[str, Any]:
    return {"index": 0, "function": {"name": name, "arguments": arguments}}


def line_of(body: bytes, chunks: int = 0) -> bytes:
    from centuria.model.exchange import Ending

    parts = tuple((0.0, b"\xff") for _ in range(chunks))
    return exchange_line(Exchange(0, None, 1, "POST", "/", {}, body, Ending("end"), 200, {}, 0, parts))


DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
ADVERSARIES: dict[str, Callable[[int], Callable[[], Any]]] = {
    "events, byte by byte": lambda n: lambda: feed(EventDecoder(), one_byte(b"data: x\n" * n)),
    "one line, byte by byte": lambda n: lambda: feed(EventDecoder(), one_byte(b"data: " + b"x" * 8 * n)),
    "carriage returns": lambda n: lambda: feed(EventDecoder(), one_byte(b"\r" * 8 * n)),
    "comments": lambda n: lambda: feed(EventDecoder(), [b": ping\n\n"] * n),
    "white space before an answer": lambda n: lambda: feed(AnswerDecoder(), one_byte(b" \n" * 4 * n)),
    "an answer, byte by byte": lambda n: lambda: feed(AnswerDecoder(), one_byte(DELTA * (n // 5))),
    "a document, byte by byte": lambda n: lambda: feed(AnswerDecoder(), one_byte(b'{"a":"' + b"x" * 8 * n)),
    "lines without blank ones": lambda n: lambda: feed(AnswerDecoder(), [DELTA[:-1] * n + b"\n"]),
    "half surrogates": lambda n: lambda: feed(AnswerDecoder(), [DELTA.replace(b'"x"', b'"\\ud800"')] * n),
    "usage in every chunk": lambda n: (
        lambda: feed(AnswerDecoder(), [b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'] * n)
    ),
    "a name with every fragment": lambda n: lambda: merge([fragment('{"a":"' + "x" * 8 * n), *[fragment("{")] * n]),
    "a name with every brace": lambda n: lambda: merge([fragment("{")] * n),
    "a whole object and white space": lambda n: lambda: merge([fragment("{}" + " " * n), *[fragment(" ")] * n]),
    "backslashes": lambda n: lambda: merge([fragment('{"' + "\\" * n), *[fragment("{\\")] * n]),
    "new calls": lambda n: lambda: merge([fragment("{}")] * n),
    "open fences": lambda n: lambda: find_json("```\nA" * n),
    "fences of empty lines": lambda n: lambda: find_json("```" + "\n" * 8 * n),
    "fences of other languages": lambda n: lambda: find_json("```x\n```\n" * n),
    "braces": lambda n: lambda: find_json("{" * 4 * n + "}" * 4 * n),
    "a refusal of a page": lambda n: lambda: error_from(500, {}, b"<" * 8 * n, 0.0, secret=SECRET),
    "a refusal of keys": lambda n: lambda: blot("bearer " * n, SECRET),
    "a wait of digits": lambda n: lambda: parse_retry_after({"retry-after": "1" * 8 * n}, 0.0),
    "a recorded body": lambda n: lambda: read_line(line_of(b"x" * 8 * n)),
    "recorded chunks": lambda n: lambda: read_line(line_of(b"", n)),
    "secrets everywhere": lambda n: lambda: Blotter([SECRET]).pieces([(0.0, SECRET.encode())] * n),
    "two bodies": lambda n: lambda: first_difference(b"x" * 8 * n, b"x" * 8 * n + b"y"),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_ten_times_the_input_takes_ten_times_the_steps(name: str) -> None:
    few, many = (steps(ADVERSARIES[name](size)) for size in (200, 2000))
    assert many <= 11 * few, f"{few} steps, then {many}"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("open fences", 10**6),
        ("fences of empty lines", 600_000),
        ("two bodies", 600_000),
        ("a refusal of keys", 700_000),
        ("a name with every brace", 70_000),
    ],
)
def test_five_megabytes_of_the_worst_come_to_an_end(name: str, size: int) -> None:
    # What is quadratic inside the interpreter (a pattern that backtracks) counts no steps of ours: at this size it
    # would not end before the test's time-out.
    ADVERSARIES[name](size)()
