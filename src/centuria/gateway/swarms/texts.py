"""Facts without the long texts in them: for whoever watches a whole swarm at once, such as the web page. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from centuria.events import CallClosed, CallOpened, Fact, Record, TaskAdded, TaskEnded
from centuria.stream import Gap, Item

#: What is told in place of an item; None: nothing.
Show = Callable[[Item], Item | None]


def whole(item: Item) -> Item:
    """Every item as it is."""
    return item


def without_texts(agent: str = "") -> Show:
    """Every fact, with its prompts, arguments, results and answers left out; pieces of text of this agent alone."""

    def show(item: Item) -> Item | None:
        if isinstance(item, Record):
            return replace(item, event=_shortened(item.event))
        return item if isinstance(item, Gap) or item.task == agent else None

    return show


def _shortened(event: Fact) -> Fact:
    match event:
        case CallOpened():
            return replace(event, arguments="")
        case CallClosed():
            result = event.result
            short = None if result is None else replace(result, text="", structured=None)
            return replace(event, completion=None, result=short, partial="")
        case TaskEnded():
            return replace(event, outcome=replace(event.outcome, text="", structured=None))
        case TaskAdded() if event.assigned is not None:
            return replace(event, assigned=replace(event.assigned, system="", prompt="", schema=None))
        case _:
            return event
