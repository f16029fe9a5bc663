"""Parts of the fold of events: slots with their queues, money, calls. They report and decide nothing."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from centuria import events as e
from centuria.core.measures import Sample, Timeline, Tokens
from centuria.core.rows import CallsRow, OpenCall, ResourceRow, TaskRow, TaskRows
from centuria.messages import Pico

AGENTS = "agents"
RATE_SECONDS = 10


@dataclass(slots=True)
class _Ticket:
    """A place in a queue or in service. `at` is the scheduler's clock, None until it is granted."""

    resource: str
    agent: str
    at: float | None = None
    slot: int = -1
    span: int = -1


@dataclass(slots=True)
class SlotTally:
    """Resources and tickets. `slots` maps an agent's slot to the task in it."""

    rows: TaskRows
    timeline: Timeline
    resources: dict[str, ResourceRow] = field(default_factory=dict)
    slots: dict[int, str] = field(default_factory=dict)
    tickets: dict[int, _Ticket] = field(default_factory=dict)

    def _resource(self, name: str) -> ResourceRow:
        row = self.resources.get(name)
        if row is None:
            row = self.resources[name] = ResourceRow(name)
        return row

    def limit_set(self, event: e.LimitSet, at: float) -> None:
        resource = self._resource(event.resource)
        resource.mark(at)
        resource.set_limit(event.limit, event.reason)

    def queued(self, event: e.SlotQueued, at: float) -> None:
        if event.ticket in self.tickets:
            return
        self.tickets[event.ticket] = _Ticket(event.resource, event.agent)
        resource = self._resource(event.resource)
        resource.waiting += 1
        resource.peak_waiting = max(resource.peak_waiting, resource.waiting)
        row = self.rows.get(event.agent)
        if row is not None:
            row.queued[event.ticket] = event.resource

    def granted(self, event: e.SlotGranted, at: float) -> None:
        resource = self._resource(event.resource)
        ticket = self.tickets.get(event.ticket)
        if ticket is None:
            ticket = self.tickets[event.ticket] = _Ticket(event.resource, event.agent)
        elif ticket.at is not None:
            return
        else:
            self._unqueue(event.ticket, ticket)
        ticket.at, ticket.slot = event.at, event.slot
        resource.mark(at)
        resource.in_use += 1
        resource.granted += 1
        if resource.in_use > resource.peak:
            resource.peak = resource.in_use
        resource.waits.add(event.waited)
        self._show(event, ticket, at)

    def _show(self, event: e.SlotGranted, ticket: _Ticket, at: float) -> None:
        """The timeline's part of a grant: an agent's life begins, or a wait is over."""
        row = self.rows.get(event.agent)
        if row is not None:
            row.waited += event.waited
            row.at_gate = event.resource.startswith("model:")
        if event.resource == AGENTS:
            self.slots[event.slot] = event.agent
            ticket.span = self.timeline.begin(event.slot, event.agent, "agent", "", at)
            if row is not None:
                row.slot = event.slot
        elif event.waited > 0:
            slot = -1 if row is None or row.slot is None else row.slot
            span = self.timeline.begin(slot, event.agent, "wait", event.resource, at - event.waited)
            self.timeline.end(span, at, "granted")

    def rejected(self, event: e.SlotRejected, at: float) -> None:
        resource = self._resource(event.resource)
        resource.rejected += 1
        resource.rejections[event.reason] += 1
        ticket = self.tickets.get(event.ticket)
        if ticket is not None and ticket.at is None:
            del self.tickets[event.ticket]
            self._unqueue(event.ticket, ticket)

    def _unqueue(self, number: int, ticket: _Ticket) -> None:
        self._resource(ticket.resource).waiting -= 1
        row = self.rows.get(ticket.agent)
        if row is not None:
            row.queued.pop(number, None)

    def left(self, event: e.SlotLeft, at: float) -> None:
        ticket = self.tickets.pop(event.ticket, None)
        if ticket is None:
            return
        if ticket.at is None:
            self._unqueue(event.ticket, ticket)
            return
        resource = self._resource(ticket.resource)
        resource.mark(at)
        resource.in_use -= 1
        resource.holds.add(event.at - ticket.at)
        row = self.rows.get(ticket.agent)
        if row is not None:
            row.at_gate = False
        if ticket.resource == AGENTS:
            state = row.status.value if row is not None and row.status is not None else ""
            self.timeline.end(ticket.span, at, state)
            if self.slots.get(ticket.slot) == ticket.agent:
                del self.slots[ticket.slot]
            if row is not None:
                row.slot = None

    def had(self, resources: tuple[str, ...], at: float) -> None:
        """A call begins that had a slot of each without a wait."""
        for name in resources:
            resource = self._resource(name)
            resource.mark(at)
            resource.in_use += 1
            resource.granted += 1
            if resource.in_use > resource.peak:
                resource.peak = resource.in_use
            resource.waits.add(0.0)

    def gave_back(self, resources: tuple[str, ...], at: float, seconds: float) -> None:
        """That call is over."""
        for name in resources:
            resource = self._resource(name)
            resource.mark(at)
            resource.in_use -= 1
            resource.holds.add(seconds)

    def vanish(self, at: float) -> None:
        """The process is gone, and all its tickets with it."""
        for resource in self.resources.values():
            resource.mark(at)
            resource.in_use, resource.waiting, resource.since = 0, 0, None
        for ticket in self.tickets.values():
            if ticket.span >= 0:
                self.timeline.end(ticket.span, at, "interrupted")
        self.tickets.clear()
        self.slots.clear()


