"""A run as records, simulated: the slot table's own events, money, calls, faults. Deterministic by seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from itertools import count

from centuria import events as e
from centuria.core.progress import Progress
from centuria.core.slots import SlotTable
from centuria.messages import (
    DOLLAR,
    CallKey,
    Completion,
    Message,
    Outcome,
    Status,
    ToolEnd,
    ToolResult,
    Usage,
)

START = 1_790_000_000.0
CENT = DOLLAR // 100
TOOLS = {"file__file_read": (30, 0.02), "code__code_exec": (5, 0.12), "web__web_search": (20, 0.9)}
NAMES = (
    "Apple",
    "Microsoft",
    "Alphabet",
    "Berkshire Hathaway",
    "Eli Lilly",
    "JPMorgan Chase",
    "Visa",
    "UnitedHealth",
)
Step = Iterator[tuple[str, object]]


class Story:
    """Tells a run of `tasks` tasks on `agents` slots. `faults` is the share of tasks that do not end ok."""

    def __init__(self, tasks: int = 100, agents: int = 100, *, faults: float = 0.06, seed: int = 1) -> None:
        self.tasks, self.agents, self.faults = tasks, agents, faults
        self.dice = random.Random(seed)
        self.records: list[e.Record] = []
        self.table = SlotTable()
        self.now = 0.0
        self.tickets, self.holds = count(1), count(1)
        self.order = count()
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.wakers: dict[int, Callable[[], None]] = {}
        self.pending = list(range(tasks))

    def tell(self) -> list[e.Record]:
        self.put(
            e.RunStarted(
                "20260901-120000-market",
                "market-reports",
                "kimi-k2.5",
                True,
                5 * DOLLAR,
                self.agents,
                self.agents,
                "0.1.0",
            ),
            e.PhaseStarted("prepare"),
            e.ServerUp("file", "file", ("file__file_read",), 30),
            e.ServerUp("code", "code", ("code__code_exec",), 5),
            e.ServerUp("web", "web", ("web__web_search",), 20),
            e.ServerUp("db", "my-database", ("db__query",), 4),
            e.CapSet("run", None, 5 * DOLLAR),
        )
        limits = {"agents": self.agents, "model:kimi-k2.5": max(5, self.agents * 8 // 10)}
        limits |= {f"tool:{tool}": limit for tool, (limit, _) in TOOLS.items()}
        for resource, limit in limits.items():
            self.put(*self.table.set_limit(resource, limit, "configured", now=0.0))
        for number in range(self.tasks):
            name = f"{NAMES[number % len(NAMES)]} {number}"
            self.put(e.TaskAdded(f"T{number:04d}", number, f"spec{number}", name))
        self.put(e.PhaseStarted("work"), *(e.TaskReady(f"T{number:04d}") for number in range(self.tasks)))
        self.put(e.Notice("2 rows were left out: they have no symbol.", "info"))
        for _ in range(min(self.agents, self.tasks)):
            self.run(self.worker())
        while self.agenda:
            self.now, _, resume = heapq.heappop(self.agenda)
            resume()
        self.put(e.PhaseStarted("merge"))
        self.run(self.merge())
        while self.agenda:
            self.now, _, resume = heapq.heappop(self.agenda)
            resume()
        self.put(e.FileWritten("table.csv"), e.FileWritten("summary.md"), e.RunEnded("partial", 3))
        return self.records

    def put(self, *facts: e.Fact) -> None:
        for fact in facts:
            self.records.append(e.Record(len(self.records) + 1, START + self.now, fact))

    def act(self, facts: list[e.Fact]) -> None:
        self.put(*facts)
        for fact in facts:
            if isinstance(fact, e.SlotGranted) and fact.ticket in self.wakers:
                heapq.heappush(self.agenda, (self.now, next(self.order), self.wakers.pop(fact.ticket)))

    def run(self, steps: Step) -> None:
        """Go on with a coroutine of steps until it waits for time or for a slot."""
        for kind, value in steps:
            if kind == "wait":
                assert isinstance(value, float)
                heapq.heappush(self.agenda, (self.now + value, next(self.order), lambda: self.run(steps)))
                return
            assert isinstance(value, tuple)
            ticket, resource, agent, index = value
            self.wakers[ticket] = lambda: self.run(steps)
            self.act(self.table.ask(ticket, resource, agent, index=index, priority=5, now=self.now, deadline=None))
            return

    def worker(self) -> Step:
        while self.pending:
            number = self.pending.pop(0)
            task, ticket = f"T{number:04d}", next(self.tickets)
            yield "slot", (ticket, "agents", task, number)
            self.put(e.TaskStarted(task, 0))
            yield from self.agent(number, task)
            self.act(self.table.leave(ticket, now=self.now))

    def agent(self, number: int, task: str) -> Step:
        cost = held = 0
        used = Usage()
        turns = self.dice.randint(2, 3)
        unlucky = self.dice.random() < self.faults
        status, cause = Status.OK, ""
        for turn in range(turns):
            lost = self.dice.random() < 0.03
            spent, usage, reserved = yield from self.model(task, number, turn, lost=lost)
            cost, held = cost + spent, held + (reserved if lost else 0)
            used = Usage(used.prompt + usage.prompt, used.cached + usage.cached, 0, used.output + usage.output, 0)
            if unlucky and turn == turns - 1:
                status, cause = self.dice.choice(
                    [
                        (Status.TIMEOUT, f"No first token within 60 s (attempt {self.dice.randint(2, 4)})."),
                        (
                            Status.FAILED,
                            "Your answer does not fit the schema: at $.rank: 'n/a' is not a number.",
                        ),
                        (Status.BUDGET, "The cap of run leaves no room for this call."),
                    ]
                )
            elif turn < turns - 1:
                for position in range(1, self.dice.randint(2, 4)):
                    yield from self.tool(task, number, turn, position)
        outcome = Outcome(
            task, status, cause, "A report.", steps=turns, attempts=turns, usage=used, cost=cost, held=held
        )
        self.put(e.TaskEnded(task, outcome))
        if status is Status.OK:
            self.put(e.FileWritten(f"reports/{task}.md", task))

    def model(self, task: str, index: int, turn: int, *, lost: bool = False) -> Iterator[tuple[str, object]]:
        hold, ticket, reserved = next(self.holds), next(self.tickets), 3 * CENT
        key = CallKey(task, 0, turn, 0)
        self.put(e.MoneyReserved(hold, f"task:{task}", reserved))
        yield "slot", (ticket, "model:kimi-k2.5", task, index)
        self.put(e.CallOpened(key, 1, "model", "kimi-k2.5", "f", True, hold, reserved))
        took = 0.42 + self.dice.expovariate(1 / 0.25)
        yield "wait", took
        if lost:
            self.put(e.CallClosed(key, 1, "lost", error="cut", partial="Apple is"), e.MoneyHeld(hold))
            hold = next(self.holds)
            self.put(e.MoneyReserved(hold, f"task:{task}", reserved))
            self.put(e.CallOpened(key, 2, "model", "kimi-k2.5", "f", True, hold, reserved))
            yield "wait", took
        usage = Usage(900 + 700 * turn, 600, 0, self.dice.randint(80, 900), 0)
        cost = usage.prompt * 600_000 + usage.output * 3_000_000
        done = Completion(Message("assistant", "text"), usage, "stop")
        closed = e.CallClosed(key, 1 + lost, "done", cost, usage, done, first_token_s=took / 3, total_s=took)
        self.put(closed, e.MoneySettled(hold, cost))
        self.act(self.table.leave(ticket, now=self.now))
        return cost, usage, reserved

    def tool(self, task: str, index: int, turn: int, position: int) -> Step:
        name = self.dice.choice(list(TOOLS))
        ticket, key = next(self.tickets), CallKey(task, 0, turn, position)
        yield "slot", (ticket, f"tool:{name}", task, index)
        self.put(e.CallOpened(key, 1, "tool", name, "f", True, arguments="{}"))
        took = self.dice.expovariate(1 / TOOLS[name][1])
        yield "wait", took
        end = ToolEnd.OK if self.dice.random() > 0.02 else ToolEnd.ERROR
        self.put(e.CallClosed(key, 1, "done", result=ToolResult("text", end), total_s=took))
        self.act(self.table.leave(ticket, now=self.now))

    def merge(self) -> Step:
        self.put(e.ServerDown("db", "my-database", "it exited with code 1: no such database"))
        self.put(e.Notice("The results were shortened to fit the model's context.", "warning"))
        yield from self.model("merge:ab12cd34", 0, 0)


def fold(records: list[e.Record], part: float = 1.0) -> Progress:
    """The progress after the first `part` of a story."""
    progress = Progress()
    for record in records[: round(len(records) * part)]:
        progress.record(record)
    return progress
