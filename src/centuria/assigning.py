"""The orchestrator's side of delegation: tasks that agents assign, who waits for them, and what ends with whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from centuria.core.arguments import BadArguments
from centuria.core.batch import needed_first
from centuria.core.delegation import ASKED, LESSON, Assignment, knows_swarm, rules
from centuria.core.graph import NewTask
from centuria.core.refusals import concerns_all
from centuria.core.waits import STALLED, WaitGraph
from centuria.core.window import transcript
from centuria.delegation import WaitRefused
from centuria.errors import ConfigurationError, FingerprintMismatch, GraphError, ModelError
from centuria.events import Fact, Notice, TaskAdded, TaskReady
from centuria.kit import RUN_NODE, Kit, branch_node, task_node
from centuria.messages import DOLLAR, CallKey, Message, Outcome, Status
from centuria.ports import Caller, ChatRequest
from centuria.seats import Seat
from centuria.settings import MERGE, Endpoint, Job, Task

_LOOK_EVERY = 5.0
#: Model calls that a task is taken to need until it has answered.
_CALLS_TO_COME = 3
#: Tokens of an agent's answer to another one's question; and what is added to the position of the asking call to make
#: that of the model call that answers it (a turn has at most 128 calls).
_ANSWER, _ASKING = 4_096, 1_000


#: Why a task ended that never began, as the census tells it.
REFUSED = "it was refused, because the budget would not have lasted for it"


class Workforce(Protocol):
    """What runs the tasks."""

    @property
    def refuses(self) -> str: ...
    @property
    def unended(self) -> int: ...
    def admit(self, tasks: Sequence[Task]) -> None: ...
    def reopen(self, task: str) -> None: ...
    def refuse(self, tasks: Sequence[str], cause: str) -> None: ...
    def note_ready(self, tasks: Sequence[str]) -> None: ...
    def cancel(self, task: str | None = None, *, cause: str = ...) -> None: ...
    def running(self, task: str) -> bool: ...
    def paused(self, task: str) -> bool: ...
    def history(self, task: str) -> Sequence[Message]: ...
    def seat(self, task: str) -> Seat: ...
    def report(self, task: str) -> str: ...


class Assigning:
    """Implements `delegation.Swarm` for all agents of a run."""

    def __init__(self, job: Job, endpoint: Endpoint, kit: Kit, workforce: Workforce) -> None:
        self._job = job
        self._endpoint = endpoint
        self._kit = kit
        self._workforce = workforce
        self._waits = WaitGraph(self._needs_of)
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._roots = {task.id: task for task in job.tasks}
        #: By task: those that it assigned; and by assigned task: those that want its answer.
        self._children: dict[str, dict[str, None]] = {}
        self._owners: dict[str, set[str]] = {}
        self._news = asyncio.Event()
        self._told_of_money = False

    # -- tasks --------------------------------------------------------------------------------------------------------

    def known(self) -> list[Task]:
        """The tasks that agents of a broken run had assigned."""
        found = []
        for task in self._kit.graph.ids():
            added = self._kit.graph.task(task)
            if added.assigned is not None and added.parent is not None:
                self._own(added.parent, task)
                found.append(self._task(added))
        return found

    def _task(self, added: TaskAdded) -> Task:
        assigned = added.assigned
        assert assigned is not None
        return Task(
            id=added.task,
            prompt=assigned.prompt,
            spec=added.spec,
            label=added.label,
            needs=added.needs,
            allow_failed=added.allow_failed,
            priority=added.priority,
            max_tokens=assigned.max_tokens,
            schema=assigned.schema,
            servers=None if assigned.servers is None else frozenset(assigned.servers),
            tools=frozenset(assigned.tools),
            variables={"agent": assigned.agent, "prompt": assigned.prompt, "id": added.task},
            system=assigned.system,
            delegates=added.depth < self._job.limits.depth,
        )

    def rules(self, task: Task) -> str:
        """What an agent is told first."""
        if not task.delegates:
            return task.system or self._job.system
        if task.system is None:
            return rules(self._endpoint.model, self._job.system)
        return task.system if knows_swarm(self._endpoint.model) else f"{task.system}\n\n{LESSON}"

    def branch(self, task: Task) -> str:
        """The node of the tree of caps that pays for a task and all below it."""
        parent = self._kit.graph.task(task.id).parent
        above = RUN_NODE if parent is None else branch_node(parent)
        if not task.delegates:
            return above
        node = branch_node(task.id)
        self._kit.money.set_cap(node, None, parent=above)
        return node

    # -- delegation.Swarm ---------------------------------------------------------------------------------------------

    def assign(self, agent: str, wanted: Sequence[Assignment]) -> list[str]:
        refusals: list[str] = []
        new: dict[str, NewTask] = {}
        #: Those that the money would not last for, and what is said of it.
        dear: dict[str, str] = {}
        for one in wanted:
            twin = new.get(one.id)
            if twin is not None:  # identical tasks of one turn are one, unless the model named them
                refusals.append(_taken(one.id) if one.named or twin.spec != one.spec else "")
                continue
            refusals.append(self._why_not(agent, one))
            there = one.id in self._kit.graph
            if refusals[-1] or (there and not self._given_up(one)):
                continue
            why = self._too_dear(1 + len(new) - len(dear))
            if not there:
                new[one.id] = self._new(agent, one)
                dear |= {one.id: why} if why else {}
            elif not why:
                self._again(one.id)
            refusals[-1] = why if there else ""
        events, errors = self._add(list(new.values()))
        refusals = [
            refusal or errors.get(one.id) or dear.get(one.id, "") for one, refusal in zip(wanted, refusals, strict=True)
        ]
        if events:
            self._kit.stream.publish(*events)
            added = [event for event in events if isinstance(event, TaskAdded)]
            self._workforce.admit([self._task(one) for one in added])
        for one, refusal in zip(wanted, refusals, strict=True):
            if not refusal or (one.id in dear and one.id not in errors):
                self._own(agent, one.id)
        self._workforce.note_ready([event.task for event in events if isinstance(event, TaskReady)])
        self._workforce.refuse([task for task in dear if task not in errors], REFUSED)
        return refusals

    def _why_not(self, agent: str, one: Assignment) -> str:
        if self._workforce.refuses:
            return f"No task can be added: {self._workforce.refuses}."
        if one.id == MERGE:
            return f"The id {MERGE!r} names the merge of the run itself. Choose another."
        if one.id in self._kit.graph:
            there = self._kit.graph.task(one.id)
            mine = there.assigned is not None and there.spec == one.spec
            another = there.assigned is not None and there.assigned.call != one.assigned.call
            if not mine or (one.named and another and not self._refused(one.id)):
                return _taken(one.id)
            if one.id in self._above(agent):  # it would wait for itself, and its end would end itself
                return f"This is the very task {one.id!r} that you work on, or that it is part of: do it yourself."
        return ""

    def _above(self, agent: str) -> set[str]:
        """An agent, and all whose work it is part of."""
        stack, seen = [agent], {agent}
        while stack:
            for owner in self._owners.get(stack.pop(), ()):
                if owner not in seen:
                    seen.add(owner)
                    stack.append(owner)
        return seen

    def _given_up(self, one: Assignment) -> bool:
        """Whether a task was stopped on account of others, who asked for the same: whoever asks now wants it run."""
        end = self._kit.graph.outcome(one.id)
        stopped = end is not None and not one.named and end.status in (Status.CANCELLED, Status.SKIPPED)
        return stopped or self._refused(one.id)

    def _refused(self, task: str) -> bool:
        """Whether the money would not last for it when it was asked for, so that it never began."""
        end = self._kit.graph.outcome(task)
        return end is not None and end.status is Status.BUDGET and not end.attempts

    def _too_dear(self, more: int) -> str:
        """Why the money would not last for so many more tasks; "" if it would.

        It must be enough for all that are open to come to an answer: those that wait for others have paid for their
        questions and would have nothing to say.
        """
        money, answered = self._kit.money, self._kit.stream.progress.model_total.count
        left = money.unspent(RUN_NODE)
        if left is None or not answered:
            return ""
        tasks = self._workforce.unended + more
        if tasks * _CALLS_TO_COME * money.ledger.spent(RUN_NODE) / answered <= left:
            return ""
        if not self._told_of_money:
            self._told_of_money = True
            said = (
                "The budget would not last for all that agents asked for: the tasks that were refused end as `budget`. "
                "A resume with a larger --budget runs them; an answer that was written without them stays as it is."
            )
            self._kit.stream.publish(Notice(said, "warning"))
        return (
            f"The budget would not last for more: ${left / DOLLAR:.4f} of it are left, and {tasks - more} tasks "
            "have not ended. Do this work yourself, or answer from what you have, and say what is missing."
        )

    def _new(self, agent: str, one: Assignment) -> NewTask:
        label = " ".join(one.assigned.prompt.split())[:80]
        return NewTask(
            id=one.id,
            spec=one.spec,
            label=f"{one.assigned.agent}: {label}",
            needs=one.needs,
            parent=agent,
            priority=one.priority,
            assigned=one.assigned,
        )

    def _add(self, tasks: list[NewTask]) -> tuple[list[Fact], dict[str, str]]:
        """All of them, or where one is wrong, all that can be: each for itself, after those that it needs."""
        graph = self._kit.graph
        events: list[Fact] = []
        errors: dict[str, str] = {}
        if not tasks:
            return [], {}
        try:
            return graph.add(tasks), {}
        except GraphError as error:
            if len(tasks) == 1:
                return [], {tasks[0].id: str(error)}
        for task in needed_first(tasks):
            try:
                events += graph.add([task])
            except GraphError as error:
                errors[task.id] = str(error)
        return events, errors

    def _own(self, agent: str, task: str) -> None:
        self._children.setdefault(agent, {})[task] = None
        self._owners.setdefault(task, set()).add(agent)

    async def outcome(self, agent: str, task: str) -> Outcome:
        return await self.first(agent, [task])

    async def first(self, agent: str, tasks: Sequence[str]) -> Outcome:
        for task in tasks:
            self._check_known(task)
            end = self._kit.graph.outcome(task)
            if end is not None:
                return end
        for task in tasks:
            self._refuse_cycle(agent, task)
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        seat, now = self._workforce.seat(agent), asyncio.get_running_loop().time()
        for task in tasks:
            self._waits.add(agent, task, now=now)
            self._waiters.setdefault(task, []).append(waiter)
        self._news.set()
        try:
            seat.leave()
            with suppress(WaitRefused):  # it goes on in its seat then, too
                await waiter
        finally:
            for task in tasks:
                self._waits.remove(agent, task)
                self._waiters[task].remove(waiter)
                if not self._waiters[task]:
                    del self._waiters[task]
        await seat.back()
        return waiter.result()

    async def ask(self, agent: str, task: str, question: str, key: CallKey) -> str:
        self._check_known(task)
        end, history = self._kit.graph.outcome(task), list(self._workforce.history(task))
        if end is not None:
            history = [Message("user", self._prompt_of(task)), Message("assistant", end.text or end.cause)]
        if not history:
            raise BadArguments(f"Task {task!r} has not begun: its agent knows nothing yet.")
        room = self._endpoint.context * 3 // 2
        known = f"# What you were asked, did and found\n\n{transcript(history, room)}\n\n# The question\n\n{question}"
        request = ChatRequest((Message("system", ASKED), Message("user", known)), max_tokens=_ANSWER)
        while True:
            key = replace(key, position=key.position + _ASKING)
            try:
                return (await self._kit.model.chat(request, Caller(key, task_node(agent)))).message.content
            except FingerprintMismatch:
                continue  # asked before the run broke, when the other agent knew something else: ask once more
            except ModelError as error:
                if concerns_all(error):
                    raise
                raise BadArguments(f"The question could not be answered: {error}") from None

    def _prompt_of(self, task: str) -> str:
        assigned = self._kit.graph.task(task).assigned
        return assigned.prompt if assigned is not None else self._roots[task].prompt

    def _check_known(self, task: str) -> None:
        if task not in self._kit.graph:
            raise BadArguments(f"There is no task {task!r} in this run.")

    def _refuse_cycle(self, agent: str, task: str) -> None:
        cycle = self._waits.cycle(agent, task)
        if cycle is not None:
            path = " -> ".join(cycle)
            raise WaitRefused(
                f"This wait was refused: it would never end, because these wait for each other: {path}. "
                f"Go on without the answer of {task!r}."
            )

    def cancel_child(self, agent: str, task: str) -> None:
        self._check_mine(agent, task)
        self._workforce.cancel(task, cause=f"cancelled by {agent}")

    def retry_child(self, agent: str, task: str) -> None:
        self._check_mine(agent, task)
        end = self._kit.graph.outcome(task)
        if self._kit.graph.epoch(task) and (end is None or end.status is Status.OK):
            return  # it was retried already: by another call of this turn, or by this one before the run broke
        too_dear = self._too_dear(1) if end is not None and end.status is not Status.OK else ""
        if too_dear:
            raise BadArguments(too_dear)
        self.retry(task)

    def retry(self, task: str) -> None:
        """Run a task afresh that did not end well. Raises `BadArguments`."""
        end = self._kit.graph.outcome(task)
        if end is None or end.status is Status.OK:
            raise BadArguments(f"Task {task!r} {'has not ended' if end is None else 'ended well'}: it is not retried.")
        if self._workforce.refuses:
            raise BadArguments(f"No task can be run: {self._workforce.refuses}.")
        failed = self._failed_need(task)
        if failed is not None:
            raise BadArguments(f"Task {task!r} needs {failed!r}, which did not end well: that one is to be run first.")
        self._again(task)

    def _failed_need(self, task: str) -> str | None:
        graph, added = self._kit.graph, self._kit.graph.task(task)
        ends = () if added.allow_failed else ((need, graph.outcome(need)) for need in added.needs)
        return next((need for need, end in ends if end is not None and end.status is not Status.OK), None)

    def _again(self, task: str) -> None:
        """Run a task that has ended, afresh. Where a need of it failed it is blocked again at once."""
        end, epoch = self._kit.graph.outcome(task), self._kit.calls.epoch(task)
        if end is None or end.status is not Status.SKIPPED:  # what a resume left out goes on where it was
            epoch += 1
        events = self._kit.graph.reset({task: epoch})
        for event in events:
            self._kit.calls.apply(event)
        self._kit.stream.publish(*events)
        if self._kit.graph.outcome(task) is None:
            self._workforce.reopen(task)
        self._workforce.note_ready([event.task for event in events if isinstance(event, TaskReady)])

    def _check_mine(self, agent: str, task: str) -> None:
        mine = self._children.get(agent, {})
        if task not in mine:
            there = ", ".join(map(repr, list(mine)[:20])) or "none"
            raise BadArguments(f"You assigned no task {task!r}. There is: {there}.")

    def file_of(self, task: str) -> str:
        return self._workforce.report(task)

    def read(self, file: str) -> str:
        try:
            return self._kit.folder.read(file)
        except (OSError, ConfigurationError):
            raise BadArguments(f"The file {file!r} cannot be read.") from None

    # -- ends ---------------------------------------------------------------------------------------------------------

    def ended(self, outcome: Outcome) -> None:
        """Tell those that wait for it."""
        for waiter in self._waiters.get(outcome.task, ()):
            if not waiter.done():
                waiter.set_result(outcome)

    def assigned(self, task: str) -> list[str]:
        """The tasks that one assigned."""
        return list(self._children.get(task, ()))

    def below(self, task: str) -> Iterator[str]:
        """All tasks below one that nobody else wants, from the top down."""
        stack, seen = [task], {task}
        while stack:
            for child in self._children.get(stack.pop(), ()):
                if child not in seen and self._owners[child] <= seen:
                    seen.add(child)
                    stack.append(child)
                    yield child

    def left_behind(self, task: str) -> list[str]:
        """The tasks that one assigned which have not ended, and that nobody else wants, now that it ends."""
        return [
            child
            for child in self._children.get(task, ())
            if self._kit.graph.outcome(child) is None and not any(map(self._wants, self._owners[child] - {task}))
        ]

    def _wants(self, owner: str) -> bool:
        return self._kit.graph.outcome(owner) is None

    # -- the second line ----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Break waits that cannot end and that no edge shows: where what is awaited is neither running nor queued."""
        loop = asyncio.get_running_loop()
        while True:
            if not len(self._waits):
                self._news.clear()
                await self._news.wait()
            await asyncio.sleep(_LOOK_EVERY)
            for agent in self._waits.stalled(loop.time(), self._moves)[:1]:
                why = f"This wait was broken: nothing that it waits for has moved for {STALLED:g} s."
                for task in self._waits.awaited(agent):
                    for waiter in self._waiters.get(task, ()):
                        if not waiter.done():
                            waiter.set_exception(WaitRefused(why))

    def _moves(self, task: str) -> bool:
        if task not in self._kit.graph:
            return False
        if self._workforce.paused(task):
            return True
        if self._workforce.running(task):
            return not self._waits.awaited(task)
        return self._kit.graph.state(task) == "ready"

    def _needs_of(self, task: str) -> Sequence[str]:
        """What a task that has not begun waits for."""
        graph = self._kit.graph
        if task not in graph or graph.state(task) != "waiting":
            return ()
        return [need for need in graph.needs(task) if graph.outcome(need) is None]


def _taken(task: str) -> str:
    return f"There is already a task {task!r}. Give each task an id of its own."
