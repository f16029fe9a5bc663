"""The end of a run's work: many results become one answer, in files of the run's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from centuria import merge as merging
from centuria.core.calls import fingerprint
from centuria.core.merge_tree import SHARE, Part, fits, groups, split
from centuria.core.window import shorten
from centuria.errors import BudgetExceeded, CenturiaError, ContextTooLong, JournalError, first_of
from centuria.events import FileWritten, Notice, PartMerged, PhaseStarted
from centuria.kit import RUN_NODE, Kit
from centuria.messages import CallKey, Message
from centuria.ports import Caller, ChatRequest
from centuria.settings import MERGE, Endpoint, Job


@dataclass(frozen=True, slots=True)
class Merged:
    """The one answer. `cause` says what is wrong with it ("" = nothing); `budget`: money was what it lacked."""

    answer: str
    cause: str = ""
    budget: bool = False


class Merger:
    """Merges what there is. Nothing paid for is left out; nothing is bought after a `cancel`."""

    def __init__(self, job: Job, endpoint: Endpoint, kit: Kit) -> None:
        self._job = job
        self._endpoint = endpoint
        self._kit = kit
        self._stopped = ""
        #: By content: groups that are alike, word for word, are one call.
        self._asking: dict[str, asyncio.Lock] = {}
        self._merging: asyncio.Task[object] | None = None

    @property
    def stopped(self) -> str:
        """Why nothing more is bought; "" if it may be."""
        return self._stopped

    def cancel(self, cause: str) -> None:
        self._stopped = cause
        if self._merging is not None:
            self._merging.cancel()

    async def merge(self, results: merging.Results) -> Merged:
        """Make the one answer."""
        job = self._job
        self._kit.stream.publish(PhaseStarted("merge"))
        answer = merging.concatenate(results)
        if job.merge.kind == "table":
            self._write("table.csv", merging.to_csv(results))
            answer = merging.to_markdown(results)
        if len(job.tasks) == 1 and job.merge.kind == "concatenate":
            answer = merging.of_one(results)
        merged = Merged(answer)
        if job.merge.kind == "written" or job.merge.summary is not None:
            merged = await self._write_summary(results, answer)
        if job.merge.kind != "table":
            self._write("answer.md", merged.answer)
        return merged

    async def _write_summary(self, results: merging.Results, fallback: str) -> Merged:
        if self.stopped:
            return Merged(fallback, "the summary was not written: the run was cancelled")
        if not results.finished():
            return Merged(fallback, "the summary was not written: no task ended ok")
        self._merging = current = asyncio.current_task()
        try:
            text = await (self._own_summary(results) if self._job.merge.summary else self._written(results))
        except asyncio.CancelledError:
            if not self._stopped or current is None or current.uncancel():
                raise
            return Merged(fallback, f"the summary was not written: {self._stopped}")
        except Exception as caught:  # the edge of the merge's task groups: what there is stands for the answer
            error = first_of(caught)
            if isinstance(error, JournalError) or not isinstance(error, CenturiaError):
                raise
            budget = isinstance(error, BudgetExceeded)
            return Merged(fallback, f"the summary was not written: {error}", budget=budget)
        finally:
            self._merging = None
        self._write("summary.md", text.rstrip() + "\n")
        return Merged(text)

    async def _own_summary(self, results: merging.Results) -> str:
        messages, left_out = merging.summary_messages(results, room=self._room)
        if left_out:
            said = (
                f"{left_out} rows of the table did not fit into the prompt of the summary; table.csv has all of them."
            )
            self._kit.stream.publish(Notice(said, "warning"))
        return await self._ask(messages, self._max_tokens, position=0)

    async def _written(self, results: merging.Results) -> str:
        """One request where all results fit into it; else a tree of them, a group at a time."""
        parts, level, room = merging.parts(results), 0, self._room
        while not fits(parts, room):
            level += 1
            if level == 1:
                said = f"The {len(parts)} results are too long for one request: they are merged a group at a time."
                self._kit.stream.publish(Notice(said))
            made = groups(parts, room)
            async with asyncio.TaskGroup() as group:
                texts = [
                    group.create_task(self._join(results, level, number, members))
                    for number, members in enumerate(made, 1)
                ]
            parts = [text.result() for text in texts]
        return await self._ask(merging.written_messages(results, parts), self._max_tokens, position=0)

    async def _join(self, results: merging.Results, level: int, number: int, members: Sequence[Part]) -> Part:
        """One group of parts becomes one. Where the provider finds them too long, half of them at a time."""
        most = int(self._room * SHARE)
        name = f"part {level}.{number}"
        of = tuple(dict.fromkeys(task for part in members for task in part.of))
        if len(members) == 1 and members[0].size <= most:
            return members[0]
        messages = merging.part_messages(results, members, most)
        try:
            text = await self._ask(messages, max(256, most // 3), position=number)
        except ContextTooLong:
            halves = _halves(members)
            texts = [(await self._join(results, level, number, half)).text for half in halves]
            text = "\n\n".join(texts)
        part, file = Part(name, shorten(text, 2 * most), of), f"merge/{level}-{number}.md"
        if part.text != text:
            said = f"The text of {name} of the merge is longer than was asked for and was cut; {file} has all of it."
            self._kit.stream.publish(Notice(said, "warning"))
        self._write(file, text.rstrip() + "\n")
        self._kit.stream.publish(PartMerged(name, level, tuple(member.name for member in members), file))
        return part

    @property
    def _max_tokens(self) -> int:
        return min(self._job.merge.max_tokens, self._endpoint.context // 2)

    @property
    def _room(self) -> int:
        return merging.room(self._endpoint.context, self._max_tokens)

    async def _ask(self, messages: tuple[Message, ...], max_tokens: int, *, position: int) -> str:
        """One call of the merge. Its epoch is its content: other results make another call, never a false replay."""
        content = fingerprint([message.content for message in messages])
        caller = Caller(CallKey(MERGE, int(content[:13], 16), 0, 0), RUN_NODE, index=position, priority=0)
        async with self._asking.setdefault(content, asyncio.Lock()):  # the second is answered from the journal
            completion = await self._kit.model.chat(ChatRequest(messages, max_tokens=max_tokens), caller)
        if completion.finish == "length":
            said = f"A text of the merge was cut off at its {max_tokens:,} tokens: raise max_tokens in [merge]."
            self._kit.stream.publish(Notice(said, "warning"))
        return completion.message.content

    def _write(self, name: str, text: str) -> None:
        self._kit.folder.write(name, text)
        self._kit.stream.publish(FileWritten(name))


def _halves(members: Sequence[Part]) -> list[Sequence[Part]]:
    if len(members) > 1:
        return [members[: len(members) // 2], members[len(members) // 2 :]]
    pieces = split(members[0], max(1_000, members[0].size * 2 // 3))
    if len(pieces) == 1:
        raise ContextTooLong(f"{members[0].name} is too long for the model, however short it is cut.")
    return [[piece] for piece in pieces]
