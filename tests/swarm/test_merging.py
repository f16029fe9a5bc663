"""A written merge that is too long for one request becomes a tree of them; nothing is dropped silently."""

from __future__ import annotations

import re

from centuria.core.window import size
from centuria.errors import ContextTooLong
from centuria.events import Notice, PartMerged
from centuria.ports import Caller, ChatRequest
from centuria.settings import MERGE, Job, Limits, Merge, Task
from centuria.testing.scripted import Answer, completion
from tests.swarm.kit import Ended, run

WINDOW = 32_000
RESULTS = 300
_MARK = re.compile(r"fact-\d+")


def job(count: int = RESULTS, **merge: object) -> Job:
    tasks = tuple(Task(f"t{n}", f"Find {n}.", f"spec {n}") for n in range(count))
    return Job("wide", tasks, limits=Limits(budget=None), merge=Merge("written", **merge))  # type: ignore[arg-type]


def merging(request: ChatRequest, caller: Caller) -> Answer:
    """Results of 20 kB with one fact in each; a merger that keeps every fact and nothing else."""
    if caller.key.task != MERGE:
        return f"{'filler ' * 2_850} fact-{caller.key.task[1:]}"
    return " ".join(_MARK.findall(request.messages[1].content)) or "nothing"


def tokens(request: ChatRequest) -> int:
    """As a provider counts that finds three bytes a token."""
    return sum(map(size, request.messages)) // 3 + request.max_tokens


def asked(ended: Ended) -> list[ChatRequest]:
    return ended.requests_of(MERGE)


def test_300_results_of_20_kb_merge_within_a_window_of_32k_no_request_exceeds_it_and_no_fact_is_lost() -> None:
    ended = run(merging, job=job(), context=WINDOW)
    assert set(_MARK.findall(ended.merged.answer)) == {f"fact-{n}" for n in range(RESULTS)}
    assert max(map(tokens, asked(ended))) <= WINDOW
    assert all(len(end.text) > 19_000 for end in ended.outcomes.values())


def test_the_tree_of_the_merge_is_kept_and_names_every_result() -> None:
    ended = run(merging, job=job(), context=WINDOW)
    knots = [event for event in ended.events if isinstance(event, PartMerged)]
    levels = {knot.level for knot in knots}
    assert levels == set(range(1, len(levels) + 1))
    leaves = {name for knot in knots if knot.level == 1 for name in knot.inputs}
    assert leaves == {f"t{n}" for n in range(RESULTS)}
    assert [(knot.level, knot.name, knot.inputs) for knot in knots] == ended.progress.merged
    assert all((ended.folder / knot.path).exists() for knot in knots)
    assert any(isinstance(event, Notice) and "a group at a time" in event.text for event in ended.events)


def test_what_fits_is_merged_in_one_request() -> None:
    ended = run(merging, job=job(2), context=WINDOW)
    assert len(asked(ended)) == 1
    assert not ended.progress.merged


def test_a_group_that_the_provider_finds_too_long_is_merged_by_halves() -> None:
    def strict(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task == MERGE and size(request.messages[1]) > 30_000:
            return ContextTooLong("Too long.", status=400)
        return merging(request, caller)

    ended = run(strict, job=job(20), context=WINDOW)
    assert set(_MARK.findall(ended.merged.answer)) == {f"fact-{n}" for n in range(20)}


def test_a_merged_answer_that_was_cut_off_is_said_to_be() -> None:
    def cut(request: ChatRequest, caller: Caller) -> Answer:
        return "found" if caller.key.task != MERGE else completion("half an ans", finish="length")

    ended = run(cut, job=job(3), context=WINDOW)
    assert any(isinstance(event, Notice) and "was cut off at its" in event.text for event in ended.events)


def test_a_merger_that_writes_too_much_is_cut_and_that_is_said() -> None:
    def verbose(request: ChatRequest, caller: Caller) -> Answer:
        return "word " * 20_000

    ended = run(verbose, job=job(20), context=WINDOW)
    assert max(map(tokens, asked(ended))) <= WINDOW
    assert any(isinstance(event, Notice) and "was cut" in event.text for event in ended.events)
