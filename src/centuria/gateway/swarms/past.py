"""What a run's folder tells of it: for swarms that have ended, and for what is no longer in memory. Blocking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from centuria.core.progress import Progress
from centuria.ending import results_lines
from centuria.events import CallClosed, CallOpened, Record, TaskAdded, TaskEnded
from centuria.folder import RunFolder
from centuria.journal import JournalReader
from centuria.messages import DOLLAR
from centuria.settings import Task

#: Characters of one text, and of all texts, that are told of an agent's conversation; turns of it.
TEXT, TEXTS, TURNS = 20_000, 1_000_000, 500


@dataclass(frozen=True, slots=True)
class Past:
    """A run's journal, folded."""

    folder: RunFolder
    progress: Progress


def read_past(folder: RunFolder) -> Past | None:
    """None where there is no fact. Raises `JournalError` for a journal that cannot be read."""
    if not folder.journal.is_file() or not folder.journal.stat().st_size:
        return None
    progress = Progress()
    with JournalReader(folder.journal) as reader:
        for record in reader.records():
            progress.record(record)
    return Past(folder, progress) if progress.seq else None


def result_of(folder: RunFolder) -> tuple[str, list[dict[str, Any]]]:
    """The merged answer, and the outcome of each task. Raises `JournalError`."""
    answer = folder.read("answer.md") if folder.exists("answer.md") else ""
    if folder.exists("results.jsonl"):
        text = folder.read("results.jsonl")
    elif folder.journal.is_file():
        with JournalReader(folder.journal) as reader:
            ends = {end.task: end for end in reader.outcomes()}
        text = results_lines([Task(task, "", "") for task in ends], ends)
    else:
        text = ""
    # Not `splitlines`: a text may hold other ends of lines than those between the lines.
    outcomes = [json.loads(line) for line in text.split("\n") if line]
    for outcome in outcomes:
        outcome["cost_usd"], outcome["held_usd"] = outcome.pop("cost"), outcome.pop("held")
    return answer, outcomes


# -- one agent --------------------------------------------------------------------------------------------------------


class _Room:
    """What is left of the characters that are told."""

    def __init__(self) -> None:
        self.left = TEXTS
        self.capped = False

    def take(self, text: str) -> str:
        most = min(TEXT, self.left)
        self.capped = self.capped or len(text) > most
        self.left -= min(len(text), most)
        return text[:most]


def conversation(folder: RunFolder, prompts: Mapping[str, str], agent: str) -> dict[str, Any] | None:
    """One agent's conversation so far, in its latest epoch; None where there is no such agent. `prompts` are those
    of the request, by task.

    Raises `JournalError`.
    """
    with JournalReader(folder.journal) as reader:
        records = reader.about(agent)
    added = next((one.event for one in records if isinstance(one.event, TaskAdded)), None)
    if added is None:
        return None
    room = _Room()
    assigned = added.assigned
    prompt = assigned.prompt if assigned is not None else prompts.get(agent, "")
    told: dict[str, Any] = {"agent": agent, "parent": added.parent, "needs": list(added.needs)}
    told["prompt"] = room.take(prompt)
    if assigned is not None:
        told["role"], told["system"] = assigned.agent, room.take(assigned.system)
    ends = [one.event.outcome for one in records if isinstance(one.event, TaskEnded)]
    told["turns"] = _turns(records, room)
    told["outcome"] = None
    if ends:
        end = ends[-1]
        told["outcome"] = {"status": end.status.value, "cause": end.cause, "text": room.take(end.text)}
    told["capped"] = room.capped
    return told


def _turns(records: list[Record], room: _Room) -> list[dict[str, Any]]:
    calls = [one.event for one in records if isinstance(one.event, CallOpened | CallClosed)]
    epoch = max((call.key.epoch for call in calls), default=0)
    turns: dict[int, dict[str, Any]] = {}
    tools: dict[tuple[int, int], dict[str, Any]] = {}
    for call in calls:
        key = call.key
        if key.epoch != epoch:
            continue
        turn = turns.setdefault(key.turn, {"turn": key.turn, "text": "", "attempts": 0, "tool_calls": []})
        if isinstance(call, CallOpened):
            if call.call == "model":
                turn["attempts"] += key.position == 0
            elif (key.turn, key.position) not in tools:
                one = {"name": call.name, "arguments": room.take(call.arguments), "state": "open", "result": None}
                tools[key.turn, key.position] = one
                turn["tool_calls"].append(one)
        elif key.position == 0:
            _say(turn, call, room)
        elif (key.turn, key.position) in tools:
            one = tools[key.turn, key.position]
            one["state"] = call.end if call.result is None else call.result.end.value
            one["result"] = None if call.result is None else room.take(call.result.text)
    room.capped = room.capped or len(turns) > TURNS
    return [turns[number] for number in sorted(turns)][-TURNS:]


def _say(turn: dict[str, Any], call: CallClosed, room: _Room) -> None:
    if call.completion is None:
        turn["error"] = call.error
        turn["text"] = room.take(call.partial)
        return
    turn.pop("error", None)
    message = call.completion.message
    turn |= {"text": room.take(message.content), "reasoning": room.take(message.reasoning or "")}
    turn |= {"finish": call.completion.finish, "cost_usd": call.cost / DOLLAR}
    if call.usage is not None:
        turn["tokens"] = {"prompt": call.usage.prompt, "cached": call.usage.cached, "output": call.usage.output}
