"""A recording shows no key, however it is spread over a stream; and is a file, or is refused."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.core.blotting import Blotter, secret_name
from centuria.errors import ConfigurationError, ModelError
from centuria.model.http import HttpTransport
from centuria.model.recording import RecordingTransport
from centuria.model.replay import Recording, about_of
from centuria.model.sse import EventDecoder
from centuria.ports import HttpRequest
from centuria.testing.upstream import FakeUpstream, Reply, Text
from tests.model.kit import KEY
from tests.promises.kit import Body, centuria, prompt, results, the_run, write_job


def deltas(parts: list[str], field: str, ascii: bool) -> bytes:
    """A stream whose chunks hold these parts of one text."""
    chunks = [{"choices": [{"index": 0, "delta": {field: part}}], "id": "c"} for part in parts]
    return b"".join(b"data: " + json.dumps(chunk, ensure_ascii=ascii).encode() + b"\n\n" for chunk in chunks)


def text_of(body: bytes, field: str) -> str:
    decoder = EventDecoder()
    events = [*decoder.feed(body), *decoder.close()]
    return "".join(json.loads(event.data)["choices"][0]["delta"][field] for event in events)


@given(
    around=st.lists(st.text(max_size=8), min_size=2, max_size=2),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    size=st.integers(1, 200),
    field=st.sampled_from(["content", "reasoning_content", "arguments", "reasoning"]),
    ascii=st.booleans(),
)
def test_a_key_is_blotted_out_of_a_streamed_text_whose_deltas_hold_a_part_of_it_each(
    around: list[str], cuts: list[int], size: int, field: str, ascii: bool
) -> None:
    text = around[0] + KEY + around[1]
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    body = deltas([text[a:b] for a, b in pairwise(edges)], field, ascii)
    pieces = [(0.0, body[at : at + size]) for at in range(0, len(body), size)]
    covered = Blotter([KEY]).pieces(pieces)
    assert [len(piece) for _, piece in covered] == [len(piece) for _, piece in pieces]
    assert text_of(b"".join(piece for _, piece in covered), field) == text.replace(KEY, "*" * len(KEY))


def test_two_texts_of_one_stream_are_no_key_together() -> None:
    body = deltas([KEY[:10]], "content", True) + deltas([KEY[10:]], "arguments", True)
    assert Blotter([KEY]).pieces([(0.0, body)]) == [(0.0, body)]


async def test_a_run_whose_model_says_the_key_is_replayed_without_it(tmp_path: Path) -> None:
    def reply(body: Body) -> Reply:
        return Text(f"{prompt(body)} The key is {KEY}.", piece=4)

    tape, key = tmp_path / "run.jsonl", {"CENTURIA_API_KEY": KEY}
    async with FakeUpstream(reply, key=KEY) as upstream:
        job = write_job(tmp_path, upstream, rows=2, model={"key_env": "CENTURIA_API_KEY"})
        assert (await centuria(tmp_path, "run", job, "--record", tape, "--yes", "--quiet", env=key)).code == 0
        (tmp_path / "runs").rename(tmp_path / "recorded")
        assert (await centuria(tmp_path, "run", job, "--replay", tape, "--quiet")).code == 0
        assert len(upstream.requests) == 2
    answers = {line["answer"] for line in results(the_run(tmp_path)).values()}
    assert answers == {f"Report on n{n}. The key is {'*' * len(KEY)}." for n in range(2)}


def test_a_pipe_is_no_recording_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (Recording, about_of):
        with pytest.raises(ConfigurationError, match="no file"):
            read(pipe)


@pytest.mark.parametrize("url", ["http://[::1", "http://h/[", "http://[bad]/v1?token=abc"])
async def test_a_recorder_raises_what_its_transport_raises_for_any_address(tmp_path: Path, url: str) -> None:
    transport = RecordingTransport(HttpTransport(), tmp_path / "run.jsonl")
    try:
        with pytest.raises(ModelError):
            async with transport.send(HttpRequest("POST", url, {}, b"{}", 1.0)):
                pass
    finally:
        await transport.aclose()


@pytest.mark.parametrize("name", ["accessToken", "X-ApiKey", "clientSecret", "GITHUB_PAT", "db-pwd", "authToken"])
def test_a_name_in_any_spelling_tells_a_secret(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize("name", ["Accept", "Idempotency-Key", "max_tokens", "pattern", "page", "monkey"])
def test_a_name_that_only_looks_like_one_tells_none(name: str) -> None:
    assert not secret_name(name)
