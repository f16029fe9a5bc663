"""The pure machines of a run: begun with its job, or folded from its journal and put back to work."""

from __future__ import annotations

from dataclasses import replace

from centuria import __version__
from centuria.core.calls import CallLedger
from centuria.core.governor import Governor
from centuria.core.graph import NewTask, TaskGraph
from centuria.core.landing import SoftLanding
from centuria.core.money import Ledger
from centuria.core.progress import Progress
from centuria.core.rates import RateLimits
from centuria.core.warmup import WarmUp
from centuria.events import Event, FileWritten, PhaseStarted, RunResumed, RunStarted, TaskEnded
from centuria.journal import SqliteJournal
from centuria.launch import Launch
from centuria.messages import Status
from centuria.resume import plan_resume
from centuria.settings import Job
from centuria.stream import Stream


class Cores:
    """The pure machines of a run, to be folded together."""

    def __init__(self, launch: Launch) -> None:
        limits = launch.job.limits
        self.graph = TaskGraph(max_depth=limits.depth, max_tasks=limits.tasks)
        self.calls = CallLedger()
        self.ledger = Ledger()
        self.landing = SoftLanding()
        self.governor = governor_of(launch)
        self.warmup = WarmUp(launch.endpoint.model)
        self.progress = Progress()
        #: Tasks that ended ok in a broken run whose file was not yet written.
        self.unwritten: set[str] = set()

    def restore(self, journal: SqliteJournal) -> int:
        """Fold a journal. Returns the number of its last record."""
        seq = 0
        for record in journal.read():
            seq = record.seq
            self.progress.record(record)
            for core in (self.graph, self.calls, self.ledger, self.landing, self.governor, self.warmup):
                core.apply(record.event)
            self._note_file(record.event)
            # What did not end ok may run again, and then replays its calls.
            if isinstance(record.event, TaskEnded) and record.event.outcome.status is Status.OK:
                self.calls.forget(record.event.task)
        return seq

    def _note_file(self, event: Event) -> None:
        if isinstance(event, TaskEnded) and event.outcome.status is Status.OK:
            self.unwritten.add(event.task)
        elif isinstance(event, FileWritten) and event.task is not None:
            self.unwritten.discard(event.task)

    def begin(self, launch: Launch, stream: Stream) -> None:
        """Say how a new run begins, and add its tasks."""
        limits = launch.job.limits
        started = RunStarted(
            run=launch.run,
            name=launch.job.name,
            model=launch.endpoint.model,
            rehearsal=launch.rehearse,
            replay=launch.tape.replay is not None,
            priced=launch.priced,
            budget=limits.budget,
            agents=limits.agents,
            concurrency=limits.concurrency,
            version=__version__,
        )
        stream.publish(started, PhaseStarted("prepare"), *self.graph.add(new_tasks(launch.job)))

    def resume(self, launch: Launch, stream: Stream) -> None:
        """Say what is known of the broken run, then put back what is to run again."""
        job, resume = launch.job, launch.resume
        in_doubt = len(self.calls.in_doubt())
        lost = self.calls.resolve_in_doubt(billed=not launch.rehearse)  # a scripted model sends no bill
        for fact in lost:
            self.ledger.apply(fact)
        plan = plan_resume(job, self.graph, self.calls, only=resume.only if resume else None)
        resumed = RunResumed(len(plan.reused), len(plan.resets) + len(plan.added), in_doubt, job.limits.budget)
        for core in (self.governor, self.warmup):
            core.apply(resumed)
        stream.publish(resumed, *lost)
        stream.publish(PhaseStarted("prepare"), *self.ledger.recover())
        events = self.graph.end_all(plan.dropped) if plan.dropped else []
        events += self.graph.reset(plan.resets, specs={task.id: task.spec for task in job.tasks})
        events += self.graph.add([task for task in new_tasks(job) if task.id in plan.added])
        for event in events:
            self.calls.apply(event)
        if events:
            stream.publish(*events)


def governor_of(launch: Launch) -> Governor:
    """The governor of the run's model. A limit that nobody stated is found out."""
    limits, known = launch.job.limits, launch.account
    if launch.rehearse or launch.tape.replay is not None:
        known = RateLimits(concurrency=limits.concurrency)
    most, why = limits.concurrency, ""
    if known.concurrency is not None and known.concurrency < most:
        most, why = known.concurrency, f"the account's concurrency is {known.concurrency} (limits.tier)"
    elif limits.concurrency_written:
        known = replace(known, concurrency=most)
    return Governor(launch.endpoint.model, most=most, known=known, why=why)


def new_tasks(job: Job) -> list[NewTask]:
    """The job's tasks as the graph takes them."""
    return [
        NewTask(
            id=task.id,
            spec=task.spec,
            label=task.label,
            needs=task.needs,
            priority=task.priority,
            allow_failed=task.allow_failed,
        )
        for task in job.tasks
    ]
