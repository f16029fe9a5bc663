"""What a breaker did to the gateway, each once."""

from __future__ import annotations

from dataclasses import replace

from centuria.messages import DOLLAR
from centuria.testing import FakeUpstream
from centuria.testing.replies import Text
from tests.gateway.served import one, serving, usage

VIDEO = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://example.com/v.mp4"}}]}]


async def test_what_a_film_of_one_key_cost_is_not_reserved_for_the_words_of_another() -> None:
    said = [usage(100_000, 5), usage(20, 5)]
    async with (
        FakeUpstream(lambda _: replace(Text("Hi."), usage=said.pop(0))) as upstream,
        serving(one(upstream)) as it,
    ):
        rich, poor = await it.add_key("rich"), await it.add_key("poor", budget=DOLLAR // 100)
        assert (await it.ask(rich, messages=VIDEO)).status == 200
        assert (await it.ask(poor)).status == 200


async def test_a_count_that_no_prompt_can_have_is_not_reserved_for_the_next_one() -> None:
    said = [usage(900_000_000, 5), usage(20, 5)]
    async with (
        FakeUpstream(lambda _: replace(Text("Hi."), usage=said.pop(0))) as upstream,
        serving(one(upstream)) as it,
    ):
        rich, poor = await it.add_key("rich"), await it.add_key("poor", budget=DOLLAR // 100)
        assert (await it.ask(rich)).status == 200
        assert (await it.ask(poor)).status == 200
