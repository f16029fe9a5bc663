"""The end of a run's work: many results become one answer, in files of the run's folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from centuria import merge as merging
from centuria.core.calls import fingerprint
from centuria.errors import BudgetExceeded, CenturiaError, JournalError
from centuria.events import FileWritten, Notice, PhaseStarted
from centuria.kit import RUN_NODE, Kit
from centuria.messages import CallKey, Completion
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
        messages, shortened = merging.summary_messages(results, context=self._endpoint.context)
        if shortened:
            text = "The results were shortened to fit the model's context for the written answer; reports/ has all."
            self._kit.stream.publish(Notice(text, "warning"))
        request = ChatRequest(messages, max_tokens=self._job.merge.max_tokens)
        self._merging = current = asyncio.current_task()
        try:
            completion = await self._ask_merger(request)
        except asyncio.CancelledError:
            if not self._stopped or current is None or current.uncancel():
                raise
            return Merged(fallback, f"the summary was not written: {self._stopped}")
        except JournalError:
            raise
        except CenturiaError as error:
            budget = isinstance(error, BudgetExceeded)
            return Merged(fallback, f"the summary was not written: {error}", budget=budget)
        finally:
            self._merging = None
        self._write("summary.md", completion.message.content.rstrip() + "\n")
        return Merged(completion.message.content)

    async def _ask_merger(self, request: ChatRequest) -> Completion:
        """The merge's one call. Its epoch is its content: other results make another call, never a false replay."""
        content = fingerprint([message.content for message in request.messages])
        key = CallKey(MERGE, int(content[:7], 16), 0, 0)
        return await self._kit.model.chat(request, Caller(key, RUN_NODE, priority=0))

    def _write(self, name: str, text: str) -> None:
        self._kit.folder.write(name, text)
        self._kit.stream.publish(FileWritten(name))