@dataclass(slots=True)
class _Hold:
    """A reservation, and the task whose call it pays for once that is known."""

    amount: Pico
    task: str | None = None


@dataclass(slots=True)
class MoneyTally:
    """What is spent, reserved and held, by the ledger's events. A resume ends a dead process's own."""

    rows: TaskRows
    spent: Pico = 0
    reserved: Pico = 0
    held: Pico = 0
    cap: Pico | None = None
    phases: Counter[str] = field(default_factory=Counter)
    holds: dict[int, _Hold] = field(default_factory=dict)
    #: Holds that wait until reserved money comes free, each with its task ("" = of no task).
    owing: dict[int, str] = field(default_factory=dict)

    def cap_set(self, event: e.CapSet, at: float) -> None:
        if event.parent is None:
            self.cap = event.cap

    def queued(self, event: e.MoneyQueued, at: float) -> None:
        if event.hold in self.owing:
            return
        row = self.rows.get(event.node.partition(":")[2]) or self.rows.get(event.node)
        self.owing[event.hold] = row.task if row is not None else ""
        if row is not None:
            row.owing += 1

    def granted(self, event: e.MoneyReserved, at: float) -> None:
        self._wait_over(event.hold)
        if event.hold not in self.holds:
            self.holds[event.hold] = _Hold(event.amount)
            self.reserved += event.amount

    def refused(self, event: e.MoneyRefused, at: float) -> None:
        self._wait_over(event.hold)

    def settled(self, event: e.MoneySettled, at: float) -> None:
        if self._close(event.hold) is not None:
            self.spent += event.cost

    def forfeited(self, event: e.MoneyHeld, at: float) -> None:
        hold = self._close(event.hold)
        if hold is None:
            return
        self.held += hold.amount
        row = self.rows.get(hold.task) if hold.task is not None else None
        if row is not None and row.state != "ended":  # an outcome has counted what its task holds
            row.held += hold.amount

    def released(self, event: e.MoneyReleased, at: float) -> None:
        self._close(event.hold)

    def pays_for(self, hold: int | None, task: str) -> None:
        """A call of this task is paid by that reservation."""
        row = self.holds.get(hold) if hold is not None else None
        if row is not None:
            row.task = task

    def _wait_over(self, hold: int) -> None:
        row = self.rows.get(self.owing.pop(hold, ""))
        if row is not None and row.owing:
            row.owing -= 1

    def _close(self, hold: int) -> _Hold | None:
        self._wait_over(hold)
        row = self.holds.pop(hold, None)
        if row is not None:
            self.reserved -= row.amount
        return row


