"""The events of a swarm for whoever watches all of it: every fact, and no long text but the one that is asked for."""

from __future__ import annotations

from pathlib import Path

from centuria.testing.replies import Text
from tests.gateway.swarms.kit import ROOT, gateway, numbered

LONG = "A sentence that nobody asked to see. " * 40


async def test_brief_events_are_the_same_facts_without_their_texts_live_and_afterwards(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, lambda body: Text(LONG)) as one:
        id = await one.alice.spawn(tasks=numbered(5))
        async with one.alice.events(f"{ROOT}/{id}/events?brief=true") as events:
            live = [event async for event in events]
        past = await one.alice.all_events(id)
        async with one.alice.events(f"{ROOT}/{id}/events?brief=true") as events:
            again = [event async for event in events]
    facts = [(event.id, event.kind) for event in past if event.id is not None]
    for brief in (live, again):
        assert [(event.id, event.kind) for event in brief if event.id is not None] == facts
        assert not any("nobody asked" in str(event.data) for event in brief)
        assert brief[-1].kind == "end"
    assert "nobody asked" in str([event.data for event in past])
    closed = next(event.data for event in again if event.kind == "call_closed")
    assert closed["usage"]["output"] > 0
    assert closed["end"] == "done"
    ended = next(event.data["outcome"] for event in again if event.kind == "task_ended")
    assert (ended["status"], ended["text"]) == ("ok", "")


async def test_brief_events_have_the_pieces_of_text_of_one_agent_alone(tmp_path: Path) -> None:
    async with gateway(tmp_path, lambda body: Text(LONG, piece=40), latency=(0.2, 0.3)) as one:
        id = await one.alice.spawn(tasks=numbered(5))
        async with one.alice.events(f"{ROOT}/{id}/events?brief=true&agent=t3") as events:
            seen = [event async for event in events]
    pieces = [event for event in seen if event.kind == "text_delta"]
    assert {piece.data["agent"] for piece in pieces} == {"t3"}
    assert "".join(piece.data["text"] for piece in pieces) == LONG
