"""A conversation in the model's window: shares, the split, and repeated calls."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from centuria.core.repeats import REMINDED, STOPPED, Repeats
from centuria.core.window import FULL, Window, shorten, size, transcript
from centuria.messages import Message, ToolCall, Usage

SIZES = st.lists(st.integers(0, 200_000), min_size=1, max_size=130)


@given(st.integers(2_000, 300_000), st.integers(0, 1_000_000), SIZES)
def test_the_results_of_a_turn_together_take_no_more_than_half_of_what_is_left(
    context: int, history: int, wanted: list[int]
) -> None:
    window = Window(context, 4_000)
    shares = window.shares(history, wanted)
    assert sum(shares) <= max(window.room // 8, int(FULL * window.room) - history) // 2
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    whole = [share for share, want in zip(shares, wanted, strict=True) if share == want]
    assert not cut or max(whole, default=0) <= max(cut) + 1  # the small ones are whole


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages = [Message("system", "rules"), Message("user", "task")]
    for number in range(draw(st.integers(0, 12))):
        calls = tuple(ToolCall(f"{number}.{n}", "t", "{}") for n in range(draw(st.integers(0, 3))))
        messages.append(Message("assistant", draw(st.text(max_size=400)), tool_calls=calls))
        messages += [Message("tool", "x" * draw(st.integers(0, 900)), tool_call_id=call.id) for call in calls]
        if not calls:
            messages.append(Message("user", "again"))
    return messages


@given(histories(), st.integers(1_024, 4_000))
def test_what_is_told_in_short_never_parts_a_call_from_its_results(history: list[Message], context: int) -> None:
    split = Window(context, 100).split(history, 2)
    if split is None:
        return
    assert 3 < split <= len(history)
    kept = history[split:]
    asked = {call.id for message in kept for call in message.tool_calls}
    assert {message.tool_call_id for message in kept if message.role == "tool"} == asked
    assert not kept or kept[0].role != "tool"


@given(histories(), st.integers(1_000, 20_000))
def test_a_transcript_stays_within_its_bounds(history: list[Message], most: int) -> None:
    assert len(transcript(history, most).encode()) <= most + 60


@given(st.text(), st.integers(10, 500))
def test_a_text_that_fits_is_left_alone_and_a_longer_one_says_what_is_gone(text: str, most: int) -> None:
    short = shorten(text, most)
    if len(text.encode("utf-8", "replace")) <= most:
        assert short == text
    else:
        assert "bytes left out" in short


def test_the_window_learns_how_many_bytes_a_token_has() -> None:
    window = Window(10_000, 2_000)
    assert window.room == 24_000
    window.learn(40_000, Usage(prompt=10_000))
    assert window.room == 32_000
    window.learn(1, Usage(prompt=10_000))
    assert window.room == 8_000
    window.learn(1, None)
    assert window.room == 8_000


def test_a_message_is_as_large_as_all_that_it_carries() -> None:
    call = ToolCall("id", "name", json.dumps({"a": 1}))
    assert size(Message("assistant", "héllo", reasoning="why", tool_calls=(call,))) == 32 + 6 + 3 + 2 + 4 + 8


def test_the_same_call_is_remarked_on_at_3_5_and_8_and_stopped_at_12_however_it_is_written() -> None:
    repeats = Repeats()
    remarked = []
    for number in range(1, STOPPED + 1):
        repeats.begin_turn()
        written = '{"a": 1, "b": 2}' if number % 2 else '{"b":2,"a":1}'
        if repeats.note("t", written):
            remarked.append(number)
        assert (repeats.stuck == "t") == (number == STOPPED)
        repeats.note("t", json.dumps({"a": number, "c": number}))
    assert tuple(remarked) == REMINDED


def test_a_call_that_is_made_several_times_in_one_turn_counts_once() -> None:
    repeats = Repeats()
    for _ in range(2):
        repeats.begin_turn()
        assert [repeats.note("t", "{}") for _ in range(20)] == [""] * 20
    repeats.begin_turn()
    assert "3 times" in repeats.note("t", "{}")
