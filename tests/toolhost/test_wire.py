"""Messages as bytes: what JSON cannot hold spoils a character, never the session."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from centuria.toolhost.wire import answers, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_a_message_is_one_line_that_reads_back_the_same(message: dict[str, Any]) -> None:
    line = encode(message)
    assert b"\n" not in line
    assert decode(line) == json.loads(line) == message


def test_half_a_surrogate_pair_or_a_number_beyond_all_bounds_is_sent_as_json_still() -> None:
    assert decode(encode({"text": "caf\ud800é"})) == {"text": "caf?é"}
    assert decode(encode({"number": 1e999})) == {"number": None}


def test_bad_bytes_spoil_a_character_only_and_what_is_no_message_is_none() -> None:
    assert decode(b'{"text": "caf\xe9"}') == {"text": "caf\N{REPLACEMENT CHARACTER}"}
    assert decode(b'{"text": "\\ud800"}') == {"text": "?"}
    assert [decode(bad) for bad in (b"", b"[1]", b"7", b"{", b"[" * 100_000, b"\xff")] == [None] * 6


def test_an_answer_belongs_to_its_own_request() -> None:
    assert answers({"id": 7, "result": {}}, 7)
    assert answers({"id": "7", "result": {}}, 7)
    assert answers({"id": None, "error": {}}, 7)
    assert not answers({"id": None, "result": {}}, 7)
    assert not answers({"id": 8, "result": {}}, 7)
