"""Server-sent events: whatever the pieces, the same events; a cap on each."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.toolhost.sse import Event, EventReader, TooLong

TEXT = (
    b"\xef\xbb\xbf: hello\r\n\r\nid: 1\ndata: one\ndata:two\n\nevent: other\nid: 2\ndata: not ours\r\n\r\n"
    b"retry: 250\r\ndata\r\n\nevent: message\rdata: three\r\rid: x\0y\ndata: {\n\n:\n\ndata: cut"
)
EVENTS = [
    Event(b"one\ntwo", "1"),
    Event(b"", "2"),
    Event(b"", "", 0.25),
    Event(b"three"),
    Event(b"{"),
]


@given(st.lists(st.integers(0, len(TEXT)), max_size=30))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    reader = EventReader(1000)
    found = [event for a, b in pairwise(places) for event in reader.feed(TEXT[a:b])]
    assert found == EVENTS


def test_an_event_beyond_the_cap_is_refused_before_it_is_whole() -> None:
    reader = EventReader(100)
    assert reader.feed(b"data: " + b"x" * 90 + b"\n\n") == [Event(b"x" * 90)]
    with pytest.raises(TooLong):
        for _ in range(20):
            reader.feed(b"data: 12345678")
