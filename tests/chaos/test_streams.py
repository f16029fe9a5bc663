"""A thousand slow streams at once, each write of one between the writes of all others."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from centuria.events import TextDelta
from centuria.messages import Completion
from centuria.testing import clock
from centuria.testing.replies import Calls, Text
from centuria.testing.transport import Faults, Provider
from tests.chaos.kit import KIMI, Crowd, Stand, assert_the_books_agree, calls, prompt, seeds

STREAMS = min(1000, calls())
#: Bytes of a write: no event fits into one, and many a character is cut in two.
GRAIN = 53
ALPHABET = "äß€漢字한글🐝🦉 abc"


def words(key: str, what: str, size: int) -> str:
    """Nobody else's text, in letters of one to four bytes."""
    return f"{what} of {key}: " + "".join(random.Random(f"{key}/{what}").choices(ALPHABET, k=size))


def tool_calls(key: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"t__tool{n}", f'{{"q": "{words(key, f"call {n}", 20)}"}}') for n in range(3))


def own(body: Mapping[str, Any]) -> Text | Calls:
    key = prompt(body)
    thought, text = words(key, "thought", 30), words(key, "answer", 60)
    if random.Random(key).random() < 0.3:
        return Calls(tool_calls(key), text=text, reasoning=thought, piece=5)
    return Text(text, thought, piece=7)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(1))
def test_a_thousand_interleaved_streams_give_each_call_its_own_answer(seed: int) -> None:
    async def main() -> tuple[Stand, Provider, Crowd, list[TextDelta]]:
        # Between two writes of one stream, all others write: their pauses differ by less than one pause.
        provider = Provider(
            own, faults=Faults(seed=seed, unsaid=0.1), tariff=KIMI, latency=(0.5, 1.0), gap=(0.2, 0.24), grain=GRAIN
        )
        desk = Stand(provider, limit=STREAMS)
        reader = desk.stream.subscribe(bound=10_000_000)
        crowd = Crowd(desk, agents=STREAMS, max_tokens=400)
        await crowd.run()
        desk.stream.close()
        return desk, provider, crowd, [item async for item in reader if isinstance(item, TextDelta)]

    desk, provider, crowd, deltas = clock.run(main())
    assert provider.peak == STREAMS
    crowd.assert_every_call_has_an_outcome()
    for key, end in crowd.ends.items():
        assert isinstance(end, Completion), end
        given = own({"messages": [{"content": key}]})
        assert (end.message.content, end.message.reasoning) == (given.text, given.reasoning)
        asked = tuple((call.name, call.arguments) for call in end.message.tool_calls)
        assert asked == (given.calls if isinstance(given, Calls) else ())
    said: dict[tuple[str, bool], str] = defaultdict(str)
    for delta in deltas:
        said[f"{delta.task}/0/{delta.turn}/0", delta.reasoning] += delta.text
    assert said == {
        (key, reasoning): (end.message.reasoning or "") if reasoning else end.message.content
        for key, end in crowd.ends.items()
        for reasoning in (True, False)
        if isinstance(end, Completion)
    }
    together = sum(one.task == next_one.task for one, next_one in pairwise(deltas))
    print(f"seed {seed}: {len(deltas)} deltas, {together} of them right after one of the same stream")
    assert len(deltas) > 20 * STREAMS and together < len(deltas) // 50
    assert_the_books_agree(desk, provider)
    desk.assert_nothing_is_left_open()
