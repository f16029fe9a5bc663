"""StreamRelay: the same bytes and the same facts, wherever an upstream's stream was cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.errors import ModelError
from centuria.gateway.chat.relay import EVENT_CAP, StreamRelay, as_stream, whole_usage
from centuria.messages import Usage

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
ENDS = ["\n\n", "\r\n\r\n", "\n\r\n", "\r\r"]


def chunk(text: str = "x", finish: str | None = None, **more: object) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": None, **more}, ensure_ascii=False)


TOLD = json.dumps({"choices": [], "usage": USAGE})
IN_CHOICE = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]})
MISHAP = json.dumps({"error": {"type": "server_error", "message": "It broke."}})
EVENTS = st.lists(
    st.sampled_from(
        [
            "data: " + chunk(),
            "data: " + chunk("ünï \\n\\n \r"),
            "data:" + chunk("y", "stop"),
            "data: " + TOLD,
            "data: " + IN_CHOICE,
            "data: " + MISHAP,
            "data: [DONE]",
            ": a comment",
            "event: ping\ndata: {}",
            'data: no JSON, but "usage": {',
            "data: " + json.dumps({"choices": [], "prompt_filter_results": []}),
            'data: {"choices": [], "usage":\ndata: {"prompt_tokens": 3, "completion_tokens": 1}}',
        ]
    ),
    max_size=8,
)


def read(relay: StreamRelay, pieces: list[bytes]) -> tuple[bytes, tuple[object, ...]]:
    out = b"".join([relay.feed(piece) for piece in pieces]) + relay.close()
    error = None if relay.error is None else str(relay.error)
    return out, (relay.usage, relay.begun, relay.complete, relay.done, error, relay.events)


@given(EVENTS, st.sampled_from(ENDS), st.booleans(), st.booleans(), st.data())
def test_any_cut_of_the_bytes_gives_the_same_bytes_and_facts(
    events: list[str], end: str, keep: bool, closed: bool, data: st.DataObject
) -> None:
    stream = "".join(event + end for event in events)
    body = (stream if closed else stream.removesuffix(end)).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    at_once = read(StreamRelay(keep_usage=keep), [body])
    assert read(StreamRelay(keep_usage=keep), pieces) == at_once
    assert read(StreamRelay(keep_usage=keep), [bytes([byte]) for byte in body]) == at_once


@given(st.lists(st.text(max_size=20), min_size=1, max_size=10), st.sampled_from(ENDS), st.booleans())
def test_what_passes_is_what_came_but_for_the_usage_that_only_we_asked_for(
    texts: list[str], end: str, keep: bool
) -> None:
    before = "".join(f"data: {chunk(text)}{end}" for text in texts) + f"data: {chunk('', 'stop')}{end}"
    usage, done = f"data: {TOLD}{end}", f"data: [DONE]{end}"
    relay = StreamRelay(keep_usage=keep)
    out, _ = read(relay, [(before + usage + done + "data: junk" + end).encode()])
    assert out.decode() == before + (usage if keep else "") + done
    assert relay.usage == Usage(9, 0, 0, 4)
    assert relay.complete
    assert relay.done


def test_usage_null_in_every_chunk_and_usage_beside_choices_take_nothing_out() -> None:
    partial = chunk("a", usage={"prompt_tokens": 9, "completion_tokens": 1})
    body = f"data: {chunk()}\n\ndata: {partial}\n\ndata: {IN_CHOICE}\n\n".encode()
    relay = StreamRelay(keep_usage=False)
    assert relay.feed(body) == body
    assert relay.usage == Usage(9, 0, 0, 4)


def test_an_error_inside_ends_it_and_nothing_after_it_passes() -> None:
    relay = StreamRelay(keep_usage=True, secret="upstream-secret")
    good = f"data: {chunk()}\n\n".encode()
    bad = json.dumps({"error": {"code": 429, "message": "slow down, upstream-secret"}})
    assert relay.feed(good + f"data: {bad}\n\n".encode() + good) == good
    assert relay.error is not None
    assert relay.error.status == 429
    assert "upstream-secret" not in str(relay.error)
    assert relay.feed(good) == b""
    assert relay.close() == b""


@pytest.mark.parametrize("cut", [10, 40, -3])
def test_an_event_that_broke_off_does_not_pass_and_one_without_its_blank_line_does(cut: int) -> None:
    event = f"data: {chunk()}".encode()
    relay = StreamRelay(keep_usage=True)
    assert relay.feed(event[:cut]) == b""
    assert relay.close() == b""
    whole = StreamRelay(keep_usage=True)
    assert whole.feed(event + b"\n") + whole.close() == event + b"\n\n"


def test_an_event_without_end_is_refused_when_it_is_too_large_and_costs_little_until_then() -> None:
    relay = StreamRelay(keep_usage=True)
    piece = b"x" * 65_536
    for _ in range(EVENT_CAP // len(piece)):
        assert relay.feed(piece) == b""
    assert relay.error is None
    relay.feed(piece)
    assert relay.error is not None
    assert relay.error.kind == "too_large"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", "rubbish"),
        (b"{}", "rubbish"),
        (b"[]", "rubbish"),
        (b'{"choices": 3}', "rubbish"),
        (b'{"choices": [' * 100_000, "rubbish"),
        (b'{"error": {"type": "server_error", "message": "no"}}', "server_error"),
    ],
)
def test_a_whole_answer_that_is_none_is_an_error(body: bytes, kind: str) -> None:
    usage, error = whole_usage(body)
    assert usage is None
    assert isinstance(error, ModelError)
    assert error.kind == kind


def test_an_error_as_a_whole_answer_never_shows_the_upstreams_key() -> None:
    _, error = whole_usage(b'{"error": {"message": "bad key my-very-own-key"}}', secret="my-very-own-key")
    assert error is not None
    assert "my-very-own-key" not in str(error)


def test_a_whole_answer_as_a_stream_says_all_of_it() -> None:
    whole = {
        "id": "c",
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    for keep in (True, False):
        relay = StreamRelay(keep_usage=True)
        out = relay.feed(as_stream(json.dumps(whole).encode(), keep_usage=keep))
        assert (b'"usage"' in out) == keep
        assert relay.complete
        assert relay.done
        assert relay.usage == (Usage(9, 0, 0, 4) if keep else None)
