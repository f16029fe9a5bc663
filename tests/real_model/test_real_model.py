"""The whole program against a real language model. They speak of the machinery, streams, usage, cancellation and
errors, and never of the model's wisdom; their bounds are for a loaded machine (ten tokens a second).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from centuria import Outcome, Record, Status, Swarm, TextDelta
from centuria.events import CallClosed, TaskEnded
from tests.promises.kit import calls, fold, prompt, swarm, the_run, tool_names
from tests.real_model.server import CONTEXT, MODEL, SLOTS, LlamaServer, relay

pytestmark = pytest.mark.timeout(300)

QUESTIONS = ("bread", "rain", "rivers", "music", "iron", "salt", "wool", "glass")


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaServer]:
    server = LlamaServer()
    yield server
    server.stop()


def write_job(folder: Path, base_url: str, *, prompt: str, max_tokens: int = 32, rows: int = SLOTS) -> Path:
    """A job with a model's name and its URL alone, and a built-in tool server."""
    (folder / "rows.csv").write_text("about\n" + "".join(f"{word}\n" for word in QUESTIONS[:rows]))
    path = folder / "job.toml"
    path.write_text(
        f"""
[job]
name = "real"
prompt = "{prompt}"
system = "You are a helpful assistant. Answer in one or two sentences."
rows = "rows.csv"
id = "about"
max_tokens = {max_tokens}
[model]
name = "{MODEL}"
base_url = "{base_url}"
[limits]
budget = false
[timeouts]
first_token = 240
silence = 240
total = 280
[tools.files]
builtin = "file_read"
roots = ["."]
"""
    )
    return path


async def test_eight_agents_stream_real_text_with_tools_on_offer_and_their_usage_is_the_sum_of_their_calls(
    llama: LlamaServer, tmp_path: Path
) -> None:
    ends: dict[str, Outcome] = {}
    deltas: defaultdict[str, str] = defaultdict(str)
    early: defaultdict[str, int] = defaultdict(int)
    async with relay(llama) as seen, swarm(tmp_path) as hundred:
        job = write_job(tmp_path, seen.base_url, prompt="Say something about {about}.")
        async for item in hundred.stream(job):
            match item:
                case TextDelta(task=task, text=text):
                    deltas[task] += text
                    early[task] += 1
                case Record(event=CallClosed(key=key, completion=completion)) if completion is not None:
                    assert early[key.task] > 1, "its text must arrive before its end, in more than one piece"
                    assert deltas[key.task] == completion.message.content
                case Record(event=TaskEnded(task=task, outcome=outcome)):
                    ends[task] = outcome

    assert {task: end.status for task, end in ends.items()} == dict.fromkeys(QUESTIONS, Status.OK)
    assert all(end.text.strip() and end.usage.prompt > 0 and end.usage.output > 0 for end in ends.values())
    assert all(end.usage.output <= 32 for end in ends.values())
    assert seen.peak == SLOTS
    assert seen.statuses == [200] * SLOTS
    assert {prompt(body) for body in seen.bodies} == {f"Say something about {about}." for about in QUESTIONS}
    assert all(tool_names(body) and body["stream"] and body["model"] == MODEL for body in seen.bodies)

    run = the_run(tmp_path)
    progress, rows = fold(run).progress, calls(run)
    assert len(rows) == SLOTS and all(row.state == "done" for row in rows)
    for task, end in ends.items():
        (row,) = [row for row in rows if row.task == task]
        assert (row.prompt, row.output) == (end.usage.prompt, end.usage.output)
    assert progress.usage.prompt == sum(end.usage.prompt for end in ends.values())
    assert progress.usage.output == sum(end.usage.output for end in ends.values())


async def test_a_cancelled_run_leaves_no_request_running_at_the_server(llama: LlamaServer, tmp_path: Path) -> None:
    await llama.until(lambda busy: busy == 0)
    job = write_job(tmp_path, llama.base_url, prompt="Write a long story about {about}.", max_tokens=1500)
    async with swarm(tmp_path) as hundred:
        await _leave_when_all_have_begun(hundred, job, llama)
    await llama.until(lambda busy: busy == 0, within=60)
    outcomes = [row.status for row in fold(the_run(tmp_path)).progress.tasks.values()]
    assert outcomes == [Status.CANCELLED] * SLOTS


async def _leave_when_all_have_begun(hundred: Swarm, job: Path, llama: LlamaServer) -> None:
    """Read the stream until every agent has text, see the server at work, and go away."""
    speaking: set[str] = set()
    items = hundred.stream(job)
    async with asyncio.timeout(240):
        async for item in items:
            if isinstance(item, TextDelta):
                speaking.add(item.task)
            if len(speaking) == SLOTS:
                break
    assert await llama.busy() > 1
    await items.aclose()


async def test_a_prompt_that_is_longer_than_the_models_context_fails_with_its_cause_after_one_request(
    llama: LlamaServer, tmp_path: Path
) -> None:
    long = "word " * (2 * CONTEXT)
    async with relay(llama) as seen, swarm(tmp_path) as hundred:
        job = write_job(tmp_path, seen.base_url, prompt=f"{{about}}: {long}", rows=1)
        report = await hundred.run(job)
    (outcome,) = report.outcomes.values()
    assert outcome.status is Status.FAILED and report.exit_code == 1
    assert "context" in outcome.cause and "400" in outcome.cause, outcome.cause
    assert outcome.attempts == 1 and len(seen.bodies) == 1
