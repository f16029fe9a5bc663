"""A row of the torture table: what the upstream does, and what a right client does then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from centuria.messages import Usage
from centuria.testing.replies import Calls, Cut, Document, Late, Reply, Stall, Text
from centuria.testing.torture.clients import ErrorKind
from centuria.testing.upstream import RateLimits, Seen

Mode = Literal["streamed", "whole"]
#: A reply, or what makes one when the request is there, from the upstream's base URL.
Step = Reply | Callable[[str], Reply]

#: The kinds of fault, numbered as in the list that they were collected in: each was reported by users of such
#: systems, or measured.
KINDS = {
    0: "the providers' own dialects, and plain HTTP",
    30: "`Retry-After` in every form, legal or not",
    31: "limits of requests, tokens and concurrency, and retries in lockstep",
    32: "retries of what can never succeed",
    33: "streamed tool calls with missing or repeated `index`",
    34: "tool ids that repeat, or are missing",
    35: "`finish_reason`, and `length` inside a tool call",
    36: "errors inside a 200, empty choices, comments, no `[DONE]`, broken streams, silence",
    37: "surrogates, half characters, NUL, and other text that breaks the next request",
    38: "`reasoning_content` that is not sent back",
    39: "the text of an old attempt shown twice",
    41: "usage in every place",
    42: "cached tokens billed twice",
    43: "usage in `choices[0]`, or absent",
    48: "lines split across reads",
    54: "keys in errors",
}


@dataclass(frozen=True, slots=True)
class Want:
    """What one call must come to. `errors` empty: an answer, with exactly this text and these calls.

    A call is (name, arguments): parsed where they are JSON, else the text. `requests` are the least and the most;
    `waits`: the seconds that must lie between the first two; `within`: the most that all of it may take.
    `usage` None is not looked at, "none" must be none.
    """

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    errors: tuple[ErrorKind, ...] = ()
    requests: tuple[int, int] = (1, 1)
    usage: Usage | Literal["none"] | None = None
    waits: float = 0.0
    within: float = 20.0


@dataclass(frozen=True, slots=True)
class Forbidden:
    """What must not happen, and whether it did: asked of all requests that arrived."""

    text: str
    happened: Callable[[Sequence[Seen]], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """`streamed` and `whole` are the replies, request by request, to a client that streams and to one that does
    not; the last one is given again and again, and () means that the row is not for that mode.

    There is a `wants` for each turn of the conversation; `crowd` calls are made at the same time.
    """

    name: str
    kind: int
    wants: tuple[Want, ...]
    streamed: tuple[Step, ...] = ()
    whole: tuple[Step, ...] = ()
    crowd: int = 1
    limits: RateLimits | None = None
    forbids: tuple[Forbidden, ...] = ()

    @property
    def modes(self) -> tuple[Mode, ...]:
        streamed: tuple[Mode, ...] = ("streamed",) if self.streamed else ()
        return (*streamed, "whole") if self.whole else streamed

    def steps(self, mode: Mode) -> tuple[Step, ...]:
        """The replies; where nothing is streamed, answers are documents."""
        return self.streamed if mode == "streamed" else tuple(_as_whole(step) for step in self.whole)


USAGE = Usage(prompt=21, output=7)
ANSWER = "The answer, größer als 😀."
OK = Text(ANSWER, usage=USAGE, piece=5)


def answered(text: str = ANSWER, requests: int | tuple[int, int] = 1, **more: Any) -> Want:
    return Want(text=text, requests=_range(requests), **{"usage": USAGE, **more})


def called(*calls: tuple[str, Any], requests: int | tuple[int, int] = 1, **more: Any) -> Want:
    return Want(calls=calls, requests=_range(requests), **more)


def failed(*errors: ErrorKind, requests: int | tuple[int, int] = 1, **more: Any) -> Want:
    return Want(errors=errors, requests=_range(requests), **more)


def both(name: str, kind: int, want: Want | tuple[Want, ...], *steps: Step, **more: Any) -> Row:
    """The same replies in both modes."""
    return Row(name, kind, _wants(want), steps, steps, **more)


def streamed(name: str, kind: int, want: Want | tuple[Want, ...], *steps: Step, **more: Any) -> Row:
    return Row(name, kind, _wants(want), streamed=steps, **more)


def whole(name: str, kind: int, want: Want | tuple[Want, ...], *steps: Step, **more: Any) -> Row:
    return Row(name, kind, _wants(want), whole=steps, **more)


def describe(row: Row) -> str:
    """The right behaviour in words."""
    said = [_say(want, row) for want in row.wants]
    forbidden = [f"never: {item.text}" for item in row.forbids]
    return "; then ".join(said) + "".join(f"; {item}" for item in forbidden)


def _say(want: Want, row: Row) -> str:
    if want.errors:
        parts = ["error: " + " or ".join(want.errors)]
    elif want.calls:
        parts = [f"{len(want.calls)} tool call" + ("s" if len(want.calls) > 1 else "")]
    else:
        parts = ["the answer" if want.text else "no text, no calls"]
    low, high = want.requests
    many = f"{low}" if low == high else f"{low} to {high}"
    parts.append(f"{many} request" + ("s" if high > 1 else ""))
    if row.crowd > 1:
        parts[0] = f"each of {row.crowd}: {parts[0]}"
        parts[1] += " in all"
    if want.waits:
        parts.append(f"{want.waits:g} s apart or more")
    if want.usage == "none":
        parts.append("no usage")
    elif want.usage is not None and want.usage != USAGE:
        cached = f" ({want.usage.cached} cached)" if want.usage.cached else ""
        parts.append(f"usage {want.usage.prompt}{cached} + {want.usage.output}")
    return ", ".join(parts)


def _as_whole(step: Step) -> Step:
    if isinstance(step, Text | Calls):
        return Document(step)
    if isinstance(step, Late) and isinstance(step.reply, Text | Calls):
        return Late(Document(step.reply), step.seconds)
    assert not isinstance(step, Cut | Stall), "a document has no pieces"
    return step


def _range(requests: int | tuple[int, int]) -> tuple[int, int]:
    return (requests, requests) if isinstance(requests, int) else requests


def _wants(want: Want | tuple[Want, ...]) -> tuple[Want, ...]:
    return (want,) if isinstance(want, Want) else want
