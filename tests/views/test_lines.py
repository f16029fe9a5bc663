"""The stream as JSON lines: tagged, complete, and slow readers cost nobody else anything."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.core.progress import Progress
from centuria.events import Notice, Record, TaskAdded, TextDelta
from centuria.stream import Feed, Stream
from centuria.testing.journal import MemoryJournal
from centuria.testing.upstream import Calls, FakeUpstream, Text
from centuria.views.lines import line, lines
from tests.journal.test_codec import FACTS, values
from tests.promises.kit import centuria, turn, write_job


def parsed(file: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def stream() -> Stream:
    return Stream(MemoryJournal(), clock=lambda: 7.0, progress=Progress())


async def test_facts_and_deltas_are_lines_tagged_with_agent_parent_attempt_and_sequence() -> None:
    source, file = stream(), io.StringIO()
    writing = asyncio.create_task(lines(source, file, subscription=source.subscribe()))
    source.publish(TaskAdded("a", 0, "s"), TaskAdded("b", 1, "s", parent="a", depth=1))
    source.publish(TextDelta("b", 3, 2, "héllo \ud800", reasoning=True))
    source.close()
    await writing
    first, second, third = parsed(file)
    assert (first["seq"], first["at"], first["agent"], first["parent"]) == (1, 7.0, "a", None)
    assert (second["kind"], second["agent"], second["parent"]) == ("task_added", "b", "a")
    assert third == {
        "run": "",
        "agent": "b",
        "parent": "a",
        "kind": "text_delta",
        "turn": 3,
        "attempt": 2,
        "text": "héllo \ud800",
        "reasoning": True,
    }


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
    return dict(pairs)


@pytest.mark.parametrize("kind", FACTS, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_no_line_of_any_kind_of_fact_has_a_name_twice_and_the_tags_win(kind: Any, data: st.DataObject) -> None:
    event = data.draw(values(kind))
    told = json.loads(line(Record(5, 9.0, event), Feed(Progress())), object_pairs_hook=once)
    assert (told["seq"], told["at"], told["kind"]) == (5, 9.0, event.kind)
    if hasattr(event, "at"):
        assert told["clock"] == event.at or str(told["clock"]) == str(event.at)


class Stuck(io.StringIO):
    """A pipe that nobody reads from until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.let_go.wait(30)
        return super().write(text)


async def test_a_reader_that_sleeps_holds_no_more_than_its_bound_and_delays_nobody() -> None:
    source, file = stream(), Stuck()
    held = source.subscribe(bound=100)
    writing = asyncio.create_task(lines(source, file, subscription=held))
    for number in range(10_000):
        source.publish(Notice(str(number)))  # returns at once, whoever reads
        assert held.waiting <= 100
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    source.close()
    file.let_go.set()
    await writing
    told = parsed(file)
    gaps = [line for line in told if line["kind"] == "gap"]
    assert gaps
    assert told[-1]["text"] == "9999"
    assert len(told) < 1_000


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


async def test_a_reader_that_has_gone_ends_its_own_stream_and_nothing_else() -> None:
    source = stream()
    held = source.subscribe()
    writing = asyncio.create_task(lines(source, Gone(), subscription=held))
    source.publish(Notice("one"))
    async with asyncio.timeout(10):
        await writing
    source.publish(Notice("two"))
    assert held.waiting == 0


async def test_a_run_streams_its_facts_and_its_answer_as_it_is_written_and_ends_with_the_result(tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> Calls | Text:
        if turn(body) == 0 and "reach" in str(body["messages"][1]["content"]):
            made = [{"name": "w", "system_prompt": "Work."}, {"agent": "w", "prompt": "part"}]
            return Calls((("create_subagent", json.dumps(made[0])), ("assign_task", json.dumps(made[1]))))
        return Text("All of it, piece by piece.")

    async with FakeUpstream(script) as upstream:
        job = write_job(tmp_path, upstream, job={"prompt": "reach it"})
        ended = await centuria(tmp_path, "run", job, "--stream")
    *facts, result = ended.lines
    assert ended.code == 0
    assert result["answer"].strip() == "All of it, piece by piece."
    numbers = [line["seq"] for line in facts if line["kind"] not in ("text_delta", "gap")]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert facts[-1]["kind"] == "file_written"
    child = next(line["task"] for line in facts if line["kind"] == "task_added" and line["parent"] == "goal")
    said = "".join(line["text"] for line in facts if line["kind"] == "text_delta" and line["agent"] == "goal")
    assert said == "All of it, piece by piece."
    assert any(line["kind"] == "text_delta" and line["agent"] == child for line in facts)
    assert {line["run"] for line in facts[1:]} == {result["run"]}
