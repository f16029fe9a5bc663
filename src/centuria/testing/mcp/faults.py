"""What can go wrong with an MCP server, and when it does. Pure: the seed and the numbers are passed in.

A fault is written `NAME[=VALUE][:TOOL][@WHEN]`:

    slow=2            every call takes two seconds
    slow=0.1-3@20%    a fifth of the calls, each as slow as the seed says
    crash@3           the third call kills the server
    mute:echo@2-5     the second to fifth call are not answered where they are of the tool `echo`
    status=503@/10    every tenth call

The n-th occasion of a kind (a start, a fetch of the list, a call) meets the same faults for the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

At = Literal["start", "list", "call"]
Carrier = Literal["stdio", "http"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: when it is met, over which carriers, and what it does. `value` is its default."""

    name: str
    at: At
    over: tuple[Carrier, ...]
    does: str
    value: float | None = None
    unit: str = ""


_BOTH: tuple[Carrier, ...] = ("stdio", "http")
_STDIO: tuple[Carrier, ...] = ("stdio",)
_HTTP: tuple[Carrier, ...] = ("http",)

FAULTS: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("no-start", "start", _STDIO, "ends before it has read anything, its last words on stderr", 3, "code"),
        FaultKind("slow-start", "start", _BOTH, "answers nothing before this time is over", 1, "s"),
        FaultKind("busy-start", "start", _STDIO, "spends processor time before it reads anything", 1, "CPU s"),
        FaultKind("silent", "start", _BOTH, "takes everything and never answers anything"),
        FaultKind("garbage", "start", _BOTH, "answers everything with bytes that are no message"),
        FaultKind("stubborn", "start", _STDIO, "ignores SIGTERM and the end of its input"),
        FaultKind("mute-list", "list", _BOTH, "never answers a fetch of the tool list"),
        FaultKind("loop", "list", _BOTH, "each page names the same next cursor"),
        FaultKind("endless", "list", _BOTH, "each page has a new next cursor, for ever"),
        FaultKind("wrong-list", "list", _BOTH, "the list of tools is of another shape"),
        FaultKind("slow", "call", _BOTH, "answers late", 1, "s"),
        FaultKind("mute", "call", _BOTH, "runs the call and never answers it"),
        FaultKind("late", "call", _BOTH, "answers so long after the call was cancelled, and only then", 0, "s"),
        FaultKind("twice", "call", _BOTH, "answers twice"),
        FaultKind("wrong-type", "call", _BOTH, "the result is a list, a text or a number"),
        FaultKind("missing-fields", "call", _BOTH, "the result has no content"),
        FaultKind("bad-rpc", "call", _BOTH, "the answer is JSON, but not JSON-RPC"),
        FaultKind("wrong-id", "call", _BOTH, "the answer is to a call that nobody made"),
        FaultKind("bad-json", "call", _BOTH, "the answer ends in the middle of its JSON"),
        FaultKind("bad-bytes", "call", _BOTH, "the answer holds bytes that are not UTF-8 and half a surrogate pair"),
        FaultKind("storm", "call", _BOTH, "says that its tool list has changed, so often", 500, "times"),
        FaultKind("crash", "call", _STDIO, "runs the call, answers half of it, and ends with this code", 1, "code"),
        FaultKind("junk", "call", _STDIO, "writes lines that are no message around the answer", 5, "lines"),
        FaultKind("flood", "call", _STDIO, "writes so much to stderr before it answers", 1_000_000, "bytes"),
        FaultKind("huge-line", "call", _STDIO, "writes one line of this length before it answers", 20_000_000, "bytes"),
        FaultKind("deaf", "call", _STDIO, "answers this call and reads nothing any more"),
        FaultKind("429", "call", _HTTP, "refuses with HTTP 429 and this Retry-After; nothing runs", 1, "s"),
        FaultKind("status", "call", _HTTP, "runs the call and answers with this HTTP status", 500, "status"),
        FaultKind("forget", "call", _HTTP, "has forgotten the session (HTTP 404); nothing runs"),
        FaultKind("reset", "call", _HTTP, "runs the call and closes the connection without an answer"),
        FaultKind("half", "call", _HTTP, "hangs up in the middle of the answer's body"),
        FaultKind("cut-sse", "call", _HTTP, "begins an event stream and ends it without the answer"),
        FaultKind("html", "call", _HTTP, "answers with a web page"),
    )
}