@dataclass(slots=True)
class CallTally:
    """Model and tool calls: by name, in time, in tokens, with the slots that they had without a wait.

    `busy` is the seconds of all ended ones, summed.
    `rate` holds (second, output tokens of the calls that ended in it) of the last seconds.
    """

    rows: TaskRows
    timeline: Timeline
    money: MoneyTally
    slots: SlotTally
    models: dict[str, CallsRow] = field(default_factory=dict)
    tools: dict[str, CallsRow] = field(default_factory=dict)
    usage: Tokens = field(default_factory=Tokens)
    first_token: Sample = field(default_factory=Sample)
    model_total: Sample = field(default_factory=Sample)
    busy: float = 0.0
    rate: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_SECONDS + 1))

    def _named(self, name: str, tool: bool) -> CallsRow:
        table = self.tools if tool else self.models
        row = table.get(name)
        if row is None:
            row = table[name] = CallsRow(name, "tool" if tool else "model")
        return row

    def opened(self, event: e.CallOpened, at: float) -> None:
        key, tool = event.key, event.call == "tool"
        row = self.rows.need(key.task)
        self._named(event.name, tool).opened += 1
        row.turn = max(row.turn, key.turn + 1)
        if tool:
            row.tool_calls += 1
        else:
            row.attempts += 1
            row.at_gate = False
        before = row.calls.get(key)
        if before is not None:
            self.timeline.end(before.span, at, "superseded")
            self.slots.gave_back(before.slots, at, max(0.0, at - before.at))
        slot = -1 if row.slot is None else row.slot
        span = self.timeline.begin(slot, key.task, event.call, event.name, at)
        row.calls[key] = OpenCall(event.call, event.name, event.attempt, at, span, event.slots)
        self.slots.had(event.slots, at)
        self.money.pays_for(event.hold, key.task)

    def closed(self, event: e.CallClosed, at: float) -> None:
        key = event.key
        row = self.rows.need(key.task)
        opened = row.calls.get(key)
        name, tool = "(not known)", key.position > 0
        if opened is not None and opened.attempt == event.attempt:
            del row.calls[key]
            name, tool = opened.name, opened.call == "tool"
            seconds = max(0.0, at - opened.at)
            self.busy += seconds
            self.slots.gave_back(opened.slots, at, seconds)
            self.timeline.end(opened.span, at, event.end)
        calls = self._named(name, tool)
        calls.ends[event.end] += 1
        calls.cost += event.cost
        if row.state != "ended":  # an outcome has counted what its task cost
            row.cost += event.cost
        phase = "work" if key.task in self.rows.tasks else key.task.partition(":")[0]
        self.money.phases[phase] += event.cost
        if event.result is not None:
            calls.results[event.result.end.value] += 1
        if event.end == "done":
            calls.total.add(event.total_s)
        if not tool:
            self._answered(event, row, calls, at)

    def _answered(self, event: e.CallClosed, row: TaskRow, calls: CallsRow, at: float) -> None:
        done = event.end == "done"
        if done:
            self.model_total.add(event.total_s)
        if event.first_token_s is not None:
            self.first_token.add(event.first_token_s)
            calls.first_token.add(event.first_token_s)
        if event.usage is None:
            self.usage.missing += done
            row.usage.missing += done
            calls.usage.missing += done
            return
        self.usage.add(event.usage)
        calls.usage.add(event.usage)
        if row.state != "ended":
            row.usage.add(event.usage)
        second = int(at)
        if self.rate and self.rate[-1][0] == second:
            self.rate[-1] = (second, self.rate[-1][1] + event.usage.output)
        else:
            self.rate.append((second, event.usage.output))