_SPEC = re.compile(
    r"(?P<name>[a-z0-9-]+?)(=(?P<low>\d+(\.\d+)?)(-(?P<high>\d+(\.\d+)?))?)?(:(?P<tool>[^@:]+))?(@(?P<when>[^@]+))?"
)
_WHEN = re.compile(r"(?P<share>\d+(\.\d+)?)%|/(?P<every>\d+)|(?P<first>\d+)(?P<to>-(?P<last>\d*))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a server. `value` is the least and the most of it; `share` None: on the numbers that are named."""

    kind: FaultKind
    value: tuple[float, float] = (0.0, 0.0)
    tool: str = ""
    share: float | None = None
    every: int = 1
    first: int = 1
    last: int | None = None

    def met(self, seed: int, number: int, tool: str = "") -> bool:
        """Whether the occasion of this number (1..) meets it."""
        if self.tool and tool != self.tool:
            return False
        if self.share is not None:
            return Random(f"{seed}/{self.kind.name}/{number}").random() < self.share
        return number >= self.first and (self.last is None or number <= self.last) and number % self.every == 0

    def amount(self, seed: int, number: int) -> float:
        """Its value on this occasion."""
        low, high = self.value
        return low if low == high else Random(f"{seed}/{self.kind.name}/{number}/value").uniform(low, high)


def parse_fault(text: str) -> Fault:
    """Read `NAME[=VALUE][:TOOL][@WHEN]`. Raises `ValueError` that says what is wrong."""
    found = _SPEC.fullmatch(text)
    name = found["name"] if found else text
    kind = FAULTS.get(name)
    if found is None or kind is None:
        raise ValueError(f"{text!r} is no fault: write NAME[=VALUE][:TOOL][@WHEN], NAME one of {', '.join(FAULTS)}")
    if found["low"] is not None and kind.value is None:
        raise ValueError(f"{text!r}: {name} takes no value")
    if found["tool"] and kind.at != "call":
        raise ValueError(f"{text!r}: {name} is met at a {kind.at}, not at the call of a tool")
    low = float(found["low"]) if found["low"] else float(kind.value or 0)
    high = float(found["high"]) if found["high"] else low
    if high < low:
        raise ValueError(f"{text!r}: the range of its value ends before it begins")
    return _timed(Fault(kind, (low, high), found["tool"] or ""), found["when"], text)


def _timed(fault: Fault, when: str | None, text: str) -> Fault:
    if when is None:
        return fault
    found = _WHEN.fullmatch(when)
    if found is None:
        raise ValueError(f"{text!r}: {when!r} is no time; write 3, 3-5, 3-, 20% or /10")
    kind, value, tool = fault.kind, fault.value, fault.tool
    if found["share"]:
        return Fault(kind, value, tool, share=float(found["share"]) / 100)
    if found["every"]:
        return Fault(kind, value, tool, every=max(1, int(found["every"])))
    first = int(found["first"])
    last = (int(found["last"]) if found["last"] else None) if found["to"] else first
    return Fault(kind, value, tool, first=first, last=last)


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of one server."""

    faults: Sequence[Fault] = ()
    seed: int = 0

    @classmethod
    def of(cls, faults: Iterable[str], seed: int, over: Carrier) -> Plan:
        """Raises `ValueError` for a fault that does not exist, or not over this carrier."""
        read = tuple(map(parse_fault, faults))
        for fault in read:
            if over not in fault.kind.over:
                raise ValueError(f"{fault.kind.name} does not happen over {over}")
        return cls(read, seed)

    def hits(self, at: At, number: int, tool: str = "") -> dict[str, float]:
        """The faults that the occasion of this number meets, each with its value."""
        return {
            fault.kind.name: fault.amount(self.seed, number)
            for fault in self.faults
            if fault.kind.at == at and fault.met(self.seed, number, tool)
        }


def as_markdown() -> str:
    """The table of faults, for the page."""
    lines = ["| Fault | Met at | Over | Value | What the server does |", "|---|---|---|---|---|"]
    for kind in FAULTS.values():
        value = f"{kind.value:g} {kind.unit}" if kind.value is not None else ""
        lines.append(f"| `{kind.name}` | a {kind.at} | {', '.join(kind.over)} | {value} | {kind.does} |")
    return "\n".join(lines)
